//! Finds circles of files in a crate. File A uses file B if a path in the code of A, outside of tests, names an item
//! that B defines. Re-exports are followed: if the parent of A re-exports `Item` of B, `super::Item` in A is a use of
//! B. A method call is not counted as a use of the file that defines the method.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::{without_tests, words};

/// Largest number of re-exports followed for a path. Without this bound, a ring of imports would be followed for ever.
const REEXPORTS_MAX: usize = 8;

/// A path's segments, without `::`.
type Segments = Vec<String>;

#[derive(Debug, Default)]
struct Module {
    file: String,
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
    /// Imported names with their paths.
    imports: BTreeMap<String, Segments>,
    /// All paths in the code, imports included.
    paths: Vec<Segments>,
}

/// The modules of a crate, by their paths from the crate root.
type Modules = BTreeMap<Segments, Module>;

/// The files of a circle; for each file, the files of the circle that this file uses.
pub(crate) type Circle = BTreeMap<String, Vec<String>>;

/// Returns the circles of a crate, given paths and texts of its files.
pub(crate) fn of_crate(files: &[(String, String)]) -> Vec<Circle> {
    let modules = modules(files);
    let mut uses: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (at, module) in &modules {
        let used =
            module.paths.iter().filter_map(|path| definer(&modules, &absolute(&modules, at, path)?, 0));
        uses.insert(&module.file, used.filter(|file| *file != module.file).collect());
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        uses.keys().map(|file| (*file, reach(&uses, file))).collect();
    let mut circles: BTreeSet<BTreeSet<&str>> = BTreeSet::new();
    for (file, others) in reached.iter().filter(|(file, others)| others.contains(*file)) {
        circles.insert(others.iter().filter(|other| reached[*other].contains(file)).copied().collect());
    }
    let used_within = |file: &str, circle: &BTreeSet<&str>| {
        (file.to_owned(), uses[file].intersection(circle).map(|file| (*file).to_owned()).collect())
    };
    circles.iter().map(|circle| circle.iter().map(|file| used_within(file, circle)).collect()).collect()
}

/// Returns all files that `from` uses, directly or through other files.
fn reach<'a>(uses: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut todo: Vec<&str> = uses[from].iter().copied().collect();
    while let Some(file) = todo.pop() {
        if reached.insert(file) {
            todo.extend(&uses[file]);
        }
    }
    reached
}

fn modules(files: &[(String, String)]) -> Modules {
    let mut tests = BTreeSet::new();
    let mut modules = Modules::new();
    for (path, text) in files.iter().filter(|(path, _)| !path.contains("/bin/")) {
        let at = module_path(path);
        let (lines, test_modules) = without_tests(text);
        tests.extend(test_modules.into_iter().map(|name| joined(&at, &[name.to_owned()])));
        modules.insert(at, read(path, &lines.join("\n")));
    }
    modules.retain(|at, _| !(1..=at.len()).any(|len| tests.contains(&at[..len])));
    modules
}

/// Returns the module path of `file`: its directories and stem after `src`, without `mod`, `lib` and `main`.
fn module_path(file: &str) -> Segments {
    let inside = file.split_once("src/").map_or(file, |(_, inside)| inside).trim_end_matches(".rs");
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    inside.split('/').filter(|name| !matches!(*name, "lib" | "main")).map(str::to_owned).collect()
}

fn read(file: &str, code: &str) -> Module {
    let mut module = Module { file: file.to_owned(), ..Module::default() };
    module.items = code.lines().filter_map(defined).map(str::to_owned).collect();
    let mut rest = String::new();
    let mut lines = code.lines();
    while let Some(line) = lines.next() {
        let Some(mut tree) = import(line).map(str::to_owned) else {
            rest += line;
            rest.push('\n');
            continue;
        };
        while !tree.contains(';') {
            tree += lines.next().unwrap_or(";");
        }
        expand(&[], tree.split(';').next().unwrap_or_default(), &mut |name, path| {
            module.imports.insert(name, path.clone());
            module.paths.push(path);
        });
    }
    module.paths.extend(inline_paths(&rest));
    module
}

/// Returns the name of the item that starts on an unindented line.
fn defined(line: &str) -> Option<&str> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "static", "type", "union"];
    if line.starts_with([' ', '#', '}']) {
        return None;
    }
    let mut words = words(line).skip_while(|word| !KINDS.contains(word));
    let kind = words.next()?;
    words.find(|word| !(kind == "const" && KINDS.contains(word)))
}

/// Returns the text after `use` if an import starts on `line`.
fn import(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let public = line.strip_prefix("pub").map(|rest| match rest.split_once(") ") {
        Some((scope, rest)) if scope.starts_with('(') => rest,
        _ => rest.trim_start(),
    });
    public.unwrap_or(line).strip_prefix("use ")
}

