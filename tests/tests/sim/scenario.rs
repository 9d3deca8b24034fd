//! What a random run does and what goes wrong in it: plain data that proptest draws and shrinks.

use std::fmt;

use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use roce::congestion::CongestionScheme;
use roce::engine::limits::ACK_REQ_INTERVAL_PKTS;
use roce::engine::limits::{DEFAULT_WINDOW_PKTS, RX_BURST_FRAMES, TX_BUDGET_PKTS, TX_QUANTUM_PKTS};
use roce::qp::Placement;
use roce::recovery::RecoveryScheme;

/// A whole run.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    /// Seeds what is not worth shrinking: keys, contents, scatter/gather cuts.
    pub(crate) seed: u64,
    pub(crate) ipv6: bool,
    /// Two on a cable, or three on a switch.
    pub(crate) hosts: usize,
    pub(crate) mtu_bytes: u32,
    pub(crate) link: LinkPlan,
    /// A host polls no more often than this.
    pub(crate) poll_gap_nanos: u64,
    /// Congestion control of each queue pair.
    pub(crate) congestion: CongestionScheme,
    /// Local ACK timeout: 4.096 us * 2^timeout.
    pub(crate) timeout: u8,
    pub(crate) min_rnr_timer: u8,
    pub(crate) conns: Vec<ConnPlan>,
    pub(crate) tape: Vec<TapeRun>,
}

/// What all links of a run are like.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinkPlan {
    pub(crate) rate_gbits: u64,
    pub(crate) propagation_nanos: u64,
    /// Frames of the longest that fit the queue.
    pub(crate) queue_frames: usize,
}

/// One connection; connection `i` joins hosts `i` and `i + 1`, modulo their number.
#[derive(Clone, Debug)]
pub(crate) struct ConnPlan {
    /// That of each end.
    pub(crate) recovery: [RecoveryScheme; 2],
    /// How WRITEs reach the memory of each end.
    pub(crate) placement: [Placement; 2],
    pub(crate) ends: [EndPlan; 2],
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct EndPlan {
    pub(crate) first_psn: u32,
    pub(crate) sq_depth: u32,
    pub(crate) rq_depth: u32,
    /// READs outstanding at most.
    pub(crate) max_rd_atomic: u8,
    /// How many more than the peer asks for are allowed to the peer.
    pub(crate) dest_rd_atomic_extra: u8,
    /// How long a receive is posted after there is room for it.
    pub(crate) recv_delay_nanos: u64,
    pub(crate) ops: Vec<OpPlan>,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    SendWithImm,
    Write,
    WriteWithImm,
    Read,
}

impl Kind {
    /// Whether it takes a receive of the peer.
    pub(crate) fn consumes_receive(self) -> bool {
        matches!(self, Kind::Send | Kind::SendWithImm | Kind::WriteWithImm)
    }
}

/// A length that follows the path MTU, so that it straddles packet boundaries at any.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LenPlan {
    Bytes(u32),
    Mtus { count: u32, delta: i32 },
}

impl LenPlan {
    pub(crate) fn bytes(self, mtu_bytes: u32) -> u32 {
        match self {
            LenPlan::Bytes(bytes) => bytes,
            LenPlan::Mtus { count, delta } => (count * mtu_bytes).saturating_add_signed(delta),
        }
    }
}

/// Where the bytes of a work request come from, or go to at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Its own range, used by nothing else.
    Own,
    /// The one range of this end that many of its WRITEs and READs touch: order shows there.
    Hot,
    /// The bytes that the READ posted just before brings, which needs a fence.
    Relay,
}

/// One work request.
#[derive(Clone, Copy)]
pub(crate) struct OpPlan {
    pub(crate) kind: Kind,
    pub(crate) len: LenPlan,
    pub(crate) place: Place,
    pub(crate) sges: usize,
    pub(crate) inline: bool,
    pub(crate) signaled: bool,
    pub(crate) solicited: bool,
    pub(crate) fence: bool,
    /// Time after the post before it.
    pub(crate) pause_nanos: u64,
    /// Scatter entries of the receive it takes.
    pub(crate) recv_sges: usize,
    /// Bytes by which that receive is longer than needed.
    pub(crate) recv_slack_bytes: u32,
}

