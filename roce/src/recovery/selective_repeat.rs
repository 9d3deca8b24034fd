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
use super::resent::Resent;
use crate::psn::Psn;

/// The smallest window, in packets.
pub const WINDOW_PKTS_MIN: u32 = 64;

/// The largest window, in packets: the longest bitmap.
pub const WINDOW_PKTS_MAX: u32 = 4096;

/// Marks are renewed whenever this bit of the PSNs sent changes, or a higher one: a quarter of the circle.
const RENEW_BIT: u32 = Psn::COUNT / 4;

/// The tolerance for reordering that the first spurious retransmission brings, in packets.
const REORDER_PKTS_FIRST: u32 = 16;

/// The requester side.
#[derive(Clone, Debug)]
pub struct SelectiveRepeat {
    una: Psn,
    high: Psn,
    arrived: PsnSet,
    lost: PsnSet,
    /// Sent again since they were taken for lost ..
    resent: PsnSet,
    /// .. and of those the ones in flight.
    resent_in_flight: Resent,
    /// All requests before it were executed: the largest cumulative acknowledgement.
    executed: Psn,
    /// The end of the last packet that arrived: requests, READ responses.
    reached: [Psn; 2],
    /// Everything before it was looked at, and what was overtaken is lost.
    looked: [Psn; 2],
    /// How many packets may overtake one before it is taken for lost.
    reorder_pkts: u32,
    /// The tolerance is not raised again before this is acknowledged.
    raised_at: Psn,
}

/// What tells of a packet's arrival: the order of one says nothing of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Requests, told by acknowledgements.
    Request,
    /// READ responses, which tell by themselves.
    Response,
}

/// Where a READ response lies that follows the last one that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Following {
    /// It is what all wait for, and nothing behind it had come.
    Next,
    /// Something before it is missing.
    Ahead,
}

impl SelectiveRepeat {
    /// Starts at the first PSN of the connection; `window_pkts` is a power of two from
    /// [`WINDOW_PKTS_MIN`] to [`WINDOW_PKTS_MAX`].
    pub fn new(first: Psn, window_pkts: u32) -> Self {
        let set = PsnSet::new(window_pkts);
        SelectiveRepeat {
            una: first,
            high: first,
            arrived: set.clone(),
            lost: set.clone(),
            resent: set,
            resent_in_flight: Resent::new(window_pkts),
            executed: first,
            reached: [first; 2],
            looked: [first; 2],
            reorder_pkts: 0,
            raised_at: first,
        }
    }

    /// The packet to send next: a lost one, or the first never sent.
    #[inline]
    pub fn next_psn(&self) -> Psn {
        self.lost.first_in(self.una, self.window_pkts()).unwrap_or(self.high)
    }

    /// Whether the packet to send next was sent before.
    #[inline]
    pub fn is_resend(&self) -> bool {
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
        self.high.distance_from(self.una)
    }

    /// PSNs in flight: sent, not arrived, not lost.
    #[inline]
    pub fn unacked(&self) -> u32 {
        self.sent() - self.arrived.len() - self.lost.len()
    }

    /// Packets that may be kept by either side; nothing is sent beyond them.
    #[inline]
    pub fn window_pkts(&self) -> u32 {
        self.arrived.capacity()
    }

    /// Whether the packet to send next lies in the window.
    #[inline]
    pub fn permit(&self) -> bool {
        self.is_resend() || self.sent() < self.window_pkts()
    }

    /// The packet at [`SelectiveRepeat::next_psn`] was sent; it stands for `span` PSNs.
    #[inline]
    pub fn on_sent(&mut self, span: u32) {
        if !self.is_resend() {
            let before = self.high;
            self.high = before.plus(span);
            if (before.value() ^ self.high.value()) >= RENEW_BIT {
                self.renew_marks();
            }
            return;
        }
        let (first, high) = (self.next_psn(), self.high);
        let index = first.distance_from(self.una);
        for psn in (0..span.min(self.window_pkts() - index)).map(|i| first.plus(i)) {
            self.lost.remove(psn);
            self.resent.insert(psn);
            self.resent_in_flight.push(psn, high);
        }
    }

