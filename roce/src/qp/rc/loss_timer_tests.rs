//! Table tests of the requester's timing: probe timeout, RTO, local ACK timeout, RNR wait and both retry counts. Each
//! step consists of an event, with its time, and of the state after the event.
//!
//! ```text
//!   event    "20 ack 4": at 20 us, all PSNs below 4 are acknowledged
//!     send N    N SENDs of one packet, the last with AckReq    read N   a READ of N responses
//!     ack P, nak P    ACK of all PSNs below P; PSN sequence error with PSN P
//!     sack P Q..      SACK: PSNs below P executed, PSNs Q.. buffered     stale    a stale response
//!     dup P           SACK: PSNs below P executed, P - 1 was a duplicate
//!     resp P          READ response LAST or ONLY with PSN P
//!     part P          resp P, for an ONLY elicited by a probe that requests no other response
//!     first P         READ response FIRST or MIDDLE with PSN P
//!     again P         READ response with PSN P that was received before
//!     rnr P W         RNR NAK with PSN P and a wait of W us
//!     out       sends the retransmissions that RNR wait and `in_flight_pkts_max` permit
//!     time      calls `Requester::on_time`
//!   state    "100 >3 y6 n2 RetryExcErr": `Requester::deadline`, then the parts that apply
//!     100    deadline in us; "-" no deadline; "*" deadline not checked: it differs between the recovery schemes
//!     >3     PSN 3 is retransmitted next
//!     y6 n2  retries left (y), RNR retries left (n), each if reduced; then the error status of a failed work request
//! ```

use super::events::ResponseEvent;
use super::harness::{FIRST_PSN, GBN, IMPROVED, MTU_BYTES, PATH_MTU, SELECTIVE, counted, index_of, psn};
use super::requester::{Requester, RequesterConfig};
use crate::congestion::CongestionScheme;
use crate::counters::QpCounters;
use crate::qp::ConnAttr;
use crate::qp::outstanding::{Kind, Outstanding};
use crate::queue::{Doorbells, SendQueueSize, WcStatus, send_queue};
use crate::recovery::{AckEvent, RecoveryScheme, SentRequest};
use crate::time::Instant;
use crate::wire::SackEth;
use std::sync::Arc;

/// Codes of the local ACK timeout, which is 4.096 us * 2^code (IBA 9.7.6.1.3); code 0: no local ACK timeout.
const TIMEOUT_MS: u8 = 8; // 1048.576 us
const TIMEOUT_SHORT: u8 = 5; // 131.072 us
const TIMEOUT_NEVER: u8 = 0;

/// An event, and the state after it.
type Step = (&'static str, &'static str);

struct Row {
    name: &'static str,
    /// Clause of the IBA; empty if the expected result is a choice of this stack.
    rule: &'static str,
    schemes: &'static [RecoveryScheme],
    timeout: u8,
    retry_count: u8,
    rnr_retry: u8,
    congestion: &'static str,
    /// Steps that precede `steps`: rows share them.
    before: &'static [Step],
    steps: &'static [Step],
    counters: &'static str,
}

const ROW: Row = Row {
    name: "",
    rule: "",
    schemes: &[IMPROVED, SELECTIVE],
    timeout: TIMEOUT_MS,
    retry_count: 7,
    rnr_retry: 6,
    congestion: "window:64",
    before: &[],
    steps: &[],
    counters: "",
};

/// A requester without a port: packets are recorded as sent, but not sent.
struct Sender {
    requester: Requester,
    outstanding: Outstanding,
    counters: QpCounters,
    now: Instant,
    failed: Option<WcStatus>,
}

impl Sender {
    fn new(row: &Row, recovery: RecoveryScheme) -> Self {
        let conn = ConnAttr {
            path_mtu: PATH_MTU,
            timeout: row.timeout,
            retry_count: row.retry_count,
            rnr_retry: row.rnr_retry,
            max_rd_atomic: 4,
            congestion: Some(row.congestion.parse::<CongestionScheme>().expect("a scheme")),
            recovery,
            initial_rtt_nanos: 0,
            ..ConnAttr::default()
        };
        let requester = Requester::new(RequesterConfig::new(&conn, FIRST_PSN, 100_000_000_000));
        let size = SendQueueSize { depth: 64, max_sges: 1, max_inline_bytes: 0 };
        let (_, queue) = send_queue(size, true, Arc::new(Doorbells::new(1)), 0);
        let outstanding = Outstanding::new(queue, FIRST_PSN);
        let (counters, now) = (QpCounters::default(), Instant::ZERO);
        Sender { requester, outstanding, counters, now, failed: None }
    }

    /// Records a packet of `span` PSNs as sent, as `Requester::account_for` does.
    fn sent(&mut self, span: u32, has_ack_req: bool) {
        let requester = &mut self.requester;
        let (psn, is_retransmission) =
            (requester.recovery.next_psn(), requester.recovery.is_retransmission());
        requester.recovery.on_sent(span, self.now);
        let sent = SentRequest { psn, psn_span: span, has_ack_req, is_retransmission };
        requester.on_packet_sent(sent, self.now);
    }

    fn assign(&mut self, packets: u32, is_read: bool) {
        let kind = Kind { is_read, takes_receive: !is_read };
        let unacked = self.requester.recovery.sent();
        self.outstanding.assign(packets * MTU_BYTES, kind, unacked, MTU_BYTES).expect("few PSNs");
    }

    fn start(&mut self, packets: u32, is_read: bool, has_ack_req: bool) {
        self.assign(packets, is_read);
        if is_read {
            self.outstanding.on_read_sent();
        }
        self.sent(packets, has_ack_req);
    }

    /// Records as sent the retransmissions that RNR wait and `may_send` permit, in the order in which
    /// `Requester::transmit` sends these packets.
    fn retransmit(&mut self) {
        while self.requester.rnr_until.is_none() && self.requester.recovery.is_retransmission() {
            let in_flight_pkts_max = self.requester.in_flight_pkts_max(&mut self.outstanding);
            if !self.requester.may_send(self.now, in_flight_pkts_max) {
                return;
            }
            let recovery = &self.requester.recovery;
            let place = self.outstanding.find(recovery.next_psn()).expect("it was sent before");
            let (next, request) = (recovery.next_psn(), self.outstanding.request_of(&place));
            let is_probe = self.requester.loss_timer.is_probing();
            let part_pkts = recovery.read_span(request, is_probe, || true).expect("a retransmission");
            let is_last = self.outstanding.end() == next.plus(1);
            self.sent(if request.is_read { part_pkts } else { 1 }, is_last);
        }
    }

    fn respond(&mut self, event: ResponseEvent<'_>) {
        let (outstanding, counters) = (&mut self.outstanding, &mut self.counters);
        let failed = self.requester.on_response_event(self.now, event, outstanding, counters);
        self.failed = self.failed.or(failed);
    }

    fn response(&mut self, at: i32, ends_message: bool) {
        let request = self.outstanding.find(psn(at)).expect("it was requested").span;
        self.respond(ResponseEvent::Ack(AckEvent::ReadResponse { psn: psn(at), request, ends_message }));
    }

