//! Tests of [`SentLog`] by tables, and by comparison with a model.

use super::*;
use proptest::prelude::*;
use std::borrow::Cow;

const WINDOW_PKTS: u32 = 64;
const FIRST: Psn = Psn::new(0xFF_FFFA);
const RTT_MIN_NANOS: u64 = 1000;

/// Step of a test script. PSNs are relative to the first PSN of the connection.
#[derive(Clone, Debug)]
enum Step {
    /// Sends `.0` new PSNs: if `.1` is true, those of one READ request, otherwise packets of one PSN each.
    Send(u32, bool),
    /// Retransmits at most this number of lost packets.
    Retransmit(u32),
    /// The peer executed all requests below this PSN.
    Executed(u32),
    Response(u32),
    /// A SACK acknowledges these PSNs.
    Sacked(Cow<'static, [u32]>),
    /// Advances the clock by this time, in nanoseconds.
    Wait(u64),
    /// A probe timeout marks this PSN lost.
    Probe(u32),
    /// A probe timeout marks una lost, if una is a request in flight; una is then retransmitted as a doubtful
    /// probe (`DueProbe::Doubtful`): its acknowledgement shows no loss of packets sent after the previous transmission
    /// of una.
    DoubtfulProbe,
}
use Step::*;

/// A [`SentLog`], and a model that applies the reordering threshold to every packet after each step (`Model::detect`).
struct Script {
    log: SentLog,
    first: Psn,
    now: Instant,
    threshold_pkts: u32,
    /// Each READ request: its first PSN, and one past its last PSN.
    reads: Vec<(u32, u32)>,
    model: Model,
}

/// State of a PSN: transmission number and time of its latest transmission; count of its transmissions; whether the PSN
/// is acknowledged or lost.
#[derive(Clone, Debug, Default)]
struct Packet {
    number: u64,
    sent_nanos: u64,
    transmissions: u32,
    is_acked: bool,
    is_lost: bool,
}

#[derive(Clone, Debug, Default)]
struct Model {
    packets: Vec<Packet>,
    next_number: u64,
    /// Index 0: requests; index 1: responses. Each pair is n + 1 and the highest acknowledged PSN with transmission
    /// number n, where n is the highest transmission number acknowledged.
    largest_acked: [(u64, u32); 2],
    /// Transmission number and PSN of one READ response. Of the READ responses that a retransmitted READ request
    /// requested, and that were received since losses of responses were last detected (`Model::detect`), this response
    /// has the highest transmission number.
    retransmission_acked: Option<(u64, u32)>,
    /// Highest PSN that the latest doubtful ACK reported as executed, and `largest_acked[0]` (of requests) before this
    /// ACK. An ACK is doubtful if the ACK raises `largest_acked[0]`, and if the highest PSN that the ACK reports as
    /// executed is newly acknowledged and was retransmitted.
    doubtful: Option<(u32, (u64, u32))>,
    executed_number: u64,
    executed: u32,
}

impl Model {
    fn send(&mut self, psn: u32, now: u64) {
        let psn = psn as usize;
        if psn == self.packets.len() {
            self.packets.push(Packet::default());
        }
        let packet = &mut self.packets[psn];
        *packet = Packet {
            number: self.next_number,
            sent_nanos: now,
            transmissions: packet.transmissions + 1,
            ..Packet::default()
        };
        self.next_number += 1;
    }

    fn raise(&mut self, space: usize, psn: u32, now: u64) {
        let packet = &self.packets[psn as usize];
        if packet.transmissions > 1 {
            if now - packet.sent_nanos < RTT_MIN_NANOS {
                return;
            }
            if space == 1 {
                self.retransmission_acked = self.retransmission_acked.max(Some((packet.number, psn)));
                return;
            }
        }
        self.largest_acked[space] = self.largest_acked[space].max((packet.number + 1, psn));
    }

    fn ack(&mut self, space: usize, psn: u32, now: u64) {
        if !self.packets[psn as usize].is_acked {
            let packet = &mut self.packets[psn as usize];
            (packet.is_acked, packet.is_lost) = (true, false);
            self.raise(space, psn, now);
        }
    }

