//! Replays the fuzz corpus of `exchange`: messages of both exchanges, and inputs that the fuzzer found.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::oracle::{self, Taken};
use super::report::Row;

#[test]
fn the_exchange_corpus_holds() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/exchange");
    let mut counts = BTreeMap::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        *counts.entry(oracle::check::<Row>(&bytes)).or_insert(0) += 1;
    }
    for taken in [Taken::Junk, Taken::PingPong, Taken::Perftest, Taken::Message, Taken::Agreed] {
        assert!(
            counts.get(&taken).is_some_and(|count| *count >= 2),
            "the corpus has some of each: {counts:?}"
        );
    }
}
