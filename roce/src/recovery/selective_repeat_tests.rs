//! Table tests of [`SelectiveRepeat`]: the [`RecoveryResult`] of each response, and the PSNs marked for retransmission.
//!
//! A row is a script, the result of its last response, and the PSNs to be retransmitted after it. PSNs are relative to
//! the first PSN of the connection.
//!
//! ```text
//!   s s20    sends a SEND, 20 SENDs (one packet each)    r3  sends a READ request for three responses
//!   out      retransmits all lost packets       out1     retransmits one lost packet
//!   A5       ACK: PSNs below 5 are executed     N5       NAK: PSNs below 5 are executed
//!   S2[4,5]  SACK: PSNs below 2 are executed, 4 and 5 are buffered
//!   S2<4[4]  SACK triggered by the duplicate 4  S2![4]   SACK that reports a full reorder buffer
//!   D4       READ response 4                    E4       duplicate READ response 4
//!   tlp      tail loss probe                    probe    later probe
//!   refuse5  RNR NAK of PSN 5                   w        nothing
//! ```
//! Each step takes 1 us. The shortest round trip is 1.5 us, so that an acknowledgement in the step after a
//! retransmission is that of an earlier transmission.

use super::*;
use crate::wire::{PrecedingReads, SackEth};

const FIRST: Psn = Psn::new(0xFF_FFFC);
const WINDOW_PKTS: u32 = 64;
const RTT_MIN_NANOS: u64 = 1_500;

fn psn(index: u32) -> Psn {
    FIRST.plus(index)
}

/// The requests sent; `answered` counts the calls of [`Requests::on_read_answered`].
#[derive(Debug, Default)]
pub(in crate::recovery) struct Sent {
    requests: Vec<PsnSpan>,
    answered: u32,
}

impl Requests for Sent {
    fn request_at(&mut self, psn: Psn) -> Option<PsnSpan> {
        self.requests.iter().copied().find(|span| psn.index_in(span.first, span.packets).is_some())
    }

    fn preceding_reads(&mut self, psn: Psn) -> PrecedingReads {
        let mut first = psn;
        while let Some(read) = self.request_at(first.minus(1)).filter(|request| request.is_read) {
            first = read.first;
        }
        PrecedingReads::from_pkts(psn.distance_from(first))
    }

    fn has_reads(&self) -> bool {
        self.requests.iter().any(|span| span.is_read)
    }

    fn on_read_answered(&mut self) {
        self.answered += 1;
    }

    fn first_read_before(&self, _una: Psn, _end: Psn) -> Option<Psn> {
        unreachable!("the sent-packet log knows the missing READ responses");
    }
}

struct Script {
    scheme: SelectiveRepeat,
    sent: Sent,
    now: Instant,
    last: String,
}

impl Script {
    fn new() -> Self {
        let scheme = SelectiveRepeat::new(FIRST, WINDOW_PKTS);
        Script { scheme, sent: Sent::default(), now: Instant::ZERO, last: String::new() }
    }

    /// Sends a request of `packets` PSNs.
    fn send(&mut self, packets: u32, is_read: bool) {
        let first = self.scheme.log().next_psn();
        assert!(!self.scheme.log().has_lost(), "lost packets are retransmitted first");
        self.sent.requests.push(PsnSpan { first, packets, is_read });
        self.scheme.on_sent(packets, self.now);
    }

    /// Retransmits at most `count` packets.
    fn retransmit(&mut self, count: u32) {
        for _ in 0..count {
            if !self.scheme.log().has_lost() {
                return;
            }
            let psn = self.scheme.log().next_psn();
            let request = self.sent.request_at(psn).expect("a lost packet was sent");
            let span = if request.is_read { self.scheme.read_part(psn, request) } else { 1 };
            self.scheme.on_sent(span, self.now);
        }
    }

    fn time(&self) -> AckTime {
        AckTime { now: self.now, rtt_min_nanos: RTT_MIN_NANOS }
    }

    /// Passes a response to the scheme, and records its result as text.
    fn event(&mut self, event: &AckEvent<'_>) {
        let answered = self.sent.answered;
        let time = self.time();
        let result = self.scheme.on_event(event, &mut self.sent, time);
        self.last = text_of(&result, self.sent.answered - answered, self.scheme.log().buffered_reads());
    }

