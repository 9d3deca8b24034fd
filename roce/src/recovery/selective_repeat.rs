//! Selective repeat at the requester: retransmits lost packets only. Both queue pairs must be of this stack.
//!
//! ```text
//!   response          acknowledges                                shows losses of
//!   ACK, NAK, SACK    requests below the expected PSN, but        requests sent before these; for an ACK or NAK
//!                     no READ responses                           also READ responses sent before the ACK or NAK
//!   bitmap of a SACK  requests that the responder buffers         requests sent before these
//!   READ response     its own PSN, and requests below the end     requests sent before these, and READ responses
//!                     of its READ request                         sent before this one
//! ```
//! Of these losses, READ responses are marked lost at once, requests when the next SACK arrives. The reordering
//! threshold, by which [`SentLog`] marks packets lost, is 0 at first. A spurious retransmission shows that the network
//! reorders packets, and raises the threshold. If una is in flight at a probe timeout although packets above una are
//! acknowledged, the threshold is halved.

use super::events::{AckEvent, Nak, PsnSpan, RecoveryResult, Refusal, Requests, ResponseState, Spurious};
use super::sent_log::{AckTime, RTT_UNKNOWN_NANOS, SentLog};
use crate::psn::{Psn, PsnSpace};
use crate::time::Instant;
use crate::wire::sacketh::bitmap_words;

/// The smallest window, in packets: the number of bits of one word of a `PsnSet`.
pub const WINDOW_PKTS_MIN: u32 = 64;

/// The largest window, in packets: the number of bits of the longest bitmap of a SACK.
pub(crate) const WINDOW_PKTS_MAX: u32 = 4096;

/// Reordering threshold after the first spurious retransmission, in packets.
const REORDERING_THRESHOLD_PKTS_FIRST: u32 = 16;

/// A probe of una is [`DueProbe::Doubtful`] (its acknowledgement shows no loss of packets sent after the previous
/// transmission of una) only if more packets than this number are in flight.
const DOUBTFUL_PROBE_PKTS: u32 = 16;

/// Probe that is marked for retransmission and not sent yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DueProbe {
    /// No probe, or a probe other than `TailLoss` and `Doubtful`. An acknowledgement of such a probe shows the loss of
    /// all packets in flight sent before the probe.
    None,
    /// A tail loss probe: the first probe since a packet was newly acknowledged.
    TailLoss,
    /// A probe of una whose acknowledgement shows no loss of packets sent after the previous transmission of una,
    /// because that transmission may have elicited the acknowledgement.
    Doubtful,
}

#[derive(Clone, Debug)]
pub(crate) struct SelectiveRepeat {
    log: SentLog,
    reordering_threshold_pkts: u32,
    /// While una is below this PSN, the reordering threshold is not raised.
    raised_at: Psn,
    /// While una is below this PSN, a SACK that reports a full reorder buffer does not set
    /// `RecoveryResult::has_no_room`.
    no_room_until: Psn,
    /// First PSN and number of PSNs of the last tail loss probe, and of the last probe of another kind. A duplicate of
    /// a probe does not raise the reordering threshold.
    probes: [(Psn, u32); 2],
    due_probe: DueProbe,
}

impl SelectiveRepeat {
    /// Creates the state before the first send; `first` is the first PSN of the connection, `window_pkts`
    /// a power of two from [`WINDOW_PKTS_MIN`] to [`WINDOW_PKTS_MAX`].
    pub(crate) fn new(first: Psn, window_pkts: u32) -> Self {
        Self::from_log(SentLog::new(first, window_pkts))
    }

    pub(crate) fn from_log(log: SentLog) -> Self {
        let first = log.una();
        SelectiveRepeat {
            log,
            reordering_threshold_pkts: 0,
            raised_at: first,
            no_room_until: first,
            probes: [(first, 0); 2],
            due_probe: DueProbe::None,
        }
    }

    #[inline]
    pub(crate) fn log(&self) -> &SentLog {
        &self.log
    }

