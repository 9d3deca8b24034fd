//! What recovery costs: packets, timeouts and time for each pattern of loss, pinned.
//!
//! A scheme that recovers more slowly than it should still passes every test of correctness, because
//! the timeout repairs everything in the end. So the cost itself is compared, number by number, with
//! `cost.txt`. Probes of selective repeat count as timeouts, and its selective acknowledges as NAKs.
//! `BLESS=1` writes that file anew; the change then shows what was gained or lost.

use std::fmt::Write as _;
use std::path::Path;

use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::engine::limits::ACK_REQ_INTERVAL_PKTS;
use roce::qp::{ConnAttr, PathMtu};
use roce::queue::WcStatus;
use roce::recovery::RecoveryScheme;
use roce::recovery::WINDOW_PKTS_MIN;
use roce::wire::Packet;
use tests::pair::{Op, Pair, PairConfig, conn};
use tests::record::{self, Trace};

const PATH_MTU: PathMtu = PathMtu::Mtu1024;

/// 4.096 us * 2^8: about a millisecond, far more than any round trip here.
const TIMEOUT: u8 = 8;

/// Messages and the packets of each: one packet, one more than an acknowledgement interval, many
/// messages of one packet, some messages of an interval.
const WORKLOADS: [(u32, u32); 4] =
    [(1, 1), (1, ACK_REQ_INTERVAL_PKTS + 1), (40, 1), (4, ACK_REQ_INTERVAL_PKTS)];

/// Packets in flight: one; less than an acknowledgement interval; just that; more than most.
const WINDOWS: [u32; 4] = [1, 8, ACK_REQ_INTERVAL_PKTS, 128];

const LINK: LinkConfig =
    LinkConfig { rate_bits_per_sec: 100_000_000_000, propagation_nanos: 1_000, queue_bytes_max: 1 << 20 };

/// A pattern of impairments, given how many frames a run without impairments puts on either link.
type Pattern = fn(&Counts) -> Vec<(usize, u64, Impairment)>;

/// Frames of a run without impairments: from the requester, from the responder.
struct Counts {
    requests: u64,
    responses: u64,
}

const REQUESTS: usize = 0;
const RESPONSES: usize = 1;

fn drops(link: usize, frames: impl IntoIterator<Item = u64>) -> Vec<(usize, u64, Impairment)> {
    frames.into_iter().map(|frame| (link, frame, Impairment::Drop)).collect()
}

const PATTERNS: [(&str, Pattern); 20] = [
    ("none", |_| Vec::new()),
    ("request first", |_| drops(REQUESTS, [0])),
    ("request middle", |run| drops(REQUESTS, [run.requests / 2])),
    ("request last", |run| drops(REQUESTS, [run.requests - 1])),
    ("request last 3", |run| drops(REQUESTS, run.requests.saturating_sub(3)..run.requests)),
    ("request two holes", |run| drops(REQUESTS, [run.requests / 3, run.requests * 2 / 3])),
    ("request burst of 4", |run| drops(REQUESTS, (0..4).map(|n| run.requests / 2 + n))),
    ("request every 16th", |run| drops(REQUESTS, (0..run.requests).filter(|n| n % 16 == 15))),
    ("response first", |_| drops(RESPONSES, [0])),
    ("response middle", |run| drops(RESPONSES, [run.responses / 2])),
    ("response last", |run| drops(RESPONSES, [run.responses - 1])),
    ("response two holes", |run| drops(RESPONSES, [run.responses / 3, run.responses * 2 / 3])),
    ("response burst of 4", |run| drops(RESPONSES, (0..4).map(|n| run.responses / 2 + n))),
    ("response first 4", |run| drops(RESPONSES, 0..run.responses.min(4))),
    ("request late by 1", |run| vec![(REQUESTS, run.requests / 2, Impairment::Reorder { behind_pkts: 1 })]),
    ("request late by 3", |run| vec![(REQUESTS, run.requests / 2, Impairment::Reorder { behind_pkts: 3 })]),
    ("response late by 1", |run| {
        vec![(RESPONSES, run.responses / 2, Impairment::Reorder { behind_pkts: 1 })]
    }),
    ("response late by 3", |run| {
        vec![(RESPONSES, run.responses / 2, Impairment::Reorder { behind_pkts: 3 })]
    }),
    ("request doubled", |run| vec![(REQUESTS, run.requests / 2, Impairment::Duplicate)]),
    ("response doubled", |run| vec![(RESPONSES, run.responses / 2, Impairment::Duplicate)]),
];

/// A middle frame is lost, and its retransmissions too: name, link, how often in all.
const STUBBORN: [(&str, usize, usize); 4] = [
    ("request middle, twice", REQUESTS, 2),
    ("request middle, 4 times", REQUESTS, 4),
    ("response middle, twice", RESPONSES, 2),
    ("response middle, 4 times", RESPONSES, 4),
];

