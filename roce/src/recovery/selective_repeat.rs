//! Selective repeat between two stacks of this project: only lost packets are retransmitted.
//!
//! ```text
//!          una                                              max_sent
//!   acked   |  x x . x L x . L . . . .                       |  never sent
//!   --------|------------------------------------------------|-----------------> PSN
//!           '- at most `window_pkts`: acknowledged x, lost L, in flight .
//!
//!   in flight --later packet acknowledged, timeout--> lost --retransmitted--> in flight --> acknowledged
//! ```
//! A packet is lost if a packet of its PSN space was acknowledged that was sent later, by the reordering threshold or
//! more (IRN, SIGCOMM'18, section 3.1; RFC 9002, section 6.1.1). max_sent is recorded at each retransmission, so that
//! the same rule detects its loss, without a timeout. The threshold is 0 at first; a spurious retransmission raises it,
//! because it shows that the network reorders packets.

use super::psn_window::PsnSet;
use super::retransmissions::Retransmissions;
use crate::psn::{PerSpace, Psn, PsnSpace};

/// The smallest window of selective repeat, in packets: the PSNs in one word of a `PsnSet`.
pub const WINDOW_PKTS_MIN: u32 = 64;

/// The largest window of selective repeat, in packets: the number of bits of the longest bitmap of a SACK.
pub(crate) const WINDOW_PKTS_MAX: u32 = 4096;

/// When `max_sent` passes a multiple of this number, `renew_marks` raises recorded PSNs that are below una to una.
const RENEW_BIT: u32 = Psn::COUNT / 4;

/// Reordering threshold after the first spurious retransmission, in packets.
const REORDERING_THRESHOLD_PKTS_FIRST: u32 = 16;

/// State of a requester under selective repeat.
#[derive(Clone, Debug)]
pub(crate) struct SelectiveRepeat {
    una: Psn,
    max_sent: Psn,
    acked: PsnSet,
    lost: PsnSet,
    /// PSNs of the window that were retransmitted, in flight or not.
    retransmitted: PsnSet,
    /// PSNs of the window whose retransmission is in flight.
    retransmissions: Retransmissions,
    /// The peer has executed all requests below this PSN, as its responses show.
    executed: Psn,
    /// Largest acked of each PSN space.
    largest_acked: PerSpace<Psn>,
    /// Per PSN space, the PSN up to which packets sent once were checked for loss.
    scanned_to: PerSpace<Psn>,
    /// Reordering threshold, in packets.
    reordering_threshold_pkts: u32,
    /// max_sent when the reordering threshold was last raised; while una is below, the threshold is not raised.
    raised_at: Psn,
}

/// Position of a READ response whose PSN is one above the highest PSN of the READ responses received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Following {
    /// The PSN was una, and no PSN above was acknowledged: una has advanced by 1.
    Next,
    /// The PSN is above a gap.
    OutOfOrder,
}

impl SelectiveRepeat {
    /// Creates the state of a requester that has sent no packet; `first` is the PSN of its first packet, `window_pkts`
    /// a power of two from [`WINDOW_PKTS_MIN`] to [`WINDOW_PKTS_MAX`].
    pub(crate) fn new(first: Psn, window_pkts: u32) -> Self {
        let set = PsnSet::new(window_pkts);
        SelectiveRepeat {
            una: first,
            max_sent: first,
            acked: set.clone(),
            lost: set.clone(),
            retransmitted: set,
            retransmissions: Retransmissions::new(window_pkts),
            executed: first,
            largest_acked: PerSpace::new(first),
            scanned_to: PerSpace::new(first),
            reordering_threshold_pkts: 0,
            raised_at: first,
        }
    }