    /// A SACK triggered by the last of `buffered`; if `buffered` is empty, by the duplicate of the PSN below `next`.
    fn sack(&mut self, next: i32, buffered: &[i32]) {
        let bits = buffered.iter().fold(0u32, |bits, at| bits | 1 << (at - next - 1));
        let (duplicate, trigger) = (buffered.is_empty(), psn(*buffered.last().unwrap_or(&(next - 1))));
        let header = SackEth { version: SackEth::VERSION, duplicate, no_room: false, trigger };
        let bitmap = &bits.to_be_bytes();
        self.respond(ResponseEvent::Ack(AckEvent::Sack { next: psn(next), header, bitmap }));
    }

    fn on_time(&mut self) {
        let failed = self.requester.on_time(self.now, &mut self.outstanding, &mut self.counters);
        self.failed = self.failed.or(failed);
    }

    fn run(&mut self, step: &str) {
        let mut words = step.split_whitespace();
        let micros: f64 = words.next().and_then(|at| at.parse().ok()).expect("a time");
        // Times in the tables are microseconds with at most three decimals: a whole number of nanoseconds.
        self.now = Instant::from_nanos((micros * 1000.0).round() as u64);
        let event = words.next().expect("an event");
        let numbers: Vec<i32> = words.map(|number| number.parse().expect("a number")).collect();
        match (event, &numbers[..]) {
            ("send", [count]) => (1..=*count).for_each(|i| self.start(1, false, i == *count)),
            ("begin", [packets, count]) => {
                self.assign(packets.unsigned_abs(), false);
                (0..*count).for_each(|_| self.sent(1, false));
            }
            ("rest", [count]) => (1..=*count).for_each(|i| self.sent(1, i == *count)),
            ("read", [count]) => self.start(count.unsigned_abs(), true, true),
            ("ack", [next]) => self.respond(ResponseEvent::Ack(AckEvent::Ack { next: psn(*next) })),
            ("nak", [next]) => self.respond(ResponseEvent::Ack(AckEvent::SequenceError { next: psn(*next) })),
            ("sack", [next, buffered @ ..]) => self.sack(*next, buffered),
            ("dup", [next]) => self.sack(*next, &[]),
            ("resp" | "part", [at]) => self.response(*at, true),
            ("first", [at]) => self.response(*at, false),
            ("again", [at]) => self.respond(ResponseEvent::Ack(AckEvent::Duplicate { psn: psn(*at) })),
            ("stale", []) => self.respond(ResponseEvent::Stale),
            ("rnr", [at, wait]) => {
                let wait_nanos = 1000 * u64::from(wait.unsigned_abs());
                self.respond(ResponseEvent::RnrNak { next: psn(*at), wait_nanos });
            }
            ("out", []) => self.retransmit(),
            ("time", []) => self.on_time(),
            _ => panic!("`{step}` is no event"),
        }
    }

    fn state(&self, row: &Row) -> String {
        let (requester, micros) = (&self.requester, |at: Instant| at.as_nanos() as f64 / 1000.0);
        let mut state = requester.deadline().map_or("-".to_owned(), |at| micros(at).to_string());
        if requester.recovery.is_retransmission() {
            state += &format!(" >{}", index_of(requester.recovery.next_psn()));
        }
        if requester.retries_left != row.retry_count {
            state += &format!(" y{}", requester.retries_left);
        }
        if requester.rnr_retries_left != row.rnr_retry {
            state += &format!(" n{}", requester.rnr_retries_left);
        }
        self.failed.map_or(state.clone(), |failed| format!("{state} {failed:?}"))
    }
}

fn check(rows: &[Row]) {
    let mut failed = Vec::new();
    for row in rows {
        for recovery in row.schemes {
            let mut sender = Sender::new(row, *recovery);
            for (step, wanted) in row.before.iter().chain(row.steps) {
                sender.run(step);
                let state = sender.state(row);
                let is_right = match wanted.strip_prefix('*') {
                    Some(rest) => state.find(' ').map_or("", |at| &state[at..]) == rest,
                    None => state == *wanted,
                };
                if !is_right {
                    let (name, rule) = (row.name, row.rule);
                    failed.push(format!(
                        "{name} (IBA {rule}) under {recovery}: {step}: is {state}, not {wanted}"
                    ));
                }
            }
            let counters = counted(&sender.counters);
            if counters != row.counters {
                failed.push(format!("{} under {recovery}: counters {counters}", row.name));
            }
        }
    }
    assert!(failed.is_empty(), "{} steps:\n{}", failed.len(), failed.join("\n"));
}

const ALL_SCHEMES: &[RecoveryScheme] = &[GBN, IMPROVED, SELECTIVE];

/// A round-trip sample of 25 us (PTO 75 us, RTO 100 us), seven expiries of the timer, and an ACK that is no sample. The
/// next expiry is the eighth.
#[rustfmt::skip]
const UNMEASURED: &[Step] = &[
    ("0 send 1", "100"), ("25 ack 1", "-"), ("100 send 1", "175"),
    ("175 time", "325 >1"), ("175 out", "325"), ("325 time", "625 >1"), ("325 out", "625"),
    ("625 time", "1225 >1"), ("625 out", "1225"), ("1225 time", "2425 >1"), ("1225 out", "2425"),
    ("2425 time", "4825 >1"), ("2425 out", "4825"), ("4825 time", "9625 >1"), ("4825 out", "9625"),
    ("9625 time", "19225 >1"), ("9625 out", "19225"), ("16825 ack 2", "-"),
];

/// Three expiries of the timer, and an ACK, before the first round-trip sample.
#[rustfmt::skip]
const THREE_EXPIRIES: &[Step] = &[
    ("0 send 1", "100"), ("100 time", "300 >0"), ("100 out", "300"), ("300 time", "700 >0"), ("300 out", "700"),
    ("700 time", "1500 >0"), ("700 out", "1500"), ("1000 ack 1", "-"),
];

/// A round-trip sample of 20 us (PTO 60 us), and a probe after which both transmissions are acknowledged.
#[rustfmt::skip]
const SPURIOUS: &[Step] = &[
    ("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 1", "160"), ("160 time", "280 >1"), ("160 out", "280"),
    ("180 ack 2", "-"), ("190 stale", "-"),
];

/// A NAK is followed by 16 retransmissions (the loss window), and a PTO with a probe.
#[rustfmt::skip]
const AMID_RETRANSMISSIONS: &[Step] = &[
    ("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 30", "160"), ("120 nak 1", "180 >1"),
    ("120 out", "180 >17"), ("300 time", "420 >1"), ("300 out", "420 >2"),
];