    fn sack(&mut self, token: &str) {
        let (head, bits) = token.trim_end_matches(']').split_once('[').expect("a bitmap");
        let (head, no_room) = head.strip_suffix('!').map_or((head, false), |head| (head, true));
        let (next, trigger) =
            head.split_once('<').map_or((head, None), |(next, trigger)| (next, Some(trigger)));
        let next = psn(number(next));
        let mut bitmap = [0; 8];
        for bit in bits.split(',').filter(|bit| !bit.is_empty()) {
            let index = psn(number(bit)).distance_from(next) - 1;
            bitmap[4 * (index as usize / 32) + 3 - index as usize % 32 / 8] |= 1 << (index % 8);
        }
        let duplicate = trigger.is_some();
        let trigger = psn(trigger.map_or(0, number));
        let header = SackEth { version: SackEth::VERSION, duplicate, no_room, trigger };
        self.event(&AckEvent::Sack { next, header, bitmap: &bitmap });
    }

    fn run(&mut self, token: &str) {
        self.now = self.now.plus_nanos(1_000);
        match token.split_at(token.find(|c: char| c.is_ascii_digit()).unwrap_or(token.len())) {
            ("s", "") => self.send(1, false),
            ("s", count) => (0..number(count)).for_each(|_| self.send(1, false)),
            ("r", packets) => self.send(number(packets), true),
            ("out", "") => self.retransmit(u32::MAX),
            ("out", count) => self.retransmit(number(count)),
            ("A", next) => self.event(&AckEvent::Ack { next: psn(number(next)) }),
            ("N", next) => self.event(&AckEvent::SequenceError { next: psn(number(next)) }),
            ("S", sack) => self.sack(sack),
            ("D", index) => {
                let psn = psn(number(index));
                let request = self.sent.request_at(psn).expect("the READ was sent");
                self.event(&AckEvent::ReadResponse { psn, request, ends_message: false });
            }
            ("E", index) => self.event(&AckEvent::Duplicate { psn: psn(number(index)) }),
            ("w", _) => {}
            ("tlp", _) => self.scheme.probe(true, &mut self.sent),
            ("probe", _) => self.scheme.probe(false, &mut self.sent),
            ("refuse", index) => {
                let time = self.time();
                let refusal = self.scheme.on_refused(psn(number(index)), &mut self.sent, time);
                self.last = format!("progress {}, in flight {}", refusal.is_progress, refusal.in_flight_pkts);
            }
            _ => panic!("`{token}` is no step"),
        }
    }

