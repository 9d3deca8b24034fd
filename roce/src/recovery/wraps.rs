//! Tests of selective repeat after half the PSN circle (2^23 packets) and more, which no simulation sends.

use super::selective_repeat::SelectiveRepeat;
use crate::psn::{Psn, PsnSpace};

const FIRST: Psn = Psn::new(0xFF_FFFA);
const WINDOW_PKTS: u32 = 64;

/// Records WRITEs of `packets` packets as sent, executed and acknowledged, one window at a time.
fn write(scheme: &mut SelectiveRepeat, packets: u32) {
    for _ in 0..packets / WINDOW_PKTS {
        let psn = scheme.next_psn();
        scheme.on_sent(WINDOW_PKTS);
        assert!(scheme.on_executed(psn.plus(WINDOW_PKTS)));
        scheme.on_acked(PsnSpace::Request, psn, WINDOW_PKTS);
    }
}

#[test]
#[cfg_attr(miri, ignore = "sends twice the PSN circle, which takes Miri an hour")]
fn the_order_of_responses_tells_of_losses_however_many_writes_came_before() {
    for writes in
        [0, Psn::COUNT / 4, Psn::COUNT / 2, Psn::COUNT / 2 + 4 * WINDOW_PKTS, Psn::COUNT - WINDOW_PKTS]
    {
        let mut scheme = SelectiveRepeat::new(FIRST, WINDOW_PKTS);
        write(&mut scheme, writes);
        let read = scheme.next_psn();
        scheme.on_sent(4);
        scheme.on_executed(read.plus(4));
        [0, 2].into_iter().for_each(|i| scheme.on_acked(PsnSpace::Response, read.plus(i), 1));
        let mut lost = Vec::new();
        if let Some(from) = scheme.scan_from(PsnSpace::Response) {
            scheme.detect_losses(PsnSpace::Response, from, |psn| {
                lost.push(psn);
                Some((true, 1))
            });
        }
        assert_eq!(lost, [read.plus(1)], "after {writes} WRITEs the second of four responses is overtaken");
    }
}

#[test]
fn a_read_of_half_the_circle_is_known_to_be_executed() {
    let mut scheme = SelectiveRepeat::new(FIRST, WINDOW_PKTS);
    let end = FIRST.plus(Psn::COUNT / 2);
    scheme.on_sent(Psn::COUNT / 2);
    assert!(scheme.on_executed(end), "2 GiB at a path MTU of 256");
    assert!(!scheme.on_executed(end) && !scheme.on_executed(FIRST), "no news");
    scheme.on_acked(PsnSpace::Response, FIRST, Psn::COUNT / 2);
    write(&mut scheme, WINDOW_PKTS);
    assert_eq!((scheme.una(), scheme.sent()), (end.plus(WINDOW_PKTS), 0));
}
