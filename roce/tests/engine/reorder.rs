//! The reorder buffer of an engine: share per queue pair, expiry, and conflicts with forged packets.

use crate::corpus;
use crate::hostile;
use crate::hostile::REORDER_BYTES;
use crate::hostile::several::{Several, setup};
use crate::hostile::tape::Kind;
use proptest::prelude::*;
use roce::qp::{Placement, QpState};
use roce::recovery::RecoveryScheme;

#[test]
fn the_corpus_holds() {
    let mut sum = hostile::crowd::Tally::default();
    for input in corpus::inputs("reorder") {
        let tally = hostile::crowd::run(&input);
        sum.buffered_bytes_max = sum.buffered_bytes_max.max(tally.buffered_bytes_max);
        sum.no_room += tally.no_room;
        sum.expired += tally.expired;
        sum.conflicts += tally.conflicts;
        sum.writes += tally.writes;
    }
    // If a count is below its bound here, the reorder buffer never fills, or few packets expire, conflict or are
    // executed.
    assert!(sum.buffered_bytes_max > REORDER_BYTES * 3 / 4, "{sum:?}");
    assert!(sum.no_room > 100 && sum.expired > 100 && sum.conflicts > 10 && sum.writes > 1000, "{sum:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_script_holds(script in proptest::collection::vec(any::<u8>(), 0..600)) {
        hostile::crowd::run(&script);
    }
}

const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 4096 };
const KEEPING: [RecoveryScheme; 2] = [RecoveryScheme::ImprovedGoBackN, SELECTIVE];

/// A time longer than 1 s; buffered packets expire after 1 s.
const LONG_NANOS: u64 = 3_000_000_000;

/// Payload bytes of a full packet: the path MTU of [`setup`].
const FULL: usize = 256;

/// Value of all payload bytes of genuine packets; `FORGED`: of forged packets.
const GENUINE: u8 = 0x44;
const FORGED: u8 = 0x66;

/// Sends `count` WRITEs of one packet each, behind a gap of one packet. Returns the frame that closes the gap.
fn behind_a_gap(several: &mut Several, index: usize, count: usize, len_bytes: usize) -> Vec<u8> {
    let mut frames = several.writes(index, count + 1, len_bytes);
    let missing = frames.remove(0);
    several.put_all(frames);
    several.run();
    missing
}

#[test]
fn one_queue_pair_leaves_the_others_their_share() {
    let mut several = Several::new(setup(SELECTIVE, Placement::InOrder), 3);
    // The gaps of queue pairs 0 and 1 stay open; the gap of queue pair 2 is closed.
    for greedy in [0, 1] {
        behind_a_gap(&mut several, greedy, 4095, FULL);
    }
    let missing = behind_a_gap(&mut several, 2, 16, FULL);
    several.put(missing);
    several.run();
    assert_eq!(several.counter(2, "rx_write_requests"), 17, "what came was kept");
    let lost: u64 = (0..2).map(|index| several.counter(index, "reorder_no_room")).sum();
    assert_eq!(lost as usize + several.buffered(), 2 * 4095, "all others are counted");
}

#[test]
fn what_is_kept_goes_back_when_the_queue_pair_ends() {
    type End = fn(&mut Several);
    let ends: [(&str, End); 4] = [
        ("destroyed", |several| several.destroy(0)),
        ("reset", |several| assert!(several.modify(0, QpState::Reset))),
        ("put into error", |several| assert!(several.modify(0, QpState::Err))),
        ("failed by its peer", |several| {
            several.ends[0].peer.expected = several.ends[0].peer.expected.minus(101);
            let reth = several.shared(1 << 20, 4);
            let frames = several.message(0, Kind::Write, reth);
            several.put_all(frames);
        }),
    ];
    for recovery in KEEPING {
        for (how, end) in ends {
            let mut several = Several::new(setup(recovery, Placement::InOrder), 1);
            behind_a_gap(&mut several, 0, 100, FULL);
            assert_eq!(several.buffered(), 100);
            end(&mut several);
            several.run();
            assert_eq!(several.buffered(), 0, "{how} under {recovery}");
        }
    }
}

#[test]
fn what_waits_too_long_is_dropped_and_counted() {
    for recovery in KEEPING {
        let mut several = Several::new(setup(recovery, Placement::InOrder), 1);
        let missing = behind_a_gap(&mut several, 0, 100, FULL);
        several.wait(LONG_NANOS);
        assert_eq!((several.buffered(), several.counter(0, "reorder_expired")), (0, 100), "{recovery}");
        let more = several.writes(0, 1, FULL);
        several.put_all(more);
        several.run();
        assert!(
            recovery != SELECTIVE || several.told == 1,
            "what was discarded is not acknowledged any more"
        );
        several.put(missing);
        several.run();
        assert_eq!(several.counter(0, "rx_write_requests"), 1, "{recovery}");
    }
}