/// On one line, for there may be many.
impl fmt::Debug for OpPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {:?} {:?}, {} sges", self.kind, self.len, self.place, self.sges)?;
        let flags = [(self.inline, "inline"), (self.signaled, "signaled"), (self.fence, "fence")];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, ", {name}"))?;
        if self.pause_nanos > 0 {
            write!(f, ", after {} ns", self.pause_nanos)?;
        }
        write!(f, "; receive of {} sges and {} bytes more", self.recv_sges, self.recv_slack_bytes)
    }
}

/// A run of entries of the tape: frame `frame` of a link and the `run - 1` after it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TapeRun {
    /// Modulo the number of links.
    pub(crate) link: usize,
    pub(crate) frame: u64,
    pub(crate) run: u64,
    pub(crate) impairment: Impairment,
}

/// Bytes that a frame adds to its payload at most: Ethernet, VLAN, IPv6, UDP, BTH, the longest
/// extension headers of RC, pad, ICRC.
const FRAME_OVERHEAD_BYTES: usize = 14 + 4 + 40 + 8 + 12 + 28 + 3 + 4;

const SWITCH_QUEUE_FRAMES_MIN: usize = 48;

/// The longest RNR wait that is drawn: code 13.
const RNR_WAIT_NANOS_MAX: u64 = 960_000;

impl Scenario {
    /// Links of the run: two for each cable.
    pub(crate) fn links(&self) -> usize {
        if self.hosts == 2 { 2 } else { 2 * self.hosts }
    }

    pub(crate) fn link_config(&self) -> LinkConfig {
        // A host waits for room; a switch drops, and with hardly a queue nothing would ever get through.
        let queue_frames =
            self.link.queue_frames.max(if self.hosts == 2 { 1 } else { SWITCH_QUEUE_FRAMES_MIN });
        LinkConfig {
            rate_bits_per_sec: self.link.rate_gbits * 1_000_000_000,
            propagation_nanos: self.link.propagation_nanos,
            queue_bytes_max: queue_frames * (self.mtu_bytes as usize + FRAME_OVERHEAD_BYTES),
        }
    }

    /// The link that leads out of a host.
    pub(crate) fn link_from(&self, host: usize) -> LinkId {
        LinkId(if self.hosts == 2 { host } else { 2 * host })
    }

    /// The link that leads to a host.
    pub(crate) fn link_to(&self, host: usize) -> LinkId {
        LinkId(if self.hosts == 2 { 1 - host } else { 2 * host + 1 })
    }

    /// The time that the applications themselves may take: their pauses, and the receives that come
    /// late, each of which the peer may notice an RNR wait later.
    pub(crate) fn pauses_nanos(&self) -> u64 {
        let ends = self
            .conns
            .iter()
            .flat_map(|conn| [(&conn.ends[0], &conn.ends[1]), (&conn.ends[1], &conn.ends[0])]);
        let of_end = |(end, peer): (&EndPlan, &EndPlan)| {
            let waits = |op: &OpPlan| op.pause_nanos + peer.recv_delay_nanos + RNR_WAIT_NANOS_MAX;
            end.ops.iter().map(waits).sum::<u64>()
        };
        ends.map(of_end).sum()
    }

    /// The time that all packets of the run and their answers take on one wire, where a host puts no
    /// more on it by each poll than its queue holds.
    pub(crate) fn wire_nanos(&self) -> u64 {
        let mtu_bytes = self.mtu_bytes;
        let ops = || self.conns.iter().flat_map(|conn| &conn.ends).flat_map(|end| &end.ops);
        let bytes: u64 = ops().map(|op| u64::from(op.len.bytes(mtu_bytes))).sum();
        let packets: u64 =
            ops().map(|op| u64::from(op.len.bytes(mtu_bytes).div_ceil(mtu_bytes).max(1))).sum();
        let frames = 2 * packets;
        let on_wire_nanos = (bytes + frames * FRAME_OVERHEAD_BYTES as u64) * 8 / self.link.rate_gbits;
        on_wire_nanos + frames * self.poll_gap_nanos / self.link.queue_frames as u64
    }

    pub(crate) fn tape(&self) -> Tape {
        let entries = |run: &TapeRun| {
            let TapeRun { link, frame, run, impairment } = *run;
            let link = LinkId(link % self.links());
            (frame..frame + run).map(move |frame| TapeEntry { link, frame, impairment })
        };
        Tape(self.tape.iter().flat_map(entries).collect())
    }
}

