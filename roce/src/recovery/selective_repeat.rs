//! Selective repeat between two of this project's stacks: only what was lost is sent again.
//!
//! ```text
//!          una                                              high
//!   acked   |  x x . x L x . L . . . .                       |  never sent
//!   --------|------------------------------------------------|-----------------> PSN
//!           '- at most `window_pkts`: arrived x, lost L, in flight .
//!
//!   in flight --later one arrived, silence--> lost --sent again--> in flight --> arrived
//! ```
//! A packet is taken for lost when one that was sent after it has arrived (IRN, SIGCOMM'18, section 3.1,
//! holes below the highest selective acknowledgement). A packet sent again remembers what had been sent
//! by then, so that its second loss is noticed in the same way, without a timeout. A duplicate at the
//! peer shows that the network reorders: later evidence must then lie further ahead.

use super::psn_window::PsnSet;
use super::retransmissions::Retransmissions;
use crate::psn::{Psn, PsnSpace};

/// The smallest window, in packets.
pub const WINDOW_PKTS_MIN: u32 = 64;

/// The largest window, in packets: the longest bitmap.
pub const WINDOW_PKTS_MAX: u32 = 4096;

/// Marks are renewed whenever this bit of the PSNs sent changes, or a higher one: a quarter of the circle.
const RENEW_BIT: u32 = Psn::COUNT / 4;

/// The tolerance for reordering that the first spurious retransmission brings, in packets.
const REORDERING_THRESHOLD_PKTS_FIRST: u32 = 16;

/// The requester side.
#[derive(Clone, Debug)]
pub struct SelectiveRepeat {
    una: Psn,
    max_sent: Psn,
    acked: PsnSet,
    lost: PsnSet,
    /// Sent again since they were taken for lost ..
    retransmitted: PsnSet,
    /// .. and of those the ones in flight.
    retransmissions: Retransmissions,
    /// All requests before it were executed: the largest cumulative acknowledgement.
    executed: Psn,
    /// The end of the last packet that arrived: requests, READ responses.
    largest_acked: [Psn; 2],
    /// Everything before it was looked at, and what was overtaken is lost.
    scanned_to: [Psn; 2],
    /// How many packets may overtake one before it is taken for lost.
    reordering_threshold_pkts: u32,
    /// The tolerance is not raised again before this is acknowledged.
    raised_at: Psn,
}

/// Where a READ response lies that follows the last one that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// It is what all wait for, and nothing behind it had come.
    Next,
    /// Something before it is missing.
    OutOfOrder,
}

impl SelectiveRepeat {
    /// Starts at the first PSN of the connection; `window_pkts` is a power of two from
    /// [`WINDOW_PKTS_MIN`] to [`WINDOW_PKTS_MAX`].
    pub fn new(first: Psn, window_pkts: u32) -> Self {
        let set = PsnSet::new(window_pkts);
        SelectiveRepeat {
            una: first,
            max_sent: first,
            acked: set.clone(),
            lost: set.clone(),
            retransmitted: set,
            retransmissions: Retransmissions::new(window_pkts),
            executed: first,
            largest_acked: [first; 2],
            scanned_to: [first; 2],
            reordering_threshold_pkts: 0,
            raised_at: first,
        }
    }

    /// The packet to send next: a lost one, or the first never sent.
    #[inline]
    pub fn next_psn(&self) -> Psn {
        self.lost.first_in(self.una, self.window_pkts()).unwrap_or(self.max_sent)
    }

    /// Whether the packet to send next was sent before.
    #[inline]
    pub fn is_retransmission(&self) -> bool {
        !self.lost.is_empty()
    }

    /// How many packets from `psn` on are lost in a row: a READ asks for them at once. What lies beyond
    /// the window belongs to it where it reaches so far.
    pub fn lost_run(&self, psn: Psn) -> u32 {
        let Some(index) = psn.index_in(self.una, self.window_pkts()) else { return u32::MAX };
        let rest = self.window_pkts() - index;
        let run = (0..rest).take_while(|i| self.lost.contains(psn.plus(*i))).count() as u32;
        if run == rest { u32::MAX } else { run }
    }

