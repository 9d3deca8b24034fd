//! How much of a network's goodput is left when it loses packets at random, in virtual time.

use lab::rng::SplitMix;
use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::counters::QpCounters;
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::WcStatus;
use roce::recovery::RecoveryScheme;
use tests::pair::{Op, Pair, PairConfig, conn};

/// 40 Gbit/s, and 8 us of round trip.
const LINK: LinkConfig =
    LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 4_000, queue_bytes_max: 1 << 20 };
const PATH_MTU: PathMtu = PathMtu::Mtu1024;
const MESSAGE_BYTES: u32 = 65_536;
const MESSAGES: usize = 1024;
const DEPTH: u32 = 16;
/// Losses of each link, in packets of 100,000.
const LOSSES: [u32; 7] = [0, 24, 98, 391, 1_000, 2_000, 5_000];
/// Frames that a tape speaks of: more than a run sends.
const FRAMES: u64 = 200_000;

const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 2048 };

struct Run {
    gbit_per_sec: f64,
    requester: QpCounters,
    /// Packets lost on the link that carries the payload; of READs, requests too.
    lost: u64,
}

/// Moves the messages with a queue of requests that is always full.
fn run(op: Op, recovery: RecoveryScheme, loss: u32) -> Run {
    let mut pair = Pair::new(&PairConfig {
        link: LINK,
        memory_bytes: MESSAGE_BYTES as usize,
        depth: DEPTH,
        ..PairConfig::of(ConnAttr {
            path_mtu: PATH_MTU,
            congestion: Some(CongestionScheme::Window { window_pkts: 256 }),
            timeout: 14,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            recovery,
            ..conn()
        })
    });
    let mut rng = SplitMix::new(u64::from(loss) + 1);
    let mut entries = Vec::new();
    for link in 0..2 {
        let hit = (0..FRAMES).filter(|_| rng.up_to(99_999) < loss as usize);
        entries.extend(hit.map(|frame| TapeEntry {
            link: LinkId(link),
            frame,
            impairment: Impairment::Drop,
        }));
    }
    pair.set_tape(&Tape(entries));
    let start_nanos = pair.world.now_nanos();
    let mut posted = 0;
    while pair.ends[0].sent.len() < MESSAGES {
        while posted < MESSAGES && posted - pair.ends[0].sent.len() < DEPTH as usize {
            if op == Op::Send {
                pair.post_recv(1, posted as u64, MESSAGE_BYTES);
            }
            pair.post_send(0, posted as u64, op, MESSAGE_BYTES);
            posted += 1;
        }
        let done = pair.ends[0].sent.len();
        pair.run_until_completions(0, done + 1);
    }
    let nanos = pair.world.now_nanos() - start_nanos;
    assert!(pair.ends[0].sent.iter().all(|done| done.status == WcStatus::Success));
    let lost_on = |link| pair.world.network.borrow().counters(LinkId(link)).dropped;
    Run {
        gbit_per_sec: (MESSAGES as u64 * u64::from(MESSAGE_BYTES) * 8) as f64 / nanos as f64,
        requester: pair.counters(0),
        lost: if op == Op::Read { lost_on(0) + lost_on(1) } else { lost_on(0) },
    }
}

#[test]
fn selective_repeat_keeps_its_goodput() {
    for op in [Op::Send, Op::Write, Op::Read] {
        let clean = run(op, SELECTIVE, 0).gbit_per_sec;
        let standard = run(op, RecoveryScheme::GoBackN, 0).gbit_per_sec;
        assert!((clean / standard - 1.0).abs() <= 0.02, "{op:?} without loss: {clean:.2} for {standard:.2}");
        for loss in LOSSES {
            let run = run(op, SELECTIVE, loss);
            let chance = f64::from(loss) / 100_000.0;
            let kept = run.gbit_per_sec / (clean * (1.0 - chance));
            println!(
                "{op:?} at a loss of {chance:.5}: {:.2} Gbit/s, {kept:.3} kept, {} lost, {} retransmitted",
                run.gbit_per_sec, run.lost, run.requester.retransmitted_pkts
            );
            let least = if chance <= 0.02 { 0.97 } else { 0.90 };
            assert!(kept >= least, "{op:?} keeps {kept:.3} of its goodput at a loss of {chance}");
            let (again, probes) = (run.requester.retransmitted_pkts, run.requester.tail_probes);
            let most = run.lost + run.lost / 50 + probes;
            assert!(again <= most, "{op:?} retransmits {again}, {} lost, at a loss of {chance}", run.lost);
            assert_eq!(
                run.requester.roce_adp_retrans_to, 0,
                "{op:?} waits for a timeout at a loss of {chance}"
            );
        }
    }
}

#[test]
fn improved_go_back_n_bends_where_the_plain_one_breaks() {
    for op in [Op::Send, Op::Write] {
        let clean = run(op, RecoveryScheme::ImprovedGoBackN, 0).gbit_per_sec;
        let standard = run(op, RecoveryScheme::GoBackN, 0).gbit_per_sec;
        assert!((clean / standard - 1.0).abs() <= 0.02, "{op:?} without loss: {clean:.2} for {standard:.2}");
        for (loss, least) in [(98, 0.80), (1_000, 0.60), (5_000, 0.25)] {
            let improved = run(op, RecoveryScheme::ImprovedGoBackN, loss);
            let kept = improved.gbit_per_sec / clean;
            println!("{op:?} by improved go-back-N at a loss of {loss} in 100,000: {kept:.3} kept");
            assert!(kept >= least, "{op:?} keeps {kept:.3} at a loss of {loss} in 100,000");
            assert_eq!(improved.requester.local_ack_timeout_err, 0, "{op:?} waits for the ACK timeout");
        }
    }
}

