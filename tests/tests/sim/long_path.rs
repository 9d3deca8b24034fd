//! Paths without loss. If the round trip is constant, from 2 us to 200 ms, a requester retransmits a few packets
//! spuriously before its first round-trip sample, and none after that sample. If some responses are late, the requester
//! retransmits a few packets until its probe timeout exceeds their delay.

use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::WcStatus;
use roce::recovery::RecoveryScheme;
use tests::pair::{Op, Pair, PairConfig, conn};

const PATH_MTU: PathMtu = PathMtu::Mtu1024;
/// 4.096 us * 2^18: a second, more than any round trip here.
const TIMEOUT: u8 = 18;
const MESSAGES: u32 = 30;
const LEN_BYTES: [u32; 2] = [64, 16 * 1024];
const DEPTHS: [u32; 3] = [1, 4, 30];
const DELAYS_NANOS: [u64; 5] = [1_000, 100_000, 500_000, 10_000_000, LONGEST_NANOS];
/// The longest propagation. Tested with one depth and one length, because a run takes half a second of real time.
const LONGEST_NANOS: u64 = 100_000_000;
/// Largest number of probes within the longest round trip, after waits of 100 us, three times doubled and then quadrupled
/// each time. The first ACK then gives an upper bound of the round trip.
const PROBES_MAX: u64 = 7;
/// If more than two packets are in flight above the probe, the last of them is retransmitted, too.
const IMPROVED_PROBES_MAX: u64 = PROBES_MAX + 1;
/// While other requests are in flight, the first ACK gives no bound: 8 probes until only a round-trip sample ends the
/// backoff, and 5 until the wait exceeds the longest round trip.
const SELECTIVE_PROBES_MAX: u64 = 8 + 5;

/// One in this number of responses is late.
const LATE_EVERY: u64 = 10;
const LATE_NANOS: u64 = 60_000;
/// The probe timeout is 10 us after a first sample of 2 us. Spurious probes quadruple it, until it exceeds the 60 us.
const LATE_PROBES: u64 = 2;

const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 1024 };
/// Schemes of requester and responder.
const SCHEMES: [(RecoveryScheme, RecoveryScheme); 4] = [
    (RecoveryScheme::GoBackN, RecoveryScheme::GoBackN),
    (RecoveryScheme::ImprovedGoBackN, RecoveryScheme::GoBackN),
    (RecoveryScheme::ImprovedGoBackN, RecoveryScheme::ImprovedGoBackN),
    (SELECTIVE, SELECTIVE),
];

/// A pair whose path has a propagation of `delay_nanos` each way.
fn pair(delay_nanos: u64, schemes: (RecoveryScheme, RecoveryScheme)) -> Pair {
    let conn = ConnAttr {
        path_mtu: PATH_MTU,
        congestion: Some(CongestionScheme::Window { window_pkts: 256 }),
        timeout: TIMEOUT,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        recovery: schemes.0,
        ..conn()
    };
    Pair::new(&PairConfig {
        link: LinkConfig {
            rate_bits_per_sec: 100_000_000_000,
            propagation_nanos: delay_nanos,
            queue_bytes_max: 1 << 24,
        },
        peer_recovery: Some(schemes.1),
        ..PairConfig::of(conn)
    })
}

/// Transfers `messages` messages. Returns the number of packets that the requester and the responder sent, and the time
/// until all messages completed, in nanoseconds.
fn run(pair: &mut Pair, op: Op, len_bytes: u32, depth: u32, messages: u32) -> [u64; 3] {
    let start_nanos = pair.world.now_nanos();
    let before = [0, 1].map(|link| pair.left(link));
    for number in 0..messages {
        if op == Op::Send {
            pair.post_recv(1, u64::from(number), len_bytes);
        }
        pair.post_send(0, u64::from(number), op, len_bytes);
        pair.run_until_completions(0, (number + 1).saturating_sub(depth - 1) as usize);
    }
    pair.run_until_completions(0, messages as usize);
    let nanos = pair.world.now_nanos() - start_nanos;
    pair.settle();
    assert!(pair.ends[0].sent.iter().all(|done| done.status == WcStatus::Success));
    let [requests, responses] = [0, 1].map(|link| pair.left(link) - before[link]);
    [requests, responses, nanos]
}

/// Returns the largest number of packets that probes of a requester with `scheme` cause to be retransmitted.
fn retransmitted_max(op: Op, message_pkts: u64, scheme: RecoveryScheme) -> u64 {
    match scheme {
        RecoveryScheme::GoBackN => 0,
        RecoveryScheme::ImprovedGoBackN => IMPROVED_PROBES_MAX,
        // A probe of a READ that the responder may not have received requests all responses.
        RecoveryScheme::SelectiveRepeat { .. } if op == Op::Read && message_pkts > 1 => {
            PROBES_MAX * message_pkts
        }
        RecoveryScheme::SelectiveRepeat { .. } => SELECTIVE_PROBES_MAX,
    }
}

#[test]
fn nothing_lost_is_nothing_retransmitted() {
    let mut wrong = Vec::new();
    for op in [Op::Send, Op::Write, Op::Read] {
        for len_bytes in LEN_BYTES {
            let message_pkts = u64::from(len_bytes.div_ceil(PATH_MTU.bytes()));
            let packets = u64::from(MESSAGES) * message_pkts;
            for depth in DEPTHS {
                for delay_nanos in DELAYS_NANOS {
                    if delay_nanos == LONGEST_NANOS && (len_bytes, depth) != (LEN_BYTES[0], DEPTHS[1]) {
                        continue;
                    }
                    for schemes in SCHEMES {
                        let mut pair = pair(delay_nanos, schemes);
                        let [requests, responses, nanos] = run(&mut pair, op, len_bytes, depth, MESSAGES);
                        let data = if op == Op::Read { responses } else { requests };
                        let again = data.saturating_sub(packets);
                        if again > retransmitted_max(op, message_pkts, schemes.0) {
                            wrong.push(format!(
                                "{op:?} of {len_bytes} bytes, depth {depth}, {} us one way, {} with {}: {again} of \
                                 {packets} again, {} us",
                                delay_nanos / 1000,
                                schemes.0,
                                schemes.1,
                                nanos / 1000
                            ));
                        }
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// Each message is sent after the responses to all transmissions of the previous one, as in a test of latency with Linux's
/// rxe, which acknowledges each transmission.
#[test]
fn late_responses_are_probed_a_few_times_only() {
    let late = Impairment::Delay { nanos: LATE_NANOS };
    let entry = |n| TapeEntry { link: LinkId(1), frame: n * LATE_EVERY, impairment: late };
    let tape = Tape((1..40).map(entry).collect());
    for (op, schemes) in [Op::Send, Op::Write, Op::Read].into_iter().flat_map(|op| SCHEMES.map(|s| (op, s))) {
        let mut pair = pair(1_000, schemes);
        pair.set_tape(&tape);
        let retransmitted: u64 = (0..400).map(|_| run(&mut pair, op, 64, 1, 1)[0] - 1).sum();
        let expected = if schemes.0 == RecoveryScheme::GoBackN { 0 } else { LATE_PROBES };
        assert_eq!(retransmitted, expected, "{op:?}, {} with {}", schemes.0, schemes.1);
    }
}