    /// Records that `span` PSNs from [`SentLog::next_psn`] on were sent.
    // Not inlined, because otherwise the caller, even under go-back-N, would save the registers that this code uses.
    #[inline(never)]
    pub(crate) fn on_sent(&mut self, span: u32, now: Instant) {
        let psn = self.log.next_psn();
        match self.due_probe {
            // If an ACK arrives less than the shortest round trip after the latest transmission of its PSN, loss
            // detection ignores the ACK, because an earlier transmission may have elicited it. A tail loss probe
            // retransmits the packet in flight with the highest PSN of its PSN space. If no other packet in flight was
            // retransmitted, both transmissions of this packet are later than those of the other packets. Therefore an
            // ACK of this packet shows the loss of the other packets, whichever of the two transmissions elicited the
            // ACK. So that the ACK is not ignored, the sent-packet log records the send time of the probe minus
            // `RTT_UNKNOWN_NANOS` (2^31 ns).
            DueProbe::TailLoss if psn == self.probes[0].0 => {
                let long_ago = Instant::from_nanos(now.as_nanos().wrapping_sub(RTT_UNKNOWN_NANOS));
                self.log.on_sent(psn, span, long_ago);
            }
            DueProbe::Doubtful if psn == self.probes[1].0 => self.log.on_doubtful_probe_sent(psn, now),
            _ => return self.log.on_sent(psn, span, now),
        }
        self.due_probe = DueProbe::None;
    }

    /// Returns the number of PSNs of the READ request to send for the lost `psn` of the original READ request `read`.
    /// If a response to `read` was received: the run of lost PSNs from `psn` on. Otherwise: the rest of `read`, because
    /// a peer that has not received `read` would execute a request for a part as a complete READ.
    pub(crate) fn read_part(&self, psn: Psn, read: PsnSpan) -> u32 {
        let rest_pkts = read.end().distance_from(psn);
        if self.log.is_answered(read) { self.log.lost_run(psn, rest_pkts) } else { rest_pkts }
    }

    #[inline]
    pub(crate) fn response_state(&self, psn: Psn) -> ResponseState {
        if self.log.is_response_missing(psn) { ResponseState::Missing } else { ResponseState::Received }
    }

    #[inline]
    pub(crate) fn on_event(
        &mut self,
        event: &AckEvent<'_>,
        requests: &mut impl Requests,
        time: AckTime,
    ) -> RecoveryResult {
        match *event {
            AckEvent::ReadResponse { psn, request, .. } => {
                self.on_read_response(psn, request, requests, time)
            }
            _ => self.on_acknowledge(event, requests, time),
        }
    }

    /// Processes an ACK, NAK or SACK, or a duplicate READ response.
    fn on_acknowledge(
        &mut self,
        event: &AckEvent<'_>,
        requests: &mut impl Requests,
        time: AckTime,
    ) -> RecoveryResult {
        let (una, unacked_pkts) = (self.log.una(), self.log.unacked());
        let mut result = RecoveryResult { had_no_gap: !self.log.has_acked(), ..RecoveryResult::default() };
        match *event {
            AckEvent::Ack { next } | AckEvent::SequenceError { next } => {
                result.is_executed = self.on_executed(next, requests, time);
                // The ACK or NAK shows losses of READ responses, because the responder sends READ responses before the
                // ACK or NAK of a later request.
                self.log.on_responses_sent(next.minus(1), time);
            }
            AckEvent::Sack { next, header, bitmap } => {
                result.is_executed = self.on_executed(next, requests, time);
                result.spurious = if header.duplicate { self.on_duplicate(header.trigger) } else { None };
                if header.no_room && !self.is_above_una(self.no_room_until) {
                    result.has_no_room = true;
                    self.no_room_until = self.log.una().plus(self.log.sent());
                }
                result.lost_pkts = self.on_sack(next, bitmap, requests, time);
            }
            AckEvent::Duplicate { psn } | AckEvent::ReadResponse { psn, .. } => {
                result.spurious = self.on_duplicate(psn);
            }
        }
        let lost_responses = self.log.detect_losses(PsnSpace::Response, self.reordering_threshold_pkts);
        result.lost_pkts += lost_responses;
        result.nak = (lost_responses > 0).then_some(Nak::Implied);
        result.acked_pkts = self.log.una().distance_from(una);
        result.changes_loss_window = true;
        result.changed = result.acked_pkts > 0 || self.log.unacked() != unacked_pkts;
        result
    }