#[test]
fn one_loss_costs_one_round_trip() {
    const PACKETS: u32 = 64;
    for op in [Op::Send, Op::Write, Op::Read] {
        let completed_nanos = |dropped: Option<u64>| {
            let conn = ConnAttr { recovery: SELECTIVE, ..conn() };
            let mut pair = Pair::new(&PairConfig { link: LINK, ..PairConfig::of(conn) });
            let link = LinkId(usize::from(op == Op::Read));
            pair.set_tape(&Tape(
                dropped
                    .map(|frame| TapeEntry { link, frame, impairment: Impairment::Drop })
                    .into_iter()
                    .collect(),
            ));
            let start_nanos = pair.world.now_nanos();
            if op == Op::Send {
                pair.post_recv(1, 0, PACKETS * PATH_MTU.bytes());
            }
            pair.post_send(0, 0, op, PACKETS * PATH_MTU.bytes());
            pair.run_until_completions(0, 1);
            pair.world.now_nanos() - start_nanos
        };
        let clean_nanos = completed_nanos(None);
        // One in the middle is hidden behind what follows; one near the end shows what it costs.
        for frame in [5, 32, u64::from(PACKETS) - 2] {
            let late_nanos = completed_nanos(Some(frame)) - clean_nanos;
            let round_trip_nanos = 2 * LINK.propagation_nanos;
            assert!(late_nanos <= round_trip_nanos + 1_500, "{op:?}: frame {frame} costs {late_nanos} ns");
        }
    }
}

/// After a loss a READ request is doubled: the loss of one of the two packets delays no response, and the responses are
/// sent once.
#[test]
fn a_doubled_read_request_outlasts_the_loss_of_one_packet() {
    const PACKETS: u32 = 64;
    /// Response to the first READ.
    const RESPONSE: (usize, u64) = (1, 5);
    let second_read = |lost: &[(usize, u64)]| {
        let conn = ConnAttr { recovery: SELECTIVE, ..conn() };
        let mut pair = Pair::new(&PairConfig { link: LINK, ..PairConfig::of(conn) });
        let drop = |(link, frame)| TapeEntry { link: LinkId(link), frame, impairment: Impairment::Drop };
        pair.set_tape(&Tape(lost.iter().copied().map(drop).collect()));
        let (mut before, mut start_nanos) = ([0; 2], 0);
        for number in 0..2 {
            (before, start_nanos) = ([0, 1].map(|link| pair.left(link)), pair.world.now_nanos());
            pair.post_send(0, number, Op::Read, PACKETS * PATH_MTU.bytes());
            pair.run_until_completions(0, number as usize + 1);
        }
        let nanos = pair.world.now_nanos() - start_nanos;
        pair.settle();
        ([0, 1].map(|link| pair.left(link) - before[link]), nanos)
    };
    let (packets, clean_nanos) = second_read(&[]);
    assert_eq!(packets, [1, u64::from(PACKETS)], "without a loss before");
    // Frame 0 is the first READ request, frame 1 the retransmission.
    for lost in [&[RESPONSE][..], &[RESPONSE, (0, 2)], &[RESPONSE, (0, 3)]] {
        let (packets, nanos) = second_read(lost);
        assert_eq!(packets, [2, u64::from(PACKETS)], "{lost:?}");
        assert!(nanos < clean_nanos + LINK.propagation_nanos / 2, "{lost:?}: {nanos} ns for {clean_nanos}");
    }
}

/// An end that is not polled for a while neither receives nor sends. No packet is lost, so retransmissions are few.
#[test]
fn a_probe_timeout_costs_one_packet() {
    const STILL_NANOS: u64 = 2_000_000;
    const MESSAGES: u32 = 4;
    for op in [Op::Send, Op::Write, Op::Read] {
        let mut pair = Pair::new(&PairConfig {
            link: LINK,
            memory_bytes: MESSAGE_BYTES as usize,
            ..PairConfig::of(ConnAttr {
                congestion: Some(CongestionScheme::Window { window_pkts: 256 }),
                timeout: 14,
                recovery: SELECTIVE,
                ..conn()
            })
        });
        // From then on all that comes back, so that nothing overtakes.
        let late = if op == Op::Read { 100..FRAMES } else { 1..FRAMES };
        let delay = |frame| TapeEntry {
            link: LinkId(1),
            frame,
            impairment: Impairment::Delay { nanos: STILL_NANOS },
        };
        pair.set_tape(&Tape(late.map(delay).collect()));
        for number in 0..MESSAGES {
            if op == Op::Send {
                pair.post_recv(1, u64::from(number), MESSAGE_BYTES);
            }
            pair.post_send(0, u64::from(number), op, MESSAGE_BYTES);
        }
        pair.run_until_completions(0, MESSAGES as usize);
        pair.settle();
        let requester = pair.counters(0);
        let probes = requester.tail_probes + requester.roce_adp_retrans_to;
        let data_link = usize::from(op == Op::Read);
        let needed = u64::from(MESSAGES * MESSAGE_BYTES / PATH_MTU.bytes());
        println!("{op:?}: {probes} probes, {} packets again", pair.left(data_link) - needed);
        assert!((3..20).contains(&probes), "{op:?}: {probes} probes in {STILL_NANOS} ns without a response");
        assert!(pair.left(data_link) <= needed + probes, "{op:?}: more again than probes");
        assert_eq!(requester.spurious_retransmits, 0, "{op:?}: probes say nothing of the network");
    }
}
