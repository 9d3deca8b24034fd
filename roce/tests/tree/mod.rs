//! The repository as files, for tests that read it: found by walking directories, because exported sources have no
//! index of git's.

use std::fs;
use std::path::{Path, PathBuf};

/// Directories that hold what is built or recorded, whatever stands above them.
const NO_SOURCES: &[&str] = &["target", ".git", "corpus", "artifacts", "proptest-regressions"];

/// The workspace's root.
pub(crate) fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Files under `dir` whose path `wanted` accepts, in the order of their paths, which are relative to the workspace.
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
