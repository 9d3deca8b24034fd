//! Public items of crate `roce`: each is used outside `roce/src`, or is in the signature of an item used outside. The
//! test reads the sources line by line, as rustfmt formats them. Fields, variants and items of macros are not checked.
//! An unused method is not reported if an item outside `roce/src` has the same name (`new`, `len`).

mod tree;

use std::collections::{BTreeMap, BTreeSet};

use tree::{code, sources, without_tests, words};

/// Directories of the crates, tests and benches that use `roce`.
const USERS: &[&str] = &["netsim", "verbs", "lab", "apps", "tests", "fuzz", "roce/tests", "roce/benches"];

/// Public items without a user, and their reason to be public. If an item is deleted or gets a user, its row must be
/// deleted.
const ALLOWED: &[(&str, &str)] = &[
    ("congestion::Congestion", "result of `Engine::qp_congestion`"),
    ("congestion::dcqcn::Dcqcn", "variant of `Congestion`"),
    ("congestion::swift::Swift", "variant of `Congestion`"),
    ("congestion::timely::Timely", "variant of `Congestion`"),
    ("id::ParseMacError", "error of `Mac::from_str`"),
    ("mem::copy::OutOfRange", "variant of `AccessError`"),
    ("mem::copy::Span", "result of `Memory::span`"),
    ("mem::fault::MemoryFault", "variant of `AccessError`"),
    ("mem::mr::RegisterError", "variant of `CreateError`"),
    ("neighbour::Conflict", "result of `Neighbour::take_conflict`"),
    ("neighbour::Neighbour", "result of `Engine::neighbour`"),
    ("neighbour::gid::GidEntry", "result of `GidTable::get`"),
    ("neighbour::gid::GidTable", "result of `NeighbourConfig::gid_table`"),
    ("port::fault::FaultFrame", "`Port::Frame` of `Fault`"),
    ("port::impairment::UnknownAction", "error of `Action::from_str`"),
    ("port::probability::ProbabilityError", "error of `Probability::from_str`"),
    ("qp::segment::Segment", "result of `segment`"),
    ("qp::state::AttrMask", "field of `ModifyError`"),
    ("wire::atomiceth::AtomicAckEth", "result of `Packet::atomicacketh`"),
    ("wire::atomiceth::AtomicEth", "result of `Packet::atomiceth`"),
    ("wire::ieth::Ieth", "result of `Packet::ieth`"),
    ("wire::opcode::OpcodeInfo", "field of `Packet`, result of `Opcode::info`"),
    ("wire::packet::IpInfo", "field of `Packet`"),
    ("wire::template::MixedFamilies", "error of `HeaderTemplate::new`"),
    ("wire::xrceth::XrcEth", "result of `Packet::xrceth`"),
];

/// Path of a module from the crate root.
type Path = Vec<String>;

/// Returns kind and name of the item that `line` declares with `pub`; `None` for `pub(crate)` and `pub use`.
fn public_item(line: &str) -> Option<(&str, &str)> {
    const KINDS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "static", "type", "union"];
    let mut rest = words(line.trim_start().strip_prefix("pub ")?).peekable();
    loop {
        let word = rest.next()?;
        let is_const_fn =
            word == "const" && rest.peek().is_some_and(|next| ["fn", concat!("un", "safe")].contains(next));
        if KINDS.contains(&word) && !is_const_fn {
            return Some((word, rest.next()?));
        }
        if !["const", concat!("un", "safe"), "async", "extern"].contains(&word) {
            return None;
        }
    }
}

/// Returns the type of the `impl` block that starts on `line`.
fn implemented(line: &str) -> Option<String> {
    let rest = line.strip_prefix("impl")?.replace("->", "");
    let mut depth = 0;
    let outside_of_brackets = |c: &char| {
        depth += i32::from(*c == '<');
        let is_outside = depth == 0;
        depth -= i32::from(*c == '>');
        is_outside
    };
    let flat: String = rest.chars().filter(outside_of_brackets).collect();
    let of = flat.split(" where").next()?;
    let of = of.split_once(" for ").map_or(of, |(_, of)| of);
    words(of).last().map(str::to_owned)
}

fn module_of(path: &str) -> Path {
    let inside = path.trim_start_matches("roce/src/").trim_end_matches(".rs");
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    inside.split('/').filter(|name| *name != "lib").map(str::to_owned).collect()
}

/// Returns each `name` in paths `module::name` or `module::{name, ..}` whose `module` is `roce` or in `modules`.
fn named_in_paths<'a>(code: &'a str, modules: &BTreeSet<&str>) -> BTreeSet<&'a str> {
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("::") {
        let (before, after) = (&code[..at], &code[at + 2..]);
        let module = before.rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default();
        if module != "roce" && !modules.contains(module) {
            continue;
        }
        if !after.starts_with('{') {
            named.extend(words(after).next());
            continue;
        }
        let mut depth = 0;
        let group_end = after.find(|c| {
            depth += i32::from(c == '{') - i32::from(c == '}');
            depth == 0
        });
        named.extend(words(&after[..group_end.unwrap_or(after.len())]));
    }
    named
}

/// The modules of the crate, without test modules.
#[derive(Default)]
struct Modules<'a> {
    lines: BTreeMap<Path, Vec<&'a str>>,
    /// Modules declared `pub mod`.
    public: BTreeSet<Path>,
    /// Names in all `pub use` declarations.
    reexported: BTreeSet<&'a str>,
    /// Public types of public modules, and re-exported types.
    reachable_types: BTreeSet<&'a str>,
}

