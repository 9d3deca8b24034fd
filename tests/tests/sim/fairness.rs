//! What one queue pair sends in both roles.

use roce::qp::ConnAttr;
use tests::pair::{Op, Pair, PairConfig, conn};

#[test]
fn a_request_does_not_wait_for_all_read_responses_that_a_pacer_holds_back() {
    // Any round trip is too long for it: a tenth of a packet in each.
    let slow = "swift:base_target_nanos=1000,fs_range_nanos=0,min_window_milli=100".parse().unwrap();
    let mut pair = Pair::new(&PairConfig::of(ConnAttr { congestion: Some(slow), timeout: 14, ..conn() }));
    for n in 0..33 {
        pair.post_recv(1, n, 1);
        if n < 32 {
            pair.post_send(0, n, Op::Send, 1);
            pair.run_until_completions(0, n as usize + 1);
        }
    }
    (0..8).for_each(|n| pair.post_send(1, n, Op::Read, 1 << 16));
    pair.run_until_completions(1, 1);
    pair.post_send(0, 32, Op::Send, 1);
    pair.run_until_completions(0, 33);
    assert_eq!(pair.ends[1].sent.len(), 1, "the SEND goes between the responses to the second READ");
    pair.run_until_completions(1, 8);
}
