//! The inputs of a fuzz target's corpus.

use std::path::PathBuf;

/// Returns the contents of each file in the corpus of the fuzz target `target`.
pub(crate) fn inputs(target: &str) -> impl Iterator<Item = Vec<u8>> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(target);
    std::fs::read_dir(dir).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
}
