//! Go-back-N, the loss recovery of the IBA (9.7.5, 9.9).
//!
//! ```text
//!             una                 next                 max_sent
//!   acked      |  in flight         |  to retransmit     |  never sent
//!   -----------|--------------------|--------------------|-------------> PSN
//!   loss, timeout: next = una       (next == max_sent: nothing to retransmit)
//!
//!   READ responses above a gap are placed. A PSN sequence error or an implied NAK sets lost_end to the PSN of the
//!   highest READ response received above una, or to max_sent without such a response; a timeout or an RNR NAK sets
//!   lost_end to max_sent. next moves from una to lost_end, then to max_sent:
//!             una                           lost_end               max_sent
//!              | lost | received | lost | received |  in flight        |
//!              next .................... --> next = max_sent
//! ```

use super::events::{AckEvent, Answers, Nak, RecoveryResult, Refusal, Requests, ResponseState, Verdict};
use super::psn_set::PsnSet;
use crate::psn::Psn;

/// While a READ response is missing, READ responses whose PSN is una plus this value, or higher, are dropped.
const RECEIVED_PKTS_MAX: u32 = 4096;

/// Under both kinds of go-back-N, the PSNs that a response acknowledges, and the loss that the response shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledgement {
    /// The response acknowledges all PSNs below `next`.
    Cumulative {
        /// The new una.
        next: Psn,
        answers: Answers,
    },
    /// The response acknowledges all PSNs below `next`, and shows that `next` was lost: the response is a NAK (PSN
    /// sequence error), or an implied NAK (the READ response `next` is missing).
    Lost {
        /// PSN of the lost packet. una advances to this PSN, and retransmission begins with this PSN.
        next: Psn,
    },
    /// The READ response `psn` was received and placed, but the READ response `next`, below `psn`, is missing.
    Received {
        /// PSN of the first missing READ response; una advances to this PSN.
        next: Psn,
        psn: Psn,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AckResult {
    newly_acked_pkts: u32,
    /// True if `next` was moved back to `una`, so that packets from `una` on are retransmitted.
    lost: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct GoBackN {
    is_improved: bool,
    una: Psn,
    next: Psn,
    max_sent: Psn,
    /// PSNs of READ responses received above `una`. If the set is not empty, the READ response `una` is missing.
    received: PsnSet,
    /// While `next` is below `max_sent`: the PSNs from `next` to below `lost_end` are lost, and the PSNs from
    /// `lost_end` to below `max_sent` are in flight. In both ranges, the PSNs of received READ responses are excepted.
    lost_end: Psn,
    /// If this PSN is above `una`, each PSN from `una` to below this PSN was retransmitted, or is the PSN of a received
    /// READ response above `una`. Otherwise no PSN in flight was retransmitted.
    retransmitted_end: Psn,
    /// Set when a PSN sequence error or an implied NAK moves `next` back to `una`. While set, a further PSN sequence
    /// error or implied NAK does not move `next`, because each response after a lost READ response is an implied NAK.
    /// Cleared when the loss timer expires, by an RNR NAK, and if the retransmission of `una` was lost
    /// ([`GoBackN::on_lost_again`], [`GoBackN::update_has_gone_back`]); also cleared when `una` advances, if then no READ
    /// response above `una` is recorded as received, or `una` has reached the end of the PSNs marked lost (`lost_end`).
    has_gone_back: bool,
    /// `max_sent` when `has_gone_back` was last set. While `has_gone_back` is set, packets from this PSN on are sent after
    /// the retransmission of `una`.
    sent_after: Psn,
}

impl GoBackN {
    pub(crate) fn new(first: Psn, is_improved: bool) -> Self {
        GoBackN {
            is_improved,
            una: first,
            next: first,
            max_sent: first,
            received: PsnSet::new(RECEIVED_PKTS_MAX),
            lost_end: first,
            retransmitted_end: first,
            has_gone_back: false,
            sent_after: first,
        }
    }

    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.next
    }

    #[inline]
    pub(crate) fn is_retransmission(&self) -> bool {
        self.next != self.max_sent
    }

    #[inline]
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    /// Returns the number of PSNs sent and not acknowledged, from `una` to below `max_sent`.
    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        self.max_sent.distance_from(self.una)
    }

    /// Returns the number of PSNs from `una` to below `next`. While `next` is below `max_sent`, `next` is at most
    /// `lost_end` (the end of the lost PSNs), so the PSNs in flight from `lost_end` on are not counted.
    #[inline]
    pub(crate) fn unacked(&self) -> u32 {
        self.next.distance_from(self.una)
    }

    /// Returns whether `psn` is from `una` to below `retransmitted_end`: `psn` was retransmitted, or is the PSN of a
    /// READ response received above `una`.
    pub(crate) fn is_retransmitted(&self, psn: Psn) -> bool {
        psn.index_in(self.una, self.retransmitted_pkts()).is_some()
    }

    fn retransmitted_pkts(&self) -> u32 {
        self.retransmitted_end.index_in(self.una, self.sent() + 1).unwrap_or(0)
    }

    #[inline]
    pub(crate) fn on_sent(&mut self, span: u32) {
        let left_pkts = self.sent() - self.unacked();
        self.next = self.next.plus(span);
        if span > left_pkts {
            self.max_sent = self.next;
        }
        if left_pkts > 0 {
            if self.unacked() > self.retransmitted_pkts() {
                self.retransmitted_end = self.next;
            }
            self.skip_received();
        }
    }

    /// If `lost_end` (the end of the lost PSNs) is below `max_sent`: moves `next` past received READ responses. If
    /// `next` is then `lost_end` or above, sets `next` to `max_sent`.
    /// If `lost_end` is `max_sent`, as after a timeout: does nothing, so that received READ responses are requested,
    /// too. A duplicate of such a READ response then shows that retransmitted READ responses with lower PSNs were lost.
    #[cold]
    #[inline(never)]
    fn skip_received(&mut self) {
        if self.lost_end == self.max_sent {
            return;
        }
        if let Some(left_pkts) = self.lost_end.index_in(self.next, RECEIVED_PKTS_MAX) {
            self.next = self.received.first_missing(self.next, left_pkts).unwrap_or(self.lost_end);
        }
        if self.lost_end.offset_from(self.next).is_none_or(|offset| offset <= 0) {
            self.next = self.max_sent;
        }
    }

    /// Returns the number of responses to a READ request that begins at [`GoBackN::next_psn`]: the rest of the READ
    /// (`rest_pkts`); if this READ request begins below `lost_end` (the end of the lost PSNs), only responses below
    /// `lost_end`. The number includes received responses between missing responses. If each gap had a READ request of
    /// its own, a gap could not be requested once more after a gap with higher PSNs: Linux's rxe drops a duplicate READ
    /// request that begins below an earlier duplicate READ request of the same READ.
    pub(crate) fn read_part(&self, rest_pkts: u32) -> u32 {
        self.lost_end.index_in(self.next, rest_pkts).filter(|part| *part > 0).unwrap_or(rest_pkts)
    }

    #[inline]
    fn has_received(&self) -> bool {
        !self.received.is_empty()
    }

    #[inline]
    fn is_received(&self, psn: Psn) -> bool {
        self.has_received()
            && psn.index_in(self.una, RECEIVED_PKTS_MAX).is_some_and(|index| index > 0)
            && self.received.contains(psn)
    }

    /// Returns whether the READ response `psn` is placed while the READ response `una` is missing.
    #[inline]
    fn may_receive(&self, psn: Psn) -> bool {
        psn.index_in(self.una, RECEIVED_PKTS_MAX).is_some()
    }

    #[inline]
    pub(crate) fn response_state(&self, psn: Psn, requests: &impl Requests) -> ResponseState {
        if self.is_received(psn) {
            ResponseState::Received
        } else if self.may_receive(psn) || requests.first_read_before(self.una, psn).is_none() {
            ResponseState::Missing
        } else {
            ResponseState::BeyondWindow
        }
    }

    fn last_received(&self) -> Option<Psn> {
        self.received.last_in(self.una, RECEIVED_PKTS_MAX)
    }

    /// Returns the first missing PSN from `from` on. Below the highest READ response received, only READ responses can
    /// be missing, because the responder has executed all requests below this response.
    #[cold]
    fn first_missing(&self, from: Psn, requests: &mut impl Requests) -> Psn {
        let Some(last) = self.last_received() else { return from };
        let mut next = from;
        while last.offset_from(next).is_some_and(|offset| offset >= 0) {
            match requests.request_at(next) {
                Some(request) if !request.is_read => next = request.end(),
                Some(_) if self.is_received(next) => {
                    next = self.received.first_missing(next, RECEIVED_PKTS_MAX).unwrap_or(next);
                }
                _ => break,
            }
        }
        next
    }

    /// Returns the PSNs that a response acknowledges, and the NAK that the response is or implies, if any. A response
    /// above a missing READ response is an implied NAK, because the responder sends READ responses in PSN order, and
    /// before the ACK or NAK of a later request.
    // Always inlined, like `on_event` and `acknowledge`, because otherwise results are passed in memory, which costs 30
    // instructions per response.
    #[inline(always)]
    pub(crate) fn interpret(
        &self,
        event: &AckEvent<'_>,
        requests: &mut impl Requests,
    ) -> (Acknowledgement, Option<Nak>) {
        let end = match *event {
            AckEvent::Ack { next } | AckEvent::SequenceError { next } | AckEvent::Sack { next, .. } => next,
            AckEvent::ReadResponse { psn, .. } => psn,
            // After a timeout, a duplicate READ response shows that retransmitted READ responses with PSNs below its
            // PSN were lost.
            AckEvent::Duplicate { psn } => return (Acknowledgement::Received { next: self.una, psn }, None),
        };
        // `end`: for a READ response, its PSN; otherwise the field `next` of `event` (all requests below this PSN are
        // executed). In two common cases no READ response below `end` is missing: `end` is una, or the requester has no
        // READs.
        let is_none_missing = end == self.una || !requests.has_reads();
        let missing = if is_none_missing { None } else { requests.first_read_before(self.una, end) };
        match (*event, missing) {
            (AckEvent::ReadResponse { psn, .. }, Some(next)) if self.may_receive(psn) => {
                (Acknowledgement::Received { next, psn }, Some(Nak::Implied))
            }
            (_, Some(next)) => (Acknowledgement::Lost { next }, Some(Nak::Implied)),
            (AckEvent::SequenceError { next }, None) => {
                (Acknowledgement::Lost { next }, Some(Nak::SequenceError))
            }
            (AckEvent::ReadResponse { psn, request, ends_message }, None) => {
                let after = psn.plus(1);
                let answers = match (after == request.end(), ends_message) {
                    (true, _) => Answers::Any,
                    (false, true) => Answers::Probe,
                    (false, false) => Answers::First,
                };
                let next = if self.has_received() { self.first_missing(after, requests) } else { after };
                (Acknowledgement::Cumulative { next, answers }, None)
            }
            (_, None) => (Acknowledgement::Cumulative { next: end, answers: Answers::Any }, None),
        }
    }

    #[inline(always)]
    pub(crate) fn on_event(&mut self, event: &AckEvent<'_>, requests: &mut impl Requests) -> RecoveryResult {
        if self.has_gone_back && self.is_improved {
            self.update_has_gone_back(event);
        }
        let (acknowledgement, nak) = self.interpret(event, requests);
        let AckResult { newly_acked_pkts, lost } = self.acknowledge(acknowledgement);
        RecoveryResult {
            acked_pkts: newly_acked_pkts,
            has_gone_back: lost,
            uses_retry: lost && !self.is_improved,
            is_executed: newly_acked_pkts > 0,
            changed: newly_acked_pkts > 0 || lost,
            changes_loss_window: self.is_improved,
            nak,
            answers: match acknowledgement {
                Acknowledgement::Cumulative { answers, .. } => Some(answers),
                Acknowledgement::Lost { .. } | Acknowledgement::Received { .. } => None,
            },
            ..RecoveryResult::default()
        }
    }

    /// Marks the packets below `next`, the PSN of a refused request or of an invalid response, as acknowledged. If READ
    /// responses below `next` are missing, marks only the packets below the first missing READ response.
    pub(crate) fn on_refused(&mut self, next: Psn, requests: &impl Requests) -> Refusal {
        let next = requests.first_read_before(self.una, next).unwrap_or(next);
        let acked = Acknowledgement::Cumulative { next, answers: Answers::Any };
        let is_progress = self.acknowledge(acked).newly_acked_pkts > 0;
        Refusal { is_progress, in_flight_pkts: self.unacked() }
    }

    /// Advances `una` to the `next` of `event`. If `una` is then lost (`event` is `Lost`, or a READ response above
    /// `una` was received) and `self.next` was not yet moved back for this loss (`has_gone_back`), moves `self.next`
    /// back to `una`. Ignores an `event` whose `next` is not in `una..=max_sent`.
    #[inline(always)]
    fn acknowledge(&mut self, event: Acknowledgement) -> AckResult {
        let (Acknowledgement::Cumulative { next, .. }
        | Acknowledgement::Lost { next }
        | Acknowledgement::Received { next, .. }) = event;
        let Some(newly_acked_pkts) = next.index_in(self.una, self.sent() + 1) else {
            return AckResult { newly_acked_pkts: 0, lost: false };
        };
        let had_gone_back = self.has_gone_back;
        if newly_acked_pkts > 0 {
            if newly_acked_pkts > self.unacked() {
                self.next = next;
            }
            self.una = next;
            self.has_gone_back = false;
        }
        if self.has_received() || matches!(event, Acknowledgement::Received { .. }) {
            self.update_received(event, newly_acked_pkts, had_gone_back);
        }
        let is_shown = self.has_received() || matches!(event, Acknowledgement::Lost { .. });
        let lost = is_shown && !self.has_gone_back && self.unacked() > 0;
        if lost {
            self.next = self.una;
            self.has_gone_back = true;
            self.sent_after = self.max_sent;
            self.lost_end = self.last_received().unwrap_or(self.max_sent);
        } else if newly_acked_pkts > 0 && self.is_retransmission() {
            self.skip_received();
        }
        AckResult { newly_acked_pkts, lost }
    }

    #[cold]
    #[inline(never)]
    fn update_received(&mut self, event: Acknowledgement, newly_acked_pkts: u32, had_gone_back: bool) {
        self.received.remove_range(self.una.minus(newly_acked_pkts), newly_acked_pkts);
        // While `una` is below `lost_end` (the end of the lost PSNs), and READ responses above `una` were received,
        // `has_gone_back` remains set, because `next` was already moved back for the READ responses missing below
        // `lost_end`.
        self.has_gone_back = had_gone_back
            && (newly_acked_pkts == 0
                || self.has_received()
                    && self.lost_end.offset_from(self.una).is_some_and(|offset| offset > 0));
        if let Acknowledgement::Received { psn, .. } = event {
            self.received.insert(psn);
        }
    }

    /// Moves `next` forward to `resume`, the result of [`GoBackN::on_timeout`], because an ACK showed that the packets
    /// in flight at the timeout were not lost. If packets from `resume` on are lost, these are retransmitted next.
    pub(crate) fn undo_timeout(&mut self, resume: Psn) {
        if resume.index_in(self.una, self.sent() + 1).is_some_and(|index| index > self.unacked()) {
            self.next = resume;
        }
        if self.is_retransmission() {
            self.lost_end = self.last_received().unwrap_or(self.max_sent);
            self.skip_received();
        }
    }

    /// After a timeout, takes the packets in flight at the timeout as in flight again, except the last packet, which is
    /// retransmitted, and returns true. If packets from `resume`, the result of [`GoBackN::on_timeout`], on are lost,
    /// `resume` is retransmitted instead. If the packet to retransmit is a response of a READ with several responses,
    /// changes nothing and returns false: to request this response again would be one more READ request in flight.
    pub(crate) fn retransmit_last(&mut self, resume: Psn, requests: &mut impl Requests) -> bool {
        let last = if resume == self.max_sent { resume.minus(1) } else { resume };
        if requests.request_at(last).is_none_or(|request| request.is_read && request.packets > 1) {
            return false;
        }
        self.next = last;
        true
    }

    /// Clears `has_gone_back` if `event` responds to a packet that was sent after the retransmission of `una`. If the READ
    /// response `una` is then missing, it was lost again, because the peer answers requests in order of arrival.
    #[cold]
    #[inline(never)]
    fn update_has_gone_back(&mut self, event: &AckEvent<'_>) {
        let answered = match *event {
            AckEvent::ReadResponse { psn, .. } => psn,
            AckEvent::Ack { next } | AckEvent::SequenceError { next } => next.minus(1),
            AckEvent::Sack { .. } | AckEvent::Duplicate { .. } => return,
        };
        self.has_gone_back = answered.offset_from(self.sent_after).is_none_or(|offset| offset < 0);
    }

    /// Called before the PSN sequence error that shows that the retransmission of una was lost: this NAK moves `next` back
    /// once more.
    pub(crate) fn on_lost_again(&mut self) {
        self.has_gone_back = false;
    }

    /// After an expiry of the loss timer or an RNR NAK, moves `next` back to `una`. A later PSN sequence error or
    /// implied NAK can move `next` back once more. Returns the former `next`, at least `una + 1`, because `una` is
    /// retransmitted now.
    pub(crate) fn on_timeout(&mut self) -> Psn {
        let resume = if self.next == self.una { self.una.plus(1) } else { self.next };
        self.next = self.una;
        self.lost_end = self.max_sent;
        self.has_gone_back = false;
        resume
    }
}

