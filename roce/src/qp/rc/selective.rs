//! The requester under selective repeat: marks the PSNs that a response acknowledges. The PSNs of a READ are
//! acknowledged by its responses only.
//!
//! ```text
//!   ACK             requests up to its PSN
//!   SACK            requests below its PSN, and the requests in its bitmap, which the responder buffers
//!   READ response   its own PSN, and requests before its READ
//! ```

use super::events::SelectiveEvent;
use super::loss_timer::LossTimer;
use super::outstanding::Outstanding;
use crate::counters::QpCounters;
use crate::psn::{Psn, PsnSpace};
use crate::recovery::SelectiveRepeat;
use crate::recovery::selective_repeat::WINDOW_PKTS_MAX;
use crate::wire::SackEth;
use crate::wire::sacketh::bitmap_words;

/// Change of the requester's state by one response under selective repeat.
pub(super) struct SelectiveResult {
    /// The response is a READ response, or shows that further requests were executed: restores the RNR retry count.
    pub is_executed: bool,
    /// Number of packets newly marked lost.
    pub lost_pkts: u32,
}

/// Processes a response: marks PSNs acknowledged and lost.
pub(super) fn on_event(
    scheme: &mut SelectiveRepeat,
    event: &SelectiveEvent<'_>,
    timer: &LossTimer,
    outstanding: &mut Outstanding,
    counters: &mut QpCounters,
) -> SelectiveResult {
    let mut lost_requests = 0;
    let is_executed = match *event {
        SelectiveEvent::Executed { next } => {
            let is_news = on_executed(scheme, next, outstanding);
            // The responder sends READ responses before a later ACK, so those missing below `next` may be lost.
            scheme.on_responses_sent(next);
            is_news
        }
        SelectiveEvent::Sack { next, header, bitmap } => {
            let is_news = on_executed(scheme, next, outstanding);
            let is_probe = timer.was_probe(header.trigger);
            lost_requests = on_sack(scheme, next, (header, bitmap), is_probe, outstanding, counters);
            is_news
        }
        SelectiveEvent::Response { psn, executed } => {
            on_read_response(scheme, psn, executed, outstanding);
            true
        }
        SelectiveEvent::Duplicate { psn } => {
            if !timer.was_probe(psn) && scheme.is_spurious(psn) {
                counters.spurious_retransmits += 1;
                scheme.on_spurious();
            }
            false
        }
    };
    let lost_responses = detect_lost_responses(scheme, outstanding);
    counters.implied_nak_seq_err += u64::from(lost_responses > 0);
    SelectiveResult { is_executed, lost_pkts: lost_responses + lost_requests }
}

/// Acknowledges the requests below `next`, except READs, which only their responses acknowledge. Returns false if an
/// earlier response showed the execution of all of them.
pub(super) fn on_executed(scheme: &mut SelectiveRepeat, next: Psn, outstanding: &mut Outstanding) -> bool {
    let from = scheme.executed();
    if !scheme.on_executed(next) {
        return false;
    }
    let reads = outstanding.assigned_reads() > 0;
    mark_requests_acked(scheme, from, next, reads.then_some(outstanding));
    true
}

/// Processes a SACK; `is_probe`: a probe triggered the SACK. Returns the number of packets newly marked lost.
fn on_sack(
    scheme: &mut SelectiveRepeat,
    next: Psn,
    (header, bitmap): (SackEth, &[u8]),
    is_probe: bool,
    outstanding: &mut Outstanding,
    counters: &mut QpCounters,
) -> u32 {
    let is_spurious = header.duplicate && !is_probe;
    counters.sacks_received += 1;
    if is_spurious {
        counters.spurious_retransmits += 1;
        scheme.on_spurious();
    }
    if next != scheme.executed() {
        return 0; // a stale SACK
    }
    if scheme.is_acked(next) {
        retransmit_discarded(scheme, next, bitmap, outstanding);
    }
    for (word, bits) in (0..).zip(bitmap_words(bitmap)) {
        let first = next.plus(1 + 32 * word);
        let mut left = bits & !scheme.acked_bits(first);
        if left == 0 {
            continue;
        }
        if outstanding.assigned_reads() == 0 {
            scheme.on_sacked(PsnSpace::Request, first, left);
            continue;
        }
        while left != 0 {
            let psn = first.plus(left.trailing_zeros());
            left &= left - 1;
            if outstanding.find(psn).is_some_and(|place| !place.span.is_read) {
                scheme.on_acked(PsnSpace::Request, psn, 1);
            } else {
                // The bit of a READ shows that the responder buffers the READ request; it acknowledges no response.
                scheme.on_read_sacked(psn);
            }
        }
    }
    detect_lost_requests(scheme, next, bitmap, outstanding)
}

