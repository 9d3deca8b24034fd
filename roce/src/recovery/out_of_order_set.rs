//! Set of the out-of-order PSNs that a responder has buffered or placed, and the SACK bitmap of this set.

use super::psn_set::PsnSet;
use crate::psn::Psn;

#[derive(Clone, Debug)]
pub(crate) struct OutOfOrderSet {
    buffered: PsnSet,
}

impl OutOfOrderSet {
    pub(crate) fn new(window_pkts: u32) -> Self {
        OutOfOrderSet { buffered: PsnSet::new(window_pkts) }
    }

    /// Returns whether `psn` may be buffered or placed: above `expected`, in the window from `expected` on, and not in
    /// the set.
    pub(crate) fn is_new(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.buffered.capacity()).is_some_and(|i| i > 0)
            && !self.buffered.contains(psn)
    }

    /// Returns whether `psn` is buffered or placed: above `expected`, in the window from `expected` on, and in the set.
    pub(crate) fn is_buffered(&self, expected: Psn, psn: Psn) -> bool {
        psn.index_in(expected, self.buffered.capacity()).is_some_and(|i| i > 0) && self.buffered.contains(psn)
    }

    /// Returns whether `psn`, which must lie in the window from the expected PSN on, is buffered or placed.
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        self.buffered.contains(psn)
    }

    /// Records that `psn`, which must lie in the window, was buffered or placed.
    pub(crate) fn insert(&mut self, psn: Psn) {
        self.buffered.insert(psn);
    }

    /// Records that the packet of `psn` was dropped from the reorder buffer; no effect if `psn` is not in the set.
    pub(crate) fn remove(&mut self, expected: Psn, psn: Psn) {
        if self.is_buffered(expected, psn) {
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
            assert!(buffered.is_new(FIRST, FIRST.plus(i)));
            buffered.insert(FIRST.plus(i));
            assert!(buffered.is_buffered(FIRST, FIRST.plus(i)) && !buffered.is_new(FIRST, FIRST.plus(i)));
        }
        assert!(!buffered.is_new(FIRST, FIRST) && !buffered.is_new(FIRST, FIRST.plus(64)));
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