    /// Acknowledges the requests from `from` to below `end`. The transmission number of a retransmitted request does
    /// not raise `largest_acked` if a higher PSN was sent once, and this call newly acknowledges the higher PSN and all
    /// PSNs between the two PSNs. If `from` is newly acknowledged and was sent once, and `doubtful` contains the PSN
    /// directly below `from`, this call first sets `largest_acked[0]` to the value in `doubtful`.
    fn ack_below(&mut self, from: u32, end: u32, now: u64) {
        let is_once = |packet: &Packet| !packet.is_acked && packet.transmissions == 1;
        if let Some((psn, largest_acked)) = self.doubtful.take_if(|(psn, _)| *psn + 1 == from)
            && self.largest_acked[0].0 == self.packets[psn as usize].number + 1
            && is_once(&self.packets[from as usize])
        {
            self.largest_acked[0] = largest_acked;
        }
        let (last, largest_acked) = (&self.packets[end as usize - 1], self.largest_acked[0]);
        let is_last_retransmitted = !last.is_acked && last.transmissions > 1;
        let mut is_first_above = false;
        for psn in (from..end).rev() {
            let packet = &mut self.packets[psn as usize];
            if packet.is_acked {
                is_first_above = false;
                continue;
            }
            (packet.is_acked, packet.is_lost) = (true, false);
            let is_retransmitted = packet.transmissions > 1;
            if !(is_retransmitted && is_first_above) {
                self.raise(0, psn, now);
            }
            is_first_above |= !is_retransmitted;
        }
        if is_last_retransmitted && self.largest_acked[0] != largest_acked {
            self.doubtful = Some((end - 1, largest_acked));
        }
    }

    fn una(&self) -> u32 {
        let below = |(psn, packet): &(usize, &Packet)| packet.is_acked && (*psn as u32) < self.executed;
        self.packets.iter().enumerate().take_while(below).count() as u32
    }

    fn detect(&mut self, space: usize, threshold_pkts: u32) -> u32 {
        let threshold = u64::from(threshold_pkts);
        let (largest, largest_psn) = self.largest_acked[space];
        let retransmission = self.retransmission_acked.take_if(|_| space == 1);
        let (una, executed) = (self.una(), self.executed);
        let mut newly = 0;
        for (psn, packet) in self.packets.iter_mut().enumerate().skip(una as usize) {
            let is_of_space = (psn as u32) < executed || space == 0;
            let is_in_flight = !packet.is_acked && !packet.is_lost;
            let shares = space == 1 && threshold == 0 && packet.number + 1 == largest;
            let is_earlier =
                if shares { (psn as u32) < largest_psn } else { packet.number + threshold < largest };
            let is_before_retransmission = retransmission
                .is_some_and(|(number, below)| (psn as u32) < below && packet.number + threshold <= number);
            let is_overtaken = is_earlier || is_before_retransmission;
            if is_of_space && (space == 1 || psn as u32 >= executed) && is_in_flight && is_overtaken {
                packet.is_lost = true;
                newly += 1;
            }
        }
        newly
    }
}

impl Script {
    fn new(first: Psn, threshold_pkts: u32) -> Self {
        Script {
            log: SentLog::new(first, WINDOW_PKTS),
            first,
            now: start::instant(),
            threshold_pkts,
            reads: Vec::new(),
            model: Model::default(),
        }
    }

    fn psn(&self, index: u32) -> Psn {
        self.first.plus(index)
    }

    fn time(&self) -> AckTime {
        AckTime { now: self.now, rtt_min_nanos: RTT_MIN_NANOS }
    }

    fn is_read(&self, psn: u32) -> bool {
        self.reads.iter().any(|(from, to)| (*from..*to).contains(&psn))
    }

    /// The PSNs from `from` to below `to`, of a READ request or a part of one, or of another request.
    fn span(&self, from: u32, to: u32) -> PsnSpan {
        PsnSpan { first: self.psn(from), packets: to - from, is_read: self.is_read(from) }
    }

    fn nanos(&self) -> u64 {
        self.now.nanos_since(start::instant())
    }