    /// Processes the READ response `psn` of the READ request `request`. The response shows that all requests below
    /// `request.end()` were executed. If READ responses are newly marked lost, the response is an implied NAK.
    #[inline]
    fn on_read_response(
        &mut self,
        psn: Psn,
        request: PsnSpan,
        requests: &mut impl Requests,
        time: AckTime,
    ) -> RecoveryResult {
        let (una, had_no_gap) = (self.log.una(), !self.log.has_acked());
        if request.end() != self.log.executed() {
            self.on_executed(request.end(), requests, time);
        }
        self.log.on_response(psn, time);
        // A READ request for one response needs no search for other missing responses.
        if request.packets == 1 || !self.log.has_unacked(request) {
            requests.on_read_answered();
        }
        let lost_pkts = self.log.detect_losses(PsnSpace::Response, self.reordering_threshold_pkts);
        RecoveryResult {
            acked_pkts: self.log.una().distance_from(una),
            lost_pkts,
            is_executed: true,
            nak: (lost_pkts > 0).then_some(Nak::Implied),
            is_read_response: true,
            had_no_gap,
            ..RecoveryResult::default()
        }
    }

    /// Marks as acknowledged all requests below `next`, but not the responses of READs. `next`: one past the highest
    /// PSN that a response reports as executed. Returns whether [`SentLog::executed`] was below `next` before the call.
    #[inline]
    fn on_executed(&mut self, next: Psn, requests: &mut impl Requests, time: AckTime) -> bool {
        let from = self.log.executed();
        if !self.log.advances_executed(next) {
            return false;
        }
        if !requests.has_reads() {
            self.log.on_executed(from, next.distance_from(from), false, time);
            return true;
        }
        let mut at = from;
        while let Some(left) = next.offset_from(at).filter(|left| *left > 0) {
            let Some(request) = requests.request_at(at) else { break };
            let count = request.end().distance_from(at).min(left.unsigned_abs());
            if request.is_read {
                self.log.on_read_executed(at, count, time);
            } else {
                self.log.on_executed(at, count, true, time);
            }
            at = at.plus(count);
        }
        true
    }

    /// Processes the bitmap of a SACK with the expected PSN `next`. Returns the number of requests newly marked lost.
    fn on_sack(&mut self, next: Psn, bitmap: &[u8], requests: &mut impl Requests, time: AckTime) -> u32 {
        if self.log.is_executed(next) && !self.is_read_gap(next, requests) {
            return 0; // stale
        }
        self.on_early_reads(next, bitmap, requests, time);
        if next == self.log.executed() && self.log.is_acked(next) {
            self.retransmit_discarded(next, bitmap, requests);
        }
        let has_reads = requests.has_reads();
        for (word, bits) in (0..).zip(bitmap_words(bitmap)) {
            let first = next.plus(1 + u64::BITS * word);
            if has_reads {
                self.on_sacked_beside_reads(first, bits, requests, time);
            } else {
                self.log.on_sacked(first, bits, time);
            }
        }
        self.log.detect_losses(PsnSpace::Request, self.reordering_threshold_pkts)
    }

    /// Records that request `first + i` is acknowledged for each set bit `i` of `bits`: a READ request with all its PSNs.
    fn on_sacked_beside_reads(&mut self, first: Psn, bits: u64, requests: &mut impl Requests, time: AckTime) {
        let mut left = bits & !self.log.acked_bits(first) & !self.executed_bits(first);
        while left != 0 {
            let psn = first.plus(left.trailing_zeros());
            left &= left - 1;
            match requests.request_at(psn) {
                Some(read) if read.is_read => {
                    self.log.on_read_sacked(psn, read.end().distance_from(psn), time)
                }
                _ => self.log.on_sacked(psn, 1, time),
            }
        }
    }