/// A round-trip sample of 20 us (PTO 60 us), and a NAK, after which una is retransmitted at 120 us.
#[rustfmt::skip]
const RETRANSMITTED: &[Step] = &[
    ("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("120 nak 1", "180 >1"), ("120 out", "180"),
];

/// Timeouts of these rows, with at most 3 packets in flight (low) or more than 3 (high):
/// - Before the first round-trip sample: RTO 1 ms; PTO 100 us (low) or 320 us (high).
/// - After a first sample of 20 us: RTO 100 us (low) or 320 us (high); PTO 20 + 4 * 10 = 60 us.
#[rustfmt::skip]
const PROBES: &[Row] = &[
    Row { name: "before a round-trip sample the PTO is 100 us",
          steps: &[("0 send 1", "100"), ("99.999 time", "100"), ("100 time", "300 >0")], counters: "tail_probes",
          ..ROW },
    Row { name: "the timer runs from the first packet, and another sent later does not rearm it",
          steps: &[("0 send 1", "100"), ("50 send 9", "100")], ..ROW },
    Row { name: "with more than 3 packets in flight it is 320 us",
          steps: &[("0 send 5", "100"), ("0 ack 1", "320")], ..ROW },
    Row { name: "the rest of a message waits for its turn: no probe before its packet with AckReq is sent",
          steps: &[("0 begin 4 2", "100"), ("100 time", "200"), ("150 rest 2", "200"), ("200 time", "470"),
                   ("469 time", "470")], ..ROW },
    Row { name: "the rest of a message waits for longer than the local ACK timeout: a retry", schemes: &[IMPROVED],
          timeout: TIMEOUT_SHORT,
          steps: &[("0 begin 4 2", "100"), ("100 time", "131.072"), ("131.072 time", "262.144 >0 y6")],
          counters: "local_ack_timeout_err, tail_probes", ..ROW },
    Row { name: "the PTO runs from the packet with AckReq, sent after the first packet of the message",
          steps: &[("0 begin 2 1", "100"), ("60 rest 1", "100"), ("100 time", "160")], ..ROW },
    Row { name: "a packet with AckReq is in flight, and the next message waits for its turn: a probe",
          schemes: &[IMPROVED, SELECTIVE],
          steps: &[("0 send 1", "100"), ("0 begin 2 0", "100"), ("100 time", "300 >0")], counters: "tail_probes", ..ROW },
    Row { name: "after a NAK the retransmission waits for its turn: no probe, and the PTO runs from then",
          schemes: &[IMPROVED],
          steps: &[("0 send 8", "100"), ("20 nak 2", "120 >2"), ("120 time", "220 >2"), ("150 out", "220"),
                   ("220 time", "470"), ("470 time", "670 >2")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "after a SACK the retransmission waits for its turn: no probe, and the PTO runs from then",
          schemes: &[SELECTIVE],
          steps: &[("0 send 8", "100"), ("20 sack 0 1 2 3 4", "80 >0"), ("80 time", "140 >0"), ("110 out", "140"),
                   ("140 time", "170"), ("170 time", "290 >7")],
          counters: "sacks_received, tail_probes", ..ROW },
    Row { name: "the retransmission waits longer than the local ACK timeout: a retry", schemes: &[IMPROVED],
          timeout: TIMEOUT_SHORT,
          steps: &[("0 send 8", "100"), ("20 nak 2", "120 >2"), ("120 time", "151.072 >2"),
                   ("151.072 time", "282.144 >2 y6")],
          counters: "packet_seq_err, local_ack_timeout_err, tail_probes", ..ROW },
    Row { name: "the PTO follows the round trip", steps: &[("0 send 2", "100"), ("20 ack 1", "120"),
                   ("40 ack 2", "-"), ("50 send 1", "170")], ..ROW },
    Row { name: "a tail loss probe: the last packet", schemes: &[SELECTIVE],
          steps: &[("0 send 3", "100"), ("100 time", "300 >2"), ("100 out", "300"), ("300 time", "700 >0"),
                   ("300 out", "700")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "a probe: the oldest packet, and no other until it is acknowledged", schemes: &[IMPROVED],
          steps: &[("0 send 3", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"), ("300 time", "700 >0"),
                   ("300 out", "700 >1")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "the wait doubles with each expiry, to the local ACK timeout",
          steps: &[("0 send 1", "100"), ("100 time", "300 >0"), ("100 out", "300"), ("300 time", "700 >0"),
                   ("300 out", "700"),
                   ("700 time", "1048.576 >0"), ("700 out", "1048.576"), ("1048.576 time", "2097.152 >0 y6")],
          counters: "local_ack_timeout_err, tail_probes 4", ..ROW },
    Row { name: "progress ends the backoff", schemes: &[SELECTIVE],
          steps: &[("0 send 2", "100"), ("100 time", "300 >1"), ("100 out", "300"), ("150 ack 1", "250"),
                   ("250 time", "450 >1")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "the first ACK, after a probe: twice its time is the PTO until a sample", before: THREE_EXPIRIES,
          schemes: &[IMPROVED, SELECTIVE], timeout: TIMEOUT_NEVER,
          steps: &[("1000 send 1", "3000"), ("1800 ack 2", "-"), ("2000 send 1", "4400")],
          counters: "tail_probes 3", ..ROW },
    Row { name: "the second ACK after a probe: no change", before: THREE_EXPIRIES, schemes: &[IMPROVED, SELECTIVE],
          timeout: TIMEOUT_NEVER,
          steps: &[("1000 send 1", "3000"), ("3000 time", "7000 >1"), ("3000 out", "7000"), ("3500 ack 2", "-"),
                   ("4000 send 1", "6000")],
          counters: "tail_probes 4", ..ROW },
    Row { name: "the first ACK, without a probe and of a packet that is not timed: no change", schemes: &[IMPROVED],
          steps: &[("0 begin 2 1", "100"), ("90 ack 1", "-"), ("100 rest 1", "200")], ..ROW },
    Row { name: "an ACK of the probe alone before a sample, with two packets above it: one more probe",
          schemes: &[IMPROVED],
          steps: &[("0 send 3", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"), ("150 ack 1", "450"),
                   ("450 time", "1050 >1"), ("450 out", "1050 >2")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "an ACK of the probe alone before a sample, and another ACK: nothing was lost", schemes: &[IMPROVED],
          steps: &[("0 send 3", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"), ("150 ack 1", "450"),
                   ("160 ack 2", "460"), ("460 time", "1060 >2"), ("460 out", "1060")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "an ACK of the probe alone, with two packets above it: both are retransmitted", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 3", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("180 ack 2", "240 >2"), ("180 out", "240")],
          counters: "tail_probes", ..ROW },
    Row { name: "an ACK of the probe alone, early: that of the first transmission", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 3", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("164.999 ack 2", "404.999"), ("404.999 time", "884.999 >2"),
                   ("404.999 out", "884.999 >3")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "an ACK of the probe alone, a quarter of the shortest round trip after it: either transmission",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 3", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("165 ack 2", "225 >2")],
          counters: "tail_probes", ..ROW },
    Row { name: "two early ACKs of probes alone in succession: the second shows that packets were lost",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 6", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("164 ack 2", "404"), ("404 time", "884 >2"), ("404 out", "884 >3"),
                   ("408 ack 3", "888 >6"), ("408 out", "888"), ("428 nak 3", "488 >3")],
          counters: "packet_seq_err, tail_probes 2", ..ROW },
    Row { name: "an early ACK after another response", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 6", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("164 ack 2", "404"), ("170 ack 3", "410"), ("410 time", "890 >3"),
                   ("410 out", "890 >4"), ("414 ack 4", "1374")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "before a sample, two ACKs of probes alone, and the last packet is of a longer READ: a loss",
          schemes: &[IMPROVED],
          steps: &[("0 send 3", "100"), ("0 read 3", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"),
                   ("150 ack 1", "470"), ("470 time", "1070 >1"), ("470 out", "1070 >2"), ("500 ack 2", "800 >2")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "an early ACK of more than the probe is no round trip", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 1", "160"), ("100 send 2", "160"),
                   ("160 time", "280 >1"), ("160 out", "280 >2"), ("164 ack 3", "224")],
          counters: "tail_probes", ..ROW },
    Row { name: "a probe that is not spurious does not lengthen the PTO", schemes: &[SELECTIVE],
          steps: &[("0 send 1", "100"), ("1 ack 1", "-"), ("10 send 1", "20"), ("20 time", "40 >1"),
                   ("20 out", "40"), ("30 ack 2", "-"), ("50 send 1", "60")],
          counters: "tail_probes", ..ROW },
    Row { name: "after a probe, a spurious retransmission quadruples the PTO until a loss", schemes: &[SELECTIVE],
          steps: &[("0 send 1", "100"), ("1 ack 1", "-"), ("10 send 3", "20"), ("20 time", "40 >3"),
                   ("20 out", "40"), ("22 sack 1 3", "32 >1"), ("22 out", "32"), ("23 dup 2", "63"),
                   ("24 ack 4", "-"), ("50 send 1", "90"), ("51 ack 5", "-"), ("60 send 20", "100"),
                   ("61 sack 5 24", "71 >5")],
          counters: "sacks_received 3, spurious_retransmits, tail_probes", ..ROW },
    Row { name: "a SACK that reports a probe as a duplicate quadruples the PTO", schemes: &[SELECTIVE],
          steps: &[("0 send 1", "100"), ("1 ack 1", "-"), ("10 send 3", "20"), ("20 time", "40 >3"),
                   ("20 out", "40"), ("22 dup 4", "-"), ("50 send 1", "90")],
          counters: "sacks_received, tail_probes", ..ROW },
    Row { name: "a READ response received again after its retransmission", schemes: &[SELECTIVE],
          steps: &[("0 read 3", "100"), ("10 resp 2", "40 >0"), ("10 out", "40"), ("20 first 0", "40"),
                   ("30 again 0", "40")],
          counters: "implied_nak_seq_err, spurious_retransmits", ..ROW },
    Row { name: "a spurious retransmission without a probe does not lengthen the PTO", schemes: &[SELECTIVE],
          steps: &[("0 send 1", "100"), ("1 ack 1", "-"), ("10 send 3", "20"), ("12 sack 1 3", "22 >1"),
                   ("12 out", "22"), ("13 dup 2", "23"), ("14 ack 4", "-"), ("50 send 1", "60")],
          counters: "sacks_received 2, spurious_retransmits", ..ROW },
    Row { name: "a stale ACK after a probe: the PTO is quadrupled until a loss", schemes: &[IMPROVED], before: SPURIOUS,
          steps: &[("280 send 1", "520"), ("300 ack 3", "-"), ("380 send 3", "580"), ("400 nak 3", "450 >3")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "a stale ACK after a probe: the PTO is quadrupled until a probe repairs a loss", schemes: &[IMPROVED],
          before: SPURIOUS,
          steps: &[("280 send 1", "520"), ("520 time", "1000 >2"), ("520 out", "1000"), ("540 ack 3", "-"),
                   ("560 send 1", "800"), ("580 ack 4", "-"), ("660 send 1", "710")],
          counters: "tail_probes 2", ..ROW },
    Row { name: "an early ACK and a stale ACK after one probe: the PTO is quadrupled once", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 3", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("164.999 ack 2", "404.999"), ("170 stale", "404.999"), ("180 ack 4", "-"),
                   ("280 send 1", "750")],
          counters: "tail_probes", ..ROW },
    Row { name: "a stale ACK without a probe: the PTO is not lengthened", schemes: &[IMPROVED, SELECTIVE],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("30 stale", "-"), ("100 send 1", "160")], ..ROW },
    Row { name: "stale ACKs before a round-trip sample: the PTO is not lengthened", before: THREE_EXPIRIES,
          schemes: &[IMPROVED], timeout: TIMEOUT_NEVER,
          steps: &[("1100 stale", "-"), ("1200 stale", "-"), ("2000 send 1", "4000"), ("2020 ack 2", "-"),
                   ("2100 send 1", "2160")],
          counters: "tail_probes 3", ..ROW },
    Row { name: "the packet that is timed is lost: its round trip is not measured", schemes: &[SELECTIVE],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 1", "160"), ("100 send 1", "160"),
                   ("120 sack 1 2", "180 >1"), ("120 out", "180"), ("150 ack 3", "-"), ("200 send 1", "260")],
          counters: "sacks_received", ..ROW },
    Row { name: "congestion control by round trips: each ACK yields one", schemes: &[SELECTIVE], congestion: "swift",
          steps: &[("0 send 2", "100"), ("20 ack 1", "80")], ..ROW },
    Row { name: "an ACK of the probe alone, with three packets above it: the last, then what a NAK shows",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 out", "300"), ("200 nak 2", "260 >2"),
                   ("200 out", "260")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "the window of congestion control, one packet, does not block the last packet", schemes: &[IMPROVED],
          congestion: "swift:window_pkts=1",
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 out", "300"), ("200 nak 2", "260 >2"),
                   ("200 out", "260 >3")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "no NAK after the last packet: nothing was lost", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 out", "300"), ("210 ack 3", "450"),
                   ("220 ack 5", "-"), ("221 ack 5", "-"), ("280 send 1", "520")],
          counters: "tail_probes", ..ROW },
    Row { name: "no NAK after the last packet: the late ACK of the probe yields a round trip", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 1", "160"), ("100 send 3", "160"),
                   ("160 time", "280 >1"), ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 out", "300"),
                   ("210 ack 3", "680")],
          counters: "tail_probes", ..ROW },
    Row { name: "another ACK before the last packet is retransmitted: nothing more is", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 ack 3", "420")],
          counters: "tail_probes", ..ROW },
    Row { name: "neither ACK nor NAK after the last packet: one more probe", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("160 time", "280 >1"),
                   ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 out", "300"), ("300 time", "540 >2"),
                   ("300 out", "540 >3")],
          counters: "tail_probes, roce_adp_retrans_to", ..ROW },
    Row { name: "before a sample, with three packets above the probe: the last, then what a NAK shows",
          schemes: &[IMPROVED],
          steps: &[("0 send 4", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"), ("150 ack 1", "750 >3"),
                   ("150 out", "750"), ("170 nak 1", "270 >1"), ("170 out", "270")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "an ACK of the probe alone, after a PTO amid retransmissions: the next of them", schemes: &[IMPROVED],
          before: AMID_RETRANSMISSIONS,
          steps: &[("320 ack 2", "440 >17"), ("320 out", "440 >18"), ("340 nak 2", "400 >2")],
          counters: "packet_seq_err 2, tail_probes", ..ROW },
    Row { name: "no NAK after it: the retransmissions continue", schemes: &[IMPROVED],
          before: AMID_RETRANSMISSIONS,
          steps: &[("320 ack 2", "440 >17"), ("320 out", "440 >18"), ("340 ack 18", "580 >18"), ("340 out", "580")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "an ACK of more than the probe, after a PTO amid retransmissions: they continue", schemes: &[IMPROVED],
          before: AMID_RETRANSMISSIONS,
          steps: &[("320 ack 5", "380 >17"), ("320 out", "380 >21")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "an ACK of all that was retransmitted before the PTO", schemes: &[IMPROVED],
          before: AMID_RETRANSMISSIONS,
          steps: &[("320 ack 19", "380 >19"), ("320 out", "380")],
          counters: "packet_seq_err, tail_probes", ..ROW },
    Row { name: "a NAK for una, a quarter of the shortest round trip after its retransmission: lost again",
          schemes: &[IMPROVED], before: RETRANSMITTED,
          steps: &[("125 nak 1", "185 >1"), ("125 out", "185"), ("130 nak 1", "190 >1")],
          counters: "packet_seq_err 3", ..ROW },
    Row { name: "a NAK for una, sooner: elicited before the retransmission arrived", schemes: &[IMPROVED],
          before: RETRANSMITTED, steps: &[("124.999 nak 1", "184.999")], counters: "packet_seq_err 2", ..ROW },
    Row { name: "a NAK for una before its retransmission", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 4", "160"), ("120 nak 1", "180 >1"),
                   ("140 nak 1", "200 >1"), ("140 out", "200"), ("144 nak 1", "204")],
          counters: "packet_seq_err 3", ..ROW },
    Row { name: "a NAK for una after its retransmission, before a round-trip sample", schemes: &[IMPROVED],
          steps: &[("0 send 5", "100"), ("20 nak 1", "120 >1"), ("20 out", "120"), ("110 nak 1", "430")],
          counters: "packet_seq_err 2", ..ROW },
    Row { name: "go-back-N: a NAK for una after its retransmission", schemes: &[GBN], congestion: "timely",
          steps: &[("0 send 1", "1048.576"), ("20 ack 1", "-"), ("100 send 4", "1148.576"), ("120 nak 1", "- >1 y6"),
                   ("120 out", "1168.576 y6"), ("130 stale", "1168.576 y6"), ("1000 nak 1", "1168.576 y6")],
          counters: "packet_seq_err 2", ..ROW },
    Row { name: "before a sample, no NAK after the last packet: the late ACK yields the round trip", schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("0 send 3", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"),
                   ("150 ack 1", "750 >3"), ("150 out", "750"), ("160 ack 2", "610")],
          counters: "tail_probes", ..ROW },
    Row { name: "an ACK of the probe alone, and the response to the next READ shows a loss: no probe was spurious",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 read 1", "160"), ("100 read 1", "160"),
                   ("100 read 1", "160"), ("100 read 1", "160"), ("100 read 1", "160"), ("100 send 1", "160"),
                   ("120 resp 3", "180 >1"), ("120 out", "180"), ("122 resp 5", "182"), ("240 time", "360 >1"),
                   ("240 out", "360 >2"), ("260 resp 1", "380 >6"), ("260 out", "380"), ("270 resp 2", "330 >4")],
          counters: "implied_nak_seq_err 2, tail_probes", ..ROW },
    Row { name: "an ACK of the probe alone, and the last packet is a READ of one response: the last",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 3", "160"), ("100 read 1", "160"),
                   ("160 time", "280 >1"), ("160 out", "280 >2"), ("180 ack 2", "300 >4"), ("180 out", "300")],
          counters: "tail_probes", ..ROW },
    Row { name: "an ACK of the probe alone, and the last packet is of a longer READ: the rest is retransmitted",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 send 1", "160"), ("100 read 3", "160"),
                   ("160 time", "280 >1"), ("160 out", "280 >2"), ("180 ack 2", "240 >2"), ("180 out", "240")],
          counters: "tail_probes", ..ROW },
    Row { name: "a probe of a READ requests one response, whose opcode tells it from the first", schemes: &[IMPROVED],
          steps: &[("0 read 4", "320"), ("320 time", "520 >0"), ("320 out", "520 >1"), ("340 part 0", "1020 >1"),
                   ("340 out", "1020"), ("350 first 1", "1030")],
          counters: "tail_probes", ..ROW },
    Row { name: "FIRST after a probe: nothing was lost, and the round trip is measured", schemes: &[IMPROVED],
          steps: &[("0 read 4", "320"), ("320 time", "520 >0"), ("320 out", "520 >1"), ("400 first 0", "1448.576"),
                   ("401 first 1", "1449.576"), ("402 first 2", "1450.576"), ("410 resp 3", "-"), ("500 send 1", "1548.576")],
          counters: "tail_probes", ..ROW },
    Row { name: "a stale response: the timer is rearmed when it expires", schemes: &[IMPROVED, SELECTIVE],
          steps: &[("0 send 1", "100"), ("90 stale", "100"), ("100 time", "190"), ("190 time", "390 >0")],
          counters: "tail_probes", ..ROW },
    Row { name: "after 8 expiries without a sample, an ACK does not end the backoff", schemes: &[IMPROVED, SELECTIVE],
          timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 send 1", "76900"),
                   ("76900 time", "77050 >2"), ("76900 out", "77050"), ("77000 ack 3", "-"),
                   ("77100 send 1", "77250"), ("77250 ack 4", "-"), ("77300 send 1", "77503.125")],
          counters: "tail_probes 2, roce_adp_retrans_to 6", ..ROW },
    Row { name: "after 8 expiries without a sample, a NAK ends the backoff", schemes: &[IMPROVED],
          timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 send 3", "76900"),
                   ("76900 time", "77050 >2"), ("76900 out", "77050 >3"), ("76950 nak 2", "77025 >2"),
                   ("76950 out", "77025"), ("77025 time", "77175 >2"), ("77025 out", "77175 >3")],
          counters: "packet_seq_err, tail_probes 3, roce_adp_retrans_to 6", ..ROW },
    Row { name: "after 8 expiries without a sample, an implied NAK does not end the backoff", schemes: &[IMPROVED],
          timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 read 2", "76900"), ("76825 read 2", "76900"), ("76900 time", "77050 >2"),
                   ("76900 out", "77050 >3"), ("76950 first 4", "77100 >2"), ("76950 out", "77100")],
          counters: "implied_nak_seq_err, tail_probes 2, roce_adp_retrans_to 6", ..ROW },
    Row { name: "after 8 expiries without a sample, the timed READ response, above a gap, yields the round trip",
          schemes: &[IMPROVED], timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 read 2", "76900"), ("76900 time", "77050 >2"), ("76900 out", "77050 >3"),
                   ("76950 resp 3", "77100 >2"), ("76950 out", "77100"), ("76960 read 2", "77100"),
                   ("76985 first 4", "77047.5 >2")],
          counters: "implied_nak_seq_err 2, tail_probes 2, roce_adp_retrans_to 6", ..ROW },
    Row { name: "the timed READ response above a gap yields the round trip when it arrives, not when una advances",
          schemes: &[IMPROVED],
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("100 read 2", "160"), ("120 resp 2", "180 >1"),
                   ("120 out", "180"), ("130 read 1", "180"), ("150 resp 3", "200 >1"), ("180 resp 1", "-"),
                   ("200 send 1", "250")],
          counters: "implied_nak_seq_err 2", ..ROW },
    Row { name: "after 8 expiries without a sample, a SACK of a retransmitted packet ends the backoff",
          schemes: &[SELECTIVE],
          timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 send 3", "76900"),
                   ("76900 time", "77050 >4"), ("76900 out", "77050"), ("76950 sack 2 4", "77025 >2")],
          counters: "sacks_received, tail_probes 2, roce_adp_retrans_to 6", ..ROW },
    Row { name: "after 8 expiries without a sample, a SACK of a packet sent once yields the round trip",
          schemes: &[SELECTIVE],
          timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 send 3", "76900"),
                   ("76900 time", "77050 >4"), ("76900 out", "77050"), ("76950 sack 2 3", "77125 >2")],
          counters: "sacks_received, tail_probes 2, roce_adp_retrans_to 6", ..ROW },
    Row { name: "after 8 expiries without a sample, a SACK of a duplicate does not end the backoff",
          schemes: &[SELECTIVE],
          timeout: TIMEOUT_NEVER, before: UNMEASURED,
          steps: &[("76825 send 3", "76900"),
                   ("76900 time", "77050 >4"), ("76900 out", "77050"), ("76950 dup 3", "77100")],
          counters: "sacks_received, tail_probes 2, roce_adp_retrans_to 6", ..ROW },
    Row { name: "an ACK of more than the probe: nothing was lost", schemes: &[IMPROVED],
          steps: &[("0 send 3", "100"), ("100 time", "300 >0"), ("100 out", "300 >1"), ("150 ack 2", "450")],
          counters: "tail_probes", ..ROW },
    Row { name: "a retransmission is not measured", schemes: &[IMPROVED, SELECTIVE],
          steps: &[("0 send 1", "100"), ("100 time", "300 >0"), ("100 out", "300"), ("110 ack 1", "-"),
                   ("200 send 1", "420")],
          counters: "tail_probes", ..ROW },
    Row { name: "a measured round trip: 80 us, then 160, 320",
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("30 send 1", "90"), ("90 time", "210 >1"),
                   ("90 out", "210"),
                   ("210 time", "450 >1"), ("210 out", "450"), ("450 time", "930 >1")],
          counters: "tail_probes, roce_adp_retrans_to 2", ..ROW },
    Row { name: "all acknowledged: the timer stops", steps: &[("0 send 3", "100"), ("30 ack 3", "-"),
                   ("500 time", "-")], ..ROW },
    Row { name: "a timer that was not due does nothing", steps: &[("0 send 1", "100"), ("10 time", "100")], ..ROW },
];

