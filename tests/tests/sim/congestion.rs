//! Congestion control between two engines, in virtual time: what a mark on the wire does to the sender.

use std::cell::RefCell;
use std::rc::Rc;

use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::WcStatus;
use roce::recovery::RecoveryScheme;
use roce::wire::{Opcode, Packet};
use tests::pair::{Op, Pair, PairConfig, conn};
use tests::record::{self, Seen, Trace};

/// 40 Gbit/s, and 8 us of round trip.
const LINK: LinkConfig =
    LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 4_000, queue_bytes_max: 1 << 22 };
const MESSAGE_BYTES: u32 = 16_384;
const DEPTH: u32 = 32;
const SCHEMES: [RecoveryScheme; 2] =
    [RecoveryScheme::GoBackN, RecoveryScheme::SelectiveRepeat { window_pkts: 1024 }];

/// A sender that always has something to send.
struct Flow {
    pair: Pair,
    op: Op,
    posted: u64,
}

impl Flow {
    fn new(congestion: &str, recovery: RecoveryScheme, op: Op) -> Flow {
        let congestion: CongestionScheme = congestion.parse().unwrap();
        let pair = Pair::new(&PairConfig {
            link: LINK,
            memory_bytes: MESSAGE_BYTES as usize,
            depth: DEPTH,
            ..PairConfig::of(ConnAttr {
                path_mtu: PathMtu::Mtu1024,
                congestion: Some(congestion),
                timeout: 14,
                max_rd_atomic: 16,
                max_dest_rd_atomic: 16,
                recovery,
                ..conn()
            })
        });
        Flow { pair, op, posted: 0 }
    }

    /// Runs for so long; returns the goodput in Gbit/s.
    fn run(&mut self, nanos: u64) -> f64 {
        let pair = &mut self.pair;
        let (start_nanos, before) = (pair.world.now_nanos(), pair.ends[0].sent.len());
        while pair.world.now_nanos() < start_nanos + nanos {
            while self.posted - (pair.ends[0].sent.len() as u64) < u64::from(DEPTH) {
                pair.post_send(0, self.posted, self.op, MESSAGE_BYTES);
                self.posted += 1;
            }
            pair.world.step(Some(start_nanos + nanos));
            pair.take_completions();
        }
        assert!(pair.ends[0].sent.iter().all(|done| done.status == WcStatus::Success));
        let messages = pair.ends[0].sent.len() - before;
        (messages as u64 * u64::from(MESSAGE_BYTES) * 8) as f64 / nanos as f64
    }

    /// The host whose payload it is, and the link on which it leaves.
    fn source(&self) -> usize {
        usize::from(self.op == Op::Read)
    }

    /// The rate of the payload's sender in Gbit/s, where it is limited.
    fn rate(&self) -> Option<f64> {
        let qpn = self.pair.ends[self.source()].qp.qpn;
        let congestion = self.pair.world.hosts[self.source()].engine.qp_congestion(qpn)?;
        congestion.rate_bits_per_sec().map(|rate| rate as f64 / 1e9)
    }

    fn window_pkts(&self) -> u32 {
        let congestion = self.pair.world.hosts[0].engine.qp_congestion(self.pair.ends[0].qp.qpn);
        congestion.expect("it is connected").window_pkts()
    }

    /// Marks frames of the payload's link, from now on.
    fn mark(&mut self, frames: std::ops::Range<u64>) {
        self.mark_on(self.source(), frames);
    }

    fn mark_on(&mut self, link: usize, frames: std::ops::Range<u64>) {
        let entry = |frame| TapeEntry { link: LinkId(link), frame, impairment: Impairment::MarkCe };
        self.pair.set_tape(&Tape(frames.map(entry).collect()));
    }

    fn record(&self) -> Trace {
        let trace = Trace::default();
        record::record(&mut self.pair.world.network.borrow_mut(), &trace);
        trace
    }
}