    /// The first PSN not acknowledged.
    #[inline]
    pub fn una(&self) -> Psn {
        self.una
    }

    /// PSNs sent, counted from [`SelectiveRepeat::una`].
    #[inline]
    pub fn sent(&self) -> u32 {
        self.max_sent.distance_from(self.una)
    }

    /// PSNs in flight: sent, not arrived, not lost.
    #[inline]
    pub fn unacked(&self) -> u32 {
        self.sent() - self.acked.len() - self.lost.len()
    }

    /// Packets that may be kept by either side; nothing is sent beyond them.
    #[inline]
    pub fn window_pkts(&self) -> u32 {
        self.acked.capacity()
    }

    /// Whether the packet to send next lies in the window.
    #[inline]
    pub fn permit(&self) -> bool {
        self.is_retransmission() || self.sent() < self.window_pkts()
    }

    /// The packet at [`SelectiveRepeat::next_psn`] was sent; it stands for `span` PSNs.
    #[inline]
    pub fn on_sent(&mut self, span: u32) {
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

    /// Moves marks that are behind up to [`SelectiveRepeat::una`], where they mean the same. One that nothing moves, as
    /// that of READ responses while there are only WRITEs, would be ahead after half the circle of PSNs.
    #[cold]
    fn renew_marks(&mut self) {
        let marks = self.largest_acked.iter_mut().chain(&mut self.scanned_to).chain([&mut self.raised_at]);
        for mark in marks.filter(|mark| mark.offset_from(self.una).is_none_or(|offset| offset < 0)) {
            *mark = self.una;
        }
    }

    /// Where `psn` lies among the packets sent and tracked.
    #[inline]
    fn tracked(&self, psn: Psn) -> Option<u32> {
        psn.index_in(self.una, self.sent().min(self.window_pkts()))
    }

    /// The PSN before which all requests were executed.
    #[inline]
    pub fn executed(&self) -> Psn {
        self.executed
    }

    /// Whether the peer is known to have executed the request of `psn`.
    pub fn is_executed(&self, psn: Psn) -> bool {
        self.executed.offset_from(psn).is_some_and(|offset| offset > 0)
    }

    /// The peer executed all requests before `next`; those between [`SelectiveRepeat::executed`] and it
    /// are to be told as arrived, except READs, whose responses tell. False where it is no news.
    #[inline]
    pub fn on_executed(&mut self, next: Psn) -> bool {
        // Counted from `una`, because a single READ may take half the circle of PSNs.
        let from_una = |psn: Psn| psn.index_in(self.una, self.sent() + 1);
        let is_news = from_una(next) > from_una(self.executed);
        if is_news {
            self.executed = next;
            self.raise_largest_acked(PsnSpace::Request, next);
        }
        is_news
    }

    /// The request of the READ at `psn` waits at the peer.
    pub fn on_read_sacked(&mut self, psn: Psn) {
        if self.tracked(psn).is_some() {
            self.raise_largest_acked(PsnSpace::Request, psn.plus(1));
        }
    }

    /// All READ responses before `next` have been sent.
    pub fn on_responses_sent(&mut self, next: Psn) {
        self.raise_largest_acked(PsnSpace::Response, next);
    }

    /// Whether `psn` has not arrived, and is near enough to be taken in.
    #[inline]
    pub fn is_unacked(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && !self.acked.contains(psn)
    }

    /// Whether `psn` is known to have arrived, and all wait for something before it or for its turn.
    pub fn is_acked(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.acked.contains(psn)
    }

    /// Whether `psn` is lost, or was sent again.
    pub fn is_retransmitted(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && (self.lost.contains(psn) || self.retransmitted.contains(psn))
    }

    /// Whether `psn` has arrived, and was sent again: one of the two was not needed.
    pub fn is_spurious(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.acked.contains(psn) && self.retransmitted.contains(psn)
    }

    #[inline]
    fn raise_largest_acked(&mut self, space: PsnSpace, end: Psn) {
        let largest_acked = &mut self.largest_acked[space as usize];
        if end.offset_from(*largest_acked).is_some_and(|offset| offset > 0) {
            *largest_acked = end;
        }
    }

    /// Whether nothing is missing behind something that came.
    #[inline]
    fn has_no_gap(&self) -> bool {
        self.acked.is_empty() && self.lost.is_empty() && self.retransmitted.is_empty()
    }

    /// The packets `first` to `first + count` have arrived.
    #[inline]
    pub fn on_acked(&mut self, space: PsnSpace, first: Psn, count: u32) {
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

    /// The READ response `psn`, which is awaited, follows the last one that came, and all requests before `executed`
    /// were executed. Where all that this tells is that it has arrived, that is taken in and returned: whether it is
    /// what all wait for, or something before it is missing. `None`, and nothing done, where it may tell more.
    #[inline]
    pub fn on_next_response(&mut self, psn: Psn, executed: Psn) -> Option<Following> {
        let (space, next) = (PsnSpace::Response as usize, psn.plus(1));
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

    /// Those of the 32 packets from `first` on whose bit is set have arrived.
    pub fn on_sacked(&mut self, space: PsnSpace, first: Psn, bits: u32) {
        self.mark_acked_bits(space, first, u64::from(bits));
        self.advance();
    }

    /// Those of the 64 packets from `first` on whose bit is set have arrived, where they are tracked.
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

    /// Which of the 32 packets from `first` on are known to have arrived: bit `i` for `first + i`.
    #[inline]
    pub fn acked_bits(&self, first: Psn) -> u32 {
        self.acked.bits(first) as u32 // of 64 the first 32
    }

    /// Moves on over what has arrived and was executed: what waits at the peer may still be refused.
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

    /// How far arrivals on this path have come that overtake what lies before.
    #[inline]
    fn loss_threshold(&self, space: PsnSpace) -> Psn {
        self.largest_acked[space as usize].minus(self.reordering_threshold_pkts)
    }

    /// Where to look for what was overtaken on this path since [`SelectiveRepeat::on_scanned`]; `None` where nothing
    /// may have been: the next one in order overtakes nothing.
    #[inline]
    pub fn scan_from(&mut self, space: PsnSpace) -> Option<Psn> {
        let (scanned_to, loss_threshold) = (self.scanned_to[space as usize], self.loss_threshold(space));
        let distance = loss_threshold.offset_from(scanned_to);
        if !self.retransmissions.is_below_threshold(loss_threshold) {
            match distance {
                Some(..=0) => return None,
                Some(1) if self.tracked(scanned_to).is_none() || self.acked.contains(scanned_to) => {
                    self.scanned_to[space as usize] = scanned_to.plus(1);
                    return None;
                }
                _ => {}
            }
        }
        let is_behind = scanned_to.offset_from(self.una).is_none_or(|offset| offset < 0);
        Some(if is_behind { self.una } else { scanned_to })
    }

    /// Asks `judge` about what later arrivals on this path have overtaken, of what was sent once from `from` on and of
    /// what was sent again: whether it is lost, and of how many from there on that is true. Returns how many are newly
    /// lost. What `judge` cannot tell ends it.
    pub fn detect_losses(
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
            // The one before it may be among those lost with it.
            before =
                if is_lost { before.filter(|psn| self.retransmissions.contains(*psn)) } else { Some(psn) };
        }
        newly
    }

    /// All that was overtaken on this path is known to be lost.
    #[inline]
    pub fn on_scanned(&mut self, space: PsnSpace) {
        let tracked_end = self.una.plus(self.sent().min(self.window_pkts()));
        let loss_threshold = self.loss_threshold(space);
        let is_tracked = loss_threshold.offset_from(tracked_end).is_some_and(|offset| offset < 0);
        self.scanned_to[space as usize] = if is_tracked { loss_threshold } else { tracked_end };
    }

    /// The first packet from `from` to before `loss_threshold` that was sent once, has not arrived and is not known to be lost.
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

    /// The packets `first` to `first + count` that have not arrived are lost. Returns how many are newly so.
    pub fn on_lost(&mut self, first: Psn, count: u32) -> u32 {
        let mut newly = 0;
        for psn in (0..count.min(self.window_pkts())).map(|i| first.plus(i)) {
            if self.is_unacked(psn) {
                newly += u32::from(self.lost.insert(psn));
                self.retransmissions.remove(psn);
            }
        }
        newly
    }

    /// Marks the packets `first` to `first + count` for retransmission, although the peer may have acknowledged them.
    pub fn retransmit(&mut self, first: Psn, count: u32) {
        for psn in (0..count.min(self.window_pkts())).map(|i| first.plus(i)) {
            if self.tracked(psn).is_some() {
                self.acked.remove(psn);
                self.lost.insert(psn);
                self.retransmissions.remove(psn);
            }
        }
    }

    /// A packet sent again had arrived the first time: the network reorders.
    pub fn on_spurious(&mut self) {
        if self.raised_at.offset_from(self.una).is_none_or(|offset| offset <= 0) {
            self.reordering_threshold_pkts = (self.reordering_threshold_pkts * 2)
                .clamp(REORDERING_THRESHOLD_PKTS_FIRST, self.window_pkts() / 2);
            self.raised_at = self.max_sent;
        }
    }

    /// How many packets may overtake one before it is taken for lost.
    #[inline]
    pub fn reordering_threshold_pkts(&self) -> u32 {
        self.reordering_threshold_pkts
    }

    /// The network lets so many packets overtake one, as others have seen.
    #[inline]
    pub fn adopt_reordering_threshold(&mut self, reordering_threshold_pkts: u32) {
        self.reordering_threshold_pkts = reordering_threshold_pkts.min(self.window_pkts() / 2);
    }

    /// What is to be sent again after a silence, first packet and count: as little as will do, as its answer tells of
    /// all the rest, and the silence may be the peer's own.
    ///
    /// - In the first silence, the last packet sent; where that lies beyond the window, the last but one in it: for
    ///   the last, a READ would be asked for to its end.
    /// - Where that has arrived, in every later silence, and where it was sent again before, with nothing behind it
    ///   that could tell of its second loss: what all wait for.
    pub fn probe(&mut self, is_first: bool) -> (Psn, u32) {
        let (una, sent) = (self.una, self.sent());
        let span = if sent <= self.window_pkts() { sent } else { self.window_pkts() - 1 };
        let last = una.plus(span).minus(1);
        let is_in_flight = |psn: Psn| self.is_unacked(psn) && !self.lost.contains(psn);
        let is_retransmitted =
            |i: &u32| is_in_flight(una.plus(*i)) && self.retransmitted.contains(una.plus(*i));
        let retransmitted_pkts = (0..span).take_while(is_retransmitted).count() as u32;
        if retransmitted_pkts > 0 {
            return (una, retransmitted_pkts);
        }
        if is_first && is_in_flight(last) {
            return (last, 1);
        }
        if is_in_flight(una) && !self.acked.is_empty() {
            // Overtaken, and not taken for lost: less tolerance is needed.
            self.reordering_threshold_pkts /= 2;
        }
        (una, 1)
    }
}

/// The responder side's memory of packets received ahead of the one expected.
#[derive(Clone, Debug)]
pub struct OutOfOrderSet {
    buffered: PsnSet,
}

impl OutOfOrderSet {
    /// Keeps at most `window_pkts`, a power of two.
    pub fn new(window_pkts: u32) -> Self {
        OutOfOrderSet { buffered: PsnSet::new(window_pkts) }
    }

    /// Whether `psn` may be kept while `expected` is expected: it is ahead, in the window, and new.
    pub fn is_new(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.buffered.capacity()).is_some_and(|i| i > 0)
            && !self.buffered.contains(psn)
    }

    /// Whether `psn` is in the window ahead and kept.
    pub fn is_buffered(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.buffered.capacity()).is_some_and(|i| i > 0) && self.buffered.contains(psn)
    }

