//! One engine with a hostile peer: replay of the fuzz corpus, and random scripts.

use crate::hostile;
use proptest::prelude::*;
use std::path::PathBuf;

#[test]
fn the_corpus_holds() {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/hostile_peer");
    let mut sum = hostile::Tally::default();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let tally = hostile::run(&std::fs::read(entry.unwrap().path()).unwrap());
        sum.frames += tally.frames;
        sum.received += tally.received;
        sum.connections += tally.connections;
        sum.successes += tally.successes;
        sum.failures += tally.failures;
        sum.uc_successes += tally.uc_successes;
        sum.srq_successes += tally.srq_successes;
    }
    // If a count is below its bound here, most frames never reach a queue pair, or most connections fail immediately.
    assert!(sum.received > 1000 && sum.frames > sum.received + 100, "{sum:?}");
    assert!(sum.uc_successes > 100 && sum.srq_successes > 10, "{sum:?}");
    assert!(sum.connections > 100 && sum.successes > 100 && sum.failures > 100, "{sum:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_script_holds(script in proptest::collection::vec(any::<u8>(), 0..3000).prop_map(hostile::Script)) {
        hostile::run(&script.0);
    }
}
