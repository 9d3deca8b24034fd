//! Replays the corpus of the fuzz target `memif_descriptors`.
#![allow(unsafe_code)]

use std::path::PathBuf;

#[allow(dead_code, reason = "a part of it is the port's alone")]
#[path = "../src/memif/ring.rs"]
mod ring;

mod oracle;

#[test]
fn the_corpus_holds() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/memif_descriptors");
    let scripts = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut all = oracle::Reached::default();
    for script in scripts {
        let reached = oracle::run(&std::fs::read(script.unwrap().path()).unwrap());
        all.taken += reached.taken;
        all.dropped += reached.dropped;
        all.put += reached.put;
        all.outside += reached.outside;
        all.violations += reached.violations;
    }
    let reached = [all.taken, all.dropped, all.put, all.outside, all.violations];
    assert!(reached.iter().all(|count| *count >= 10), "the corpus reaches all there is: {all:?}");
}
