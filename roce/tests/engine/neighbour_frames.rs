//! One engine with honest and hostile neighbours: replay of the fuzz corpus, and random scripts.

use crate::stations;
use proptest::prelude::*;
use std::path::PathBuf;

#[test]
fn the_corpus_holds() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/neighbour");
    let mut sum = stations::Tally::default();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let tally = stations::run(&std::fs::read(entry.unwrap().path()).unwrap());
        sum.moves_claimed += tally.moves_claimed;
        sum.moves_refuted += tally.moves_refuted;
        sum.moves_followed += tally.moves_followed;
        sum.conflicts += tally.conflicts;
        sum.answers += tally.answers;
        sum.packets += tally.packets;
    }
    // If a count is below its bound here, most frames never reach the neighbour cache.
    assert!(sum.moves_claimed > 100 && sum.moves_refuted > 20 && sum.moves_followed > 5, "{sum:?}");
    assert!(sum.conflicts > 20 && sum.answers > 100 && sum.packets > 100, "{sum:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_script_holds(script in proptest::collection::vec(any::<u8>(), 0..2000)) {
        stations::run(&script);
    }
}