#[test]
fn a_short_frame_takes_little_room() {
    for recovery in KEEPING {
        let mut several = Several::new(setup(recovery, Placement::InOrder), 1);
        let missing = behind_a_gap(&mut several, 0, 100, 64);
        assert_eq!(several.buffered(), 100, "{recovery}");
        several.put(missing);
        several.run();
        assert_eq!(several.counter(0, "rx_write_requests"), 101, "{recovery}");
    }
}

#[test]
fn the_packet_farthest_ahead_makes_room() {
    let mut several = Several::new(setup(SELECTIVE, Placement::InOrder), 1);
    let mut frames = several.writes(0, 4096, FULL);
    let missing = frames.remove(0);
    // Packets arrive in descending PSN order. If the reorder buffer is full, each new packet replaces the buffered
    // packet with the highest PSN.
    several.put_all(frames.into_iter().rev());
    several.run();
    let (kept, lost) = (several.buffered() as u64, several.counter(0, "reorder_no_room"));
    assert!(lost > 0 && kept + lost == 4095, "{kept} kept, {lost} lost");
    several.put(missing);
    several.run();
    assert_eq!(several.counter(0, "rx_write_requests"), kept + 1);
}

#[test]
fn the_genuine_packet_takes_the_place_of_a_forged_one() {
    for recovery in KEEPING {
        for placement in [Placement::InOrder, Placement::Relaxed] {
            for len_bytes in [FULL, 64] {
                let mut several = Several::new(setup(recovery, placement), 1);
                let first = several.ends[0].peer.expected;
                several.ends[0].peer.fill = FORGED;
                let forged = several.writes(0, 4, len_bytes);
                several.ends[0].peer.expected = first;
                several.ends[0].peer.fill = GENUINE;
                let genuine = several.writes(0, 4, len_bytes);
                several.put(forged[2].clone());
                several.put_all(genuine[1..].iter().cloned());
                several.put(genuine[2].clone());
                several.run();
                several.put(genuine[0].clone());
                several.run();
                // The conflict drops the forged packet and genuine packets. The genuine packets are retransmitted.
                several.put_all(genuine);
                several.run();
                assert_eq!(several.counter(0, "rx_write_requests"), 4);
                let forged =
                    several.arena.shared(0, 4 * len_bytes).iter().filter(|byte| **byte == FORGED).count();
                assert_eq!(forged, 0, "forged bytes in memory under {recovery}, {placement:?}");
                assert_eq!(several.counter(0, "reorder_conflicts"), 1, "{recovery}, {placement:?}");
            }
        }
    }
}

#[test]
fn a_retransmission_is_no_conflict() {
    for recovery in KEEPING {
        for placement in [Placement::InOrder, Placement::Relaxed] {
            let mut several = Several::new(setup(recovery, placement), 1);
            let reth = several.shared(0, 4 * FULL);
            let frames = several.message(0, Kind::Write, reth);
            several.put_all(frames[1..].iter().cloned());
            // A retransmission has another IP identification, and may have AckReq set.
            several.put_all(frames[1..].iter().map(|frame| hostile::several::retransmitted(frame)));
            several.run();
            assert_eq!(several.counter(0, "reorder_conflicts"), 0, "{recovery}, {placement:?}");
            several.put(frames[0].clone());
            several.run();
            assert_eq!(several.counter(0, "rx_write_requests"), 1, "{recovery}, {placement:?}");
            assert!(several.arena.shared(0, 4 * FULL).iter().all(|byte| *byte == GENUINE));
        }
    }
}

#[test]
fn a_forged_first_packet_leads_no_payload_astray() {
    for recovery in KEEPING {
        let mut several = Several::new(setup(recovery, Placement::Relaxed), 1);
        let first = several.ends[0].peer.expected;
        let [before, reth, elsewhere] = [0, 1024, 8192].map(|offset| several.shared(offset, 4 * FULL));
        let mut frames = several.message(0, Kind::Write, before);
        let from = several.ends[0].peer.expected;
        frames.extend(several.message(0, Kind::Write, reth));
        several.ends[0].peer.expected = from;
        let forged = several.message(0, Kind::Write, elsewhere);
        several.put(forged[0].clone());
        several.put_all(frames[5..].iter().cloned());
        several.put(frames[4].clone());
        several.put_all(frames[1..4].iter().cloned());
        several.put(frames[0].clone());
        several.run();
        // The packets that the conflict dropped are retransmitted.
        several.put_all(frames);
        several.run();
        several.ends[0].peer.expected = first;
        assert_eq!(several.counter(0, "rx_write_requests"), 2, "{recovery}");
        let astray = several.arena.shared(1024, 4 * FULL).iter().filter(|byte| **byte != GENUINE).count();
        assert_eq!(astray, 0, "bytes that are not in their place under {recovery}");
    }
}
