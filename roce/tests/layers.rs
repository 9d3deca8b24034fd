//! Structure of the sources: uses between modules and crates, files with `unsafe`, length of files and functions. The
//! tests read the sources line by line, as rustfmt formats them.

mod circles;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use tree::{code, sources, words, workspace};

/// Crates of the workspace; for each crate, the crates of the workspace on which the crate may depend.
const ARROWS: &[(&str, &[&str])] = &[
    ("dpdk-ffi/sys", &[]),
    ("dpdk-ffi", &["dpdk-sys"]),
    ("roce", &[]),
    ("roce/benches", &["roce"]),
    ("netsim", &["roce"]),
    ("verbs", &["roce", "dpdk-ffi"]),
    ("preload/sys", &[]),
    ("preload", &["verbs", "verbs-sys"]),
    ("lab", &["roce", "netsim"]),
    ("apps", &["verbs", "roce", "dpdk-ffi", "lab"]),
    ("tests", &["verbs", "roce", "netsim", "lab", "apps"]),
    ("xtask", &[]),
];

/// Permitted circles of files that use each other; the files of a circle are sorted by path. If a circle no longer
/// exists, its row must be deleted.
const ALLOWED_CIRCLES: &[&[&str]] = &[&["dpdk-ffi/src/mbuf.rs", "dpdk-ffi/src/mempool.rs"]];

/// Path prefixes of the files that may contain `unsafe`.
const UNSAFE: &[&str] = &[
    "dpdk-ffi/",
    // A C interface: every function takes pointers of the program.
    "preload/",
    "roce/src/mem/copy.rs",
    "roce/src/mem/fault.rs",
    "roce/src/mem/table.rs",
    "roce/src/prefetch.rs",
    "roce/src/queue/ring.rs",
    "roce/tests/engine/hostile/memory.rs",
    // Processes that fork, which the standard library does not offer.
    "tests/src/bin/roce-fork.rs",
    "tests/src/bin/roce-threads.rs",
    "verbs/src/kernel/bpf.rs",
    "verbs/src/memory/populate.rs",
    "verbs/src/memory/signals.rs",
    "verbs/src/slice.rs",
    "verbs/tests/memory_faults/",
];

const FILE_LINES_MAX: usize = 1000;
const FUNCTION_LINES_MAX: usize = 70;

fn all_sources() -> Vec<(String, String)> {
    let dirs = ["roce", "netsim", "lab", "verbs", "apps", "tests", "dpdk-ffi", "preload", "fuzz", "xtask"];
    dirs.into_iter().flat_map(sources).collect()
}

/// Returns the modules that `text` names as `crate::module` or `crate::{module, ..}`.
fn named_modules(text: &str) -> BTreeSet<String> {
    let code: String = text.lines().map(code).collect::<Vec<_>>().join(" ");
    let mut named = BTreeSet::new();
    for after in code.split("crate::").skip(1) {
        let Some(group) = after.strip_prefix('{') else {
            named.extend(words(after).next().map(str::to_owned));
            continue;
        };
        let mut depth = 0;
        for part in group.split_inclusive(['{', '}', ',']) {
            if depth == 0 {
                named.extend(words(part).next().map(str::to_owned));
            }
            depth += i32::from(part.ends_with('{')) - i32::from(part.ends_with('}'));
            if depth < 0 {
                break;
            }
        }
    }
    named
}

#[test]
fn a_module_names_only_modules_above_it() {
    let lib = fs::read_to_string(workspace().join("roce/src/lib.rs")).unwrap();
    let order: Vec<&str> = lib
        .lines()
        .filter_map(|line| line.strip_suffix(';')?.split_once("mod "))
        .map(|(_, name)| name)
        .collect();
    assert!(order.len() >= 15, "the list in lib.rs is read: {order:?}");
    let place: BTreeMap<&str, usize> = order.iter().enumerate().map(|(at, name)| (*name, at)).collect();
    let mut edges = 0;
    for (path, text) in sources("roce/src") {
        let own = path.trim_start_matches("roce/src/").split(['/', '.']).next().unwrap();
        let Some(own_place) = place.get(own) else {
            assert_eq!(own, "lib", "{path} belongs to no module of lib.rs");
            continue;
        };
        for name in named_modules(&text) {
            let Some(there) = place.get(name.as_str()) else {
                panic!("{path} names crate::{name}, which lib.rs does not list")
            };
            assert!(there <= own_place, "{path} names crate::{name}, which is below {own} in lib.rs");
            edges += usize::from(there < own_place);
        }
    }
    assert!(edges >= 50, "only {edges} uses were found");
}

#[test]
fn the_reader_of_paths_sees_groups() {
    let named =
        named_modules("use crate::{a::{b, c}, d};\nuse crate::e::f; // crate::g\nlet x = crate::h(1);");
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["a", "d", "e", "h"]);
}

/// Returns the name of the package in the text of a Cargo manifest.
fn package_name(manifest: &str) -> &str {
    let name = manifest.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
    name.expect("a package has a name")
}