    /// Returns whether all PSNs from `next`, the expected PSN of a SACK, to below [`SentLog::executed`] belong to READ
    /// requests. If so, the peer may have executed early READs above the missing READ request with the PSN `next`, and
    /// the SACK is possibly not stale.
    #[cold]
    fn is_read_gap(&self, next: Psn, requests: &mut impl Requests) -> bool {
        let mut at = next;
        while self.log.is_executed(at) {
            match requests.request_at(at) {
                Some(read) if read.is_read => at = read.end(),
                _ => return false,
            }
        }
        true
    }

    /// Marks as executed the READ requests from `next` up to the highest early READ that the bitmap of a SACK reports.
    /// Thereafter READ responses show the loss of each of these READ requests. Stops at a READ request marked lost,
    /// because the mark must remain until the retransmission.
    fn on_early_reads(&mut self, next: Psn, bitmap: &[u8], requests: &mut impl Requests, time: AckTime) {
        if !requests.has_reads() {
            return;
        }
        let (mut at, mut end) = (next, next);
        while let Some(read) = requests.request_at(at).filter(|read| read.is_read)
            && !self.log.is_lost(at)
        {
            let preceding_pkts = requests.preceding_reads(at).pkts();
            if at.distance_from(next) <= preceding_pkts && is_sacked(at, next, bitmap) {
                end = read.end();
            }
            at = read.end();
        }
        self.on_executed(end, requests, time);
    }

    /// Returns the executed PSNs among the 64 PSNs from `first` on, as a bitmap.
    fn executed_bits(&self, first: Psn) -> u64 {
        let executed = self.log.executed().offset_from(first).unwrap_or(0).max(0).unsigned_abs();
        !u64::MAX.checked_shl(executed).unwrap_or(0)
    }

    /// Processes a SACK that reports `next` missing although an earlier SACK acknowledged `next`: the responder reneged
    /// (RFC 2018, section 8), because the buffered packet expired or had a conflict, or because a packet with a lower
    /// PSN needed the memory. Marks for retransmission the acknowledged requests that are not in the bitmap.
    #[cold]
    fn retransmit_discarded(&mut self, next: Psn, bitmap: &[u8], requests: &mut impl Requests) {
        let mut at = next;
        while let Some(request) =
            requests.request_at(at).filter(|_| at.index_in(next, self.log.sent()).is_some())
        {
            let packets = if request.is_read { request.end().distance_from(at) } else { 1 };
            let span = PsnSpan { first: at, packets, is_read: request.is_read };
            if self.log.is_acked(at) && !is_sacked(at, next, bitmap) {
                self.log.retransmit(span);
            }
            at = span.end();
        }
    }

    /// Processes a duplicate of `psn`: a request or a READ response that was received twice. Returns what was
    /// spurious; `None` if `psn` was sent once. A spurious retransmission that was no probe doubles the reordering
    /// threshold (range: 16 packets to half the window), unless a PSN sent before the last increase of this threshold is
    /// unacknowledged.
    fn on_duplicate(&mut self, psn: Psn) -> Option<Spurious> {
        if !self.log.is_retransmitted(psn) {
            return None;
        }
        if self.probes.iter().any(|(first, count)| psn.index_in(*first, *count).is_some()) {
            return Some(Spurious::Probe);
        }
        if !self.is_above_una(self.raised_at) {
            self.reordering_threshold_pkts = (self.reordering_threshold_pkts * 2)
                .clamp(REORDERING_THRESHOLD_PKTS_FIRST, self.log.window_pkts() / 2);
            self.raised_at = self.log.una().plus(self.log.sent());
        }
        Some(Spurious::Retransmission)
    }

    /// Returns whether `psn` is above una. `psn` must not be above `max_sent`.
    fn is_above_una(&self, psn: Psn) -> bool {
        psn.index_in(self.log.una().plus(1), self.log.sent()).is_some()
    }

