//! Set of the out-of-order PSNs that a responder has buffered or placed, and the SACK bitmap of this set.

use super::psn_set::PsnSet;
use crate::psn::Psn;

/// State of a PSN that is not the expected PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PsnState {
    /// Below the expected PSN, or above the window.
    OutOfWindow,
    /// Above the expected PSN and in the window, neither buffered nor placed.
    Missing,
    /// Above the expected PSN, buffered or placed.
    Kept,
}

#[derive(Clone, Debug)]
pub(crate) struct OutOfOrderSet {
    buffered: PsnSet,
    /// Upper bound of the set, if not empty: no PSN of the set is at or above `end`. Most packets above a gap are not
    /// below `end`, and need no look-up in the set.
    end: Psn,
}

impl OutOfOrderSet {
    /// Creates an empty set for a window of `window_pkts` PSNs.
    pub(crate) fn new(window_pkts: u32) -> Self {
        OutOfOrderSet { buffered: PsnSet::new(window_pkts), end: Psn::default() }
    }

    /// Returns whether `psn` is at or above `end`, and so not in the set.
    #[inline]
    fn is_at_end(&self, psn: Psn) -> bool {
        psn.offset_from(self.end).is_some_and(|offset| offset >= 0)
    }

    /// Returns the state of `psn`; `OutOfWindow` if `psn` is the expected PSN.
    #[inline]
    pub(crate) fn state(&self, expected: Psn, psn: Psn) -> PsnState {
        match psn.index_in(expected, self.buffered.capacity()) {
            None | Some(0) => PsnState::OutOfWindow,
            Some(_) if self.is_at_end(psn) || !self.buffered.contains(psn) => PsnState::Missing,
            Some(_) => PsnState::Kept,
        }
    }

    /// Returns whether `psn`, which must lie in the window from the expected PSN on, is buffered or placed.
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        self.buffered.contains(psn)
    }

    /// Returns whether PSN `psn - 1` is in the set, and PSN `psn + 1` is not. `psn` must be in the set, and the
    /// expected PSN missing.
    #[inline]
    pub(crate) fn extends_run(&self, psn: Psn) -> bool {
        let next = psn.plus(1);
        self.buffered.contains(psn.minus(1)) && (self.is_at_end(next) || !self.buffered.contains(next))
    }

    /// Records that `psn`, which must lie in the window, was buffered or placed.
    #[inline]
    pub(crate) fn insert(&mut self, psn: Psn) {
        // The `end` of an empty set may be half the PSN circle away.
        if self.buffered.is_empty() || self.is_at_end(psn) {
            self.end = psn.plus(1);
        }
        self.buffered.insert(psn);
    }

    /// Records that the packet of `psn` was dropped from the reorder buffer; no effect if `psn` is not in the set.
    pub(crate) fn remove(&mut self, expected: Psn, psn: Psn) {
        if self.state(expected, psn) == PsnState::Kept {
            self.buffered.remove(psn);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.buffered.remove_range(Psn::new(0), self.buffered.capacity());
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.buffered.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.buffered.is_empty()
    }

    /// Removes the `span` PSNs from `expected` on, whose packets were executed or dropped.
    #[inline]
    pub(crate) fn advance(&mut self, expected: Psn, span: u32) {
        self.buffered.remove_range(expected, span);
    }

    /// Returns the bitmap of a SACK, without the zero words at the end of the bitmap: bit `i` of word `w` is PSN
    /// `expected + 1 + 32 w + i`.
    pub(crate) fn words(&self, expected: Psn) -> impl ExactSizeIterator<Item = u32> + '_ {
        let first = expected.plus(1);
        let last = self.buffered.last_in(first, self.buffered.capacity() - 1);
        let len = last.map_or(0, |last| last.distance_from(first) / 32 + 1);
        // The last bit of a full bitmap is masked, because its PSN has the same bit in the set as `expected`.
        let full = self.buffered.capacity() / 32;
        let mask = move |w| if w + 1 == full { u32::MAX >> 1 } else { u32::MAX };
        let word = move |w: u32| self.buffered.bits32(first.plus(32 * w)) & mask(w);
        (0..len).map(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Psn = Psn::new(0xFF_FFFA);

    #[test]
    fn the_bitmap_tells_of_what_is_kept() {
        let mut buffered = OutOfOrderSet::new(64);
        let words = |buffered: &OutOfOrderSet| buffered.words(FIRST).collect::<Vec<_>>();
        assert!(words(&buffered).is_empty());
        for i in [1, 32, 33, 63] {
            assert_eq!(buffered.state(FIRST, FIRST.plus(i)), PsnState::Missing);
            buffered.insert(FIRST.plus(i));
            assert_eq!(buffered.state(FIRST, FIRST.plus(i)), PsnState::Kept);
        }
        assert_eq!([0, 64].map(|i| buffered.state(FIRST, FIRST.plus(i))), [PsnState::OutOfWindow; 2]);
        assert_eq!(words(&buffered), [0x8000_0001, 0x4000_0001]);
        buffered.insert(FIRST);
        assert_eq!(
            words(&buffered),
            [0x8000_0001, 0x4000_0001],
            "the expected PSN shares the bit above the last"
        );
        buffered.advance(FIRST, 33);
        assert_eq!(
            buffered.words(FIRST.plus(33)).collect::<Vec<_>>(),
            [1 << 29],
            "33 itself is expected now"
        );
    }
}