    /// Applies `step` to log and model. Ignores a step that is impossible in the present state.
    fn play(&mut self, step: &Step) {
        let (time, now, sent) = (self.time(), self.nanos(), self.model.packets.len() as u32);
        match *step {
            Send(count, is_read) => {
                if self.log.has_lost() || self.log.sent() + count > WINDOW_PKTS {
                    return;
                }
                if is_read {
                    self.reads.push((sent, sent + count));
                    self.log.on_sent(self.psn(sent), count, self.now);
                } else {
                    (0..count).for_each(|i| self.log.on_sent(self.psn(sent + i), 1, self.now));
                }
                (0..count).for_each(|i| self.model.send(sent + i, now));
            }
            Retransmit(count) => (0..count).for_each(|_| self.retransmit(now)),
            Executed(next) => {
                if self.executed(next) {
                    self.log.on_responses_sent(self.psn(next - 1), time);
                    if self.model.una() < next {
                        self.model.raise(1, next - 1, now);
                    }
                }
            }
            Response(psn) => {
                let Some(&(_, to)) = self.reads.iter().find(|(from, to)| (*from..*to).contains(&psn)) else {
                    return;
                };
                self.executed(to);
                if self.log.is_unacked(self.psn(psn)) {
                    self.log.on_response(self.psn(psn), time);
                    self.model.ack(1, psn, now);
                }
            }
            Sacked(ref psns) => self.sacked(psns),
            Wait(nanos) => self.now = self.now.plus_nanos(nanos),
            Probe(psn) => {
                if self.log.is_unacked(self.psn(psn)) {
                    let read = self.reads.iter().find(|(from, to)| (*from..*to).contains(&psn));
                    let (from, to) =
                        read.filter(|_| psn >= self.model.executed).copied().unwrap_or((psn, psn + 1));
                    self.log.retransmit(self.span(from, to));
                    for packet in &mut self.model.packets[from as usize..to as usize] {
                        (packet.is_acked, packet.is_lost) = (false, true);
                    }
                    self.log.skip_numbers(self.threshold_pkts);
                    self.model.next_number += u64::from(self.threshold_pkts);
                }
            }
            DoubtfulProbe => self.probe_doubtfully(now),
        }
        let lost = self.log.detect_losses(PsnSpace::Response, self.threshold_pkts);
        assert_eq!(lost, self.model.detect(1, self.threshold_pkts), "{step:?}");
    }

    fn probe_doubtfully(&mut self, now: u64) {
        let una = self.model.una();
        let is_request = una == self.model.executed && !self.is_read(una);
        let Some(packet) = self.model.packets.get_mut(una as usize) else { return };
        if !is_request || packet.is_acked || packet.is_lost {
            return;
        }
        packet.is_lost = true;
        self.log.retransmit(self.span(una, una + 1));
        let lost = self.log.detect_losses(PsnSpace::Request, self.threshold_pkts);
        assert_eq!(lost, self.model.detect(0, self.threshold_pkts));
        self.log.on_doubtful_probe_sent(self.psn(una), self.now);
        let packet = &mut self.model.packets[una as usize];
        (packet.sent_nanos, packet.is_lost) = (now, false);
        packet.transmissions += 1;
    }

    fn retransmit(&mut self, now: u64) {
        if !self.log.has_lost() {
            return;
        }
        let psn = self.log.next_psn();
        let index = psn.distance_from(self.first);
        let read = self.reads.iter().find(|(from, to)| (*from..*to).contains(&index));
        // A READ request that was not executed is retransmitted as a whole.
        let (from, to) = match read {
            Some(read) if index >= self.model.executed => *read,
            _ => (index, index + 1),
        };
        self.log.on_sent(self.psn(from), to - from, self.now);
        (from..to).for_each(|psn| self.model.send(psn, now));
    }

    fn sacked(&mut self, psns: &[u32]) {
        let (time, now, sent) = (self.time(), self.nanos(), self.model.packets.len() as u32);
        let requests = self.model.executed..sent;
        for &psn in psns.iter().filter(|psn| requests.contains(psn)) {
            match self.reads.iter().find(|(from, to)| (*from..*to).contains(&psn)).copied() {
                Some((from, to)) => {
                    self.log.on_read_sacked(self.psn(from), to - from, time);
                    self.model.raise(0, from, now);
                    for packet in &mut self.model.packets[from as usize..to as usize] {
                        (packet.is_acked, packet.is_lost) = (true, false);
                    }
                }
                None => {
                    self.log.on_sacked(self.psn(psn), 1, time);
                    self.model.ack(0, psn, now);
                }
            }
        }
        let lost = self.log.detect_losses(PsnSpace::Request, self.threshold_pkts);
        assert_eq!(lost, self.model.detect(0, self.threshold_pkts));
    }

