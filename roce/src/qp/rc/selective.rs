//! The requester under selective repeat: passes the PSNs that a response acknowledges to the recovery scheme.
//!
//! ```text
//!   ACK, SACK         requests below `executed`; of a READ the request, not its responses
//!   bitmap of a SACK  requests above `executed` that the responder buffers
//!   READ response     its own PSN, and requests below the end of its READ
//! ```

use super::outstanding::{MAX_OUTSTANDING_PSNS, Outstanding};
use super::requester::Requester;
use crate::counters::QpCounters;
use crate::psn::Psn;
use crate::psn::PsnSpace;
use crate::queue::WcStatus;
use crate::recovery::selective_repeat::{Following, WINDOW_PKTS_MAX};
use crate::recovery::{Recovery, SelectiveRepeat};
use crate::time::Instant;
use crate::wire::SackEth;
use crate::wire::sacketh::bitmap_words;

/// A response under selective repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectiveEvent<'p> {
    /// ACK: all requests below `next` are executed.
    Executed {
        /// PSN after the one acknowledged.
        next: Psn,
    },
    /// SACK: as `Executed`, with the out-of-order PSNs above `next`.
    Sack {
        /// Expected PSN of the responder, which is missing.
        next: Psn,
        /// SackETH: the PSN that triggered the SACK, and whether it was a duplicate.
        header: SackEth,
        /// Bitmap of the PSNs from `next + 1` on.
        bitmap: &'p [u8],
    },
    /// A READ response, whose payload is placed.
    Response {
        /// PSN of the response.
        psn: Psn,
        /// End of its READ: all requests below are executed.
        executed: Psn,
    },
    /// A READ response that is a duplicate, or lies beyond the window.
    Duplicate {
        /// PSN of the response.
        psn: Psn,
    },
}

impl Requester {
    fn scheme(&mut self) -> Option<&mut SelectiveRepeat> {
        match &mut self.recovery {
            Recovery::GoBackN(_) => None,
            Recovery::SelectiveRepeat(scheme) => Some(scheme),
        }
    }

    /// Exchanges the reordering threshold with `device_pkts`, which all queue pairs of the device share: if this
    /// queue pair's changed since the last exchange, the device adopts it, otherwise this queue pair adopts the
    /// device's. A short flow thus needs no spurious retransmission of its own to learn the threshold.
    pub(crate) fn share_reordering_threshold(&mut self, device_pkts: &mut u32) {
        let known_pkts = self.known_reordering_threshold_pkts;
        let Some(scheme) = self.scheme() else { return };
        if scheme.reordering_threshold_pkts() == known_pkts {
            scheme.adopt_reordering_threshold(*device_pkts);
        } else {
            *device_pkts = scheme.reordering_threshold_pkts();
        }
        self.known_reordering_threshold_pkts = scheme.reordering_threshold_pkts();
    }

    /// Processes a READ response that acknowledges nothing but itself, and shows no loss; false, with nothing
    /// changed, if it may do more. A fast path: most READ responses are such, without a loss and behind one.
    #[inline]
    pub(super) fn on_next_response(&mut self, now: Instant, psn: Psn, executed: Psn) -> bool {
        if self.loss_timer.rto.timed() == Some(psn) {
            return false;
        }
        let Some(scheme) = self.scheme() else { return false };
        match scheme.on_next_response(psn, executed) {
            None => return false,
            Some(Following::OutOfOrder) => {}
            Some(Following::Next) => {
                self.congestion.on_ack(now, 1, None);
                self.on_progress(now);
            }
        }
        self.rnr_retries_left = self.config.rnr_retry;
        self.rearm_lazily(now);
        true
    }

    /// Processes a response: marks packets acknowledged and lost, and updates congestion control and timer.
    pub(super) fn on_selective_event(
        &mut self,
        now: Instant,
        event: &SelectiveEvent<'_>,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        let in_flight_before = self.recovery.unacked();
        let una_before = self.recovery.una();
        let mut lost_requests = 0;
        match *event {
            SelectiveEvent::Executed { next } => {
                self.on_executed(next, outstanding);
                // The responder sends READ responses before the ACK of a later request: those missing are late.
                if let Some(scheme) = self.scheme() {
                    scheme.on_responses_sent(next);
                }
            }
            SelectiveEvent::Sack { next, header, bitmap } => {
                self.on_executed(next, outstanding);
                lost_requests = self.on_sack(next, header, bitmap, outstanding, counters);
            }
            SelectiveEvent::Response { psn, executed } => self.on_read_response(psn, executed, outstanding),
            SelectiveEvent::Duplicate { psn } => self.on_duplicate_response(psn, counters),
        }
        let lost = self.detect_lost_responses(outstanding);
        counters.implied_nak_seq_err += u64::from(lost > 0);
        let rtt_nanos = self.take_rtt_sample_selective(now);
        let acked_pkts = self.recovery.una().index_in(una_before, MAX_OUTSTANDING_PSNS + 1).unwrap_or(0);
        let moved = acked_pkts > 0;
        if moved || rtt_nanos.is_some() {
            self.congestion.on_ack(now, acked_pkts, rtt_nanos);
        }
        if lost + lost_requests > 0 {
            self.congestion.on_loss(now);
        }
        if moved {
            self.on_progress(now);
        }
        if moved || self.recovery.unacked() != in_flight_before {
            self.rearm(now);
        }
        None
    }