    /// Moves marks that are behind up to [`SelectiveRepeat::una`], where they mean the same. One that nothing moves, as
    /// that of READ responses while there are only WRITEs, would be ahead after half the circle of PSNs.
    #[cold]
    fn renew_marks(&mut self) {
        let marks = self.reached.iter_mut().chain(&mut self.looked).chain([&mut self.raised_at]);
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
            self.reach(Path::Request, next);
        }
        is_news
    }

    /// The request of the READ at `psn` waits at the peer.
    pub fn on_asked(&mut self, psn: Psn) {
        if self.tracked(psn).is_some() {
            self.reach(Path::Request, psn.plus(1));
        }
    }

    /// All READ responses before `next` have been sent.
    pub fn on_answered(&mut self, next: Psn) {
        self.reach(Path::Response, next);
    }

    /// Whether `psn` has not arrived, and is near enough to be taken in.
    #[inline]
    pub fn is_awaited(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && !self.arrived.contains(psn)
    }

    /// Whether `psn` is known to have arrived, and all wait for something before it or for its turn.
    pub fn has_arrived(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.arrived.contains(psn)
    }

    /// Whether `psn` is lost, or was sent again.
    pub fn is_repeated(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && (self.lost.contains(psn) || self.resent.contains(psn))
    }

    /// Whether `psn` has arrived, and was sent again: one of the two was not needed.
    pub fn is_repetition(&self, psn: Psn) -> bool {
        self.tracked(psn).is_some() && self.arrived.contains(psn) && self.resent.contains(psn)
    }

    #[inline]
    fn reach(&mut self, path: Path, end: Psn) {
        let reached = &mut self.reached[path as usize];
        if end.offset_from(*reached).is_some_and(|offset| offset > 0) {
            *reached = end;
        }
    }

    /// Whether nothing is missing behind something that came.
    #[inline]
    fn is_quiet(&self) -> bool {
        self.arrived.is_empty() && self.lost.is_empty() && self.resent.is_empty()
    }

    /// The packets `first` to `first + count` have arrived.
    #[inline]
    pub fn on_arrived(&mut self, path: Path, first: Psn, count: u32) {
        if first == self.una && self.is_quiet() {
            self.una = first.plus(count);
            self.reach(path, self.una);
            return;
        }
        if count == 1 {
            return self.on_one_arrived(path, first);
        }
        let mut done = 0;
        while done < count.min(self.window_pkts()) {
            let step = (count - done).min(u64::BITS);
            self.arrive(path, first.plus(done), u64::MAX >> (u64::BITS - step));
            done += step;
        }
        self.advance();
    }

    #[inline]
    fn on_one_arrived(&mut self, path: Path, psn: Psn) {
        if self.tracked(psn).is_none() {
            return;
        }
        if !self.lost.is_empty() {
            self.lost.remove(psn);
        }
        if self.arrived.insert(psn) {
            self.resent_in_flight.remove(psn);
            self.reach(path, psn.plus(1));
        }
        self.advance();
    }

    /// The READ response `psn`, which is awaited, follows the last one that came, and all requests before `executed`
    /// were executed. Where all that this tells is that it has arrived, that is taken in and returned: whether it is
    /// what all wait for, or something before it is missing. `None`, and nothing done, where it may tell more.
    #[inline]
    pub fn on_following(&mut self, psn: Psn, executed: Psn) -> Option<Following> {
        let (path, next) = (Path::Response as usize, psn.plus(1));
        let follows = psn == self.reached[path] && psn == self.looked[path] && self.reorder_pkts == 0;
        if !follows
            || self.executed.offset_from(executed).is_none_or(|offset| offset < 0)
            || self.resent_in_flight.is_overtaken(next)
            || self.lost.contains(psn)
            || self.resent.contains(psn)
        {
            return None;
        }
        let following = if psn != self.una {
            self.arrived.insert(psn);
            Following::Ahead
        } else if self.arrived.is_empty() {
            self.una = next;
            Following::Next
        } else {
            return None;
        };
        (self.reached[path], self.looked[path]) = (next, next);
        Some(following)
    }

    /// Those of the 32 packets from `first` on whose bit is set have arrived.
    pub fn on_told(&mut self, path: Path, first: Psn, bits: u32) {
        self.arrive(path, first, u64::from(bits));
        self.advance();
    }

    /// Those of the 64 packets from `first` on whose bit is set have arrived, where they are tracked.
    #[inline]
    fn arrive(&mut self, path: Path, first: Psn, bits: u64) {
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
        let told = bits & !self.arrived.bits(first);
        let mut resent = told & self.resent.bits(first);
        while resent != 0 {
            self.resent_in_flight.remove(first.plus(resent.trailing_zeros()));
            resent &= resent - 1;
        }
        self.arrived.insert_bits(first, bits);
        if told != 0 {
            self.reach(path, first.plus(u64::BITS - told.leading_zeros()));
        }
    }

    /// Which of the 32 packets from `first` on are known to have arrived: bit `i` for `first + i`.
    #[inline]
    pub fn arrived_bits(&self, first: Psn) -> u32 {
        self.arrived.bits(first) as u32 // of 64 the first 32
    }

    /// Moves on over what has arrived and was executed: what waits at the peer may still be refused.
    fn advance(&mut self) {
        if self.tracked(self.una).is_none() || !self.arrived.contains(self.una) {
            return;
        }
        let executed = self.executed.index_in(self.una, self.sent() + 1).unwrap_or(0);
        let span = executed.min(self.window_pkts());
        let end = self.arrived.first_missing(self.una, span).unwrap_or(self.una.plus(span));
        let gone = end.distance_from(self.una);
        for set in [&mut self.arrived, &mut self.lost, &mut self.resent] {
            set.remove_range(self.una, gone);
        }
        self.una = end;
    }

    /// How far arrivals on this path have come that overtake what lies before.
    #[inline]
    fn overtaking(&self, path: Path) -> Psn {
        self.reached[path as usize].minus(self.reorder_pkts)
    }

    /// Where to look for what was overtaken on this path since [`SelectiveRepeat::on_looked`]; `None` where nothing
    /// may have been: the next one in order overtakes nothing.
    #[inline]
    pub fn look_from(&mut self, path: Path) -> Option<Psn> {
        let (looked, overtaking) = (self.looked[path as usize], self.overtaking(path));
        let ahead = overtaking.offset_from(looked);
        if !self.resent_in_flight.is_overtaken(overtaking) {
            match ahead {
                Some(..=0) => return None,
                Some(1) if self.tracked(looked).is_none() || self.arrived.contains(looked) => {
                    self.looked[path as usize] = looked.plus(1);
                    return None;
                }
                _ => {}
            }
        }
        let is_behind = looked.offset_from(self.una).is_none_or(|offset| offset < 0);
        Some(if is_behind { self.una } else { looked })
    }

    /// Asks `judge` about what later arrivals on this path have overtaken, of what was sent once from `from` on and of
    /// what was sent again: whether it is lost, and of how many from there on that is true. Returns how many are newly
    /// lost. What `judge` cannot tell ends it.
    pub fn look(&mut self, path: Path, from: Psn, mut judge: impl FnMut(Psn) -> Option<(bool, u32)>) -> u32 {
        let (overtaking, mut newly) = (self.overtaking(path), 0);
        let mut settle = |scheme: &mut Self, psn: Psn| {
            let (is_lost, count) = judge(psn)?;
            newly += if is_lost { scheme.on_lost(psn, count) } else { 0 };
            Some((is_lost, count))
        };
        let mut at = from;
        while let Some(psn) = self.next_overtaken(overtaking, at)
            && let Some((_, count)) = settle(self, psn)
        {
            at = psn.plus(count);
        }
        let mut before = None;
        while let Some(psn) = self.resent_in_flight.overtaken_after(before, overtaking, self.una)
            && let Some((is_lost, _)) = settle(self, psn)
        {
            // The one before it may be among those lost with it.
            before =
                if is_lost { before.filter(|psn| self.resent_in_flight.contains(*psn)) } else { Some(psn) };
        }
        newly
    }

    /// All that was overtaken on this path is known to be lost.
    #[inline]
    pub fn on_looked(&mut self, path: Path) {
        let tracked_end = self.una.plus(self.sent().min(self.window_pkts()));
        let overtaking = self.overtaking(path);
        let is_tracked = overtaking.offset_from(tracked_end).is_some_and(|offset| offset < 0);
        self.looked[path as usize] = if is_tracked { overtaking } else { tracked_end };
    }

    /// The first packet from `from` to before `overtaking` that was sent once, has not arrived and is not known to be lost.
    fn next_overtaken(&self, overtaking: Psn, from: Psn) -> Option<Psn> {
        let tracked_pkts = self.sent().min(self.window_pkts()) - self.tracked(from)?;
        let mut left = u32::try_from(overtaking.offset_from(from)?).ok()?.min(tracked_pkts);
        let mut at = from;
        while left > 0 {
            let step = left.min(u64::BITS);
            let known = self.arrived.bits(at) | self.lost.bits(at) | self.resent.bits(at);
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
            if self.is_awaited(psn) {
                newly += u32::from(self.lost.insert(psn));
                self.resent_in_flight.remove(psn);
            }
        }
        newly
    }

    /// Marks the packets `first` to `first + count` for retransmission, although the peer may have acknowledged them.
    pub fn send_again(&mut self, first: Psn, count: u32) {
        for psn in (0..count.min(self.window_pkts())).map(|i| first.plus(i)) {
            if self.tracked(psn).is_some() {
                self.arrived.remove(psn);
                self.lost.insert(psn);
                self.resent_in_flight.remove(psn);
            }
        }
    }

    /// A packet sent again had arrived the first time: the network reorders.
    pub fn on_spurious(&mut self) {
        if self.raised_at.offset_from(self.una).is_none_or(|offset| offset <= 0) {
            self.reorder_pkts = (self.reorder_pkts * 2).clamp(REORDER_PKTS_FIRST, self.window_pkts() / 2);
            self.raised_at = self.high;
        }
    }

    /// How many packets may overtake one before it is taken for lost.
    #[inline]
    pub fn reorder_pkts(&self) -> u32 {
        self.reorder_pkts
    }

    /// The network lets so many packets overtake one, as others have seen.
    #[inline]
    pub fn expect_reordering(&mut self, reorder_pkts: u32) {
        self.reorder_pkts = reorder_pkts.min(self.window_pkts() / 2);
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
        let is_silent = |psn: Psn| self.is_awaited(psn) && !self.lost.contains(psn);
        let is_repeated = |i: &u32| is_silent(una.plus(*i)) && self.resent.contains(una.plus(*i));
        let repeated = (0..span).take_while(is_repeated).count() as u32;
        if repeated > 0 {
            return (una, repeated);
        }
        if is_first && is_silent(last) {
            return (last, 1);
        }
        if is_silent(una) && !self.arrived.is_empty() {
            // Overtaken, and not taken for lost: less tolerance is needed.
            self.reorder_pkts /= 2;
        }
        (una, 1)
    }
}