fn on_read_response(scheme: &mut SelectiveRepeat, psn: Psn, executed: Psn, outstanding: &mut Outstanding) {
    let from = scheme.executed();
    if scheme.on_executed(executed) {
        mark_requests_acked(scheme, from, executed, Some(outstanding));
    }
    scheme.on_acked(PsnSpace::Response, psn, 1);
}

/// Marks READ responses lost by the reordering threshold. Returns the number of responses newly marked.
fn detect_lost_responses(scheme: &mut SelectiveRepeat, outstanding: &mut Outstanding) -> u32 {
    let Some(from) = scheme.scan_from(PsnSpace::Response) else { return 0 };
    let lost = scheme.detect_losses(PsnSpace::Response, from, |psn| {
        let place = outstanding.find(psn)?;
        Some(if place.span.is_read { (true, 1) } else { (false, place.rest_pkts()) })
    });
    scheme.on_scanned(PsnSpace::Response);
    lost
}

/// Acknowledges the requests of `from..to`, except READs, which only their responses acknowledge. `reads`: the
/// outstanding work requests; `None` if none of them is a READ.
fn mark_requests_acked(scheme: &mut SelectiveRepeat, from: Psn, to: Psn, reads: Option<&mut Outstanding>) {
    let Some(outstanding) = reads else {
        return scheme.on_acked(PsnSpace::Request, from, to.distance_from(from));
    };
    let mut at = from;
    while let Some(left) = to.offset_from(at).filter(|left| *left > 0) {
        let Some(place) = outstanding.find(at) else { return };
        if !place.span.is_read {
            scheme.on_acked(PsnSpace::Request, at, place.rest_pkts().min(left.unsigned_abs()));
        }
        at = place.span.end();
    }
}

/// Returns whether `bitmap`, of a SACK with PSN `next`, acknowledges `psn`.
fn is_sacked(psn: Psn, next: Psn, bitmap: &[u8]) -> bool {
    let Some(index) = psn.minus(1).index_in(next, WINDOW_PKTS_MAX) else { return false };
    let word = bitmap_words(bitmap).nth(index as usize / 32);
    word.is_some_and(|word| word >> (index % 32) & 1 == 1)
}

/// Handles reneging (compare RFC 2018, section 8): a SACK reports `next` missing, which an earlier SACK acknowledged.
/// The responder dropped the buffered packet for lack of room, for its age, or after a conflict. Marks for
/// retransmission all requests that were acknowledged and that `bitmap` lacks.
#[cold]
fn retransmit_discarded(
    scheme: &mut SelectiveRepeat,
    next: Psn,
    bitmap: &[u8],
    outstanding: &mut Outstanding,
) {
    for psn in (0..scheme.window_pkts()).map(|i| next.plus(i)) {
        let mut is_request = || outstanding.find(psn).is_some_and(|place| !place.span.is_read);
        if scheme.is_acked(psn) && !is_sacked(psn, next, bitmap) && is_request() {
            scheme.retransmit(psn, 1);
        }
    }
}