/// The expected PSN of a responder, and whether a NAK for the expected PSN is due or was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpectedPsn {
    expected: Psn,
    /// Whether a NAK or RNR NAK for `expected` is due or was sent, so that further out-of-order packets cause no NAK.
    nak_sent: bool,
}

impl ExpectedPsn {
    pub(crate) fn new(first: Psn) -> Self {
        ExpectedPsn { expected: first, nak_sent: false }
    }

    #[inline]
    pub(crate) fn expected(&self) -> Psn {
        self.expected
    }

    /// Compares the PSN of a received request with the expected PSN (IBA 9.7.4.1.2). A PSN at a distance of exactly
    /// 2^23 counts as out of order.
    #[inline]
    pub(crate) fn on_packet(&mut self, psn: Psn) -> Verdict {
        match psn.offset_from(self.expected) {
            Some(0) => Verdict::InOrder,
            Some(offset) if offset < 0 => Verdict::Duplicate,
            _ => Verdict::OutOfOrder { first: !std::mem::replace(&mut self.nak_sent, true) },
        }
    }

    #[inline]
    pub(crate) fn accept(&mut self, span: u32) {
        self.expected = self.expected.plus(span);
        self.nak_sent = false;
    }

    /// Records an RNR NAK for the expected PSN: further out-of-order packets cause no NAK (PSN sequence error).
    pub(crate) fn refuse(&mut self) {
        self.nak_sent = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::PsnSpan;
    use crate::wire::PrecedingReads;

    const FIRST: Psn = Psn::new(0xFF_FFFE);

    fn acked(index: u32) -> Acknowledgement {
        Acknowledgement::Cumulative { next: FIRST.plus(index), answers: Answers::Any }
    }

    fn sent(count: u32) -> GoBackN {
        let mut scheme = GoBackN::new(FIRST, true);
        (0..count).for_each(|_| scheme.on_sent(1));
        scheme
    }

    #[test]
    fn a_loss_resumes_once_until_something_is_acknowledged() {
        let mut scheme = sent(5);
        let lost = Acknowledgement::Lost { next: FIRST.plus(2) };
        assert_eq!(scheme.acknowledge(lost), AckResult { newly_acked_pkts: 2, lost: true });
        assert_eq!((scheme.next_psn(), scheme.unacked(), scheme.sent()), (FIRST.plus(2), 0, 3));
        scheme.on_sent(1);
        assert!(scheme.is_retransmission());
        assert_eq!(scheme.acknowledge(lost), AckResult { newly_acked_pkts: 0, lost: false });
        scheme.on_timeout();
        assert_eq!(scheme.next_psn(), FIRST.plus(2));
        scheme.on_sent(1);
        let more = Acknowledgement::Lost { next: FIRST.plus(3) };
        assert_eq!(
            scheme.acknowledge(more),
            AckResult { newly_acked_pkts: 1, lost: false },
            "nothing in flight"
        );
        scheme.on_sent(2);
        assert!(!scheme.is_retransmission());
    }

    #[test]
    fn an_ack_above_the_next_psn_moves_it() {
        let mut scheme = sent(5);
        scheme.on_timeout();
        scheme.on_sent(1);
        assert_eq!(scheme.acknowledge(acked(4)).newly_acked_pkts, 4);
        assert_eq!(scheme.next_psn(), FIRST.plus(4));
        assert_eq!(scheme.acknowledge(acked(6)).newly_acked_pkts, 0);
        assert_eq!(scheme.acknowledge(acked(0)).newly_acked_pkts, 0);
        assert_eq!(scheme.acknowledge(acked(5)).newly_acked_pkts, 1);
        assert_eq!(scheme.sent(), 0);
    }

    #[test]
    fn a_timeout_that_was_none_is_taken_back() {
        let mut scheme = sent(5);
        assert_eq!(scheme.on_timeout(), FIRST.plus(5));
        scheme.on_sent(1);
        assert_eq!((scheme.next_psn(), scheme.is_retransmission()), (FIRST.plus(1), true));
        scheme.acknowledge(acked(3));
        scheme.undo_timeout(FIRST.plus(5));
        assert_eq!(
            (scheme.next_psn(), scheme.is_retransmission(), scheme.unacked()),
            (FIRST.plus(5), false, 2)
        );
    }

    #[test]
    fn packets_lost_before_a_timeout_are_still_to_be_retransmitted() {
        for (acked_pkts, next) in [(1, 3), (2, 3), (3, 3), (4, 4), (5, 5)] {
            let mut scheme = sent(5);
            scheme.acknowledge(Acknowledgement::Lost { next: FIRST });
            scheme.on_sent(3);
            let resume = scheme.on_timeout();
            assert_eq!(resume, FIRST.plus(3));
            scheme.on_sent(1);
            scheme.acknowledge(acked(acked_pkts));
            scheme.undo_timeout(resume);
            assert_eq!(scheme.next_psn(), FIRST.plus(next), "{acked_pkts} acknowledged");
        }
        let mut scheme = sent(5);
        scheme.acknowledge(Acknowledgement::Lost { next: FIRST });
        assert_eq!(scheme.on_timeout(), FIRST.plus(1), "una itself is retransmitted");
    }

    #[test]
    fn responses_received_before_a_timeout_are_not_requested_again() {
        let mut scheme = sent(8);
        scheme.acknowledge(received(0, 4));
        scheme.on_sent(2);
        let resume = scheme.on_timeout();
        scheme.on_sent(1);
        scheme.acknowledge(acked(1));
        scheme.undo_timeout(resume);
        assert_eq!((scheme.next_psn(), scheme.lost_end), (FIRST.plus(2), FIRST.plus(4)));
        scheme.on_sent(2);
        assert_eq!((scheme.next_psn(), scheme.is_retransmission()), (FIRST.plus(8), false));
    }

    fn received(missing: u32, index: u32) -> Acknowledgement {
        Acknowledgement::Received { next: FIRST.plus(missing), psn: FIRST.plus(index) }
    }

    /// Sends all retransmissions; each READ has `read_pkts` responses. Returns, for each READ request sent, the
    /// distance of its first PSN from [`FIRST`], and its number of responses.
    fn retransmissions(scheme: &mut GoBackN, read_pkts: u32) -> Vec<(u32, u32)> {
        let mut requests = Vec::new();
        while scheme.is_retransmission() {
            let index = scheme.next_psn().distance_from(FIRST);
            let part_pkts = scheme.read_part(read_pkts - index % read_pkts);
            requests.push((index, part_pkts));
            scheme.on_sent(part_pkts);
        }
        requests
    }

    #[test]
    fn read_responses_above_a_missing_one_are_kept() {
        let mut scheme = sent(16);
        let lost = AckResult { newly_acked_pkts: 0, lost: true };
        assert_eq!(scheme.acknowledge(received(0, 2)), lost);
        assert_eq!(retransmissions(&mut scheme, 16), [(0, 2)]);
        assert!(!scheme.acknowledge(received(0, 5)).lost, "0 is requested already");
        assert!(scheme.is_received(FIRST.plus(5)) && !scheme.is_received(FIRST.plus(3)));
        // Responses 2 and 5 were received before. Responses 0 and 1 arrive: una is 3, and 3 and 4 are missing.
        assert_eq!(scheme.acknowledge(acked(3)), AckResult { newly_acked_pkts: 3, lost: true });
        assert_eq!(retransmissions(&mut scheme, 16), [(3, 2)]);
        assert_eq!(scheme.acknowledge(acked(6)), AckResult { newly_acked_pkts: 3, lost: false });
        assert_eq!((scheme.last_received(), scheme.unacked()), (None, 10));
    }

    #[test]
    fn a_retransmission_passes_over_reads_whose_responses_were_received() {
        let mut scheme = sent(16);
        assert!(scheme.acknowledge(received(0, 4)).lost);
        assert_eq!(retransmissions(&mut scheme, 4), [(0, 4)]);
        for index in [5, 9] {
            assert!(!scheme.acknowledge(received(0, index)).lost);
        }
        // Responses 4, 5 and 9 were received before. Responses 0 to 3 arrive: una is 6, and 6 to 8 are missing. PSNs
        // from 9 on are not retransmitted.
        assert!(scheme.acknowledge(acked(6)).lost);
        assert_eq!(retransmissions(&mut scheme, 4), [(6, 2), (8, 1)]);
        scheme.on_timeout();
        assert_eq!(retransmissions(&mut scheme, 4), [(6, 2), (8, 4), (12, 4)], "after a timeout, all");
        assert!(
            scheme.acknowledge(received(6, 9)).lost,
            "a response to the retransmission, above a missing one"
        );
        assert!(!scheme.acknowledge(acked(10)).lost);
        assert!(!scheme.is_retransmission(), "9 was the last PSN lost");
    }

    /// READs of four responses each, the first at PSN [`FIRST`].
    struct Reads;

    impl Requests for Reads {
        fn request_at(&mut self, psn: Psn) -> Option<PsnSpan> {
            let index = psn.distance_from(FIRST);
            Some(PsnSpan { first: psn.minus(index % 4), packets: 4, is_read: true })
        }

        fn preceding_reads(&mut self, _psn: Psn) -> PrecedingReads {
            unreachable!("go-back-N sends the READ requests of the standard");
        }

        fn has_reads(&self) -> bool {
            true
        }

        fn on_read_answered(&mut self) {
            unreachable!("go-back-N counts READs, not READ requests");
        }

        fn first_read_before(&self, una: Psn, end: Psn) -> Option<Psn> {
            end.offset_from(una).filter(|offset| *offset > 0).map(|_| una)
        }
    }

    fn respond(scheme: &mut GoBackN, index: u32) -> RecoveryResult {
        let psn = FIRST.plus(index);
        let request = Reads.request_at(psn).expect("all PSNs are of READs");
        let ends_message = psn.plus(1) == request.end();
        scheme.on_event(&AckEvent::ReadResponse { psn, request, ends_message }, &mut Reads)
    }

    #[test]
    fn a_read_response_above_a_missing_one_is_an_implied_nak_and_is_kept() {
        let mut scheme = sent(16);
        let none = RecoveryResult { changes_loss_window: true, ..RecoveryResult::default() };
        let implied = RecoveryResult { nak: Some(Nak::Implied), ..none };
        let gone_back = RecoveryResult { has_gone_back: true, changed: true, ..implied };
        assert_eq!(respond(&mut scheme, 2), gone_back);
        assert_eq!(retransmissions(&mut scheme, 4), [(0, 2)]);
        assert_eq!(respond(&mut scheme, 5), implied, "0 is requested already");
        let acked = |acked_pkts, has_gone_back, answers| RecoveryResult {
            acked_pkts,
            has_gone_back,
            is_executed: true,
            changed: true,
            answers: Some(answers),
            ..none
        };
        assert_eq!(respond(&mut scheme, 0), acked(1, false, Answers::First));
        assert_eq!(respond(&mut scheme, 1), acked(2, true, Answers::First), "3 is missing");
        assert_eq!(respond(&mut scheme, 3), acked(1, false, Answers::Any));
        let mut scheme = sent(2 * RECEIVED_PKTS_MAX);
        assert_eq!(respond(&mut scheme, RECEIVED_PKTS_MAX), gone_back);
        assert!(!scheme.has_received(), "beyond the window: not kept");
    }

    #[test]
    fn a_response_to_a_later_request_shows_that_a_retransmission_was_lost() {
        // Columns: improved; READ response received while response 0, requested again, is missing; the READ requests
        // that are sent then. PSNs 16 to 19 are those of a READ sent after the retransmission.
        for (is_improved, index, requests) in [
            (true, 5, vec![]),
            (true, 15, vec![]),
            (true, 16, vec![(0, 4), (4, 4), (8, 4), (12, 4)]),
            (true, 19, vec![(0, 4), (4, 4), (8, 4), (12, 4), (16, 3)]),
            (false, 16, vec![]),
        ] {
            let mut scheme = GoBackN::new(FIRST, is_improved);
            scheme.on_sent(16);
            assert!(respond(&mut scheme, 1).has_gone_back);
            assert_eq!(retransmissions(&mut scheme, 4), [(0, 1)]);
            scheme.on_sent(4);
            assert_eq!(respond(&mut scheme, index).has_gone_back, !requests.is_empty(), "{index}");
            assert_eq!(retransmissions(&mut scheme, 4), requests, "{index}");
            if !requests.is_empty() {
                scheme.on_sent(4);
                let gone_back = [18, 20].map(|index| respond(&mut scheme, index).has_gone_back);
                assert_eq!(gone_back, [false, true], "20 is the first PSN after the second retransmission");
            }
        }
    }

    #[test]
    fn an_ack_of_a_later_request_shows_that_a_retransmission_was_lost() {
        let nak = |index| AckEvent::SequenceError { next: FIRST.plus(index) };
        let ack = |index| AckEvent::Ack { next: FIRST.plus(index) };
        for (event, has_gone_back) in [(ack(16), false), (ack(17), true), (nak(16), false), (nak(17), true)] {
            let mut scheme = sent(16);
            assert!(respond(&mut scheme, 1).has_gone_back);
            assert_eq!(retransmissions(&mut scheme, 4), [(0, 1)]);
            scheme.on_sent(4);
            assert_eq!(scheme.on_event(&event, &mut Reads).has_gone_back, has_gone_back, "{event:?}");
        }
    }

    #[test]
    fn one_loss_moves_the_next_psn_back_once() {
        let mut scheme = sent(16);
        assert!(scheme.acknowledge(Acknowledgement::Lost { next: FIRST }).lost);
        assert!(!scheme.acknowledge(received(0, 2)).lost, "the NAK was for the same loss");
        let mut scheme = sent(16);
        assert!(scheme.acknowledge(received(0, 8)).lost);
        assert_eq!(retransmissions(&mut scheme, 16), [(0, 8)]);
        assert!(!scheme.acknowledge(acked(3)).lost, "3 to 7 are requested already");
    }

    #[test]
    fn a_first_read_request_is_for_all_responses() {
        assert_eq!(GoBackN::new(FIRST, true).read_part(16), 16);
    }

    #[test]
    fn a_refusal_above_a_missing_response_acknowledges_no_read() {
        let mut scheme = sent(16);
        assert!(scheme.acknowledge(received(0, 2)).lost);
        for refused in [5, 16] {
            assert!(!scheme.on_refused(FIRST.plus(refused), &Reads).is_progress);
            assert_eq!(scheme.una(), FIRST, "its READ would complete without its response");
        }
        assert_eq!(scheme.acknowledge(acked(4)).newly_acked_pkts, 4);
        assert!(!scheme.on_refused(FIRST.plus(4), &Reads).is_progress);
        assert_eq!(scheme.una(), FIRST.plus(4));
    }

    #[test]
    fn a_probe_within_a_retransmission_leaves_the_rest_retransmitted() {
        let mut scheme = sent(5);
        assert!(scheme.acknowledge(received(2, 4)).lost);
        assert_eq!(retransmissions(&mut scheme, 5), [(2, 2)]);
        scheme.on_timeout();
        scheme.on_sent(1);
        let retransmitted = [2, 3, 4].map(|index| scheme.is_retransmitted(FIRST.plus(index)));
        assert_eq!(retransmitted, [true, true, false], "3 may be LAST of the first retransmission");
    }

    #[test]
    fn responses_beyond_the_window_are_not_kept() {
        let scheme = sent(2 * RECEIVED_PKTS_MAX);
        let kept = [0, RECEIVED_PKTS_MAX - 1, RECEIVED_PKTS_MAX].map(|i| scheme.may_receive(FIRST.plus(i)));
        assert_eq!(kept, [true, true, false]);
    }

    #[test]
    fn each_gap_is_told_once() {
        let mut expected = ExpectedPsn::new(FIRST);
        assert_eq!(expected.on_packet(FIRST.plus(1)), Verdict::OutOfOrder { first: true });
        assert_eq!(expected.on_packet(FIRST.plus(2)), Verdict::OutOfOrder { first: false });
        assert_eq!(expected.on_packet(FIRST), Verdict::InOrder);
        expected.accept(1);
        assert_eq!(expected.on_packet(FIRST), Verdict::Duplicate);
        assert_eq!(expected.on_packet(FIRST.plus(2)), Verdict::OutOfOrder { first: true });
        expected.accept(1);
        expected.refuse();
        assert_eq!(expected.on_packet(FIRST.plus(3)), Verdict::OutOfOrder { first: false });
        assert_eq!(
            expected.on_packet(expected.expected().plus(1 << 23)),
            Verdict::OutOfOrder { first: false }
        );
    }
}