    /// Marks all requests below `next` as acknowledged. Marks only `next`, the PSN of the refused packet, for
    /// retransmission, because the responder buffers the packets above `next`.
    pub(crate) fn on_refused(&mut self, next: Psn, requests: &mut impl Requests, time: AckTime) -> Refusal {
        let is_progress = self.on_executed(next, requests, time);
        self.log.retransmit(PsnSpan { first: next, packets: 1, is_read: false });
        Refusal { is_progress, in_flight_pkts: self.log.sent() }
    }

    /// After a probe timeout, marks a probe for retransmission: one packet, whose acknowledgement shows the loss of all
    /// unacknowledged packets sent before the probe or, if the probe is [`DueProbe::Doubtful`], before the previous
    /// transmission of una. `highest` is the highest PSN in flight, or una if no packet is in flight; `last_due` is the
    /// PSN [`SentLog::executed`] - 1.
    ///
    /// | expiry since a packet was newly acknowledged | PSN marked |
    /// |---|---|
    /// | first, if `highest` is of a READ request not executed, and READ response `last_due` is missing | `last_due` |
    /// | first, in all other cases | `highest` |
    /// | later | una |
    ///
    /// If the PSN marked is of a READ request and a response to this READ request was received, the probe is a READ
    /// request for the response with this PSN. If no response was received, the probe is this READ request as a whole.
    pub(crate) fn probe(&mut self, is_first: bool, requests: &mut impl Requests) {
        let una = self.log.una();
        if self.log.has_acked() && self.log.is_unacked(una) && !self.log.is_lost(una) {
            // The reordering threshold is too high: una was not marked lost although higher PSNs are acknowledged.
            self.reordering_threshold_pkts /= 2;
        }
        let mut psn = self.log.last_in_flight().filter(|_| is_first).unwrap_or(una);
        let last_due = self.log.executed().minus(1);
        let mut request = requests.request_at(psn);
        let is_read = request.is_some_and(|request| request.is_read);
        if is_read && !self.log.is_executed(psn) && self.log.is_unacked(last_due) {
            psn = last_due;
            request = requests.request_at(psn);
        }
        let span = match request {
            Some(read) if read.is_read && !self.log.is_answered(read) => read,
            _ => PsnSpan { first: psn, packets: 1, is_read },
        };
        // If the peer stopped for longer than the probe timeout, the peer now receives an earlier transmission of una
        // first, then the packets in flight, and the probe last. If the ACK of una were taken as the ACK of the probe,
        // all packets in flight would be retransmitted. If the packets in flight were lost, an ACK of the next packet
        // sent, or of the next tail loss probe, shows their loss. If at most `DOUBTFUL_PROBE_PKTS` packets are in
        // flight, the ACK of una is nevertheless taken as the ACK of the probe.
        let is_doubtful = span.packets == 1
            && !self.log.is_executed(una)
            && !self.log.is_lost(una)
            && self.log.unacked() > DOUBTFUL_PROBE_PKTS;
        self.log.retransmit(span);
        // Unless the probe is `DueProbe::Doubtful`, its transmission number exceeds all earlier numbers by more than
        // the reordering threshold, so that an acknowledgement of the probe shows the loss of all unacknowledged
        // packets sent before the probe.
        self.log.skip_numbers(self.reordering_threshold_pkts);
        self.due_probe = if is_first {
            DueProbe::TailLoss
        } else if is_doubtful {
            DueProbe::Doubtful
        } else {
            DueProbe::None
        };
        let [tail_loss, later] = &mut self.probes;
        *(if is_first { tail_loss } else { later }) = (span.first, span.packets);
    }
}

fn is_sacked(psn: Psn, next: Psn, bitmap: &[u8]) -> bool {
    let Some(index) = psn.minus(1).index_in(next, WINDOW_PKTS_MAX) else { return false };
    let word = bitmap_words(bitmap).nth((index / u64::BITS) as usize);
    word.is_some_and(|word| word >> (index % u64::BITS) & 1 == 1)
}

#[cfg(test)]
#[path = "selective_repeat_tests.rs"]
pub(super) mod tests;