    fn executed(&mut self, next: u32) -> bool {
        let (from, time, now) = (self.model.executed, self.time(), self.nanos());
        // The peer executes a READ request as a whole, so `next` (all PSNs below `next` are executed) must not be
        // inside a READ request.
        let is_whole = !self.reads.iter().any(|(first, end)| (first + 1..*end).contains(&next));
        if next <= from || next > self.model.packets.len() as u32 || !is_whole {
            return false;
        }
        assert!(self.log.advances_executed(self.psn(next)));
        self.model.executed = next;
        let mut at = from;
        while at < next {
            let read = self.reads.iter().find(|(first, _)| *first == at).copied();
            if let Some((first, end)) = read {
                self.log.on_read_executed(self.psn(first), end - first, time);
                self.model.raise(0, first, now);
                let read = &mut self.model.packets[first as usize..end as usize];
                let waited = read[0].number < self.model.executed_number;
                for packet in read {
                    (packet.is_acked, packet.is_lost) = (false, false);
                    if waited {
                        packet.number = self.model.executed_number;
                    } else {
                        self.model.executed_number = packet.number;
                    }
                }
                at = end;
                continue;
            }
            let end = (at..next).find(|psn| self.is_read(*psn)).unwrap_or(next);
            self.log.on_executed(self.psn(at), end - at, true, time);
            self.model.ack_below(at, end, now);
            let numbers = self.model.packets[at as usize..end as usize].iter().map(|packet| packet.number);
            self.model.executed_number = self.model.executed_number.max(numbers.max().unwrap_or(0));
            at = end;
        }
        true
    }

    fn lost(&self) -> Vec<u32> {
        (0..self.model.packets.len() as u32).filter(|psn| self.log.is_lost(self.psn(*psn))).collect()
    }

