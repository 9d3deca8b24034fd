//! Citations in documents and comments: each cited file, test and argument of a command must exist.

mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Suffixes by which a file citation is recognised.
const CITED_SUFFIXES: &[&str] = &[".rs", ".sh", ".py", ".lua", ".supp"];

/// Prefixes of names that other projects define.
const FOREIGN: &[&str] = &["ib_", "ibv_", "mlx5dv_", "rdma_", "rte_", "dpdk-"];
/// Directory of build results.
const BUILT: &str = "target/";

/// A name of at least this number of words must be the name of a function, because only test functions have such long
/// names.
const TEST_WORDS_MIN: usize = 5;
/// In a document, a name of at least this number of words must be an identifier.
const NAME_WORDS_MIN: usize = 3;

#[derive(Default)]
struct Sources {
    files: Vec<String>,
    /// File and name of each function.
    functions: BTreeSet<(String, String)>,
    identifiers: BTreeSet<String>,
    /// Steps of scripts/check.sh.
    steps: BTreeSet<String>,
}

impl Sources {
    fn add(&mut self, file: &str, text: &str) {
        self.files.push(file.to_owned());
        if !has_suffix(file, &["rs", "c", "h", "sh", "py"]) {
            return;
        }
        for line in text.lines().map(|line| line.split("//").next().unwrap_or_default()) {
            let words: Vec<&str> = identifiers(line).collect();
            if let Some(at) = words.iter().position(|word| *word == "fn") {
                self.functions.extend(words.get(at + 1).map(|name| (file.to_owned(), (*name).to_owned())));
            }
            self.identifiers.extend(words.into_iter().map(str::to_owned));
            if file == "scripts/check.sh" && line.trim_end().ends_with(";;") {
                let names = line.split(')').next().unwrap_or_default();
                self.steps.extend(identifiers(names).map(str::to_owned));
            }
        }
    }

    /// Returns whether the path of a file or directory is `cited` or ends with `cited`.
    fn has_path(&self, cited: &str) -> bool {
        let cited = cited.trim_start_matches("../").trim_start_matches("./");
        let end = format!("/{cited}");
        self.files.iter().any(|file| {
            file == cited
                || file.ends_with(&end)
                || (cited.ends_with('/') && (file.starts_with(cited) || file.contains(&end)))
        })
    }

    fn has_function(&self, name: &str) -> bool {
        self.functions.iter().any(|(_, function)| function == name)
    }
}

fn has_suffix(path: &str, suffixes: &[&str]) -> bool {
    Path::new(path).extension().is_some_and(|suffix| suffixes.iter().any(|wanted| suffix == *wanted))
}

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

