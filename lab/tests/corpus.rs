//! Replays the fuzz corpus of `lab_toml`: documents of every kind, and such as ask for too much.

use lab::experiment::SHIPPED;
use std::path::PathBuf;

#[path = "../../fuzz/oracle/lab_toml.rs"]
mod oracle;

#[test]
fn the_lab_toml_corpus_holds() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/lab_toml");
    let (mut points, mut refused) = (0, 0);
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        match oracle::check(&String::from_utf8_lossy(&std::fs::read(path).unwrap())) {
            Some(count) => points += count,
            None => refused += 1,
        }
    }
    assert!(points >= 10, "the corpus has documents that can be run, not only {points} points");
    assert!(refused >= 5, "the corpus has documents that are refused, not only {refused}");
}

#[test]
fn shipped_experiments_take_what_the_largest_document_may() {
    for (name, text) in SHIPPED {
        assert!(oracle::check(text).is_some(), "{name}");
    }
}