    fn check(&self) {
        let una = self.model.una();
        assert_eq!(self.log.una(), self.psn(una));
        assert_eq!(self.log.sent(), self.model.packets.len() as u32 - una);
        assert_eq!(self.log.executed(), self.psn(self.model.executed));
        let packets = || (0..).zip(&self.model.packets).skip(una as usize);
        for (psn, packet) in packets() {
            let is = (self.log.is_acked(self.psn(psn)), self.log.is_lost(self.psn(psn)));
            assert_eq!(is, (packet.is_acked, packet.is_lost), "PSN {psn} of {packet:?}");
            let was_retransmitted = packet.transmissions > 1;
            assert_eq!(self.log.is_retransmitted(self.psn(psn)), was_retransmitted, "PSN {psn}");
        }
        assert_eq!(self.log.has_acked(), packets().any(|(_, packet)| packet.is_acked));
        let mut recent = self.model.packets.iter().rev().take(WINDOW_PKTS as usize);
        assert_eq!(self.log.has_retransmitted(), recent.any(|packet| packet.transmissions > 1));
        // With a full window, the newest PSN has the place of PSN una - 1 in the log.
        let last = una.checked_sub(1).filter(|_| self.log.sent() < WINDOW_PKTS);
        if let Some(last) = last.map(|psn| &self.model.packets[psn as usize]) {
            let rtt_nanos = (last.transmissions == 1).then(|| self.nanos() - last.sent_nanos);
            assert_eq!(self.log.rtt_nanos(self.now), rtt_nanos);
        }
        let in_flight = |packet: &Packet| !packet.is_acked && !packet.is_lost;
        let last = packets().filter(|(_, packet)| in_flight(packet)).last();
        assert_eq!(self.log.last_in_flight(), last.map(|(psn, _)| self.psn(psn)));
        let reads =
            || self.reads.iter().map(|(from, to)| (*from, &self.model.packets[*from as usize..*to as usize]));
        let buffered = reads().filter(|(from, read)| *from >= self.model.executed && read[0].is_acked);
        assert_eq!(self.log.buffered_reads(), buffered.count() as u32);
        for (from, read) in reads().filter(|(from, _)| *from < self.model.executed) {
            let has_unacked = self.log.has_unacked(self.span(from, from + read.len() as u32));
            assert_eq!(has_unacked, read.iter().any(|packet| !packet.is_acked), "READ of PSN {from}");
        }
        assert_eq!(self.log.unacked(), packets().filter(|(_, packet)| in_flight(packet)).count() as u32);
    }
}

const LATER: u64 = RTT_MIN_NANOS;

type Row = (&'static str, u32, &'static [Step], &'static [u32]);

/// Columns: name; reordering threshold; steps; PSNs marked lost after the steps.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    ("nothing was acknowledged out of order", 0, &[Send(9, false), Executed(4)], &[]),
    ("a gap", 0, &[Send(9, false), Executed(2), Sacked(Cow::Borrowed(&[4, 6]))], &[2, 3, 5]),
    ("a gap below the threshold", 4, &[Send(9, false), Sacked(Cow::Borrowed(&[4, 5]))], &[0, 1]),
    (
        "retransmissions are lost by the order in which they were sent",
        0,
        &[Send(9, false), Sacked(Cow::Borrowed(&[8])), Retransmit(8), Wait(LATER), Sacked(Cow::Borrowed(&[5]))],
        &[0, 1, 2, 3, 4],
    ),
    (
        "an acknowledgement within a round trip of a retransmission is of the first transmission",
        0,
        &[Send(9, false), Sacked(Cow::Borrowed(&[8])), Retransmit(8), Wait(LATER - 1), Sacked(Cow::Borrowed(&[5]))],
        &[],
    ),
    (
        "new packets after a retransmission show that it was lost",
        0,
        &[Send(4, false), Sacked(Cow::Borrowed(&[3])), Retransmit(3), Send(2, false), Sacked(Cow::Borrowed(&[4]))],
        &[0, 1, 2],
    ),
    (
        "a probe of the last packet shows the loss of all before",
        0,
        &[Send(4, false), Wait(LATER), Probe(3), Retransmit(1), Wait(LATER), Sacked(Cow::Borrowed(&[3]))],
        &[0, 1, 2],
    ),
    (
        "so it does with a threshold",
        16,
        &[Send(4, false), Wait(LATER), Probe(3), Retransmit(1), Wait(LATER), Sacked(Cow::Borrowed(&[3]))],
        &[0, 1, 2],
    ),
    (
        "a probe of the first packet shows the loss of all others",
        0,
        &[Send(4, false), Wait(LATER), Probe(0), Retransmit(1), Wait(LATER), Executed(1), Sacked(Cow::Borrowed(&[]))],
        &[1, 2, 3],
    ),
    (
        "an ACK of more than the probe is of the first transmission of the probe",
        0,
        &[Send(6, false), Wait(LATER), Probe(0), Retransmit(1), Wait(LATER), Executed(2), Sacked(Cow::Borrowed(&[]))],
        &[],
    ),
    (
        "so is an ACK of more than two probes",
        0,
        &[
            Send(6, false), Wait(LATER), Probe(0), Retransmit(1), Probe(1), Retransmit(1), Wait(LATER), Executed(3),
            Sacked(Cow::Borrowed(&[])),
        ],
        &[],
    ),
    (
        "an ACK of the probe alone, before one of the next packet, is of the first transmission",
        0,
        &[
            Send(6, false), Wait(LATER), Probe(0), Retransmit(1), Wait(LATER), Executed(1), Executed(2),
            Sacked(Cow::Borrowed(&[])),
        ],
        &[],
    ),
    (
        "so it is if a packet is sent in between",
        0,
        &[
            Send(6, false), Wait(LATER), Probe(0), Retransmit(1), Wait(LATER), Executed(1), Send(1, false), Executed(2),
            Sacked(Cow::Borrowed(&[])),
        ],
        &[],
    ),
    (
        "an ACK of the probe alone, before a gap, is of the probe",
        0,
        &[
            Send(6, false), Wait(LATER), Probe(0), Retransmit(1), Wait(LATER), Send(1, false), Executed(1),
            Sacked(Cow::Borrowed(&[6])),
        ],
        &[1, 2, 3, 4, 5],
    ),
    (
        "an ACK of the probe and of packets that a SACK acknowledged is of the probe",
        4,
        &[
            Send(6, false), Sacked(Cow::Borrowed(&[1])), Wait(LATER), Probe(0), Retransmit(1), Wait(LATER), Executed(3),
            Sacked(Cow::Borrowed(&[])),
        ],
        &[3, 4, 5],
    ),
    (
        "an ACK of a doubtful probe shows no loss of packets sent after una",
        0,
        &[Send(6, false), Wait(LATER), DoubtfulProbe, Wait(LATER), Executed(1), Sacked(Cow::Borrowed(&[]))],
        &[],
    ),
    (
        "a packet sent after a doubtful probe shows the loss of those before",
        0,
        &[Send(6, false), Wait(LATER), DoubtfulProbe, Executed(1), Send(1, false), Sacked(Cow::Borrowed(&[6]))],
        &[1, 2, 3, 4, 5],
    ),
    (
        "a doubtful probe shows the loss of packets sent before the transmission whose number it keeps",
        0,
        &[
            Send(6, false), Sacked(Cow::Borrowed(&[2])), Retransmit(1), Retransmit(1), Wait(LATER), DoubtfulProbe,
            Wait(LATER), Executed(1), Sacked(Cow::Borrowed(&[])),
        ],
        &[3, 4, 5],
    ),
    ("READ responses", 0, &[Send(8, true), Response(3), Response(5)], &[0, 1, 2, 4]),
    (
        "responses say nothing of requests",
        0,
        &[Send(4, true), Send(4, false), Response(0), Response(3)],
        &[1, 2],
    ),
    (
        "requests say nothing of responses",
        0,
        &[Send(4, true), Send(4, false), Response(0), Sacked(Cow::Borrowed(&[6]))],
        &[4, 5],
    ),
    (
        "an ACK of a later request shows that responses are lost",
        0,
        &[Send(4, true), Send(4, false), Response(0), Executed(6)],
        &[1, 2, 3],
    ),
    (
        "a READ request is lost as a whole",
        0,
        &[Send(4, true), Send(4, false), Sacked(Cow::Borrowed(&[5]))],
        &[0, 1, 2, 3, 4],
    ),
    (
        "responses to READ requests that the peer buffered are ordered by PSN",
        0,
        &[
            Send(1, false), Send(1, true), Send(2, true), Send(1, true), Sacked(Cow::Borrowed(&[1, 2, 4])),
            Retransmit(1), Response(2), Response(4),
        ],
        &[1, 3],
    ),
    (
        "so they are if they arrive in the order of PSNs, but for the first",
        0,
        &[
            Send(1, false), Send(1, true), Send(2, true), Send(1, true), Sacked(Cow::Borrowed(&[1, 2, 4])),
            Retransmit(1), Response(2), Response(3), Response(4),
        ],
        &[1],
    ),
    (
        "and if they arrive in the opposite order",
        0,
        &[
            Send(1, false), Send(1, true), Send(2, true), Send(1, true), Sacked(Cow::Borrowed(&[1, 2, 4])),
            Retransmit(1), Response(4), Response(2), Response(1),
        ],
        &[3],
    ),
    (
        "losses of responses that share a number, after the first response came in order",
        0,
        &[Send(1, false), Send(4, true), Sacked(Cow::Borrowed(&[1])), Retransmit(1), Response(1), Response(3)],
        &[2],
    ),
    (
        "a READ response with a higher transmission number and a lower PSN than an ACK",
        0,
        &[
            Send(4, true), Send(3, false), Send(5, true), Send(5, false), Sacked(Cow::Borrowed(&[4])), Retransmit(1),
            Executed(13), Response(7),
        ],
        &[0, 1, 2, 3],
    ),
    (
        "a READ request that the peer buffers is not lost",
        0,
        &[Send(1, false), Send(4, true), Send(4, false), Sacked(Cow::Borrowed(&[1, 6]))],
        &[0, 5],
    ),
];

#[test]
fn packets_sent_before_an_acknowledged_one_of_their_space_are_lost() {
    for (name, threshold_pkts, steps, lost) in ROWS {
        let mut script = Script::new(FIRST, *threshold_pkts);
        for step in *steps {
            script.play(step);
            script.check();
        }
        assert_eq!(script.lost(), *lost, "{name}");
    }
}

#[test]
fn only_lost_packets_of_a_run_are_requested_again() {
    let mut script = Script::new(FIRST, 0);
    [Send(8, true), Response(0), Response(3), Response(7)].iter().for_each(|step| script.play(step));
    let run = |psn, count| script.log.lost_run(script.psn(psn), count);
    assert_eq!([run(1, 7), run(1, 1), run(4, 4), run(7, 1)], [2, 1, 3, 0]);
}

#[test]
fn a_packet_that_the_peer_dropped_is_lost_although_it_was_acknowledged() {
    let mut script = Script::new(FIRST, 0);
    script.play(&Send(4, false));
    script.play(&Sacked(vec![1, 2].into()));
    script.log.retransmit(script.span(1, 2));
    assert_eq!(script.lost(), [0, 1]);
    script.log.retransmit(script.span(4, 5));
    assert_eq!(script.lost(), [0, 1], "it was never sent");
}

/// Each PSN space has a `largest_acked`, and an `oldest`: a lower bound of the transmission numbers of the packets in
/// flight. `is_before` compares both with new transmission numbers correctly, even after 2^31 or more transmissions in
/// the other PSN space.
#[test]
fn the_order_of_responses_shows_losses_however_many_writes_were_sent_before() {
    for skipped in [0, 1 << 29, 1 << 30, u32::MAX / 2, u32::MAX / 2 + 5, u32::MAX - 70] {
        let mut script = Script::new(FIRST, 0);
        let mut sent = 0;
        let mut write = |script: &mut Script, log_skips: u32| {
            script.play(&Send(WINDOW_PKTS, false));
            sent += WINDOW_PKTS;
            script.play(&Executed(sent));
            // The ACK of a retransmission raises the number of the requests executed, but no mark of the responses.
            let repaired = [
                Send(2, false),
                Sacked(vec![sent + 1].into()),
                Retransmit(1),
                Wait(LATER),
                Executed(sent + 2),
            ];
            repaired.iter().for_each(|step| script.play(step));
            sent += 2;
            let mut left = log_skips;
            while left > 0 {
                let skip = left.min(1 << 28);
                script.log.skip_numbers(skip);
                left -= skip;
            }
        };
        write(&mut script, skipped / 2);
        write(&mut script, skipped - skipped / 2);
        write(&mut script, 0);
        script.play(&Send(4, true));
        script.play(&Response(sent));
        script.play(&Response(sent + 2));
        assert_eq!(script.lost(), [sent + 1], "after {skipped} transmissions");
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (prop_oneof![1u32..6, 1u32..=WINDOW_PKTS], any::<bool>()).prop_map(|(n, read)| Send(n, read)),
        4 => (1u32..20).prop_map(Retransmit),
        3 => (1u32..70).prop_map(Executed),
        6 => (0u32..70).prop_map(Response),
        4 => prop::collection::vec(0u32..70, 1..6).prop_map(|psns| Sacked(psns.into())),
        2 => (0..2 * RTT_MIN_NANOS).prop_map(Wait),
        1 => (0u32..70).prop_map(Probe),
        1 => Just(DoubtfulProbe),
    ];
    prop::collection::vec(step, 1..60)
}

/// Returns `step` with `una` added to its PSNs.
fn from(step: Step, una: u32) -> Step {
    match step {
        Executed(next) => Executed(una + next),
        Response(psn) => Response(una + psn),
        Sacked(psns) => Sacked(psns.iter().map(|psn| una + psn).collect()),
        Probe(psn) => Probe(una + psn),
        other => other,
    }
}

/// Steps after the gap below several READ requests was closed; PSNs are relative to the first PSN of the connection.
fn steps_after_a_gap() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (0u32..40).prop_map(Response),
        2 => (1u32..4).prop_map(Retransmit),
        1 => (0..2 * RTT_MIN_NANOS).prop_map(Wait),
        1 => any::<bool>().prop_map(|is_read| Send(1, is_read)),
        1 => (20u32..40).prop_map(|psn| Sacked(vec![psn].into())),
    ];
    prop::collection::vec(step, 1..40)
}