#[test]
fn probes_follow_the_round_trip() {
    check(PROBES);
}

#[rustfmt::skip]
const LOCAL_ACK_TIMEOUTS: &[Row] = &[
    Row { name: "go-back-N: the local ACK timeout", rule: "9.7.6.1.3", schemes: &[GBN],
          steps: &[("0 send 3", "1048.576"), ("1048.575 time", "1048.576"), ("1048.576 time", "- >0 y6"),
                   ("1050 out", "2098.576 y6"), ("1060 ack 1", "2108.576"), ("1061 ack 3", "-")],
          counters: "local_ack_timeout_err", ..ROW },
    Row { name: "go-back-N: an ACK of nothing new leaves the timer", rule: "9.7.6.1.3", schemes: &[GBN],
          steps: &[("0 send 3", "1048.576"), ("10 ack 1", "1058.576"), ("20 ack 1", "1058.576")], ..ROW },
    Row { name: "go-back-N: a later packet leaves the timer", rule: "9.7.6.1.3", schemes: &[GBN],
          steps: &[("0 send 1", "1048.576"), ("10 send 1", "1048.576")], ..ROW },
    Row { name: "the retry count is used up", rule: "9.7.6.1.3", schemes: &[GBN], retry_count: 1,
          timeout: TIMEOUT_SHORT,
          steps: &[("0 send 1", "131.072"), ("200 time", "- >0 y0"), ("200 out", "331.072 y0"),
                   ("400 time", "- >0 y0 RetryExcErr")],
          counters: "local_ack_timeout_err 2, retry_exceeded_err", ..ROW },
    Row { name: "a retry count of 0: the first timeout fails", rule: "9.7.6.1.3", schemes: &[GBN], retry_count: 0,
          timeout: 1,
          steps: &[("0 send 1", "8.192"), ("9 time", "- >0 RetryExcErr")],
          counters: "local_ack_timeout_err, retry_exceeded_err", ..ROW },
    Row { name: "a retry count of 0: the first timeout fails", rule: "9.7.6.1.3", retry_count: 0, timeout: 1,
          steps: &[("0 send 1", "8.192"), ("9 time", "- RetryExcErr")],
          counters: "local_ack_timeout_err, retry_exceeded_err", ..ROW },
    Row { name: "a timeout code of 0: never", rule: "9.7.6.1.3", schemes: &[GBN], timeout: TIMEOUT_NEVER,
          steps: &[("0 send 1", "-"), ("1000000 time", "-")], ..ROW },
    Row { name: "a timeout code of 0: probes only, and no retry is used up", timeout: TIMEOUT_NEVER, retry_count: 0,
          steps: &[("0 send 1", "100"), ("100 time", "300 >0"), ("100 out", "300"), ("300 time", "700 >0"),
                   ("300 out", "700"),
                   ("700 time", "1500 >0"), ("700 out", "1500"), ("1500 time", "4700 >0")],
          counters: "tail_probes 4", ..ROW },
    Row { name: "a loss is no progress: the local ACK timeout runs on", schemes: &[SELECTIVE], timeout: TIMEOUT_SHORT,
          steps: &[("0 send 5", "100"), ("50 sack 0 4", "131.072 >0")], counters: "sacks_received", ..ROW },
    Row { name: "a NAK of the oldest packet is no progress: the local ACK timeout runs on", schemes: &[IMPROVED],
          timeout: TIMEOUT_SHORT,
          steps: &[("0 send 3", "100"), ("50 nak 0", "131.072 >0")], counters: "packet_seq_err", ..ROW },
    Row { name: "a probe is no retry; a local ACK timeout is", rule: "9.7.6.1.3", timeout: TIMEOUT_SHORT,
          retry_count: 2,
          steps: &[("0 send 1", "100"), ("100 time", "131.072 >0"), ("100 out", "131.072"),
                   ("131.072 time", "262.144 >0 y1"),
                   ("131.072 out", "262.144 y1"), ("262.144 time", "393.216 >0 y0"), ("262.144 out", "393.216 y0"),
                   ("393.216 time", "- y0 RetryExcErr")],
          counters: "local_ack_timeout_err 3, tail_probes 3, retry_exceeded_err", ..ROW },
    Row { name: "progress restores the retry count", rule: "9.7.6.1.3", schemes: &[SELECTIVE], timeout: TIMEOUT_SHORT,
          retry_count: 1,
          steps: &[("0 send 2", "100"), ("100 time", "131.072 >1"), ("100 out", "131.072"),
                   ("131.072 time", "262.144 >0 y0"),
                   ("140 ack 1", "240")], counters: "local_ack_timeout_err, tail_probes 2", ..ROW },
    Row { name: "progress restores the retry count", rule: "9.7.6.1.3", schemes: &[GBN], timeout: TIMEOUT_SHORT,
          retry_count: 1,
          steps: &[("0 send 2", "131.072"), ("140 time", "- >0 y0"), ("140 out", "271.072 y0"),
                   ("150 ack 1", "281.072")],
          counters: "local_ack_timeout_err", ..ROW },
    Row { name: "an ACK of nothing new restores no retry", rule: "9.7.6.1.3", timeout: TIMEOUT_SHORT, retry_count: 2,
          steps: &[("0 send 2", "100"), ("140 time", "271.072 >1 y1"), ("140 out", "271.072 y1"),
                   ("150 ack 0", "271.072 y1")],
          schemes: &[SELECTIVE], counters: "local_ack_timeout_err, tail_probes", ..ROW },
    Row { name: "the timer starts anew with the first packet after an idle time",
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"),
                   ("5000 send 1", "5060"), ("5060 time", "5180 >1")], counters: "tail_probes", ..ROW },
];