impl<'a> Modules<'a> {
    fn read(files: &'a [(String, String)]) -> Self {
        let mut modules = Modules::default();
        let mut tests = BTreeSet::new();
        for (path, text) in files {
            let module = module_of(path);
            let inner = |name: &str| [&module[..], &[name.to_owned()]].concat();
            let (lines, test_modules) = without_tests(text);
            tests.extend(test_modules.into_iter().map(inner));
            let declared = lines.iter().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
            modules.public.extend(declared.map(inner));
            let mut is_in_use = false;
            for line in &lines {
                is_in_use |= line.starts_with("pub use ");
                modules.reexported.extend(words(line).filter(|_| is_in_use));
                is_in_use &= !line.ends_with(';');
            }
            modules.lines.insert(module, lines);
        }
        modules.lines.retain(|path, _| !(1..=path.len()).any(|len| tests.contains(&path[..len])));
        for (path, line) in
            modules.lines.iter().flat_map(|(path, lines)| lines.iter().map(move |l| (path, l)))
        {
            let item = public_item(line).filter(|_| !line.starts_with(' '));
            let reachable = item.filter(|(kind, name)| *kind != "fn" && modules.is_reachable(path, name));
            modules.reachable_types.extend(reachable.map(|(_, name)| name));
        }
        modules
    }

    /// Returns whether other crates can name the public item `name` of `module`, which is not in an `impl` block.
    fn is_reachable(&self, module: &[String], name: &str) -> bool {
        (1..=module.len()).all(|len| self.public.contains(&module[..len])) || self.reexported.contains(name)
    }

    fn names(&self) -> BTreeSet<&str> {
        self.lines.keys().filter_map(|path| path.last().map(String::as_str)).collect()
    }

    /// Returns, for each public item that other crates can name: path, name, and whether the item belongs to a type.
    fn public_items(&self) -> Vec<(String, &'a str, bool)> {
        let mut items = Vec::new();
        for (module, lines) in &self.lines {
            let mut of = None;
            for line in lines {
                let is_indented = line.starts_with(' ');
                if !is_indented && !line.is_empty() {
                    of = if line.starts_with('}') { None } else { implemented(line).or(of) };
                }
                let Some((_, name)) = public_item(line) else { continue };
                let owner = of.clone().filter(|_| is_indented);
                let is_reachable = match &owner {
                    Some(owner) => self.reachable_types.contains(owner.as_str()),
                    // An indented item without owner is part of a macro.
                    None => !is_indented && self.is_reachable(module, name),
                };
                if is_reachable {
                    let path = [&module[..], owner.as_slice(), &[name.to_owned()]].concat();
                    items.push((path.join("::"), name, owner.is_some()));
                }
            }
        }
        items
    }
}

#[test]
fn each_public_item_has_a_user() {
    let own = sources("roce/src");
    let modules = Modules::read(&own);
    // This file is not searched for uses, because it names items in `ALLOWED`.
    let users = USERS.iter().flat_map(|dir| sources(dir)).filter(|(path, _)| path != file!());
    let users: Vec<String> =
        users.map(|(_, text)| text.lines().map(code).collect::<Vec<_>>().join("\n")).collect();
    let words: BTreeSet<&str> = users.iter().flat_map(|code| words(code)).collect();
    let names = modules.names();
    let named: BTreeSet<&str> = users.iter().flat_map(|code| named_in_paths(code, &names)).collect();
    let items = modules.public_items();
    assert!(items.len() >= 300, "only {} public items were found", items.len());
    let is_unused = |name: &str, of_a_type| !if of_a_type { &words } else { &named }.contains(name);
    let unused: BTreeSet<&str> = items
        .iter()
        .filter(|(_, name, of_a_type)| is_unused(name, *of_a_type))
        .map(|(path, ..)| path.as_str())
        .collect();
    let allowed: BTreeSet<&str> = ALLOWED.iter().map(|(path, _)| *path).collect();
    let new: Vec<_> = unused.difference(&allowed).collect();
    assert!(new.is_empty(), "public items without a user outside roce/src; make them pub(crate): {new:#?}");
    let gone: Vec<_> = allowed.difference(&unused).collect();
    assert!(gone.is_empty(), "items that have a user or are gone, to be taken out of ALLOWED: {gone:#?}");
}

#[test]
fn the_reader_of_items_sees_what_can_be_named_outside() {
    let files = [
        ("roce/src/lib.rs", "pub mod a;\npub(crate) mod b;\npub use b::{\n    Shown,\n};"),
        (
            "roce/src/a/mod.rs",
            "pub const fn f() {}\npub(crate) fn hidden() {}\npub const C: u8 = 1; // pub fn no() {}\n\
             #[cfg(test)]\nmod tests {\n    pub fn t() {}\n}\n#[cfg(test)]\nmod others;",
        ),
        ("roce/src/a/others.rs", "pub fn t() {}"),
        (
            "roce/src/b.rs",
            "pub struct Shown;\npub struct Hidden;\n\nimpl<T: Fn() -> u8> From<T> for Shown {\n    pub fn m() {}\n}\n\
             impl Hidden {\n    pub fn n() {}\n}",
        ),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    let items: Vec<_> = Modules::read(&files).public_items().into_iter().map(|(path, ..)| path).collect();
    assert_eq!(items, ["a::f", "a::C", "b::Shown", "b::Shown::m"]);
    let user = "use roce::{a::f, b::{\n    Shown,\n}};\nuse other::Hidden;\nlet x = a::C + Shown::m();";
    let named = named_in_paths(user, &BTreeSet::from(["a", "b"]));
    assert_eq!(named.into_iter().collect::<Vec<_>>(), ["C", "Shown", "a", "b", "f"]);
}