#[test]
fn a_marked_flow_slows_down_and_recovers() {
    for (recovery, op) in
        SCHEMES.into_iter().flat_map(|recovery| [(recovery, Op::Write), (recovery, Op::Read)])
    {
        let mut flow = Flow::new("dcqcn:nvidia", recovery, op);
        let free = flow.run(200_000);
        assert_eq!(flow.rate(), None, "{op:?}: nothing is limited that was not marked");
        flow.mark(0..400);
        let marked = flow.run(200_000);
        let slowed = flow.rate().expect("it is limited");
        assert!(slowed < 8.0, "{op:?} still sends at {slowed} Gbit/s");
        assert!(marked < free / 2.0, "{op:?} moves {marked} of {free} Gbit/s");
        flow.mark(0..0);
        flow.run(100_000);
        let (source, sink) = (flow.pair.counters(flow.source()), flow.pair.counters(1 - flow.source()));
        assert!(sink.np_ecn_marked_roce_packets >= 200, "{}", sink.np_ecn_marked_roce_packets);
        assert!(sink.np_cnp_sent > 0 && source.rp_cnp_handled == sink.np_cnp_sent);
        flow.run(40_000_000);
        let (recovered, rate) = (flow.run(200_000), flow.rate());
        assert!(recovered > free * 0.9, "{op:?} recovers to {recovered} of {free} Gbit/s, at {rate:?}");
        let after = flow.pair.counters(1 - flow.source());
        assert_eq!(after.np_cnp_sent, sink.np_cnp_sent, "no notification without a mark");
    }
}

#[test]
fn the_rate_on_the_wire_is_the_rate() {
    // A rate that stays as it is: no increase comes, and the first notification takes off nothing.
    let fixed = "rpg_time_reset=131071,rpg_byte_reset=2147483647,rpg_min_dec_fac=100";
    for (mbps, op) in
        [(100, Op::Write), (1_000, Op::Read), (9_973, Op::Write), (30_000, Op::Write), (30_000, Op::Read)]
    {
        let congestion = format!("dcqcn:{fixed},rate_to_set_on_first_cnp={mbps}");
        let mut flow = Flow::new(&congestion, RecoveryScheme::GoBackN, op);
        flow.mark(0..1);
        // What went out before the notification came waits at the port until then.
        flow.run(1_000_000);
        assert_eq!(flow.rate(), Some(f64::from(mbps) / 1000.0));
        let trace = flow.record();
        flow.run(2_000_000);
        let trace = trace.borrow();
        let source = LinkId(flow.source());
        let data: Vec<&Seen> =
            trace.iter().filter(|seen| seen.link == source && seen.frame.len() > 200).collect();
        let [first, .., last] = data.as_slice() else { panic!("nothing was sent at {mbps} Mbit/s") };
        let bytes: usize = data.iter().skip(1).map(|seen| seen.frame.len()).sum();
        let measured = (bytes * 8) as f64 * 1000.0 / (last.nanos - first.nanos) as f64;
        assert!((measured / f64::from(mbps) - 1.0).abs() < 0.01, "{op:?}: {measured} Mbit/s for {mbps}");
        // And in every 10 us, but for a packet more or less, and the 100 ns between two polls.
        for window in (first.nanos..last.nanos - 10_000).step_by(3_333) {
            let within = data.iter().filter(|seen| (window..window + 10_000).contains(&seen.nanos));
            let bits: usize = within.map(|seen| seen.frame.len() * 8).sum();
            let fair = f64::from(mbps) * 10.0;
            let slack = 1150.0 * 8.0 + f64::from(mbps) * 0.1;
            assert!(
                (bits as f64 - fair).abs() <= fair * 0.01 + slack,
                "{op:?}: {bits} bits for {fair} in 10 us"
            );
        }
    }
}