#[test]
fn the_local_ack_timeout_uses_up_retries() {
    check(LOCAL_ACK_TIMEOUTS);
}

#[rustfmt::skip]
const LOSSES: &[Row] = &[
    Row { name: "a NAK: go back, and use up a retry", rule: "9.7.6", schemes: &[GBN],
          steps: &[("0 send 4", "1048.576"), ("10 nak 0", "- >0 y6"), ("11 nak 0", "- >0 y6"),
                   ("12 out", "1060.576 y6"),
                   ("13 nak 0", "1060.576 y6")], counters: "packet_seq_err 3", ..ROW },
    Row { name: "a NAK: the timer is rearmed, and no retry is used up", schemes: &[IMPROVED], retry_count: 0,
          steps: &[("0 send 4", "100"), ("10 nak 0", "110 >0"), ("12 out", "110"), ("13 nak 0", "333")],
          counters: "packet_seq_err 2", ..ROW },
    Row { name: "READ responses that arrive after a probe are implied NAKs: no retry is used up", schemes: &[IMPROVED],
          retry_count: 0, before: &[("0 read 2", "100"), ("0 read 2", "100"), ("0 read 2", "100")],
          steps: &[("100 time", "300 >0"), ("100 out", "300 >1"), ("200 first 2", "300 >0"), ("200 out", "300"),
                   ("520 time", "720 >0"), ("520 out", "720 >1"), ("600 resp 3", "700 >0"),
                   ("600 out", "700")],
          counters: "implied_nak_seq_err 2, tail_probes 2", ..ROW },
    Row { name: "a NAK that acknowledges others uses up none", rule: "9.7.6", schemes: &[GBN, IMPROVED], retry_count: 0,
          steps: &[("0 send 4", "*"), ("10 nak 1", "* >1"), ("10 out", "*"), ("20 nak 2", "* >2"), ("20 out", "*"),
                   ("30 nak 3", "* >3")], counters: "packet_seq_err 3", ..ROW },
    Row { name: "the loss of a retransmission, seen by a timeout, and a NAK without progress", rule: "9.7.6",
          schemes: &[GBN],
          retry_count: 1, timeout: TIMEOUT_SHORT,
          steps: &[("0 send 4", "131.072"), ("140 time", "- >0 y0"), ("140 out", "271.072 y0"),
                   ("150 nak 0", "- >0 y0 RetryExcErr")],
          counters: "packet_seq_err, local_ack_timeout_err, retry_exceeded_err", ..ROW },
    Row { name: "a SACK: lost packets are retransmitted, and no retry is used up", schemes: &[SELECTIVE],
          retry_count: 0,
          steps: &[("0 send 4", "100"), ("10 sack 0 2 3", "40 >0"), ("10 out", "40"), ("20 ack 4", "-")],
          counters: "sacks_received", ..ROW },
    Row { name: "a READ response rearms the timer when it expires", schemes: &[SELECTIVE],
          steps: &[("0 read 4", "320"), ("100 resp 0", "400"), ("200 resp 1", "400"), ("400 time", "500"),
                   ("500 time", "1100 >3")],
          counters: "tail_probes", ..ROW },
    Row { name: "a packet above a gap yields the first sample only", schemes: &[SELECTIVE],
          steps: &[("0 send 8", "100"), ("20 sack 0 1 2 3 4", "80 >0"), ("30 sack 0 1 2 3 4 5", "90 >0")],
          counters: "sacks_received 2", ..ROW },
    Row { name: "a READ response above a gap yields the first sample only", schemes: &[SELECTIVE],
          steps: &[("0 read 6", "320"), ("20 first 1", "80 >0"), ("30 first 3", "80 >0")],
          counters: "implied_nak_seq_err 2", ..ROW },
    Row { name: "a retransmitted packet above a gap yields no sample", schemes: &[SELECTIVE],
          steps: &[("0 send 3", "100"), ("100 time", "300 >2"), ("100 out", "300"), ("120 sack 0 2", "220 >0")],
          counters: "sacks_received, tail_probes", ..ROW },
    Row { name: "a READ response above a gap, requested again, yields no sample", schemes: &[SELECTIVE],
          steps: &[("0 read 3", "100"), ("100 time", "300 >0"), ("100 out", "300"), ("120 resp 2", "300 >0")],
          counters: "implied_nak_seq_err, tail_probes", ..ROW },
    Row { name: "the first READ response after a probe rearms the timer", schemes: &[SELECTIVE],
          steps: &[("0 read 3", "100"), ("20 first 0", "80"), ("20 first 1", "80"), ("20 resp 2", "-"),
                   ("20 read 3", "80"), ("80 time", "200 >3"), ("80 out", "200"), ("80 first 3", "140"),
                   ("81 first 4", "140")],
          counters: "tail_probes", ..ROW },
    Row { name: "the first READ response after four probes rearms the timer", schemes: &[SELECTIVE],
          steps: &[("0 read 3", "100"), ("20 first 0", "80"), ("20 first 1", "80"), ("20 resp 2", "-"),
                   ("20 read 3", "80"), ("80 time", "200 >3"), ("80 out", "200"), ("200 time", "440 >3"),
                   ("200 out", "440"), ("440 time", "920 >3"), ("440 out", "920"), ("920 time", "1068.576 >3"),
                   ("920 out", "1068.576"),
                   ("920 first 3", "980"), ("921 first 4", "980")],
          counters: "tail_probes, roce_adp_retrans_to 3", ..ROW },
    Row { name: "before the first sample, a READ response after a probe does not rearm the timer", schemes: &[SELECTIVE],
          steps: &[("0 read 4", "320"), ("320 time", "520 >0"), ("320 out", "520"), ("400 part 0", "520"),
                   ("500 resp 1", "520")],
          counters: "tail_probes", ..ROW },
    Row { name: "a SACK that reports nothing new does not end the backoff", schemes: &[SELECTIVE],
          steps: &[("0 send 4", "100"), ("10 sack 0 2 3", "40 >0"), ("10 out", "40"), ("40 time", "100 >1"), ("40 out", "100"),
                   ("50 sack 0 2 3", "100"), ("100 time", "220 >0")],
          counters: "sacks_received 2, tail_probes 2", ..ROW },
];