/// What one run cost. In the table's order of columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    requests: u64,
    responses: u64,
    again: u64,
    timeouts: u64,
    naks: u64,
    nanos: u64,
}

#[derive(Clone, Copy)]
struct Case {
    op: &'static str,
    messages: u32,
    packets: u32,
    window_pkts: u32,
    recovery: RecoveryScheme,
}

impl Case {
    fn new(
        op: &'static str,
        (messages, packets): (u32, u32),
        window_pkts: u32,
        recovery: RecoveryScheme,
    ) -> Self {
        Case { op, messages, packets, window_pkts, recovery }
    }

    fn name(&self, pattern: &str) -> String {
        let scheme = match self.recovery {
            RecoveryScheme::GoBackN => String::new(),
            RecoveryScheme::ImprovedGoBackN => "improved: ".into(),
            RecoveryScheme::SelectiveRepeat { window_pkts } => format!("keeps {window_pkts}: "),
        };
        format!(
            "{:<5} {:>2}x{:<3} window {:>3}  {scheme}{pattern}",
            self.op, self.messages, self.packets, self.window_pkts
        )
    }

    /// Moves the messages with `tape` in the way; `trace` sees the frames.
    fn run(&self, tape: Tape, trace: Option<&Trace>) -> Cost {
        let conn = ConnAttr {
            path_mtu: PATH_MTU,
            congestion: Some(CongestionScheme::Window { window_pkts: self.window_pkts }),
            timeout: TIMEOUT,
            recovery: self.recovery,
            ..conn()
        };
        let memory_bytes = (self.packets * PATH_MTU.bytes()) as usize;
        let config = PairConfig { link: LINK, memory_bytes, ..PairConfig::of(conn) };
        let mut pair = Pair::new(&config);
        if let Some(trace) = trace {
            record::record(&mut pair.world.network.borrow_mut(), trace);
        }
        let start_nanos = pair.world.now_nanos();
        pair.set_tape(&tape);
        let op = match self.op {
            "SEND" => Op::Send,
            "WRITE" => Op::Write,
            _ => Op::Read,
        };
        // Less than full packets at the end of each message, as most messages are.
        let len_bytes = self.packets * PATH_MTU.bytes() - 5;
        for number in 0..self.messages {
            if op == Op::Send {
                pair.post_recv(1, u64::from(number), len_bytes);
            }
            pair.post_send(0, u64::from(number), op, len_bytes);
        }
        pair.run_until_completions(0, self.messages as usize);
        let done_nanos = pair.world.now_nanos() - start_nanos;
        assert!(pair.ends[0].sent.iter().all(|done| done.status == WcStatus::Success), "{}", self.name("?"));
        pair.settle();
        let [requester, responder] = [pair.counters(0), pair.counters(1)];
        Cost {
            requests: pair.left(REQUESTS),
            responses: pair.left(RESPONSES),
            again: requester.retransmitted_pkts,
            timeouts: requester.local_ack_timeout_err
                + responder.local_ack_timeout_err
                + requester.tail_probes
                + requester.roce_adp_retrans_to,
            naks: requester.packet_seq_err + requester.implied_nak_seq_err + requester.sacks_received,
            nanos: done_nanos,
        }
    }

    /// Drops of frame `first` of a link and of its first `times - 1` retransmissions, as far as it is
    /// repeated at all.
    fn stubborn(&self, link: usize, first: u64, times: usize) -> Vec<(usize, u64, Impairment)> {
        let mut lost = vec![first];
        while lost.len() < times {
            let trace = Trace::default();
            self.run(tape(&drops(link, lost.clone())), Some(&trace));
            let trace = trace.borrow();
            let frames: Vec<_> = trace.iter().filter(|seen| seen.link == LinkId(link)).collect();
            let psn = |frame: &[u8]| Packet::parse(frame).expect("only RoCE packets are sent").bth.psn;
            let wanted = psn(&frames[first as usize].frame);
            let later = frames.iter().filter(|seen| Some(&seen.number) > lost.last());
            let Some(again) = later.into_iter().find(|seen| psn(&seen.frame) == wanted) else { break };
            lost.push(again.number);
        }
        drops(link, lost)
    }
}

fn tape(pattern: &[(usize, u64, Impairment)]) -> Tape {
    let entry = |&(link, frame, impairment)| TapeEntry { link: LinkId(link), frame, impairment };
    Tape(pattern.iter().map(entry).collect())
}