/// Marks requests lost by the reordering threshold, after a SACK with PSN `next` and `bitmap`. Returns the number newly
/// marked. If no READ is outstanding, starts where the last scan ended, otherwise at `next`.
fn detect_lost_requests(
    scheme: &mut SelectiveRepeat,
    next: Psn,
    bitmap: &[u8],
    outstanding: &mut Outstanding,
) -> u32 {
    let goes_on = outstanding.assigned_reads() == 0;
    let Some(from) = (if goes_on { scheme.scan_from(PsnSpace::Request) } else { Some(next) }) else {
        return 0;
    };
    let lost = scheme.detect_losses(PsnSpace::Request, from, |psn| {
        if next.offset_from(psn).is_some_and(|offset| offset > 0) {
            return Some((false, 1)); // the request was executed; only a READ response is missing
        }
        let place = outstanding.find(psn)?;
        // Of a READ one packet, its request, may be lost: the responder misses it at `next`, or as a 0 in the bitmap.
        let is_lost =
            !place.span.is_read || psn == next || (place.packet == 0 && !is_sacked(psn, next, bitmap));
        Some((is_lost, if place.span.is_read { place.rest_pkts() } else { 1 }))
    });
    if goes_on {
        scheme.on_scanned(PsnSpace::Request);
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::super::events::ResponseEvent;
    use super::super::outstanding::Kind;
    use super::super::requester::{Requester, RequesterConfig};
    use super::*;
    use crate::congestion::CongestionScheme;
    use crate::queue::{Doorbells, SendQueueSize, send_queue};
    use crate::recovery::RecoveryScheme;
    use crate::time::Instant;
    use std::sync::Arc;

    const MTU_BYTES: u32 = 1024;
    const READ_PKTS: u32 = 3;

    /// A requester whose READs, of [`READ_PKTS`] responses, and SENDs are recorded as sent without a port.
    struct Reader {
        requester: Requester,
        outstanding: Outstanding,
        counters: QpCounters,
        now: Instant,
    }

    impl Reader {
        const FIRST_PSN: Psn = Psn::new(7);

        fn new() -> Self {
            let requester = Requester::new(RequesterConfig {
                first_psn: Self::FIRST_PSN,
                mtu_bytes: MTU_BYTES,
                timeout: 14,
                retry_count: 7,
                rnr_retry: 7,
                max_rd_atomic: 4,
                congestion: CongestionScheme::Window { window_pkts: 64 },
                link_bits_per_sec: 100_000_000_000,
                recovery: RecoveryScheme::SelectiveRepeat { window_pkts: 64 },
            });
            let size = SendQueueSize { depth: 8, max_sges: 1, max_inline_bytes: 0 };
            let (_, queue) = send_queue(size, true, Arc::new(Doorbells::new(1)), 0);
            let outstanding = Outstanding::new(queue, 8, Self::FIRST_PSN);
            Reader { requester, outstanding, counters: QpCounters::default(), now: Instant::ZERO }
        }

        fn psn(index: u32) -> Psn {
            Self::FIRST_PSN.plus(index)
        }

        fn read(&mut self) {
            let kind = Kind { is_read: true, takes_receive: false };
            let (sent, bytes) = (self.requester.recovery.sent(), READ_PKTS * MTU_BYTES);
            let place = self.outstanding.assign(bytes, kind, sent, MTU_BYTES).expect("there is room");
            self.requester.recovery.on_sent(READ_PKTS);
            self.requester.on_packet_sent(place.span.first, false, false, self.now);
        }

        fn send(&mut self) {
            let kind = Kind { is_read: false, takes_receive: true };
            let sent = self.requester.recovery.sent();
            let place = self.outstanding.assign(1, kind, sent, MTU_BYTES).expect("there is room");
            self.requester.recovery.on_sent(1);
            self.requester.on_packet_sent(place.span.first, false, false, self.now);
        }

        fn event(&mut self, event: SelectiveEvent<'_>) {
            let outcome = ResponseEvent::Selective(event);
            let failed = self.requester.on_response_event(
                self.now,
                outcome,
                &mut self.outstanding,
                &mut self.counters,
            );
            assert_eq!(failed, None);
        }

        fn response(&mut self, index: u32) {
            let executed = Self::psn(index / READ_PKTS * READ_PKTS + READ_PKTS);
            self.event(SelectiveEvent::Response { psn: Self::psn(index), executed });
        }

        /// Advances the time to the deadline of the timer. Returns whether a packet is then to be retransmitted.
        fn expire(&mut self) -> bool {
            self.now = self.requester.deadline().expect("it runs");
            let failed = self.requester.on_time(self.now, &mut self.outstanding, &mut self.counters);
            assert_eq!(failed, None);
            self.requester.recovery.is_retransmission()
        }
    }

    #[test]
    fn an_acknowledgement_of_requests_says_nothing_of_responses_asked_for_again() {
        let mut reader = Reader::new();
        reader.read();
        reader.response(1);
        assert_eq!(reader.requester.recovery.next_psn(), Reader::psn(0), "overtaken by its next");
        reader.requester.recovery.on_sent(1);
        // Two more READs are requested; the SACK reports the first of the two missing.
        (0..2).for_each(|_| reader.read());
        let trigger = Reader::psn(2 * READ_PKTS);
        let header = SackEth { version: SackEth::VERSION, duplicate: false, trigger };
        let bitmap = (1u32 << (READ_PKTS - 1)).to_be_bytes();
        reader.event(SelectiveEvent::Sack { next: Reader::psn(READ_PKTS), header, bitmap: &bitmap });
        let recovery = &mut reader.requester.recovery;
        assert_eq!(recovery.next_psn(), Reader::psn(READ_PKTS));
        recovery.on_sent(READ_PKTS);
        assert!(!recovery.is_retransmission(), "what was lost of the first READ is under way");
    }

    #[test]
    fn what_the_peer_reneged_on_is_retransmitted() {
        let mut reader = Reader::new();
        (0..6).for_each(|_| reader.send());
        let header = SackEth { version: SackEth::VERSION, duplicate: false, trigger: Reader::psn(5) };
        reader.event(SelectiveEvent::Sack {
            next: Reader::psn(0),
            header,
            bitmap: &0b1_1111u32.to_be_bytes(),
        });
        assert_eq!(reader.requester.recovery.next_psn(), Reader::psn(0));
        reader.requester.recovery.on_sent(1);
        assert!(!reader.requester.recovery.is_retransmission(), "the others had arrived");
        // Packet 0 is executed. Of packets 1 to 5 the responder still buffers 3 and 5 only.
        reader.event(SelectiveEvent::Sack { next: Reader::psn(1), header, bitmap: &0b1010u32.to_be_bytes() });
        let mut again = Vec::new();
        while reader.requester.recovery.is_retransmission() {
            again.push(reader.requester.recovery.next_psn());
            reader.requester.recovery.on_sent(1);
        }
        assert_eq!(again, [1, 2, 4].map(Reader::psn));
        reader.event(SelectiveEvent::Executed { next: Reader::psn(6) });
        assert_eq!(reader.requester.recovery.unacked(), 0);
    }

    #[test]
    fn a_timer_learns_when_it_expires_of_what_came_and_stops_where_nothing_is_waited_for() {
        let mut reader = Reader::new();
        reader.read();
        let wait_nanos = reader.requester.deadline().expect("it runs").nanos_since(reader.now);
        reader.response(0);
        for index in 1..READ_PKTS {
            reader.now = reader.now.plus_nanos(wait_nanos / 2);
            let deadline = reader.requester.deadline();
            reader.response(index);
            let is_last = index + 1 == READ_PKTS;
            assert_eq!(reader.requester.deadline(), deadline.filter(|_| !is_last), "response {index}");
        }
        reader.read();
        reader.response(READ_PKTS);
        reader.now = reader.now.plus_nanos(wait_nanos / 2);
        reader.response(READ_PKTS + 1);
        let last_rx_at = reader.now;
        assert!(!reader.expire(), "it was put off");
        assert_eq!(reader.requester.deadline(), Some(last_rx_at.plus_nanos(wait_nanos)));
        assert!(reader.expire(), "nothing came since");
    }
}