/// Packets of a message at which something changes in the engine: the acknowledgement interval, and
/// more than one burst or turn of sending.
const PACKET_COUNTS: [u32; 8] = [
    8,
    16,
    ACK_REQ_INTERVAL_PKTS - 1,
    ACK_REQ_INTERVAL_PKTS,
    ACK_REQ_INTERVAL_PKTS + 1,
    TX_QUANTUM_PKTS + RX_BURST_FRAMES as u32,
    TX_BUDGET_PKTS,
    TX_BUDGET_PKTS + 1,
];

/// Packets in flight: the fewest, about an acknowledgement interval, and the engine's own.
const WINDOWS: [u32; 8] = [
    1,
    2,
    7,
    ACK_REQ_INTERVAL_PKTS - 1,
    ACK_REQ_INTERVAL_PKTS,
    ACK_REQ_INTERVAL_PKTS + 1,
    2 * ACK_REQ_INTERVAL_PKTS,
    DEFAULT_WINDOW_PKTS,
];

fn lengths() -> impl Strategy<Value = LenPlan> {
    prop_oneof![
        2 => (0u32..10).prop_map(LenPlan::Bytes),
        2 => (0u32..300).prop_map(LenPlan::Bytes),
        5 => (1u32..6, -4i32..=4).prop_map(|(count, delta)| LenPlan::Mtus { count, delta }),
        1 => (select(&PACKET_COUNTS[..]), -1i32..=1).prop_map(|(count, delta)| LenPlan::Mtus { count, delta }),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::Send),
        1 => Just(Kind::SendWithImm),
        3 => Just(Kind::Write),
        1 => Just(Kind::WriteWithImm),
        3 => Just(Kind::Read),
    ]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![6 => Just(Place::Own), 2 => Just(Place::Hot), 1 => Just(Place::Relay)]
}

fn pauses() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(0u64), 1 => 0u64..2_000, 1 => 0u64..100_000]
}

prop_compose! {
    fn ops()(
        kind in kinds(),
        len in lengths(),
        place in places(),
        sges in 0usize..=4,
        inline in prop::bool::weighted(0.2),
        signaled in prop::bool::weighted(0.6),
        solicited in any::<bool>(),
        fence in prop::bool::weighted(0.1),
        pause_nanos in pauses(),
        recv_sges in 0usize..=4,
        recv_slack_bytes in prop_oneof![3 => Just(0u32), 1 => 1u32..5, 1 => 1u32..3000],
    ) -> OpPlan {
        OpPlan { kind, len, place, sges, inline, signaled, solicited, fence, pause_nanos, recv_sges, recv_slack_bytes }
    }
}

/// First PSNs: near the wrap, near half the circle, or anywhere.
fn first_psns() -> impl Strategy<Value = u32> {
    prop_oneof![
        2 => 0xFF_FFF0u32..=0xFF_FFFF,
        1 => 0x7F_FFF0u32..=0x80_000F,
        1 => 0u32..3,
        1 => 0u32..1 << 24,
    ]
}

prop_compose! {
    fn ends()(
        first_psn in first_psns(),
        sq_depth in prop_oneof![1u32..5, 5u32..40],
        rq_depth in prop_oneof![1u32..5, 5u32..40],
        max_rd_atomic in prop_oneof![2 => 1u8..4, 1 => 4u8..17],
        dest_rd_atomic_extra in 0u8..2,
        recv_delay_nanos in prop_oneof![4 => Just(0u64), 1 => 0u64..20_000, 1 => 0u64..500_000],
        ops in prop_oneof![1 => vec(ops(), 0..3), 3 => vec(ops(), 0..12), 1 => vec(ops(), 0..32)],
    ) -> EndPlan {
        EndPlan { first_psn, sq_depth, rq_depth, max_rd_atomic, dest_rd_atomic_extra, recv_delay_nanos, ops }
    }
}

