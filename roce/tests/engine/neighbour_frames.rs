//! One engine with honest and hostile neighbours: replay of the fuzz corpus, and random scripts.

use crate::{corpus, stations};
use proptest::prelude::*;

#[test]
fn the_corpus_holds() {
    let mut sum = stations::Tally::default();
    for input in corpus::inputs("neighbour") {
        let tally = stations::run(&input);
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