    /// Returns the PSN to send next: the lowest PSN marked lost, or else `max_sent`.
    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.lost.first_in(self.una, self.window_pkts()).unwrap_or(self.max_sent)
    }

    /// Returns whether [`SelectiveRepeat::next_psn`] was sent before, so that sending it is a retransmission.
    #[inline]
    pub(crate) fn is_retransmission(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Returns the number of consecutive lost PSNs from `psn` on, which one READ request may cover; `u32::MAX` if all
    /// PSNs up to the end of the window are lost, because the PSNs beyond have no state.
    pub(crate) fn lost_run(&self, psn: Psn) -> u32 {
        let Some(index) = psn.index_in(self.una, self.window_pkts()) else { return u32::MAX };
        let rest = self.window_pkts() - index;
        (0..rest).find(|i| !self.lost.contains(psn.plus(*i))).unwrap_or(u32::MAX)
    }

    #[inline]
    pub(crate) fn una(&self) -> Psn {
        self.una
    }

    /// Returns the number of PSNs from una to the highest PSN sent, in any state.
    #[inline]
    pub(crate) fn sent(&self) -> u32 {
        self.max_sent.distance_from(self.una)
    }

    /// Returns the number of PSNs in flight: sent, and neither acknowledged nor marked lost.
    #[inline]
    pub(crate) fn unacked(&self) -> u32 {
        self.sent() - self.acked.len() - self.lost.len()
    }

    /// Returns the window in packets: a request starts less than this number above una, but a READ may end beyond.
    #[inline]
    pub(crate) fn window_pkts(&self) -> u32 {
        self.acked.capacity()
    }

    /// Returns whether the window permits to send the next PSN.
    #[inline]
    pub(crate) fn permit(&self) -> bool {
        self.is_retransmission() || self.sent() < self.window_pkts()
    }

    /// Records that the packet of [`SelectiveRepeat::next_psn`] was sent. `span`: number of PSNs that the packet takes,
    /// which for a READ request is the number of responses.
    #[inline]
    pub(crate) fn on_sent(&mut self, span: u32) {
        if !self.is_retransmission() {
            let before = self.max_sent;
            self.max_sent = before.plus(span);
            if (before.value() ^ self.max_sent.value()) >= RENEW_BIT {
                self.renew_marks();
            }
            return;
        }
        let (first, max_sent) = (self.next_psn(), self.max_sent);
        let index = first.distance_from(self.una);
        for psn in (0..span.min(self.window_pkts() - index)).map(|i| first.plus(i)) {
            self.lost.remove(psn);
            self.retransmitted.insert(psn);
            self.retransmissions.push(psn, max_sent);
        }
    }

    /// Sets recorded PSNs that are below una (largest acked, end of scan, `raised_at`) to una, which has the same
    /// effect. Otherwise such a PSN, if not updated, would compare as above una once una is half the PSN circle above
    /// it.
    #[cold]
    fn renew_marks(&mut self) {
        let marks = self.largest_acked.both_mut().into_iter().chain(self.scanned_to.both_mut());
        let marks = marks.chain([&mut self.raised_at]);
        for mark in marks.filter(|mark| mark.offset_from(self.una).is_none_or(|offset| offset < 0)) {
            *mark = self.una;
        }
    }

    /// Returns the distance of `psn` from una; `None` if `psn` was not sent or is outside of the window.
    #[inline]
    fn tracked(&self, psn: Psn) -> Option<u32> {
        psn.index_in(self.una, self.sent().min(self.window_pkts()))
    }

    /// Returns the PSN below which the peer has executed all requests.
    #[inline]
    pub(crate) fn executed(&self) -> Psn {
        self.executed
    }

    /// Returns whether an ACK, a SACK or a READ response showed that the request of `psn` was executed.
    pub(crate) fn is_executed(&self, psn: Psn) -> bool {
        self.executed.offset_from(psn).is_some_and(|offset| offset > 0)
    }

    /// Records that the peer has executed all requests below `next`. Returns false if that was known. If true, the
    /// caller must pass the requests from the previous [`SelectiveRepeat::executed`] to `next` to
    /// [`SelectiveRepeat::on_acked`], except READs, which their responses acknowledge.
    #[inline]
    pub(crate) fn on_executed(&mut self, next: Psn) -> bool {
        // Compares distances from una, because a READ may span half the PSN circle, whose ends have no order.
        let from_una = |psn: Psn| psn.index_in(self.una, self.sent() + 1);
        let is_news = from_una(next) > from_una(self.executed);
        if is_news {
            self.executed = next;
            self.raise_largest_acked(PsnSpace::Request, next);
        }
        is_news
    }

    /// Records that the peer buffers the READ request of `psn`, as a SACK shows: raises largest acked of requests, but
    /// acknowledges no READ response.
    pub(crate) fn on_read_sacked(&mut self, psn: Psn) {
        if self.tracked(psn).is_some() {
            self.raise_largest_acked(PsnSpace::Request, psn.plus(1));
        }
    }

    /// Records that the peer has sent all READ responses below `next`: raises largest acked of responses.
    pub(crate) fn on_responses_sent(&mut self, next: Psn) {
        self.raise_largest_acked(PsnSpace::Response, next);
    }

    /// Returns whether `psn` was sent, lies in the window and is not acknowledged.
    #[inline]
    pub(crate) fn is_unacked(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && !self.acked.contains(psn)
    }

    /// Returns whether `psn` is acknowledged and not below una: there is a gap below, or `psn` was not executed yet.
    pub(crate) fn is_acked(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.acked.contains(psn)
    }

    /// Returns whether `psn` is marked lost, or was retransmitted.
    pub(crate) fn is_retransmitted(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && (self.lost.contains(psn) || self.retransmitted.contains(psn))
    }

    /// Returns whether `psn` was retransmitted and is acknowledged: a duplicate response of `psn` then shows that the
    /// retransmission was spurious.
    pub(crate) fn is_spurious(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.acked.contains(psn) && self.retransmitted.contains(psn)
    }

    #[inline]
    fn raise_largest_acked(&mut self, space: PsnSpace, end: Psn) {
        let largest_acked = &mut self.largest_acked[space];
        if end.offset_from(*largest_acked).is_some_and(|offset| offset > 0) {
            *largest_acked = end;
        }
    }

    /// Returns whether every PSN sent from una on was sent once and is in flight.
    #[inline]
    fn has_no_gap(&self) -> bool {
        self.acked.is_empty() && self.lost.is_empty() && self.retransmitted.is_empty()
    }

    /// Marks the `count` PSNs from `first` on acknowledged, and advances una.
    #[inline]
    pub(crate) fn on_acked(&mut self, space: PsnSpace, first: Psn, count: u32) {
        if first == self.una && self.has_no_gap() {
            self.una = first.plus(count);
            self.raise_largest_acked(space, self.una);
            return;
        }
        if count == 1 {
            return self.on_one_acked(space, first);
        }
        let mut done = 0;
        while done < count.min(self.window_pkts()) {
            let step = (count - done).min(u64::BITS);
            self.mark_acked_bits(space, first.plus(done), u64::MAX >> (u64::BITS - step));
            done += step;
        }
        self.advance();
    }

    #[inline]
    fn on_one_acked(&mut self, space: PsnSpace, psn: Psn) {
        if self.tracked(psn).is_none() {
            return;
        }
        if !self.lost.is_empty() {
            self.lost.remove(psn);
        }
        if self.acked.insert(psn) {
            self.retransmissions.remove(psn);
            self.raise_largest_acked(space, psn.plus(1));
        }
        self.advance();
    }

    /// Fast path for an unacknowledged READ response `psn` of a READ whose PSNs end before `executed`. If the response
    /// follows the highest one received, was sent once, and shows neither a newly executed request nor a loss, and if
    /// the reordering threshold is 0, acknowledges `psn` and returns its position. Otherwise changes nothing and
    /// returns `None`.
    #[inline]
    pub(crate) fn on_next_response(&mut self, psn: Psn, executed: Psn) -> Option<Following> {
        let (space, next) = (PsnSpace::Response, psn.plus(1));
        let follows = psn == self.largest_acked[space]
            && psn == self.scanned_to[space]
            && self.reordering_threshold_pkts == 0;
        if !follows
            || self.executed.offset_from(executed).is_none_or(|offset| offset < 0)
            || self.retransmissions.is_below_threshold(next)
            || self.lost.contains(psn)
            || self.retransmitted.contains(psn)
        {
            return None;
        }
        let following = if psn != self.una {
            self.acked.insert(psn);
            Following::OutOfOrder
        } else if self.acked.is_empty() {
            self.una = next;
            Following::Next
        } else {
            return None;
        };
        (self.largest_acked[space], self.scanned_to[space]) = (next, next);
        Some(following)
    }

    /// Marks `first + i` acknowledged for each set bit `i`, and advances una.
    pub(crate) fn on_sacked(&mut self, space: PsnSpace, first: Psn, bits: u32) {
        self.mark_acked_bits(space, first, u64::from(bits));
        self.advance();
    }

    /// Marks `first + i` acknowledged for each set bit `i`, but does not advance una. Ignores PSNs outside of the
    /// window.
    #[inline]
    fn mark_acked_bits(&mut self, space: PsnSpace, first: Psn, bits: u64) {
        let Some(offset) = first.offset_from(self.una) else { return };
        let behind = 0.max(-offset).unsigned_abs();
        let room = i64::from(self.sent().min(self.window_pkts())) - i64::from(0.max(offset));
        let (first, bits) = (first.plus(behind), bits.checked_shr(behind).unwrap_or(0));
        let bits = match room {
            ..=0 => return,
            1..64 => bits & ((1 << room) - 1),
            _ => bits,
        };
        self.lost.remove_bits(first, bits);
        let newly_acked = bits & !self.acked.bits(first);
        let mut retransmitted = newly_acked & self.retransmitted.bits(first);
        while retransmitted != 0 {
            self.retransmissions.remove(first.plus(retransmitted.trailing_zeros()));
            retransmitted &= retransmitted - 1;
        }
        self.acked.insert_bits(first, bits);
        if newly_acked != 0 {
            self.raise_largest_acked(space, first.plus(u64::BITS - newly_acked.leading_zeros()));
        }
    }

    /// Returns a bitmap of 32 PSNs: bit `i` is set if `first + i` is acknowledged.
    #[inline]
    pub(crate) fn acked_bits(&self, first: Psn) -> u32 {
        self.acked.bits32(first)
    }

    /// Advances una over PSNs that are acknowledged and executed, but not over a request that the peer only buffers,
    /// because the peer may still refuse it with an RNR NAK.
    fn advance(&mut self) {
        if self.tracked(self.una).is_none() || !self.acked.contains(self.una) {
            return;
        }
        let executed = self.executed.index_in(self.una, self.sent() + 1).unwrap_or(0);
        let span = executed.min(self.window_pkts());
        let end = self.acked.first_missing(self.una, span).unwrap_or(self.una.plus(span));
        let gone = end.distance_from(self.una);
        for set in [&mut self.acked, &mut self.lost, &mut self.retransmitted] {
            set.remove_range(self.una, gone);
        }
        self.una = end;
    }

    /// Returns largest acked minus the reordering threshold: packets sent once, below it and unacknowledged, are lost.
    #[inline]
    fn loss_threshold(&self, space: PsnSpace) -> Psn {
        self.largest_acked[space].minus(self.reordering_threshold_pkts)
    }

    /// Returns the PSN at which [`SelectiveRepeat::detect_losses`] must start: the end of the last scan of the PSN
    /// space, or una if higher; `None` if no packet can be newly lost, as after an ACK in order.
    #[inline]
    pub(crate) fn scan_from(&mut self, space: PsnSpace) -> Option<Psn> {
        let (scanned_to, loss_threshold) = (self.scanned_to[space], self.loss_threshold(space));
        let distance = loss_threshold.offset_from(scanned_to);
        if !self.retransmissions.is_below_threshold(loss_threshold) {
            match distance {
                Some(..=0) => return None,
                Some(1) if self.tracked(scanned_to).is_none() || self.acked.contains(scanned_to) => {
                    self.scanned_to[space] = scanned_to.plus(1);
                    return None;
                }
                _ => {}
            }
        }
        let is_behind = scanned_to.offset_from(self.una).is_none_or(|offset| offset < 0);
        Some(if is_behind { self.una } else { scanned_to })
    }

    /// Scans packets in flight that were sent earlier than a packet acknowledged in `space`, by the reordering
    /// threshold or more: those sent once, from `from` on, and all retransmitted ones. `judge` returns whether to mark
    /// such a packet lost, and for how many PSNs from it on; `None` ends the scan. Returns the number of packets newly
    /// marked lost.
    pub(crate) fn detect_losses(
        &mut self,
        space: PsnSpace,
        from: Psn,
        mut judge: impl FnMut(Psn) -> Option<(bool, u32)>,
    ) -> u32 {
        let (loss_threshold, mut newly) = (self.loss_threshold(space), 0);
        let mut settle = |scheme: &mut Self, psn: Psn| {
            let (is_lost, count) = judge(psn)?;
            newly += if is_lost { scheme.on_lost(psn, count) } else { 0 };
            Some((is_lost, count))
        };
        let mut at = from;
        while let Some(psn) = self.next_unacked_below(loss_threshold, at)
            && let Some((_, count)) = settle(self, psn)
        {
            at = psn.plus(count);
        }
        let mut before = None;
        while let Some(psn) = self.retransmissions.next_below_threshold(before, loss_threshold, self.una)
            && let Some((is_lost, _)) = settle(self, psn)
        {
            // If `before` was marked lost together with `psn`, `before` has left the list: the scan restarts at the
            // oldest.
            before =
                if is_lost { before.filter(|psn| self.retransmissions.contains(*psn)) } else { Some(psn) };
        }
        newly
    }

    /// Records that [`SelectiveRepeat::detect_losses`] has scanned `space`: the next scan starts where this one ended.
    #[inline]
    pub(crate) fn on_scanned(&mut self, space: PsnSpace) {
        let tracked_end = self.una.plus(self.sent().min(self.window_pkts()));
        let loss_threshold = self.loss_threshold(space);
        let is_tracked = loss_threshold.offset_from(tracked_end).is_some_and(|offset| offset < 0);
        self.scanned_to[space] = if is_tracked { loss_threshold } else { tracked_end };
    }

    /// Returns the first PSN from `from` on that is below `loss_threshold`, was sent once and is in flight.
    fn next_unacked_below(&self, loss_threshold: Psn, from: Psn) -> Option<Psn> {
        let tracked_pkts = self.sent().min(self.window_pkts()) - self.tracked(from)?;
        let mut left = u32::try_from(loss_threshold.offset_from(from)?).ok()?.min(tracked_pkts);
        let mut at = from;
        while left > 0 {
            let step = left.min(u64::BITS);
            let known = self.acked.bits(at) | self.lost.bits(at) | self.retransmitted.bits(at);
            let missing = !known & (u64::MAX >> (u64::BITS - step));
            if missing != 0 {
                return Some(at.plus(missing.trailing_zeros()));
            }
            at = at.plus(step);
            left -= step;
        }
        None
    }

    /// Marks the unacknowledged PSNs among the `count` PSNs from `first` on lost. Returns the number newly marked.
    pub(crate) fn on_lost(&mut self, first: Psn, count: u32) -> u32 {
        let mut newly = 0;
        for psn in (0..count.min(self.window_pkts())).map(|i| first.plus(i)) {
            if self.is_unacked(psn) {
                newly += u32::from(self.lost.insert(psn));
                self.retransmissions.remove(psn);
            }
        }
        newly
    }

    /// Marks the `count` PSNs from `first` on lost, even if acknowledged, because the peer dropped them from its
    /// reorder buffer or sent an RNR NAK, or because a timeout expired.
    pub(crate) fn retransmit(&mut self, first: Psn, count: u32) {
        for psn in (0..count.min(self.window_pkts())).map(|i| first.plus(i)) {
            if self.tracked(psn).is_some() {
                self.acked.remove(psn);
                self.lost.insert(psn);
                self.retransmissions.remove(psn);
            }
        }
    }

    /// Records a spurious retransmission: doubles the reordering threshold, to at least 16 packets and at most half the
    /// window. No effect while a packet sent before the last doubling is unacknowledged.
    pub(crate) fn on_spurious(&mut self) {
        if self.raised_at.offset_from(self.una).is_none_or(|offset| offset <= 0) {
            self.reordering_threshold_pkts = (self.reordering_threshold_pkts * 2)
                .clamp(REORDERING_THRESHOLD_PKTS_FIRST, self.window_pkts() / 2);
            self.raised_at = self.max_sent;
        }
    }

    #[inline]
    pub(crate) fn reordering_threshold_pkts(&self) -> u32 {
        self.reordering_threshold_pkts
    }

    /// Sets the reordering threshold to that learned by other queue pairs of the device; at most half the window.
    #[inline]
    pub(crate) fn adopt_reordering_threshold(&mut self, reordering_threshold_pkts: u32) {
        self.reordering_threshold_pkts = reordering_threshold_pkts.min(self.window_pkts() / 2);
    }

    /// Returns the packets to retransmit as a probe, first PSN and count. One packet if possible, because its ACK shows
    /// which other packets arrived, and because the peer may have paused without a loss. The first rule that applies:
    ///
    /// - If una was retransmitted and is in flight: una and the run of retransmissions in flight after it, because no
    ///   ACK of a later packet may show their loss.
    /// - If `is_first`: the last packet sent, if in flight. If its PSN is beyond the window: the last PSN but one of
    ///   the window, because the retransmission of the last one would request its READ to the end (`lost_run`).
    /// - Otherwise una.
    pub(crate) fn probe(&mut self, is_first: bool) -> (Psn, u32) {
        let (una, sent) = (self.una, self.sent());
        let span = if sent <= self.window_pkts() { sent } else { self.window_pkts() - 1 };
        let last = una.plus(span).minus(1);
        let is_in_flight = |psn: Psn| self.is_unacked(psn) && !self.lost.contains(psn);
        let is_retransmitted =
            |i: &u32| is_in_flight(una.plus(*i)) && self.retransmitted.contains(una.plus(*i));
        let retransmitted_pkts = (0..span).find(|i| !is_retransmitted(i)).unwrap_or(span);
        if retransmitted_pkts > 0 {
            return (una, retransmitted_pkts);
        }
        if is_first && is_in_flight(last) {
            return (last, 1);
        }
        if is_in_flight(una) && !self.acked.is_empty() {
            // Packets above una are acknowledged, but the reordering threshold is too high to mark una lost.
            self.reordering_threshold_pkts /= 2;
        }
        (una, 1)
    }
}

