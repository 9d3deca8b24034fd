//! One engine with a hostile peer: replay of the fuzz corpus, and random scripts.

use crate::{corpus, hostile};
use proptest::prelude::*;

#[test]
fn the_corpus_holds() {
    let mut sum = hostile::Tally::default();
    for input in corpus::inputs("hostile_peer") {
        let tally = hostile::run(&input);
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