/// WRITE with all windows. A SEND costs what a WRITE does, and a READ's responses fill no window: for
/// them, and for a single packet, fewer windows tell as much.
fn cases() -> impl Iterator<Item = Case> {
    let all = ["SEND", "WRITE", "READ"].into_iter().flat_map(|op| {
        let sized = WORKLOADS.into_iter().flat_map(|size| WINDOWS.map(|window_pkts| (size, window_pkts)));
        let recovery = RecoveryScheme::GoBackN;
        sized.map(move |(size, window_pkts)| Case::new(op, size, window_pkts, recovery))
    });
    let standard = all.filter(|case| match (case.op, case.messages * case.packets) {
        (_, 1) => case.window_pkts == WINDOWS[3],
        ("WRITE", _) => true,
        ("SEND", _) => case.window_pkts == WINDOWS[2],
        _ => case.window_pkts == WINDOWS[0] || case.window_pkts == WINDOWS[3],
    });
    standard.chain(improved_cases()).chain(selective_cases())
}

/// Improved go-back-N with less in flight than is kept, and more than that in a message.
fn improved_cases() -> impl Iterator<Item = Case> {
    let sizes = [(1, 1), (4, ACK_REQ_INTERVAL_PKTS), (1, 2 * WINDOWS[3] + 1)];
    ["WRITE", "READ"].into_iter().flat_map(move |op| {
        sizes.map(|size| Case::new(op, size, WINDOWS[3], RecoveryScheme::ImprovedGoBackN))
    })
}

/// What is in flight is less than what is kept, just that, and more; the last in a message that reaches over
/// both words of the smallest bitmap, and a packet more.
fn selective_cases() -> impl Iterator<Item = Case> {
    let sizes = [(40, 1), (4, ACK_REQ_INTERVAL_PKTS), (1, 2 * WINDOW_PKTS_MIN + 1)];
    let windows = [ACK_REQ_INTERVAL_PKTS, WINDOW_PKTS_MIN, 2 * WINDOW_PKTS_MIN];
    let recovery = RecoveryScheme::SelectiveRepeat { window_pkts: WINDOW_PKTS_MIN };
    ["WRITE", "READ"].into_iter().flat_map(move |op| {
        let sized = sizes.into_iter().flat_map(move |size| windows.map(|window_pkts| (size, window_pkts)));
        // A single packet fills no window.
        let sized = sized.chain([((1, 1), WINDOW_PKTS_MIN)]);
        sized.map(move |(size, window_pkts)| Case::new(op, size, window_pkts, recovery))
    })
}

/// The whole table: a line for each case and pattern.
fn measure() -> Vec<(String, Cost)> {
    let mut table = Vec::new();
    for case in cases() {
        let clean = case.run(Tape::default(), None);
        let counts = Counts { requests: clean.requests, responses: clean.responses };
        for (name, pattern) in PATTERNS {
            table.push((case.name(name), case.run(tape(&pattern(&counts)), None)));
        }
        for (name, link, times) in STUBBORN {
            let middle = if link == REQUESTS { counts.requests } else { counts.responses } / 2;
            let lost = case.stubborn(link, middle, times);
            table.push((case.name(name), case.run(tape(&lost), None)));
        }
        assert_eq!(
            (clean.again, clean.timeouts, clean.naks),
            (0, 0, 0),
            "{}: nothing was lost",
            case.name("none")
        );
    }
    table
}

fn print(table: &[(String, Cost)]) -> String {
    let mut text = format!(
        "{:<62} {:>8} {:>9} {:>6} {:>8} {:>5} {:>10}\n",
        "op, messages x packets, window, fault",
        "requests",
        "responses",
        "again",
        "timeouts",
        "naks",
        "nanos"
    );
    for (name, cost) in table {
        let Cost { requests, responses, again, timeouts, naks, nanos } = cost;
        let line = writeln!(
            text,
            "{name:<62} {requests:>8} {responses:>9} {again:>6} {timeouts:>8} {naks:>5} {nanos:>10}"
        );
        line.expect("a String takes any text");
    }
    text
}

#[test]
fn costs_are_as_pinned() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sim/cost.txt");
    let measured = print(&measure());
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &measured).expect("the table can be written");
        return;
    }
    let pinned = std::fs::read_to_string(&path).expect("the table can be read; BLESS=1 makes it");
    let changed: Vec<String> = pinned
        .lines()
        .zip(measured.lines())
        .filter(|(pinned, measured)| pinned != measured)
        .map(|(pinned, measured)| format!("- {pinned}\n+ {measured}"))
        .collect();
    assert!(
        changed.is_empty() && pinned.lines().count() == measured.lines().count(),
        "{} lines differ from {} (BLESS=1 writes it anew):\n{}",
        changed.len(),
        path.display(),
        changed.join("\n")
    );
}