#[test]
fn notifications_are_paced_and_look_as_they_should() {
    let mut flow = Flow::new("dcqcn:rpg_min_dec_fac=100", RecoveryScheme::GoBackN, Op::Write);
    flow.mark(0..10_000);
    let trace = flow.record();
    flow.run(400_000);
    let sink = flow.pair.counters(1);
    assert!((95..=101).contains(&sink.np_cnp_sent), "{} in 400 us, one in 4 us", sink.np_cnp_sent);
    let mut last_nanos = None;
    for seen in trace.borrow().iter() {
        let packet = Packet::parse(&seen.frame).expect("a RoCE packet");
        if packet.bth.opcode != Opcode::CNP {
            // What the marks of the tape have not touched is capable of them; so are acknowledgements.
            assert!(matches!(packet.ip().tclass, 2 | 3), "{:?}", packet.ip());
            continue;
        }
        assert_eq!((seen.link, packet.ip().tclass, packet.bth.becn), (LinkId(1), 0xC2, true));
        assert_eq!(packet.bth.dest_qp, flow.pair.ends[0].qp.qpn);
        assert!(last_nanos.is_none_or(|last| seen.nanos >= last + 3_900), "two within 4 us");
        last_nanos = Some(seen.nanos);
    }
}

#[test]
fn without_a_scheme_that_needs_marks_packets_are_not_capable_of_them() {
    for scheme in ["none", "window", "swift", "timely"] {
        let mut flow = Flow::new(scheme, RecoveryScheme::GoBackN, Op::Write);
        let trace = flow.record();
        flow.run(20_000);
        for seen in trace.borrow().iter() {
            assert_eq!(Packet::parse(&seen.frame).expect("a RoCE packet").ip().tclass, 0, "{scheme}");
        }
    }
}

#[test]
fn marked_acknowledgements_notify_nobody() {
    let mut flow = Flow::new("dcqcn", RecoveryScheme::GoBackN, Op::Write);
    flow.mark_on(1, 0..1_000);
    flow.run(200_000);
    assert!(flow.pair.counters(0).np_ecn_marked_roce_packets > 50);
    assert_eq!((flow.pair.counters(0).np_cnp_sent, flow.rate()), (0, None));
}

#[test]
fn delay_is_kept_near_its_target_at_the_full_rate() {
    for recovery in SCHEMES {
        let mut full = Flow::new("window:512", recovery, Op::Write);
        let free = full.run(500_000);
        let round_trips = Rc::new(RefCell::new(Vec::new()));
        let mut flow =
            Flow::new("swift:window_pkts=512,base_target_nanos=25000,fs_range_nanos=0", recovery, Op::Write);
        assert_eq!(flow.window_pkts(), 512);
        flow.run(500_000);
        for _ in 0..100 {
            flow.run(10_000);
            round_trips.borrow_mut().push(flow.window_pkts());
        }
        // 25 us at 40 Gbit/s are 113 packets on the wire.
        let windows = round_trips.borrow();
        let (least, most) = (windows.iter().min().unwrap(), windows.iter().max().unwrap());
        assert!(*least >= 80 && *most <= 150, "{recovery}: a window of {least} to {most}");
        let goodput = flow.run(500_000);
        assert!(goodput >= 0.98 * free, "{recovery}: {goodput} of {free} Gbit/s");
    }
}

#[test]
fn timely_gives_way_while_the_delay_rises() {
    for recovery in SCHEMES {
        // A window that fills 60 us of queue, more than the upper threshold.
        let parameters = "timely:window_pkts=512,t_low_nanos=15000,t_high_nanos=40000,min_rtt_nanos=9000,add_step_mbps=100";
        let mut flow = Flow::new(parameters, recovery, Op::Write);
        flow.run(1_000_000);
        assert!(flow.rate().is_some_and(|rate| rate < 40.0), "{recovery}: {:?}", flow.rate());
        let goodput = flow.run(2_000_000);
        assert!(goodput >= 10.0, "{recovery}: {goodput} Gbit/s are left");
    }
}