proptest! {
    /// Packet 0 is lost, the peer buffers the READ requests above, and packet 0 is retransmitted: all READ responses
    /// have the transmission number of this retransmission.
    #[test]
    fn the_responses_of_buffered_read_requests_are_ordered_by_psn(
        threshold_pkts in prop_oneof![4 => Just(0u32), 1 => Just(1)],
        reads in prop::collection::vec(1u32..4, 1..12),
        steps in steps_after_a_gap(),
    ) {
        let mut script = Script::new(FIRST, threshold_pkts);
        script.play(&Send(1, false));
        reads.iter().for_each(|packets| script.play(&Send(*packets, true)));
        let first_psns = script.reads.iter().map(|(first, _)| *first).collect();
        for step in [Sacked(first_psns), Retransmit(1)].iter().chain(&steps) {
            script.play(step);
            script.check();
        }
    }

    #[test]
    fn the_log_is_the_rule_applied_to_every_packet(
        first in prop_oneof![Just(0u32), Just(Psn::COUNT - 100), Just(Psn::COUNT - 64), 0..Psn::COUNT],
        threshold_pkts in prop_oneof![Just(0u32), Just(1), Just(16)],
        steps in steps(),
    ) {
        let mut script = Script::new(Psn::new(first), threshold_pkts);
        for step in steps {
            let una = script.model.una();
            script.play(&from(step, una));
            script.check();
        }
    }
}