/// Calls `each` with the name and path of each import of a tree such as `a::{b, c::{self, d as e}}`.
fn expand(prefix: &[String], tree: &str, each: &mut impl FnMut(String, Segments)) {
    let tree = tree.trim();
    let (head, group) = tree.split_once('{').map_or((tree, None), |(head, group)| (head, Some(group)));
    let (head, alias) = head.split_once(" as ").map_or((head, None), |(head, alias)| (head, Some(alias)));
    let segments: Segments =
        head.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let mut path = joined(prefix, &segments);
    let Some(group) = group else {
        path.pop_if(|last| last == "self" || last == "*");
        if let Some(name) = alias.map(str::to_owned).or_else(|| path.last().cloned()) {
            each(name, path);
        }
        return;
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    let mut depth = 0;
    for part in group.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    }) {
        if !part.trim().is_empty() {
            expand(&path, part, each);
        }
    }
}

/// Returns the paths of at least two segments in `code`.
fn inline_paths(code: &str) -> Vec<Segments> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let paths = code.split(|c| !is_path(c)).map(|path| path.split("::").map(str::to_owned).collect());
    paths.filter(|path: &Segments| path.len() > 1 && path.iter().all(|name| !name.contains(':'))).collect()
}

fn joined(prefix: &[String], rest: &[String]) -> Segments {
    [prefix, rest].concat()
}

/// Converts `path`, as written in module `at`, to a path from the crate root; `None` unless `path` starts with `crate`,
/// `self`, `super` or a child module of `at`.
fn absolute(modules: &Modules, at: &[String], path: &[String]) -> Option<Segments> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some(joined(at, &path[1..])),
        "super" => Some(joined(&at[..at.len().checked_sub(supers)?], &path[supers..])),
        child => modules.contains_key(&joined(at, &[child.to_owned()])).then(|| joined(at, path)),
    }
}

/// Returns the file that defines the item at `path`; `None` for a re-export from another crate.
fn definer<'a>(modules: &'a Modules, path: &[String], reexports: usize) -> Option<&'a str> {
    let depth = (0..=path.len()).rev().find(|depth| modules.contains_key(&path[..*depth]))?;
    let module = &modules[&path[..depth]];
    let import = path
        .get(depth)
        .filter(|name| !module.items.contains(*name))
        .and_then(|name| module.imports.get(name));
    let Some(import) = import.filter(|_| reexports < REEXPORTS_MAX) else { return Some(&module.file) };
    let import = absolute(modules, &path[..depth], import)?;
    definer(modules, &joined(&import, &path[depth + 1..]), reexports + 1)
}

/// Returns, for each circle in the crate of `files`, the paths of the circle's files.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let owned: Vec<_> = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    of_crate(&owned).into_iter().map(|circle| circle.into_keys().collect()).collect()
}

#[test]
fn every_spelling_of_a_path_closes_a_circle() {
    let spellings = [
        "use super::b::B;",
        "use super::{c::C, b::{self, B}};",
        "pub(crate) use crate::b::B as Other;",
        "use crate::{\n    b::B,\n    c::C,\n};",
        "fn f() {\n    use super::b;\n}",
        "fn f() {\n    let x = super::b::f();\n}",
        "struct A(Vec<crate::b::B>);",
        "#[cfg(not(test))]\nuse super::b::B;",
    ];
    for a in spellings {
        let files = [
            ("x/src/lib.rs", "mod a;\nmod b;\n"),
            ("x/src/a.rs", a),
            ("x/src/b.rs", "use super::a::A;\npub struct B;\n"),
        ];
        assert_eq!(circles_of(&files), [["x/src/a.rs", "x/src/b.rs"]], "{a}");
    }
}

#[test]
fn tests_comments_and_other_crates_close_none() {
    let spellings = [
        "// use super::b::B;",
        "use b::B;",
        "use other::super_b::B;",
        "#[cfg(test)]\nmod tests {\n    use super::super::b::B;\n}",
        "#[cfg(test)]\nuse super::b::B;",
        "#[cfg(all(test, unix))]\n#[allow(unused)]\nfn f() {\n    super::b::f();\n}\n",
    ];
    for a in spellings {
        let files = [
            ("x/src/lib.rs", "mod a;\nmod b;\n"),
            ("x/src/a.rs", a),
            ("x/src/b.rs", "use super::a::A;\npub struct B;\n"),
        ];
        assert_eq!(circles_of(&files), Vec::<Vec<String>>::new(), "{a}");
    }
}

#[test]
fn a_parent_is_used_for_what_it_defines_and_not_for_what_it_passes_on() {
    let a = ("x/src/a.rs", "pub struct A;\n");
    let b = ("x/src/b.rs", "use super::{A, LIMIT};\n");
    let passes_on = "mod a;\nmod b;\npub use a::A;\nuse a::LIMIT;\npub use b::B;\n";
    assert_eq!(circles_of(&[("x/src/lib.rs", passes_on), a, b]), Vec::<Vec<String>>::new());
    let defines = "mod a;\nmod b;\npub use a::A;\npub use b::B;\npub const LIMIT: u8 = 1;\n";
    assert_eq!(circles_of(&[("x/src/lib.rs", defines), a, b]), [["x/src/b.rs", "x/src/lib.rs"]]);
    let test_file = "mod a;\n#[cfg(test)]\nmod b;\npub const LIMIT: u8 = b::X;\n";
    assert_eq!(circles_of(&[("x/src/lib.rs", test_file), a, b]), Vec::<Vec<String>>::new());
}