#[test]
fn crates_depend_downwards() {
    let arrows: BTreeMap<&str, &[&str]> = ARROWS.iter().copied().collect();
    let root = fs::read_to_string(workspace().join("Cargo.toml")).unwrap();
    let members = root.lines().find_map(|line| line.strip_prefix("members = [")).unwrap();
    let members: Vec<&str> = members.trim_end_matches(']').split(", ").map(|m| m.trim_matches('"')).collect();
    let manifest = |member: &&str| fs::read_to_string(workspace().join(member).join("Cargo.toml")).unwrap();
    let manifests: Vec<String> = members.iter().map(manifest).collect();
    let names: BTreeSet<&str> = manifests.iter().map(|manifest| package_name(manifest)).collect();
    for (member, manifest) in members.iter().zip(&manifests) {
        let allowed = arrows.get(member).unwrap_or_else(|| panic!("ARROWS does not list {member}"));
        let mut section = "";
        for line in manifest.lines() {
            section = line.strip_prefix('[').map_or(section, |name| name.trim_end_matches(']'));
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            // For netsim, dev-dependencies and build-dependencies are checked in addition to dependencies.
            let counts =
                section == "dependencies" || (*member == "netsim" && section.ends_with("dependencies"));
            if counts && names.contains(name) {
                assert!(allowed.contains(&name), "{member} depends on {name}");
            }
        }
    }
}

#[test]
fn netsim_names_only_impairments_of_roce() {
    let mut uses = 0;
    for (path, text) in sources("netsim") {
        for line in text.lines().map(code).filter(|line| line.contains("roce::")) {
            assert!(line.contains("roce::port::impairment::"), "{path}: {line}");
            uses += 1;
        }
    }
    assert!(uses >= 3, "only {uses} uses were found");
}

#[test]
fn files_use_each_other_in_no_new_circle() {
    let mut found = BTreeMap::new();
    let dirs = ARROWS.iter().map(|(member, _)| format!("{member}/src"));
    // A package of benchmarks has no library.
    for dir in dirs.filter(|dir| workspace().join(dir).is_dir()) {
        for circle in circles::of_crate(&sources(&dir)) {
            found.insert(circle.keys().cloned().collect::<Vec<_>>(), circle);
        }
    }
    let mut gone = Vec::new();
    for circle in ALLOWED_CIRCLES {
        let circle: Vec<_> = circle.iter().map(|file| (*file).to_owned()).collect();
        if found.remove(&circle).is_none() {
            gone.push(circle);
        }
    }
    let new: Vec<_> = found.values().collect();
    assert!(new.is_empty(), "files use each other in circles that ALLOWED_CIRCLES lacks: {new:#?}");
    assert!(gone.is_empty(), "circles that are no more, to be taken out of ALLOWED_CIRCLES: {gone:#?}");
}

#[test]
fn unsafe_stands_only_where_it_may() {
    let mut seen = 0;
    for (path, text) in all_sources() {
        let is_unsafe = text.lines().any(|line| words(code(line)).any(|word| word == concat!("un", "safe")));
        let allowed = UNSAFE.iter().any(|place| path.starts_with(place));
        assert!(!is_unsafe || allowed || path == file!(), "{path} is not a place for this");
        seen += usize::from(is_unsafe && allowed);
    }
    assert!(seen >= 3, "the places that have some were read");
}

#[test]
fn files_are_short() {
    for (path, text) in all_sources() {
        let lines = text.lines().count();
        assert!(lines < FILE_LINES_MAX, "{path} has {lines} lines");
    }
}

fn begins_function(line: &str) -> bool {
    let mut words = words(line).skip_while(|word| {
        matches!(*word, "pub" | "crate" | "super" | "const" | "async" | "extern" | "C" | "in")
            || *word == concat!("un", "safe")
    });
    words.next() == Some("fn")
}

/// Returns, for each function, the text of its first line, and the number of lines up to its closing brace.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| begins_function(code(line))) {
        let signature_end = lines[at..].iter().position(|line| line.ends_with(['{', ';', '}']));
        let Some(ends) = signature_end.filter(|ends| lines[at + ends].ends_with('{')) else { continue };
        let indent = &line[..line.len() - line.trim_start().len()];
        let closing = format!("{indent}}}");
        let body = lines[at + ends..].iter().position(|line| *line == closing);
        found.push((line.trim().to_owned(), ends + body.unwrap_or(0) + 1));
    }
    found
}

#[test]
fn functions_are_short() {
    let mut count = 0;
    for (path, text) in all_sources() {
        for (name, lines) in functions(&text) {
            assert!(lines < FUNCTION_LINES_MAX, "{path}: `{name}` has {lines} lines");
            count += 1;
        }
    }
    assert!(count >= 500, "only {count} functions were found");
}

#[test]
fn the_reader_of_functions_counts_lines() {
    let text =
        "impl A {\n    pub(crate) const fn a(\n        x: u8,\n    ) -> u8 {\n        x\n    }\n}\nfn b();\n";
    assert_eq!(functions(text), [("pub(crate) const fn a(".to_owned(), 5)]);
}