/// All mixes of what needs no agreement, and selective repeat with windows of the smallest size, of about what
/// is in flight, and of more.
fn recoveries() -> impl Strategy<Value = [RecoveryScheme; 2]> {
    let windows = select(&[64u32, 128, 256, 512][..]);
    let standard = || select(&[RecoveryScheme::GoBackN, RecoveryScheme::ImprovedGoBackN][..]);
    prop_oneof![
        (standard(), standard()).prop_map(|(a, b)| [a, b]),
        windows.prop_map(|window_pkts| [RecoveryScheme::SelectiveRepeat { window_pkts }; 2]),
    ]
}

/// A fixed window mostly; and the other schemes, each with such a window and a floor that ends in time.
fn congestion() -> impl Strategy<Value = CongestionScheme> {
    let scheme = |parameters: &'static str| {
        let parse = move |window| format!("{parameters},window_pkts={window}").parse().expect("it is right");
        select(&WINDOWS[..]).prop_map(parse)
    };
    prop_oneof![
        4 => select(&WINDOWS[..]).prop_map(|window_pkts| CongestionScheme::Window { window_pkts }),
        1 => Just(CongestionScheme::None),
        1 => scheme("dcqcn:rpg_min_rate=2000"),
        1 => scheme("swift:base_target_nanos=20000,min_window_milli=500"),
        1 => scheme("timely:t_low_nanos=10000,t_high_nanos=100000,min_rate_mbps=2000"),
    ]
}

fn conns() -> impl Strategy<Value = Vec<ConnPlan>> {
    let placements = || [(); 2].map(|()| select(&[Placement::InOrder, Placement::Relaxed][..]));
    let conn = || {
        (recoveries(), placements(), ends(), ends()).prop_map(|(recovery, placement, a, b)| ConnPlan {
            recovery,
            placement,
            ends: [a, b],
        })
    };
    prop_oneof![4 => vec(conn(), 1..2), 1 => vec(conn(), 2..4)]
}

fn links() -> impl Strategy<Value = LinkPlan> {
    let rates = select(&[10u64, 25, 100][..]);
    (rates, prop_oneof![Just(0u64), 100u64..5_000], prop_oneof![1usize..5, 16usize..200]).prop_map(
        |(rate_gbits, propagation_nanos, queue_frames)| LinkPlan {
            rate_gbits,
            propagation_nanos,
            queue_frames,
        },
    )
}

fn impairments() -> impl Strategy<Value = Impairment> {
    prop_oneof![
        6 => Just(Impairment::Drop),
        2 => Just(Impairment::Duplicate),
        1 => (0u64..20_000).prop_map(|nanos| Impairment::Delay { nanos }),
        1 => (0u64..3_000_000).prop_map(|nanos| Impairment::Delay { nanos }),
        2 => (1u32..5).prop_map(|behind_pkts| Impairment::Reorder { behind_pkts }),
        2 => (0u32..12_000).prop_map(|bit| Impairment::Corrupt { bit: bit.into() }),
        1 => Just(Impairment::MarkCe),
    ]
}

prop_compose! {
    fn tape_runs()(
        link in 0usize..6,
        frame in prop_oneof![3 => 0u64..30, 2 => 0u64..120],
        run in prop_oneof![4 => Just(1u64), 1 => 2u64..5],
        impairment in impairments(),
    ) -> TapeRun {
        TapeRun { link, frame, run, impairment }
    }
}

/// Runs with a tape of up to a dozen entries.
pub(crate) fn scenarios() -> impl Strategy<Value = Scenario> {
    let shape = (
        any::<u64>(),
        any::<bool>(),
        prop_oneof![5 => Just(2usize), 1 => Just(3usize)],
        select(&[256u32, 512, 1024, 2048, 4096][..]),
        links(),
        prop_oneof![Just(100u64), 50u64..1_000, 1_000u64..8_000],
        congestion(),
        8u8..=11,
        prop_oneof![1u8..4, 1u8..14],
    );
    let tape = prop_oneof![1 => Just(Vec::new()), 6 => vec(tape_runs(), 1..12)];
    (shape, conns(), tape).prop_map(|(shape, conns, tape)| {
        let (seed, ipv6, hosts, mtu_bytes, link, poll_gap_nanos, congestion, timeout, min_rnr_timer) = shape;
        Scenario {
            seed,
            ipv6,
            hosts,
            mtu_bytes,
            link,
            poll_gap_nanos,
            congestion,
            timeout,
            min_rnr_timer,
            conns,
            tape,
        }
    })
}