#[test]
fn losses_use_up_retries_without_progress() {
    check(LOSSES);
}

#[rustfmt::skip]
const RNR_WAITS: &[Row] = &[
    Row { name: "an RNR NAK: nothing until the wait ends", rule: "9.7.5.2.8", schemes: &[GBN],
          steps: &[("0 send 3", "1048.576"), ("10 rnr 1 500", "510 >1 n5"), ("20 out", "510 >1 n5"),
                   ("509.999 time", "510 >1 n5"),
                   ("510 time", "- >1 n5"), ("510 out", "1558.576 n5")], ..ROW },
    Row { name: "an RNR NAK: nothing until the wait ends", rule: "9.7.5.2.8", schemes: &[IMPROVED],
          steps: &[("0 send 3", "100"), ("10 rnr 1 500", "510 >1 n5"), ("20 out", "510 >1 n5"),
                   ("509.999 time", "510 >1 n5"),
                   ("510 time", "- >1 n5"), ("510 out", "610 n5")], ..ROW },
    Row { name: "an RNR NAK: nothing until the wait ends, and then one packet", rule: "9.7.5.2.8",
          schemes: &[SELECTIVE],
          steps: &[("0 send 3", "100"), ("10 rnr 1 500", "510 >1 n5"), ("20 out", "510 >1 n5"),
                   ("509.999 time", "510 >1 n5"),
                   ("510 time", "610 >1 n5"), ("510 out", "610 n5")], ..ROW },
    Row { name: "an RNR NAK in the wait is ignored", rule: "9.7.5.2.8", schemes: ALL_SCHEMES,
          steps: &[("0 send 3", "*"), ("10 rnr 0 500", "510 >0 n5"), ("20 rnr 0 500", "510 >0 n5")], ..ROW },
    Row { name: "the RNR retry count is used up", rule: "9.7.5.2.8", schemes: &[GBN, IMPROVED], rnr_retry: 1,
          steps: &[("0 send 1", "*"), ("10 rnr 0 500", "510 >0 n0"), ("510 time", "* >0 n0"), ("510 out", "* n0"),
                   ("520 rnr 0 500", "- n0 RnrRetryExcErr")], counters: "retry_rnr_exceeded_err", ..ROW },
    Row { name: "the RNR retry count is used up", rule: "9.7.5.2.8", schemes: &[SELECTIVE], rnr_retry: 1,
          steps: &[("0 send 1", "*"), ("10 rnr 0 500", "510 >0 n0"), ("510 time", "* >0 n0"), ("510 out", "* n0"),
                   ("520 rnr 0 500", "- >0 n0 RnrRetryExcErr")], counters: "retry_rnr_exceeded_err", ..ROW },
    Row { name: "an RNR retry count of 0", rule: "9.7.5.2.8", schemes: &[GBN, IMPROVED], rnr_retry: 0,
          steps: &[("0 send 1", "*"), ("10 rnr 0 500", "- RnrRetryExcErr")], counters: "retry_rnr_exceeded_err",
          ..ROW },
    Row { name: "an RNR retry count of 0", rule: "9.7.5.2.8", schemes: &[SELECTIVE], rnr_retry: 0,
          steps: &[("0 send 1", "*"), ("10 rnr 0 500", "- >0 RnrRetryExcErr")], counters: "retry_rnr_exceeded_err",
          ..ROW },
    Row { name: "an RNR retry count of 7: without end", rule: "9.7.5.2.8", schemes: ALL_SCHEMES, rnr_retry: 7,
          steps: &[("0 send 1", "*"), ("10 rnr 0 500", "510 >0"), ("510 time", "* >0"), ("510 out", "*"),
                   ("520 rnr 0 500", "1020 >0")], ..ROW },
    Row { name: "progress restores the RNR retry count", rule: "9.7.5.2.8", schemes: ALL_SCHEMES, rnr_retry: 1,
          steps: &[("0 send 2", "*"), ("10 rnr 0 500", "510 >0 n0"), ("510 time", "* >0 n0"), ("510 out", "* n0"),
                   ("520 rnr 1 500", "1020 >1 n0")], ..ROW },
    Row { name: "an ACK restores the RNR retry count", rule: "9.7.5.2.8", schemes: ALL_SCHEMES,
          steps: &[("0 send 2", "*"), ("10 rnr 0 500", "510 >0 n5"), ("510 time", "* >0 n5"), ("510 out", "* n5"),
                   ("520 ack 1", "*")], ..ROW },
    Row { name: "an RNR NAK shows that the packet arrived: it restores the retry count", schemes: &[GBN],
          retry_count: 1, timeout: TIMEOUT_SHORT,
          steps: &[("0 send 1", "131.072"), ("140 time", "- >0 y0"), ("140 out", "271.072 y0"),
                   ("150 rnr 0 10", "160 >0 n5")],
          counters: "local_ack_timeout_err", ..ROW },
    Row { name: "an RNR NAK shows that the packet arrived: it restores the retry count",
          schemes: &[IMPROVED, SELECTIVE], retry_count: 1, timeout: TIMEOUT_SHORT,
          steps: &[("0 send 1", "100"), ("140 time", "271.072 >0 y0"), ("140 out", "271.072 y0"),
                   ("150 rnr 0 10", "160 >0 n5")],
          counters: "local_ack_timeout_err, tail_probes", ..ROW },
    Row { name: "the wait uses up no retry, however long", rule: "9.7.5.2.8", schemes: ALL_SCHEMES, retry_count: 0,
          timeout: TIMEOUT_SHORT,
          steps: &[("0 send 1", "*"), ("10 rnr 0 5000", "5010 >0 n5"), ("4000 time", "5010 >0 n5"),
                   ("5010 time", "* >0 n5")], ..ROW },
    Row { name: "a SACK does not arm the timer", rule: "9.7.5.2.8", schemes: &[SELECTIVE], timeout: TIMEOUT_NEVER,
          steps: &[("0 send 1", "100"), ("20 ack 1", "-"), ("30 send 3", "90"), ("40 rnr 1 1000", "1040 >1 n5"),
                   ("50 sack 1 2 3", "1040 >1 n5"), ("1040 time", "1100 >1 n5")],
          counters: "sacks_received", ..ROW },
    Row { name: "no local ACK timeout", rule: "9.7.5.2.8", schemes: &[SELECTIVE], timeout: TIMEOUT_SHORT,
          retry_count: 1, steps: &[("0 send 3", "100"), ("10 rnr 0 1000", "1010 >0 n5"), ("20 sack 0 1 2", "1010 >0 n5"),
                   ("1010 time", "1070 >0 n5")],
          counters: "sacks_received", ..ROW },
    Row { name: "an RNR NAK with nothing in flight", schemes: ALL_SCHEMES,
          steps: &[("0 send 1", "*"), ("10 ack 1", "-"), ("20 rnr 1 500", "-")], ..ROW },
];

#[test]
fn nothing_is_sent_in_an_rnr_wait() {
    check(RNR_WAITS);
}

/// A PSN sequence error reduces the loss window, to at least 16 packets. If four READs of the length of the oldest READ
/// in flight need more packets than the loss window, four such READs may be in flight nevertheless.
#[test]
fn the_loss_window_permits_four_reads() {
    for (read_pkts, pkts_max) in [(2, 16), (4, 16), (5, 20), (64, 256)] {
        let mut sender = Sender::new(&ROW, IMPROVED);
        (0..4).for_each(|_| sender.start(read_pkts, true, true));
        assert_eq!(sender.requester.in_flight_pkts_max(&mut sender.outstanding), u32::MAX);
        let lost = ResponseEvent::Ack(AckEvent::SequenceError { next: FIRST_PSN });
        let failed = sender.requester.on_response_event(
            sender.now,
            lost,
            &mut sender.outstanding,
            &mut sender.counters,
        );
        assert_eq!(failed, None);
        assert_eq!(sender.requester.in_flight_pkts_max(&mut sender.outstanding), pkts_max, "{read_pkts}");
    }
}