    fn lost(&self) -> Vec<u32> {
        let log = self.scheme.log();
        (0..WINDOW_PKTS).filter(|index| log.is_lost(psn(*index))).collect()
    }
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

fn text_of(result: &RecoveryResult, answered: u32, buffered_reads: u32) -> String {
    let RecoveryResult { acked_pkts, lost_pkts, .. } = *result;
    let flags = [
        (acked_pkts > 0, format!("acked {acked_pkts}")),
        (lost_pkts > 0, format!("lost {lost_pkts}")),
        (answered > 0, format!("answered {answered}")),
        (buffered_reads > 0, format!("buffered {buffered_reads}")),
        (result.is_executed, "executed".to_owned()),
        (result.changed, "changed".to_owned()),
        (result.changes_loss_window, "loss window".to_owned()),
        (result.has_no_room, "no room".to_owned()),
        (result.nak == Some(Nak::Implied), "implied NAK".to_owned()),
        (result.is_read_response, "response".to_owned()),
        (result.had_no_gap, "no gap".to_owned()),
        (result.spurious == Some(Spurious::Retransmission), "spurious".to_owned()),
        (result.spurious == Some(Spurious::Probe), "spurious probe".to_owned()),
    ];
    let is_of_go_back_n =
        result.has_gone_back || result.answers.is_some() || result.nak == Some(Nak::SequenceError);
    assert!(!is_of_go_back_n, "{result:?}");
    flags.into_iter().filter_map(|(is_set, text)| is_set.then_some(text)).collect::<Vec<_>>().join(", ")
}

/// Columns: name; script; result of the last response; PSNs to be retransmitted.
type Row = (&'static str, &'static str, &'static str, &'static [u32]);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("an ACK", "s s s A2", "acked 2, executed, changed, loss window, no gap", &[]),
    ("an ACK of all", "s s s A3", "acked 3, executed, changed, loss window, no gap", &[]),
    ("a stale ACK", "s s s A2 A1", "loss window, no gap", &[]),
    ("a NAK", "s s s N1", "acked 1, executed, changed, loss window, no gap", &[]),
    ("a gap", "s s s S0[1]", "lost 1, changed, loss window, no gap", &[0]),
    ("a SACK that executes and shows a gap", "s s s s s S1[3]",
     "acked 1, lost 2, executed, changed, loss window, no gap", &[1, 2]),
    ("the same SACK again", "s s s s s S1[3] S1[3]", "loss window", &[1, 2]),
    ("a SACK below the executed PSNs", "s s s s A2 S1[3]", "loss window, no gap", &[]),
    ("a gap of retransmissions", "s s s s S0[3] out w S0[2,3]", "lost 2, changed, loss window", &[0, 1]),
    ("a lost retransmission, sent between two packets that are acknowledged", "s s s S0[1] out s s S0[1,2,3]",
     "lost 1, changed, loss window", &[0]),
    ("a SACK of a packet that was not sent", "s s S0[2]", "loss window, no gap", &[]),
    ("an ACK of the first transmission", "s s s s S0[3] out S0[2,3]", "changed, loss window", &[]),
    ("a response", "r2 D0", "acked 1, executed, response, no gap", &[]),
    ("the last response of a READ", "r2 D0 D1", "acked 1, answered 1, executed, response, no gap", &[]),
    ("a response above a missing one", "r3 D1", "lost 1, executed, implied NAK, response, no gap", &[0]),
    ("responses above a missing one", "r3 D1 D2", "executed, response", &[0]),
    ("a late response", "r3 D1 D0", "acked 2, executed, response", &[]),
    ("the last missing response", "r3 D2 out1 w D1 D0", "acked 3, answered 1, executed, response", &[]),
    ("a response to a retransmission shows only lower responses", "r4 D3 out w D1",
     "lost 1, executed, implied NAK, response", &[0]),
    ("a response of a later READ", "r2 r2 D2", "lost 2, executed, implied NAK, response, no gap", &[0, 1]),
    ("a response executes the requests before", "s s r1 s D2", "acked 3, answered 1, executed, response, no gap", &[]),
    ("an ACK above a READ without responses", "r2 s A3",
     "lost 2, executed, changed, loss window, implied NAK, no gap", &[0, 1]),
    ("an ACK of some requests, with a READ above", "s s r1 s A1",
     "acked 1, executed, changed, loss window, no gap", &[]),
    ("an ACK up to a READ", "s s r1 s A2", "acked 2, executed, changed, loss window, no gap", &[]),
    ("a READ request is buffered", "s r2 s S0[1]", "lost 1, buffered 1, changed, loss window, no gap", &[0]),
    ("a READ request and a request above are buffered", "s r2 s S0[1,3]",
     "lost 1, buffered 1, changed, loss window, no gap", &[0]),
    ("a buffered READ request is executed", "s r2 s S0[1] out w D1", "acked 2, executed, response", &[]),
    ("responses to buffered READ requests are ordered by PSN", "s r2 r2 S0[1,3] out w D3",
     "acked 1, lost 2, executed, implied NAK, response", &[1, 2]),
    ("a READ request above a gap, by a SACK with READs", "r1 D0 s s s S1[3]",
     "lost 2, changed, loss window, no gap", &[1, 2]),
    ("an early READ, by a SACK", "r1 r1 s S0[1,2]", "changed, loss window, no gap", &[]),
    ("an early READ shows a lost READ request", "r1 r1 s S0[1,2] D1",
     "lost 1, answered 1, executed, implied NAK, response", &[0]),
    ("a SACK of an early READ is not stale", "r1 r1 s s D1 S0[1,3]", "lost 1, changed, loss window", &[0, 2]),
    ("a SACK below READs and SENDs is stale", "r1 r1 s s A4 S0[1,3]", "loss window", &[0, 1]),
    ("a READ request marked lost remains marked", "s r1 r1 s S0[2,3] S1[2,3]",
     "acked 1, buffered 1, executed, changed, loss window", &[1]),
    ("an early READ above another early READ", "r1 r1 r1 r1 s S0[1,3,4] D3",
     "lost 3, answered 1, executed, implied NAK, response", &[0, 1, 2]),
    ("reneging on a SEND", "s s s s S0[1,2,3] out w S1[3]", "acked 1, executed, changed, loss window", &[1, 2]),
    ("reneging on a READ request", "s s r2 s S0[1,2,4] out w S1[4]",
     "acked 1, executed, changed, loss window", &[1, 2, 3]),
    ("reneging does not acknowledge the other buffered packets anew", "s7 S0[4] out S0[1,3,4] w S1[3,4]",
     "acked 1, lost 2, executed, changed, loss window", &[1, 5, 6]),
    ("reneging, with a later packet in flight", "s s s s S0[1,2,3] out w s S1[3]",
     "acked 1, executed, changed, loss window", &[1, 2]),
    ("a SEND is buffered above a READ request", "r1 D0 s r1 s S1[2,3]",
     "lost 1, buffered 1, changed, loss window, no gap", &[1]),
    ("nothing of a later gap is reneged on", "s s s s S0[1,3] out w S2[]",
     "acked 2, executed, changed, loss window", &[]),
    ("no room", "s s s S0![1]", "lost 1, changed, loss window, no room, no gap", &[0]),
    ("no room again within a window", "s s s S0![1] S0![1]", "loss window", &[0]),
    ("no room again after some packets", "s s s S0![1] out w S1![2]", "acked 1, executed, changed, loss window", &[1]),
    ("no room in the next window", "s s S0![1] out w A2 s s S2![3]",
     "lost 1, changed, loss window, no room, no gap", &[2]),
    ("a spurious retransmission", "s s S0[1] out A2 S2<0[]", "loss window, no gap, spurious", &[]),
    ("a duplicate without a retransmission", "s s A2 S2<0[]", "loss window, no gap", &[]),
    ("a duplicate of a tail loss probe", "s s tlp out A2 S2<1[]", "loss window, no gap, spurious probe", &[]),
    ("a duplicate of a later probe", "s s probe out A2 S2<0[]", "loss window, no gap, spurious probe", &[]),
    ("a duplicate of a probe does not raise the threshold", "s s tlp out A2 S2<1[] s s s S2[3]",
     "lost 1, changed, loss window, no gap", &[2]),
    ("a threshold of 16 packets: 15 transmissions later", "s s S0[1] out A2 S2<0[] s20 S2[17]",
     "changed, loss window, no gap", &[]),
    ("a threshold of 16 packets: 16 transmissions later", "s s S0[1] out A2 S2<0[] s20 S2[18]",
     "lost 1, changed, loss window, no gap", &[2]),
    ("a threshold of 16 packets: 17 transmissions later", "s s S0[1] out A2 S2<0[] s20 S2[19]",
     "lost 2, changed, loss window, no gap", &[2, 3]),
    ("a threshold of 16 packets: a buffered READ request counts as sent with the retransmission that closes the gap",
     "s s S0[1] out A2 S2<0[] s r1 s20 S2[3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23] out w r1 D24",
     "acked 1, answered 1, executed, response", &[]),
    ("a threshold raised twice: 31 transmissions later", "s s S0[1] out A2 S2<0[] S2<0[] s40 S2[33]",
     "changed, loss window, no gap", &[]),
    ("a threshold raised twice: 33 transmissions later", "s s S0[1] out A2 S2<0[] S2<0[] s40 S2[35]",
     "lost 2, changed, loss window, no gap", &[2, 3]),
    ("a threshold is half the window at most", "s s S0[1] out A2 S2<0[] S2<0[] S2<0[] s40 S2[35]",
     "lost 2, changed, loss window, no gap", &[2, 3]),
    ("a threshold is not raised twice in a window", "s s s s S0[2] out S0<1[2] S0<0[2] A4 s20 S4[21]",
     "lost 2, changed, loss window, no gap", &[4, 5]),
    ("a duplicate response", "r2 D1 out D0 E0", "loss window, no gap, spurious", &[]),
    ("a duplicate response without a retransmission", "r2 D0 E0", "loss window, no gap", &[]),
    ("a tail loss probe of a SEND", "s s s A1 tlp", "acked 1, executed, changed, loss window, no gap", &[2]),
    ("a tail loss probe that arrives", "s s s tlp out S0[2]", "lost 2, changed, loss window, no gap", &[0, 1]),
    ("a tail loss probe of an executed READ", "r3 D0 tlp", "acked 1, executed, response, no gap", &[2]),
    ("a tail loss probe of a READ request", "r3 s A0 tlp", "loss window, no gap", &[3]),
    ("a tail loss probe of a READ request alone", "s A1 r3 tlp",
     "acked 1, executed, changed, loss window, no gap", &[1, 2, 3]),
    ("a tail loss probe of the last response due", "r2 D0 r3 tlp", "acked 1, executed, response, no gap", &[1]),
    ("a tail loss probe of a READ request, all responses received", "r2 D0 D1 r3 tlp",
     "acked 1, answered 1, executed, response, no gap", &[2, 3, 4]),
    ("a tail loss probe of a READ without responses", "r3 r1 D3 out tlp",
     "lost 3, answered 1, executed, implied NAK, response, no gap", &[0, 1, 2]),
    ("a tail loss probe of the last response due, of a READ without responses", "r2 r2 r2 S0[2] tlp",
     "loss window, no gap", &[2, 3]),
    ("a tail loss probe while all are lost", "s s S0[1] tlp", "lost 1, changed, loss window, no gap", &[0]),
    ("a tail loss probe behind a packet lost meanwhile", "s s s s tlp S0[2] out1 S0[2]", "loss window", &[1, 3]),
    ("a tail loss probe behind a retransmission, acknowledged at once", "s5 tlp S0[2] out1 S1[2]",
     "acked 1, executed, changed, loss window", &[1, 4]),
    ("a later probe of a SEND", "s s s A1 probe", "acked 1, executed, changed, loss window, no gap", &[1]),
    ("a later probe of an executed READ", "r3 D0 probe", "acked 1, executed, response, no gap", &[1]),
    ("a later probe of a READ request", "r3 s probe", "", &[0, 1, 2]),
    ("a later probe that arrives", "s s s probe out w A1 S1[]", "lost 2, changed, loss window, no gap", &[1, 2]),
    ("a later probe that arrives, 16 packets in flight", "s16 probe out w A1 S1[]",
     "lost 15, changed, loss window, no gap", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
    ("a doubtful probe that arrives, 17 packets in flight", "s17 probe out w A1 S1[]", "loss window, no gap", &[]),
    ("a packet sent after a doubtful probe", "s17 probe out w A1 s S1[17]",
     "lost 16, changed, loss window, no gap", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]),
    ("a packet sent in place of a doubtful probe", "s18 probe A1 s S1[18]",
     "lost 17, changed, loss window, no gap", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]),
    ("a probe halves the threshold", "s s S0[1] out A2 S2<0[] s20 S2[12] probe out w w S2[12,15]",
     "lost 6, changed, loss window", &[2, 3, 4, 5, 6, 7]),
    ("a probe leaves the threshold, if none is acknowledged", "s s S0[1] out A2 S2<0[] s20 probe out w w S2[19]",
     "lost 2, changed, loss window, no gap", &[2, 3]),
    ("a probe of a lost una leaves the threshold", "s s S0[1] out A2 S2<0[] s20 S2[19] probe",
     "lost 2, changed, loss window, no gap", &[2, 3]),
    ("a lost run is one READ request", "r4 D3 out1", "lost 3, executed, implied NAK, response, no gap", &[]),
    ("a READ request without a response is retransmitted whole", "r3 r1 s D3 S0[3] out1",
     "loss window", &[]),
    ("a READ request not executed is retransmitted whole", "r3 s S0[3] out1",
     "lost 3, changed, loss window, no gap", &[]),
    ("a refused SEND", "s s s refuse1", "progress true, in flight 2", &[1]),
    ("a refused SEND, all before it acknowledged", "s s s A1 refuse1", "progress false, in flight 2", &[1]),
    ("a refused SEND above a READ", "r1 s s D0 refuse1", "progress false, in flight 2", &[1]),
];

#[test]
fn responses_acknowledge_packets_and_show_losses() {
    let mut failed = Vec::new();
    for (name, steps, result, lost) in ROWS {
        let mut script = Script::new();
        steps.split_whitespace().for_each(|token| script.run(token));
        if (script.last.as_str(), script.lost().as_slice()) != (*result, *lost) {
            failed.push(format!(
                "{name}: {steps}\n    is     {} {:?}\n    wanted {result} {lost:?}",
                script.last,
                script.lost()
            ));
        }
    }
    assert!(failed.is_empty(), "{} rows:\n  {}", failed.len(), failed.join("\n  "));
}

#[test]
fn executed_psns_are_a_bitmap() {
    let mut scheme = SelectiveRepeat::new(FIRST, 256);
    scheme.on_sent(200, Instant::ZERO);
    let time = AckTime { now: Instant::ZERO, rtt_min_nanos: RTT_MIN_NANOS };
    scheme.log.on_read_executed(FIRST, 150, time);
    for (index, bits) in
        [(0, u64::MAX), (86, u64::MAX), (87, u64::MAX >> 1), (149, 1), (150, 0), (151, 0), (199, 0)]
    {
        assert_eq!(scheme.executed_bits(psn(index)), bits, "{index}");
    }
}