    /// Returns the round trip of the timed packet, in nanoseconds, once it is acknowledged. The measurement is
    /// cancelled if the packet was lost or retransmitted (Karn's algorithm, RFC 6298 section 3).
    fn take_rtt_sample_selective(&mut self, now: Instant) -> Option<u64> {
        let (psn, Recovery::SelectiveRepeat(scheme)) = (self.loss_timer.rto.timed()?, &self.recovery) else {
            return None;
        };
        if scheme.is_retransmitted(psn) {
            self.loss_timer.rto.cancel();
        } else if !scheme.is_unacked(psn) {
            return self.loss_timer.rto.on_acked(now);
        }
        None
    }

    /// Acknowledges all requests below `next`, of READs the request only. Returns whether `next` is an advance.
    pub(super) fn on_executed(&mut self, next: Psn, outstanding: &mut Outstanding) -> bool {
        let reads = outstanding.assigned_reads() > 0;
        let Some(scheme) = self.scheme() else { return false };
        let from = scheme.executed();
        if !scheme.on_executed(next) {
            return false;
        }
        mark_requests_acked(scheme, from, next, reads.then_some(outstanding));
        self.rnr_retries_left = self.config.rnr_retry;
        true
    }

    /// Processes a SACK. Returns the number of packets newly marked lost.
    fn on_sack(
        &mut self,
        next: Psn,
        header: SackEth,
        bitmap: &[u8],
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> u32 {
        let is_spurious = header.duplicate && !self.loss_timer.was_probe(header.trigger);
        let Some(scheme) = self.scheme() else { return 0 };
        counters.sacks_received += 1;
        if is_spurious {
            counters.spurious_retransmits += 1;
            scheme.on_spurious();
        }
        if next != scheme.executed() {
            return 0; // stale
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
                    // The bit of a READ acknowledges its request, not its responses.
                    scheme.on_read_sacked(psn);
                }
            }
        }
        detect_lost_requests(scheme, next, bitmap, outstanding)
    }

    fn on_read_response(&mut self, psn: Psn, executed: Psn, outstanding: &mut Outstanding) {
        let Some(scheme) = self.scheme() else { return };
        let from = scheme.executed();
        if scheme.on_executed(executed) {
            mark_requests_acked(scheme, from, executed, Some(outstanding));
        }
        scheme.on_acked(PsnSpace::Response, psn, 1);
        self.rnr_retries_left = self.config.rnr_retry;
    }

    fn on_duplicate_response(&mut self, psn: Psn, counters: &mut QpCounters) {
        let is_probe = self.loss_timer.was_probe(psn);
        let Some(scheme) = self.scheme().filter(|scheme| !is_probe && scheme.is_spurious(psn)) else {
            return;
        };
        counters.spurious_retransmits += 1;
        scheme.on_spurious();
    }

    /// Marks READ responses lost by the reordering threshold. Returns the number newly marked.
    fn detect_lost_responses(&mut self, outstanding: &mut Outstanding) -> u32 {
        let Some(scheme) = self.scheme() else { return 0 };
        let Some(from) = scheme.scan_from(PsnSpace::Response) else { return 0 };
        let lost = scheme.detect_losses(PsnSpace::Response, from, |psn| {
            let place = outstanding.find(psn)?;
            Some(if place.span.is_read { (true, 1) } else { (false, place.rest_pkts()) })
        });
        scheme.on_scanned(PsnSpace::Response);
        lost
    }
}

/// Acknowledges all requests of `from..to` but READs, which only responses acknowledge. `reads`: `None` if there are
/// no READs.
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

/// Whether the bitmap of a SACK acknowledges `psn`.
fn is_sacked(psn: Psn, next: Psn, bitmap: &[u8]) -> bool {
    let Some(index) = psn.minus(1).index_in(next, WINDOW_PKTS_MAX) else { return false };
    let word = bitmap_words(bitmap).nth(index as usize / 32);
    word.is_some_and(|word| word >> (index % 32) & 1 == 1)
}

/// Handles a SACK that names `next` as missing although it was acknowledged: the responder dropped it, for lack of
/// room, for its age, or because a packet arrived in two versions (compare RFC 2018, section 8). Requests that were
/// acknowledged and that the bitmap lacks are retransmitted.
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

/// Marks requests lost by the reordering threshold, as `bitmap` acknowledges those above `next`. Returns the number
/// newly marked. Without outstanding READs the scan continues where the last one ended.
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
            return Some((false, 1)); // executed: only a response is missing
        }
        let place = outstanding.find(psn)?;
        // A READ request is one packet: lost, whole or from `next` on, or buffered by the responder.
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
    use super::super::completer::ResponseEvent;
    use super::super::outstanding::Kind;
    use super::super::requester::RequesterConfig;
    use super::*;
    use crate::congestion::CongestionScheme;
    use crate::queue::{Doorbells, SendQueueSize, send_queue};
    use crate::recovery::RecoveryScheme;
    use std::sync::Arc;

    const MTU_BYTES: u32 = 1024;
    const READ_PKTS: u32 = 3;

    /// A requester whose work requests, READs of [`READ_PKTS`] or SENDs, count as sent.
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

        /// Lets the timer expire at its deadline; returns whether a packet is to be retransmitted.
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
        // Of two more READ requests the first is lost.
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
        // Packet 0 is executed; of the others the responder still buffers 3 and 5 only.
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
