//! Reads the repository's files for tests. Directories are walked, because exported sources have no git index. Rust is
//! read line by line, as rustfmt formats it.
#![allow(dead_code)] // each test uses its part

use std::fs;
use std::path::{Path, PathBuf};

/// Directories of build results or recorded data, skipped at any depth.
const NO_SOURCES: &[&str] = &["target", ".git", "corpus", "artifacts", "proptest-regressions"];

pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns the files under `dir` that `wanted` accepts, sorted; paths are relative to the workspace.
pub(crate) fn files(dir: &str, wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![PathBuf::from(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(workspace().join(&dir)).unwrap() {
            let entry = entry.unwrap();
            let path = dir.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                if !NO_SOURCES.iter().any(|name| entry.file_name() == *name) {
                    dirs.push(path);
                }
            } else if wanted(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no file was found in {dir:?}");
    found
}

/// Returns the text of a file, whose path is relative to the workspace.
pub(crate) fn text(path: &Path) -> String {
    fs::read_to_string(workspace().join(path)).unwrap()
}

/// Returns each Rust source under `dir`, with its path from the workspace's root.
pub(crate) fn sources(dir: &str) -> Vec<(String, String)> {
    let rust = files(dir, |path| path.extension().is_some_and(|extension| extension == "rs"));
    rust.iter().map(|path| (path.to_str().unwrap().to_owned(), text(path))).collect()
}

/// Returns `line` up to its first `//`, even if `//` is in a string.
pub(crate) fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// Returns the words of a line of code: identifiers, keywords and numbers.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

/// Returns the lines of code, with comments and items for tests removed, and the names of test modules in other files.
pub(crate) fn without_tests(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut kept, mut test_modules) = (Vec::new(), Vec::new());
    let mut lines = text.lines().map(code);
    while let Some(line) = lines.next() {
        let attribute = line.trim_start();
        let is_for_tests = attribute.starts_with("#[cfg(")
            && !attribute.contains("not(test)")
            && words(attribute).any(|word| word == "test");
        if !is_for_tests {
            kept.push(line);
            continue;
        }
        let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#[")).unwrap_or_default();
        test_modules.extend(item.trim().strip_suffix(';').and_then(|item| Some(item.split_once("mod ")?.1)));
        if !item.trim_end().ends_with([';', '}', ',']) {
            let indent = &item[..item.len() - item.trim_start().len()];
            lines.by_ref().find(|line| line.strip_prefix(indent).is_some_and(|rest| rest.starts_with('}')));
        }
    }
    (kept, test_modules)
}