    /// Whether `psn`, which is expected or in the window behind it, is kept.
    pub fn contains(&self, psn: Psn) -> bool {
        self.buffered.contains(psn)
    }

    /// `psn` is kept.
    pub fn insert(&mut self, psn: Psn) {
        self.buffered.insert(psn);
    }

    /// `psn` was thrown away, if it was in the window ahead and kept.
    pub fn remove(&mut self, expected: Psn, psn: Psn) {
        if self.is_buffered(expected, psn) {
            self.buffered.remove(psn);
        }
    }

    /// Everything was thrown away.
    pub fn clear(&mut self) {
        self.buffered.remove_range(Psn::new(0), self.buffered.capacity());
    }

    /// Whether anything is kept.
    pub fn is_empty(&self) -> bool {
        self.buffered.is_empty()
    }

    /// `expected` and the `span - 1` PSNs after it are behind, or were thrown away.
    pub fn advance(&mut self, expected: Psn, span: u32) {
        self.buffered.remove_range(expected, span);
    }

    /// Words of the bitmap that [`OutOfOrderSet::words`] yields at most.
    fn words_max(&self) -> usize {
        (self.buffered.capacity() / 32) as usize
    }

    /// The bitmap of what lies behind `expected`, without empty words at its end.
    pub fn words(&self, expected: Psn) -> impl ExactSizeIterator<Item = u32> + '_ {
        // The last bit is in the place of `expected` itself, of which the bitmap does not tell.
        let last = self.words_max() - 1;
        let mask = move |w: usize| if w == last { u32::MAX >> 1 } else { u32::MAX };
        let word = move |w: usize| self.buffered.bits(expected.plus(1 + 32 * w as u32)) as u32 & mask(w);
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
        assert!(below_threshold(&mut scheme).is_empty(), "nothing sent after the repetitions has arrived");
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
    fn duplicates_raise_the_tolerance_once_a_window_and_silences_lower_it() {
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
    fn the_window_ends_new_packets_but_not_repetitions() {
        let mut scheme = sent(64);
        assert!(!scheme.permit());
        assert_eq!(scheme.probe(true), (FIRST.plus(63), 1));
        scheme.on_lost(FIRST, 1);
        assert!(scheme.permit());
        scheme.on_sent(1);
        assert_eq!(scheme.probe(true), (FIRST, 1), "what all wait for, once it was repeated");
    }

    #[test]
    fn what_waits_to_be_sent_again_is_no_probe() {
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
    fn of_several_sent_again_the_one_sent_first_is_looked_for_first() {
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
        Resend(u32),
        /// So many packets from one on, or those of 32 whose bit is set.
        Arrived(u32, u32),
        /// So many, one by one, from one on, or from the last that arrived on.
        OneByOne(Option<u32>, u32),
        Told(u32, u32),
        Spurious,
        Expiry(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            3 => prop_oneof![1u32..40, 1u32..130].prop_map(Step::Send),
            3 => (1u32..8).prop_map(Step::Resend),
            2 => (0u32..140, 1u32..140).prop_map(|(first, count)| Step::Arrived(first, count)),
            3 => (0u32..140, 1u32..4).prop_map(|(first, count)| Step::Arrived(first, count)),
            6 => (prop::option::of(0u32..140), 1u32..30).prop_map(|(first, count)| Step::OneByOne(first, count)),
            3 => (0u32..140, any::<u32>()).prop_map(|(first, bits)| Step::Told(first, bits)),
            1 => Just(Step::Spurious),
            1 => any::<bool>().prop_map(Step::Expiry),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// What was overtaken and is lost, looked for from where the last look ended.
    fn look_on(scheme: &mut SelectiveRepeat) {
        if let Some(from) = scheme.scan_from(PsnSpace::Response) {
            detect_losses(scheme, from);
            scheme.on_scanned(PsnSpace::Response);
        }
    }

    fn detect_losses(scheme: &mut SelectiveRepeat, from: Psn) {
        scheme.detect_losses(PsnSpace::Response, from, |_| Some((true, 1)));
    }

    /// The steps in which nothing arrives.
    fn send_or_wait(scheme: &mut SelectiveRepeat, step: &Step) {
        match *step {
            Step::Send(count) | Step::Resend(count) => {
                let is_retransmission = matches!(step, Step::Resend(_));
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

    /// Everything that may be told apart.
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
                let largest_acked = at_once.largest_acked[PsnSpace::Response as usize];
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
                    // Told as the requester does: no further than what was sent.
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