/// PSNs of the out-of-order packets that a responder has buffered or placed.
#[derive(Clone, Debug)]
pub(crate) struct OutOfOrderSet {
    buffered: PsnSet,
}

impl OutOfOrderSet {
    /// Creates an empty set for a window of `window_pkts`, a power of two of at least [`WINDOW_PKTS_MIN`].
    pub(crate) fn new(window_pkts: u32) -> Self {
        OutOfOrderSet { buffered: PsnSet::new(window_pkts) }
    }

    /// Returns whether `psn` may be buffered: above `expected`, in the window that begins there, and not buffered yet.
    pub(crate) fn is_new(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.buffered.capacity()).is_some_and(|i| i > 0)
            && !self.buffered.contains(psn)
    }

    /// Returns whether `psn` is buffered: above `expected`, in the window that begins there, and in the set.
    pub(crate) fn is_buffered(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.buffered.capacity()).is_some_and(|i| i > 0) && self.buffered.contains(psn)
    }

    /// Returns whether `psn`, which must lie in the window from the expected PSN on, is buffered.
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        self.buffered.contains(psn)
    }

    /// Records that `psn`, which must lie in the window, was buffered or placed.
    pub(crate) fn insert(&mut self, psn: Psn) {
        self.buffered.insert(psn);
    }

    /// Records that the packet of `psn` was dropped from the reorder buffer; no effect if it was not buffered.
    pub(crate) fn remove(&mut self, expected: Psn, psn: Psn) {
        if self.is_buffered(expected, psn) {
            self.buffered.remove(psn);
        }
    }

    /// Records that all buffered packets were dropped.
    pub(crate) fn clear(&mut self) {
        self.buffered.remove_range(Psn::new(0), self.buffered.capacity());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffered.is_empty()
    }

    /// Removes the `span` PSNs from `expected` on, whose packets were executed or dropped.
    pub(crate) fn advance(&mut self, expected: Psn, span: u32) {
        self.buffered.remove_range(expected, span);
    }

    /// Returns the number of 32-bit words of the longest bitmap of a SACK.
    fn words_max(&self) -> u32 {
        self.buffered.capacity() / 32
    }

    /// Returns the bitmap of a SACK without zero words at its end: bit `i` of word `w` is PSN
    /// `expected + 1 + 32 w + i`.
    pub(crate) fn words(&self, expected: Psn) -> impl ExactSizeIterator<Item = u32> + '_ {
        // The last bit of a full bitmap is masked, because its PSN has the same bit in the set as `expected`.
        let last = self.words_max() - 1;
        let mask = move |w| if w == last { u32::MAX >> 1 } else { u32::MAX };
        let word = move |w: u32| self.buffered.bits32(expected.plus(1 + 32 * w)) & mask(w);
        let mut len = 0;
        if !self.buffered.is_empty() {
            len = (0..self.words_max()).rev().find(|w| word(*w) != 0).map_or(0, |last| last + 1);
        }
        (0..len).map(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FIRST: Psn = Psn::new(0xFF_FFFA);

    fn sent(count: u32) -> SelectiveRepeat {
        let mut scheme = SelectiveRepeat::new(FIRST, 64);
        (0..count).for_each(|_| scheme.on_sent(1));
        scheme
    }

    fn acked(scheme: &mut SelectiveRepeat, indices: impl IntoIterator<Item = u32>) {
        indices.into_iter().for_each(|i| scheme.on_acked(PsnSpace::Request, FIRST.plus(i), 1));
    }

    fn below_threshold(scheme: &mut SelectiveRepeat) -> Vec<u32> {
        let mut found = Vec::new();
        let newly = scheme.detect_losses(PsnSpace::Request, scheme.una(), |psn| {
            found.push(psn.index_in(FIRST, 64).unwrap());
            Some((true, 1))
        });
        assert_eq!(newly as usize, found.len());
        found.sort_unstable();
        found
    }

    #[test]
    fn only_what_was_overtaken_is_lost_and_once() {
        let mut scheme = sent(10);
        scheme.on_executed(FIRST.plus(2));
        acked(&mut scheme, [0, 1, 4, 6]);
        assert_eq!(scheme.una(), FIRST.plus(2));
        assert_eq!(below_threshold(&mut scheme), [2, 3, 5]);
        assert_eq!(
            (scheme.unacked(), scheme.next_psn(), scheme.lost_run(FIRST.plus(2))),
            (3, FIRST.plus(2), 2)
        );
        (0..3).for_each(|_| scheme.on_sent(1));
        assert_eq!((scheme.next_psn(), scheme.is_retransmission()), (FIRST.plus(10), false));
        acked(&mut scheme, [7, 8, 9]);
        assert!(
            below_threshold(&mut scheme).is_empty(),
            "nothing sent after the retransmissions was acknowledged"
        );
        (0..2).for_each(|_| scheme.on_sent(1));
        acked(&mut scheme, [10]);
        assert_eq!(below_threshold(&mut scheme), [2, 3, 5], "lost again");
    }

    #[test]
    fn what_waits_at_the_peer_is_not_passed_and_may_be_refused() {
        let mut scheme = sent(4);
        acked(&mut scheme, [1, 2, 3]);
        scheme.on_executed(FIRST.plus(2));
        acked(&mut scheme, [0, 1]);
        assert_eq!((scheme.una(), scheme.unacked()), (FIRST.plus(2), 0));
        scheme.retransmit(FIRST.plus(2), 1);
        assert_eq!((scheme.next_psn(), scheme.is_retransmission()), (FIRST.plus(2), true));
    }

    #[test]
    fn duplicates_raise_the_reordering_threshold_once_a_window_and_probes_lower_it() {
        let mut scheme = sent(40);
        scheme.on_spurious();
        scheme.on_spurious();
        assert_eq!(scheme.reordering_threshold_pkts, REORDERING_THRESHOLD_PKTS_FIRST);
        acked(&mut scheme, [REORDERING_THRESHOLD_PKTS_FIRST]);
        assert_eq!(below_threshold(&mut scheme), [0], "by more than the tolerance");
        scheme.on_sent(1);
        acked(&mut scheme, [0]);
        scheme.on_executed(FIRST.plus(1));
        acked(&mut scheme, [0]);
        assert_eq!(scheme.probe(true), (FIRST.plus(39), 1));
        assert_eq!(
            (scheme.probe(false), scheme.reordering_threshold_pkts()),
            ((FIRST.plus(1), 1), REORDERING_THRESHOLD_PKTS_FIRST / 2)
        );
        assert_eq!(below_threshold(&mut scheme), Vec::from_iter(1..=REORDERING_THRESHOLD_PKTS_FIRST / 2));
        scheme.adopt_reordering_threshold(31);
        assert_eq!(scheme.reordering_threshold_pkts(), 31);
        scheme.adopt_reordering_threshold(33);
        assert_eq!(scheme.reordering_threshold_pkts(), 32, "half a window");
    }

    #[test]
    fn the_window_ends_new_packets_but_not_retransmissions() {
        let mut scheme = sent(64);
        assert!(!scheme.permit());
        assert_eq!(scheme.probe(true), (FIRST.plus(63), 1));
        scheme.on_lost(FIRST, 1);
        assert!(scheme.permit());
        scheme.on_sent(1);
        assert_eq!(scheme.probe(true), (FIRST, 1), "what all wait for, once it was repeated");
    }

    #[test]
    fn a_packet_waiting_for_retransmission_is_no_probe() {
        let mut scheme = sent(10);
        scheme.on_spurious();
        scheme.on_lost(FIRST.plus(9), 1);
        assert_eq!(scheme.probe(true), (FIRST, 1));
        assert_eq!(
            scheme.reordering_threshold_pkts(),
            REORDERING_THRESHOLD_PKTS_FIRST,
            "nothing has overtaken it"
        );
    }

    #[test]
    fn a_read_that_waits_at_the_peer_has_overtaken_what_is_missing_before_it() {
        let mut scheme = sent(3);
        scheme.on_read_sacked(FIRST.plus(3));
        assert!(below_threshold(&mut scheme).is_empty(), "it was never sent");
        scheme.on_read_sacked(FIRST.plus(2));
        assert_eq!(below_threshold(&mut scheme), [0, 1, 2], "whether 2 is lost others can tell");
        assert!(scheme.is_unacked(FIRST.plus(2)), "it was asked, not answered");
    }

    #[test]
    fn a_response_that_all_wait_for_is_plain_while_nothing_is_missing() {
        let mut scheme = sent(10);
        let all = FIRST.plus(10);
        let on_next_response = |scheme: &mut SelectiveRepeat, i| scheme.on_next_response(FIRST.plus(i), all);
        assert_eq!(on_next_response(&mut scheme, 0), None, "requests were executed");
        scheme.on_executed(all);
        assert!((0..3).all(|i| on_next_response(&mut scheme, i) == Some(Following::Next)));
        assert_eq!((scheme.una(), scheme.scan_from(PsnSpace::Response)), (FIRST.plus(3), None));
        assert_eq!(on_next_response(&mut scheme, 4), None, "3 is overtaken");
        scheme.on_acked(PsnSpace::Response, FIRST.plus(4), 1);
        look_on(&mut scheme);
        assert_eq!(on_next_response(&mut scheme, 3), None, "it does not follow");
        scheme.on_sent(1);
        scheme.on_acked(PsnSpace::Response, FIRST.plus(3), 1);
        look_on(&mut scheme);
        assert_eq!(
            scheme.on_next_response(FIRST.plus(5), FIRST.plus(6)),
            Some(Following::Next),
            "an older end"
        );
        acked(&mut scheme, [8]);
        assert_eq!(on_next_response(&mut scheme, 6), None, "what came behind it may be passed too");
        scheme.on_spurious();
        scheme.on_acked(PsnSpace::Response, FIRST.plus(6), 1);
        assert_eq!(on_next_response(&mut scheme, 7), None, "what overtakes is to be looked for behind it");
    }

    #[test]
    fn a_response_that_tells_more_than_its_arrival_is_left_to_those_who_ask_more() {
        let mut scheme = sent(10);
        scheme.on_executed(FIRST.plus(6));
        acked(&mut scheme, [0]);
        scheme.on_acked(PsnSpace::Response, FIRST.plus(3), 1);
        look_on(&mut scheme);
        let (known, more) = (FIRST.plus(6), FIRST.plus(7));
        assert_eq!(scheme.on_next_response(FIRST.plus(4), more), None, "requests were executed");
        assert_eq!(scheme.on_next_response(FIRST.plus(5), known), None, "4 is overtaken");
        assert!(scheme.is_unacked(FIRST.plus(4)) && scheme.is_unacked(FIRST.plus(5)));
        assert_eq!(scheme.on_next_response(FIRST.plus(4), known), Some(Following::OutOfOrder));
        assert_eq!(
            scheme.on_next_response(FIRST.plus(5), FIRST.plus(5)),
            Some(Following::OutOfOrder),
            "an older end"
        );
        (0..2).for_each(|_| scheme.on_sent(1));
        assert!(!scheme.is_retransmission(), "1 and 2 again, after 9");
        let distance =
            |scheme: &mut SelectiveRepeat, i| scheme.on_next_response(FIRST.plus(i), known).is_some();
        assert!([6, 7, 8, 9].iter().all(|i| distance(&mut scheme, *i)));
        scheme.on_sent(1);
        assert!(!distance(&mut scheme, 10), "1 and 2 are overtaken again");
    }

    #[test]
    fn a_read_beyond_the_window_is_asked_for_to_its_end() {
        let mut scheme = SelectiveRepeat::new(FIRST, 64);
        scheme.on_sent(1000);
        assert_eq!(scheme.probe(true), (FIRST.plus(62), 1), "the last would be all to the end");
        scheme.on_lost(FIRST, 64);
        assert_eq!((scheme.lost_run(FIRST), scheme.unacked()), (u32::MAX, 1000 - 64));
        scheme.on_sent(1000);
        assert_eq!((scheme.is_retransmission(), scheme.sent()), (false, 1000));
        let mut rest = SelectiveRepeat::new(FIRST, 64);
        rest.on_sent(1000);
        rest.on_lost(FIRST.plus(10), 54);
        rest.on_sent(990);
        assert!(
            rest.is_retransmitted(FIRST.plus(63)) && !rest.is_retransmitted(FIRST),
            "the place of one beyond the window"
        );
        let mut unheard = SelectiveRepeat::new(FIRST, 64);
        unheard.on_sent(1000);
        unheard.on_responses_sent(FIRST.plus(1000));
        unheard.on_lost(FIRST.plus(63), 1);
        let mut asked = Vec::new();
        unheard.detect_losses(PsnSpace::Response, FIRST.plus(10), |psn| {
            asked.push(psn);
            Some((true, 1))
        });
        assert_eq!(asked, (10..63).map(|i| FIRST.plus(i)).collect::<Vec<_>>());
        scheme.on_executed(FIRST.plus(1000));
        scheme.on_acked(PsnSpace::Response, FIRST.plus(64), 1);
        assert!(
            scheme.is_unacked(FIRST.plus(63)) && !scheme.is_unacked(FIRST.plus(64)),
            "no place for it yet"
        );
    }

    #[test]
    fn the_bitmap_tells_of_what_is_kept() {
        let mut buffered = OutOfOrderSet::new(64);
        let words = |buffered: &OutOfOrderSet| buffered.words(FIRST).collect::<Vec<_>>();
        assert!(words(&buffered).is_empty());
        for i in [1, 32, 33, 63] {
            assert!(buffered.is_new(FIRST, FIRST.plus(i)));
            buffered.insert(FIRST.plus(i));
            assert!(buffered.is_buffered(FIRST, FIRST.plus(i)) && !buffered.is_new(FIRST, FIRST.plus(i)));
        }
        assert!(!buffered.is_new(FIRST, FIRST) && !buffered.is_new(FIRST, FIRST.plus(64)));
        assert_eq!(words(&buffered), [0x8000_0001, 0x4000_0001]);
        buffered.advance(FIRST, 33);
        assert_eq!(
            buffered.words(FIRST.plus(33)).collect::<Vec<_>>(),
            [1 << 29],
            "33 itself is expected now"
        );
    }

    #[test]
    fn of_several_retransmissions_the_oldest_is_scanned_first() {
        let mut scheme = sent(10);
        let mark_acked_bits = |scheme: &mut SelectiveRepeat, index: u32| {
            scheme.on_acked(PsnSpace::Response, FIRST.plus(index), 1);
            look_on(scheme);
            let lost = scheme.is_retransmission().then(|| scheme.next_psn().index_in(FIRST, 64).unwrap());
            lost.inspect(|_| scheme.on_sent(1))
        };
        let send = |scheme: &mut SelectiveRepeat, count: u32| (0..count).for_each(|_| scheme.on_sent(1));
        assert_eq!([0, 2].map(|i| mark_acked_bits(&mut scheme, i)), [None, Some(1)], "again after 9");
        send(&mut scheme, 2);
        assert_eq!(
            [3, 4, 6].map(|i| mark_acked_bits(&mut scheme, i)),
            [None, None, Some(5)],
            "again after 11"
        );
        send(&mut scheme, 1);
        assert_eq!([7, 9].map(|i| mark_acked_bits(&mut scheme, i)), [None, Some(8)], "again after 12");
        send(&mut scheme, 1);
        assert_eq!(mark_acked_bits(&mut scheme, 10), Some(1), "again after 13");
        let mut other = scheme.clone();
        assert_eq!([11, 12].map(|i| mark_acked_bits(&mut other, i)), [None, Some(5)]);
        assert_eq!([5, 11, 12, 13].map(|i| mark_acked_bits(&mut scheme, i)), [None, None, None, Some(8)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Send(u32),
        Retransmit(u32),
        /// ACK of packets: distance of the first from una, and count.
        Arrived(u32, u32),
        /// READ responses received one by one: distance of the first from una (`None`: at largest acked), and count.
        OneByOne(Option<u32>, u32),
        Told(u32, u32),
        Spurious,
        Expiry(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => prop_oneof![1u32..40, 1u32..130].prop_map(Step::Send),
            3 => (1u32..8).prop_map(Step::Retransmit),
            2 => (0u32..140, 1u32..140).prop_map(|(first, count)| Step::Arrived(first, count)),
            3 => (0u32..140, 1u32..4).prop_map(|(first, count)| Step::Arrived(first, count)),
            6 => (prop::option::of(0u32..140), 1u32..30).prop_map(|(first, count)| Step::OneByOne(first, count)),
            3 => (0u32..140, any::<u32>()).prop_map(|(first, bits)| Step::Told(first, bits)),
            1 => Just(Step::Spurious),
            1 => any::<bool>().prop_map(Step::Expiry),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// Marks READ responses lost, from where the last scan ended.
    fn look_on(scheme: &mut SelectiveRepeat) {
        if let Some(from) = scheme.scan_from(PsnSpace::Response) {
            detect_losses(scheme, from);
            scheme.on_scanned(PsnSpace::Response);
        }
    }

    fn detect_losses(scheme: &mut SelectiveRepeat, from: Psn) {
        scheme.detect_losses(PsnSpace::Response, from, |_| Some((true, 1)));
    }

    /// Applies a step that acknowledges no packet; ignores other steps.
    fn send_or_wait(scheme: &mut SelectiveRepeat, step: &Step) {
        match *step {
            Step::Send(count) | Step::Retransmit(count) => {
                let is_retransmission = matches!(step, Step::Retransmit(_));
                for _ in 0..count {
                    if scheme.permit() && scheme.is_retransmission() == is_retransmission {
                        scheme.on_sent(1);
                    }
                }
            }
            Step::Spurious => scheme.on_spurious(),
            Step::Expiry(is_first) if scheme.sent() > 0 => {
                let (first, count) = scheme.probe(is_first);
                scheme.retransmit(first, count);
            }
            Step::Expiry(_) | Step::Arrived(..) | Step::OneByOne(..) | Step::Told(..) => {}
        }
    }

    /// Returns the state that must be equal in both requesters of the test.
    fn state(scheme: &SelectiveRepeat) -> impl PartialEq + std::fmt::Debug + use<> {
        let window = scheme.window_pkts();
        let sets = [&scheme.acked, &scheme.lost, &scheme.retransmitted];
        let sets = sets.map(|set| {
            let within = (0..window).filter(|i| set.contains(scheme.una.plus(*i))).collect::<Vec<_>>();
            (within, set.len())
        });
        (scheme.una, scheme.max_sent, sets, scheme.largest_acked, scheme.reordering_threshold_pkts)
    }

    proptest! {
        #[test]
        fn many_at_once_and_looked_at_from_the_last_look_is_one_by_one_and_looked_at_again(
            first in prop_oneof![Just(0u32), Just(Psn::COUNT - 100), Just(Psn::COUNT - 64)],
            steps in steps(),
        ) {
            let mut at_once = SelectiveRepeat::new(Psn::new(first), 128);
            let mut one_by_one = at_once.clone();
            for step in steps {
                let una = at_once.una;
                let largest_acked = at_once.largest_acked[PsnSpace::Response];
                let mut arrives: Vec<Psn> = match step {
                    Step::OneByOne(from, count) => {
                        let from = from.map_or(largest_acked, |from| una.plus(from));
                        (0..count).map(|i| from.plus(i)).collect()
                    }
                    Step::Arrived(from, count) => (0..count).map(|i| una.plus(from + i)).collect(),
                    Step::Told(from, bits) => {
                        (0..32).filter(|i| bits >> i & 1 == 1).map(|i| una.plus(from + i)).collect()
                    }
                    _ => Vec::new(),
                };
                for scheme in [&mut at_once, &mut one_by_one] {
                    send_or_wait(scheme, &step);
                    // Every PSN sent is executed, so that una may advance over all acknowledged PSNs.
                    scheme.executed = scheme.max_sent;
                }
                let sent_pkts = one_by_one.sent();
                let sent = |psn: &Psn| psn.index_in(una, sent_pkts).is_some();
                match step {
                    Step::Arrived(from, _) => {
                        let count = arrives.iter().filter(|psn| sent(psn)).count() as u32;
                        if count > 0 {
                            at_once.on_acked(PsnSpace::Response, una.plus(from), count);
                        }
                    }
                    Step::Told(from, bits) => at_once.on_sacked(PsnSpace::Response, una.plus(from), bits),
                    Step::OneByOne(..) => {
                        for psn in arrives.drain(..) {
                            if !sent(&psn) || !at_once.is_unacked(psn) {
                                continue;
                            }
                            let executed = at_once.executed;
                            if at_once.on_next_response(psn, executed).is_none() {
                                at_once.on_acked(PsnSpace::Response, psn, 1);
                                look_on(&mut at_once);
                            }
                            one_by_one.on_acked(PsnSpace::Response, psn, 1);
                            let from = one_by_one.una;
                            detect_losses(&mut one_by_one, from);
                        }
                    }
                    _ => {}
                }
                for psn in arrives.iter().filter(|psn| sent(psn)).copied().collect::<Vec<_>>() {
                    one_by_one.on_acked(PsnSpace::Response, psn, 1);
                }
                look_on(&mut at_once);
                let from = one_by_one.una;
                detect_losses(&mut one_by_one, from);
                prop_assert_eq!(state(&at_once), state(&one_by_one));
                for psn in (0..at_once.window_pkts()).map(|i| at_once.una.plus(i)) {
                    let is_known = at_once.acked.contains(psn) || at_once.lost.contains(psn);
                    let in_flight = at_once.retransmitted.contains(psn) && !is_known;
                    prop_assert_eq!(at_once.retransmissions.contains(psn), in_flight);
                    prop_assert!(!in_flight || at_once.tracked(psn).is_some());
                }
            }
        }
    }
}