/// The responder side's memory of packets received ahead of the one expected.
#[derive(Clone, Debug)]
pub struct Ahead {
    kept: PsnSet,
}

impl Ahead {
    /// Keeps at most `window_pkts`, a power of two.
    pub fn new(window_pkts: u32) -> Self {
        Ahead { kept: PsnSet::new(window_pkts) }
    }

    /// Whether `psn` may be kept while `expected` is expected: it is ahead, in the window, and new.
    pub fn is_new(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.kept.capacity()).is_some_and(|i| i > 0) && !self.kept.contains(psn)
    }

    /// Whether `psn` is in the window ahead and kept.
    pub fn was_kept(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.kept.capacity()).is_some_and(|i| i > 0) && self.kept.contains(psn)
    }

    /// Whether `psn`, which is expected or in the window behind it, is kept.
    pub fn contains(&self, psn: Psn) -> bool {
        self.kept.contains(psn)
    }

    /// `psn` is kept.
    pub fn keep(&mut self, psn: Psn) {
        self.kept.insert(psn);
    }

    /// `psn` was thrown away, if it was in the window ahead and kept.
    pub fn forget(&mut self, expected: Psn, psn: Psn) {
        if self.was_kept(expected, psn) {
            self.kept.remove(psn);
        }
    }

    /// Everything was thrown away.
    pub fn clear(&mut self) {
        self.kept.remove_range(Psn::new(0), self.kept.capacity());
    }

    /// Whether anything is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// `expected` and the `span - 1` PSNs after it are behind, or were thrown away.
    pub fn pass(&mut self, expected: Psn, span: u32) {
        self.kept.remove_range(expected, span);
    }

    /// Words of the bitmap that [`Ahead::words`] yields at most.
    fn words_max(&self) -> usize {
        (self.kept.capacity() / 32) as usize
    }

    /// The bitmap of what lies behind `expected`, without empty words at its end.
    pub fn words(&self, expected: Psn) -> impl ExactSizeIterator<Item = u32> + '_ {
        // The last bit is in the place of `expected` itself, of which the bitmap does not tell.
        let last = self.words_max() - 1;
        let mask = move |w: usize| if w == last { u32::MAX >> 1 } else { u32::MAX };
        let word = move |w: usize| self.kept.bits(expected.plus(1 + 32 * w as u32)) as u32 & mask(w);
        let mut len = 0;
        if !self.kept.is_empty() {
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

    fn arrived(scheme: &mut SelectiveRepeat, indices: impl IntoIterator<Item = u32>) {
        indices.into_iter().for_each(|i| scheme.on_arrived(Path::Request, FIRST.plus(i), 1));
    }

    fn overtaken(scheme: &mut SelectiveRepeat) -> Vec<u32> {
        let mut found = Vec::new();
        let newly = scheme.look(Path::Request, scheme.una(), |psn| {
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
        arrived(&mut scheme, [0, 1, 4, 6]);
        assert_eq!(scheme.una(), FIRST.plus(2));
        assert_eq!(overtaken(&mut scheme), [2, 3, 5]);
        assert_eq!(
            (scheme.unacked(), scheme.next_psn(), scheme.lost_run(FIRST.plus(2))),
            (3, FIRST.plus(2), 2)
        );
        (0..3).for_each(|_| scheme.on_sent(1));
        assert_eq!((scheme.next_psn(), scheme.is_resend()), (FIRST.plus(10), false));
        arrived(&mut scheme, [7, 8, 9]);
        assert!(overtaken(&mut scheme).is_empty(), "nothing sent after the repetitions has arrived");
        (0..2).for_each(|_| scheme.on_sent(1));
        arrived(&mut scheme, [10]);
        assert_eq!(overtaken(&mut scheme), [2, 3, 5], "lost again");
    }

    #[test]
    fn what_waits_at_the_peer_is_not_passed_and_may_be_refused() {
        let mut scheme = sent(4);
        arrived(&mut scheme, [1, 2, 3]);
        scheme.on_executed(FIRST.plus(2));
        arrived(&mut scheme, [0, 1]);
        assert_eq!((scheme.una(), scheme.unacked()), (FIRST.plus(2), 0));
        scheme.send_again(FIRST.plus(2), 1);
        assert_eq!((scheme.next_psn(), scheme.is_resend()), (FIRST.plus(2), true));
    }

    #[test]
    fn duplicates_raise_the_tolerance_once_a_window_and_silences_lower_it() {
        let mut scheme = sent(40);
        scheme.on_spurious();
        scheme.on_spurious();
        assert_eq!(scheme.reorder_pkts, REORDER_PKTS_FIRST);
        arrived(&mut scheme, [REORDER_PKTS_FIRST]);
        assert_eq!(overtaken(&mut scheme), [0], "by more than the tolerance");
        scheme.on_sent(1);
        arrived(&mut scheme, [0]);
        scheme.on_executed(FIRST.plus(1));
        arrived(&mut scheme, [0]);
        assert_eq!(scheme.probe(true), (FIRST.plus(39), 1));
        assert_eq!(
            (scheme.probe(false), scheme.reorder_pkts()),
            ((FIRST.plus(1), 1), REORDER_PKTS_FIRST / 2)
        );
        assert_eq!(overtaken(&mut scheme), Vec::from_iter(1..=REORDER_PKTS_FIRST / 2));
        scheme.expect_reordering(31);
        assert_eq!(scheme.reorder_pkts(), 31);
        scheme.expect_reordering(33);
        assert_eq!(scheme.reorder_pkts(), 32, "half a window");
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
        assert_eq!(scheme.reorder_pkts(), REORDER_PKTS_FIRST, "nothing has overtaken it");
    }

    #[test]
    fn a_read_that_waits_at_the_peer_has_overtaken_what_is_missing_before_it() {
        let mut scheme = sent(3);
        scheme.on_asked(FIRST.plus(3));
        assert!(overtaken(&mut scheme).is_empty(), "it was never sent");
        scheme.on_asked(FIRST.plus(2));
        assert_eq!(overtaken(&mut scheme), [0, 1, 2], "whether 2 is lost others can tell");
        assert!(scheme.is_awaited(FIRST.plus(2)), "it was asked, not answered");
    }

    #[test]
    fn a_response_that_all_wait_for_is_plain_while_nothing_is_missing() {
        let mut scheme = sent(10);
        let all = FIRST.plus(10);
        let on_following = |scheme: &mut SelectiveRepeat, i| scheme.on_following(FIRST.plus(i), all);
        assert_eq!(on_following(&mut scheme, 0), None, "requests were executed");
        scheme.on_executed(all);
        assert!((0..3).all(|i| on_following(&mut scheme, i) == Some(Following::Next)));
        assert_eq!((scheme.una(), scheme.look_from(Path::Response)), (FIRST.plus(3), None));
        assert_eq!(on_following(&mut scheme, 4), None, "3 is overtaken");
        scheme.on_arrived(Path::Response, FIRST.plus(4), 1);
        look_on(&mut scheme);
        assert_eq!(on_following(&mut scheme, 3), None, "it does not follow");
        scheme.on_sent(1);
        scheme.on_arrived(Path::Response, FIRST.plus(3), 1);
        look_on(&mut scheme);
        assert_eq!(scheme.on_following(FIRST.plus(5), FIRST.plus(6)), Some(Following::Next), "an older end");
        arrived(&mut scheme, [8]);
        assert_eq!(on_following(&mut scheme, 6), None, "what came behind it may be passed too");
        scheme.on_spurious();
        scheme.on_arrived(Path::Response, FIRST.plus(6), 1);
        assert_eq!(on_following(&mut scheme, 7), None, "what overtakes is to be looked for behind it");
    }

    #[test]
    fn a_response_that_tells_more_than_its_arrival_is_left_to_those_who_ask_more() {
        let mut scheme = sent(10);
        scheme.on_executed(FIRST.plus(6));
        arrived(&mut scheme, [0]);
        scheme.on_arrived(Path::Response, FIRST.plus(3), 1);
        look_on(&mut scheme);
        let (known, more) = (FIRST.plus(6), FIRST.plus(7));
        assert_eq!(scheme.on_following(FIRST.plus(4), more), None, "requests were executed");
        assert_eq!(scheme.on_following(FIRST.plus(5), known), None, "4 is overtaken");
        assert!(scheme.is_awaited(FIRST.plus(4)) && scheme.is_awaited(FIRST.plus(5)));
        assert_eq!(scheme.on_following(FIRST.plus(4), known), Some(Following::Ahead));
        assert_eq!(scheme.on_following(FIRST.plus(5), FIRST.plus(5)), Some(Following::Ahead), "an older end");
        (0..2).for_each(|_| scheme.on_sent(1));
        assert!(!scheme.is_resend(), "1 and 2 again, after 9");
        let ahead = |scheme: &mut SelectiveRepeat, i| scheme.on_following(FIRST.plus(i), known).is_some();
        assert!([6, 7, 8, 9].iter().all(|i| ahead(&mut scheme, *i)));
        scheme.on_sent(1);
        assert!(!ahead(&mut scheme, 10), "1 and 2 are overtaken again");
    }

    #[test]
    fn a_read_beyond_the_window_is_asked_for_to_its_end() {
        let mut scheme = SelectiveRepeat::new(FIRST, 64);
        scheme.on_sent(1000);
        assert_eq!(scheme.probe(true), (FIRST.plus(62), 1), "the last would be all to the end");
        scheme.on_lost(FIRST, 64);
        assert_eq!((scheme.lost_run(FIRST), scheme.unacked()), (u32::MAX, 1000 - 64));
        scheme.on_sent(1000);
        assert_eq!((scheme.is_resend(), scheme.sent()), (false, 1000));
        let mut rest = SelectiveRepeat::new(FIRST, 64);
        rest.on_sent(1000);
        rest.on_lost(FIRST.plus(10), 54);
        rest.on_sent(990);
        assert!(
            rest.is_repeated(FIRST.plus(63)) && !rest.is_repeated(FIRST),
            "the place of one beyond the window"
        );
        let mut unheard = SelectiveRepeat::new(FIRST, 64);
        unheard.on_sent(1000);
        unheard.on_answered(FIRST.plus(1000));
        unheard.on_lost(FIRST.plus(63), 1);
        let mut asked = Vec::new();
        unheard.look(Path::Response, FIRST.plus(10), |psn| {
            asked.push(psn);
            Some((true, 1))
        });
        assert_eq!(asked, (10..63).map(|i| FIRST.plus(i)).collect::<Vec<_>>());
        scheme.on_executed(FIRST.plus(1000));
        scheme.on_arrived(Path::Response, FIRST.plus(64), 1);
        assert!(
            scheme.is_awaited(FIRST.plus(63)) && !scheme.is_awaited(FIRST.plus(64)),
            "no place for it yet"
        );
    }

    #[test]
    fn the_bitmap_tells_of_what_is_kept() {
        let mut ahead = Ahead::new(64);
        let told = |ahead: &Ahead| ahead.words(FIRST).collect::<Vec<_>>();
        assert!(told(&ahead).is_empty());
        for i in [1, 32, 33, 63] {
            assert!(ahead.is_new(FIRST, FIRST.plus(i)));
            ahead.keep(FIRST.plus(i));
            assert!(ahead.was_kept(FIRST, FIRST.plus(i)) && !ahead.is_new(FIRST, FIRST.plus(i)));
        }
        assert!(!ahead.is_new(FIRST, FIRST) && !ahead.is_new(FIRST, FIRST.plus(64)));
        assert_eq!(told(&ahead), [0x8000_0001, 0x4000_0001]);
        ahead.pass(FIRST, 33);
        assert_eq!(ahead.words(FIRST.plus(33)).collect::<Vec<_>>(), [1 << 29], "33 itself is expected now");
    }

    #[test]
    fn of_several_sent_again_the_one_sent_first_is_looked_for_first() {
        let mut scheme = sent(10);
        let arrive = |scheme: &mut SelectiveRepeat, index: u32| {
            scheme.on_arrived(Path::Response, FIRST.plus(index), 1);
            look_on(scheme);
            let lost = scheme.is_resend().then(|| scheme.next_psn().index_in(FIRST, 64).unwrap());
            lost.inspect(|_| scheme.on_sent(1))
        };
        let send = |scheme: &mut SelectiveRepeat, count: u32| (0..count).for_each(|_| scheme.on_sent(1));
        assert_eq!([0, 2].map(|i| arrive(&mut scheme, i)), [None, Some(1)], "again after 9");
        send(&mut scheme, 2);
        assert_eq!([3, 4, 6].map(|i| arrive(&mut scheme, i)), [None, None, Some(5)], "again after 11");
        send(&mut scheme, 1);
        assert_eq!([7, 9].map(|i| arrive(&mut scheme, i)), [None, Some(8)], "again after 12");
        send(&mut scheme, 1);
        assert_eq!(arrive(&mut scheme, 10), Some(1), "again after 13");
        let mut other = scheme.clone();
        assert_eq!([11, 12].map(|i| arrive(&mut other, i)), [None, Some(5)]);
        assert_eq!([5, 11, 12, 13].map(|i| arrive(&mut scheme, i)), [None, None, None, Some(8)]);
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
        Silence(bool),
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
            1 => any::<bool>().prop_map(Step::Silence),
        ];
        prop::collection::vec(step, 1..60)
    }

    /// What was overtaken and is lost, looked for from where the last look ended.
    fn look_on(scheme: &mut SelectiveRepeat) {
        if let Some(from) = scheme.look_from(Path::Response) {
            look(scheme, from);
            scheme.on_looked(Path::Response);
        }
    }

    fn look(scheme: &mut SelectiveRepeat, from: Psn) {
        scheme.look(Path::Response, from, |_| Some((true, 1)));
    }

    /// The steps in which nothing arrives.
    fn send_or_wait(scheme: &mut SelectiveRepeat, step: &Step) {
        match *step {
            Step::Send(count) | Step::Resend(count) => {
                let is_resend = matches!(step, Step::Resend(_));
                for _ in 0..count {
                    if scheme.permit() && scheme.is_resend() == is_resend {
                        scheme.on_sent(1);
                    }
                }
            }
            Step::Spurious => scheme.on_spurious(),
            Step::Silence(is_first) if scheme.sent() > 0 => {
                let (first, count) = scheme.probe(is_first);
                scheme.send_again(first, count);
            }
            Step::Silence(_) | Step::Arrived(..) | Step::OneByOne(..) | Step::Told(..) => {}
        }
    }

    /// Everything that may be told apart.
    fn state(scheme: &SelectiveRepeat) -> impl PartialEq + std::fmt::Debug + use<> {
        let window = scheme.window_pkts();
        let sets = [&scheme.arrived, &scheme.lost, &scheme.resent];
        let sets = sets.map(|set| {
            let within = (0..window).filter(|i| set.contains(scheme.una.plus(*i))).collect::<Vec<_>>();
            (within, set.len())
        });
        (scheme.una, scheme.high, sets, scheme.reached, scheme.reorder_pkts)
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
                let reached = at_once.reached[Path::Response as usize];
                let mut arrives: Vec<Psn> = match step {
                    Step::OneByOne(from, count) => {
                        let from = from.map_or(reached, |from| una.plus(from));
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
                    scheme.executed = scheme.high;
                }
                let sent_pkts = one_by_one.sent();
                let sent = |psn: &Psn| psn.index_in(una, sent_pkts).is_some();
                match step {
                    Step::Arrived(from, _) => {
                        let count = arrives.iter().filter(|psn| sent(psn)).count() as u32;
                        if count > 0 {
                            at_once.on_arrived(Path::Response, una.plus(from), count);
                        }
                    }
                    Step::Told(from, bits) => at_once.on_told(Path::Response, una.plus(from), bits),
                    Step::OneByOne(..) => {
                        for psn in arrives.drain(..) {
                            if !sent(&psn) || !at_once.is_awaited(psn) {
                                continue;
                            }
                            let executed = at_once.executed;
                            if at_once.on_following(psn, executed).is_none() {
                                at_once.on_arrived(Path::Response, psn, 1);
                                look_on(&mut at_once);
                            }
                            one_by_one.on_arrived(Path::Response, psn, 1);
                            let from = one_by_one.una;
                            look(&mut one_by_one, from);
                        }
                    }
                    _ => {}
                }
                for psn in arrives.iter().filter(|psn| sent(psn)).copied().collect::<Vec<_>>() {
                    one_by_one.on_arrived(Path::Response, psn, 1);
                }
                look_on(&mut at_once);
                let from = one_by_one.una;
                look(&mut one_by_one, from);
                prop_assert_eq!(state(&at_once), state(&one_by_one));
                for psn in (0..at_once.window_pkts()).map(|i| at_once.una.plus(i)) {
                    let is_known = at_once.arrived.contains(psn) || at_once.lost.contains(psn);
                    let in_flight = at_once.resent.contains(psn) && !is_known;
                    prop_assert_eq!(at_once.resent_in_flight.contains(psn), in_flight);
                    prop_assert!(!in_flight || at_once.tracked(psn).is_some());
                }
            }
        }
    }
}