fn is_foreign(name: &str) -> bool {
    FOREIGN.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the spans in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Returns the number of words of a snake_case name, else 0.
fn word_count(name: &str) -> usize {
    let is_snake = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    if is_snake { name.split('_').filter(|word| !word.is_empty()).count() } else { 0 }
}

/// Returns the file paths in `text`, except paths of other projects.
fn cited_paths(text: &str) -> impl Iterator<Item = &str> {
    let paths = text.split(|c: char| !(c.is_alphanumeric() || "_-./*<>$~{}".contains(c)));
    let paths = paths.map(|path| path.trim_end_matches('.')).filter(|path| !path.starts_with("//"));
    paths.filter(|path| {
        CITED_SUFFIXES.iter().any(|suffix| path.len() > suffix.len() && path.ends_with(suffix))
            && !path.contains(['*', '<', '>', '$', '~', '{', '}'])
            && !is_foreign(path)
    })
}

/// Checks one line of a document or comment. Returns the number of citations, and a message for each wrong citation.
fn check(line: &str, is_document: bool, sources: &Sources) -> (usize, Vec<String>) {
    let mut count = 0;
    let mut wrong = Vec::new();
    let mut cite = |exists: bool, what: String| {
        count += 1;
        if !exists {
            wrong.push(what);
        }
    };
    for path in cited_paths(line) {
        cite(sources.has_path(path), format!("there is no file {path}"));
    }
    for span in quoted(line) {
        if let Some((file, name)) = span.split_once(".rs::") {
            let (file, name) = (format!("{file}.rs"), name.rsplit("::").next().unwrap_or_default());
            let defined = sources.functions.iter().any(|(path, function)| {
                function == name && (*path == file || path.ends_with(&format!("/{file}")))
            });
            cite(defined, format!("{file} has no function {name}"));
        } else if span.ends_with('/') && span.contains('/') && !span.contains(['*', '~', '$', ' ', ':', '<'])
        {
            let elsewhere = span.starts_with('/') || span == BUILT;
            cite(elsewhere || sources.has_path(span), format!("there is no directory {span}"));
        }
        for name in identifiers(span).filter(|name| !is_foreign(name)) {
            let words = word_count(name);
            if words >= TEST_WORDS_MIN {
                cite(sources.has_function(name), format!("there is no function {name}"));
            } else if is_document && words >= NAME_WORDS_MIN {
                cite(sources.identifiers.contains(name), format!("nothing is called {name}"));
            }
        }
        check_command(span, sources, &mut cite);
    }
    (count, wrong)
}

/// Checks the arguments of a cited `cargo` or `scripts/check.sh` command.
fn check_command(command: &str, sources: &Sources, cite: &mut impl FnMut(bool, String)) {
    let words: Vec<&str> = command.split_whitespace().collect();
    if let Some(("scripts/check.sh", steps)) = words.split_first().map(|(program, rest)| (*program, rest)) {
        for step in steps.iter().filter(|step| !step.starts_with('-') && !step.starts_with("STEP")) {
            cite(sources.steps.contains(*step), format!("scripts/check.sh has no step {step}"));
        }
    }
    if words.first() != Some(&"cargo") {
        return;
    }
    if let ["cargo", "xtask", task, ..] = words[..] {
        let path = format!("xtask/src/{}", task.replace('-', "_"));
        let found = sources.has_path(&format!("{path}.rs")) || sources.has_path(&format!("{path}/mod.rs"));
        cite(found, format!("`{command}`: there is no such task"));
    }
    for option in words.windows(2) {
        let found = match *option {
            ["-p" | "--package", name] => Some(sources.has_path(&format!("{name}/Cargo.toml"))),
            ["--test", name] => Some(
                sources.has_path(&format!("tests/{name}.rs"))
                    || sources.has_path(&format!("tests/{name}/main.rs")),
            ),
            ["--bench", name] => Some(sources.has_path(&format!("benches/{name}.rs"))),
            ["--example", name] => Some(sources.has_path(&format!("examples/{name}.rs"))),
            _ => None,
        };
        cite(found.unwrap_or(true), format!("`{command}`: there is no {}", option[1]));
    }
    for filter in words.iter().filter(|word| word.contains("::")) {
        for module in filter.split("::").filter(|module| !module.is_empty()) {
            let found = sources.has_path(&format!("{module}.rs"))
                || sources.has_path(&format!("{module}/mod.rs"))
                || sources.identifiers.contains(module);
            cite(found, format!("`{command}`: there is no module {module}"));
        }
    }
}

fn comment(line: &str) -> Option<&str> {
    let line = line.trim_start();
    if line.starts_with("//") {
        Some(line.trim_start_matches(['/', '!']))
    } else {
        Some(line.split_once(" // ")?.1)
    }
}

#[test]
fn what_is_cited_exists() {
    let mut texts = Vec::new();
    let mut sources = Sources::default();
    for path in tree::files("", |_| true) {
        let path = path.to_str().unwrap().to_owned();
        let text = fs::read_to_string(tree::workspace().join(&path)).unwrap_or_default();
        sources.add(&path, &text);
        texts.push((path, text));
    }
    assert!(sources.steps.len() >= 15, "the steps of check.sh were read: {:?}", sources.steps);
    let (mut in_documents, mut in_comments, mut wrong) = (0, 0, Vec::new());
    for (path, text) in texts.iter().filter(|(path, _)| has_suffix(path, &["md", "rs"])) {
        let is_document = has_suffix(path, &["md"]);
        for (line, number) in text.lines().zip(1..) {
            let Some(prose) = (if is_document { Some(line) } else { comment(line) }) else { continue };
            let (count, faults) = check(prose, is_document, &sources);
            *(if is_document { &mut in_documents } else { &mut in_comments }) += count;
            wrong.extend(faults.into_iter().map(|fault| format!("{path}:{number}: {fault}")));
        }
    }
    assert!(
        in_documents >= 100 && in_comments >= 10,
        "only {in_documents} and {in_comments} citations were found"
    );
    assert!(wrong.is_empty(), "{} citations of what does not exist:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn each_form_of_citation_is_noticed() {
    let mut sources = Sources::default();
    sources.add("a/Cargo.toml", "");
    sources.add(
        "a/tests/b.rs",
        "#[test]\nfn it_does_what_it_says() {}\nstruct C {\n    some_long_field: u8,\n}\n",
    );
    sources.add("xtask/src/some_task.rs", "");
    sources.add("scripts/check.sh", "        all | quick) \"$name\" ;;\n");
    let right = "`a/tests/b.rs`, `b.rs`, tests/b.rs, `a/tests/`, `it_does_what_it_says`, \
        `b.rs::it_does_what_it_says`, `some_long_field`, `cargo test -p a --test b -- b::`, `scripts/check.sh quick`, `cargo xtask some-task --b`";
    assert_eq!(check(right, true, &sources).1, Vec::<String>::new());
    let wrong = [
        "`a/tests/c.rs`",
        "see tests/a.rs.",
        "`c/tests/`",
        "`it_does_what_it_said`",
        "`it_does_what_it_says_not()`",
        "`b.rs::other`",
        "`some_long_name`",
        "`cargo test -p b`",
        "`cargo test --test c`",
        "`cargo test c::`",
        "`scripts/check.sh quickly`",
        "`cargo xtask other-task`",
    ];
    for text in wrong {
        assert!(!check(text, true, &sources).1.is_empty(), "{text}");
    }
    assert_eq!(check("`some_long_name`, `ibv_rc_pingpong`, <https://rustup.rs>", false, &sources).1.len(), 0);
}
