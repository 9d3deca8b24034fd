//! What one queue pair sends in both roles.

use roce::qp::ConnAttr;
use tests::pair::{Op, Pair, PairConfig, conn};

/// Returns a pair whose round trips are all above the target of Swift: after some, each end sends a tenth of a packet
/// per round trip.
fn slow_pair() -> Pair {
    let slow = "swift:base_target_nanos=1000,fs_range_nanos=0,min_window_milli=100".parse().unwrap();
    Pair::new(&PairConfig::of(ConnAttr { congestion: Some(slow), timeout: 14, ..conn() }))
}

#[test]
fn a_request_does_not_wait_for_all_read_responses_that_a_pacer_holds_back() {
    let mut pair = slow_pair();
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

#[test]
fn ends_that_read_from_each_other_do_not_slow_each_other_down() {
    let mut pair = slow_pair();
    for end in 0..2 {
        for n in 0..32 {
            pair.post_recv(1 - end, n, 1);
            pair.post_send(end, n, Op::Send, 1);
            pair.run_until_completions(end, n as usize + 1);
        }
    }
    // The round trip of a READ includes the time for which the window of the peer holds back the response.
    let mut round_nanos = Vec::new();
    for round in 1..=12 {
        let before_nanos = pair.world.now_nanos();
        (0..2).for_each(|end| (0..8).for_each(|n| pair.post_send(end, n, Op::Read, 1 << 16)));
        (0..2).for_each(|end| pair.run_until_completions(end, 32 + 8 * round));
        round_nanos.push(pair.world.now_nanos() - before_nanos);
    }
    assert!(round_nanos[11] <= round_nanos[0], "{round_nanos:?}");
}
