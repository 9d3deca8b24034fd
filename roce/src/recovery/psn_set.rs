//! A set of PSNs within a bounded range of the PSN circle: from a base to base + capacity - 1.
//!
//! ```text
//!   PSN      .. | base | base+1 | ...            | base+capacity-1 | ..
//!   bit          psn modulo capacity: each PSN of the range has a bit of its own, also where PSNs wrap,
//!                because every capacity divides 2^24
//! ```
//! When the owner of the set advances the base, the owner must remove the PSNs below the new base, because their bits
//! then represent PSNs of the range.

use super::circular_array::CircularArray;
use crate::psn::Psn;

const WORD_BITS: u32 = 64;

/// A set of PSNs, any two of which are less than `capacity` PSNs apart.
#[derive(Clone, Debug)]
pub(crate) struct PsnSet {
    words: CircularArray<u64>,
    len: u32,
}

impl PsnSet {
    /// Creates an empty set; `capacity` is a power of two from 64 to 2^23 PSNs.
    pub(crate) fn new(capacity: u32) -> Self {
        debug_assert!(capacity.is_power_of_two() && (WORD_BITS..Psn::COUNT).contains(&capacity));
        PsnSet { words: CircularArray::new(capacity / WORD_BITS, 0), len: 0 }
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.words.len() * WORD_BITS
    }

    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the index of the word of `psn` (not reduced modulo the number of words), and the mask of its bit.
    #[inline]
    fn place(psn: Psn) -> (u32, u64) {
        (psn.value() / WORD_BITS, 1 << (psn.value() % WORD_BITS))
    }

    /// Returns whether `psn` is in the set. `psn` must be one of the `capacity` PSNs from the base on, because any
    /// PSN outside this range shares its bit with one of these PSNs.
    #[inline]
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        let (word, bit) = Self::place(psn);
        self.words.at(word) & bit != 0
    }

    /// Inserts `psn`; returns false if `psn` was in the set. Always inlined: called for each packet above a gap.
    #[inline(always)]
    pub(crate) fn insert(&mut self, psn: Psn) -> bool {
        let (word, bit) = Self::place(psn);
        let word = self.words.at_mut(word);
        // A branch, because rustc 1.95 compiles `len += u32::from(is_new)` wrongly in release builds: if the caller
        // branches on the result, `len` is not increased.
        if *word & bit != 0 {
            return false;
        }
        *word |= bit;
        self.len += 1;
        true
    }

    #[inline]
    pub(crate) fn remove(&mut self, psn: Psn) -> bool {
        let (word, bit) = Self::place(psn);
        let word = self.words.at_mut(word);
        if *word & bit == 0 {
            return false;
        }
        *word &= !bit;
        self.len -= 1;
        true
    }

    /// Removes the `count` PSNs from `first` on, in steps of up to 64 PSNs.
    #[inline]
    pub(crate) fn remove_range(&mut self, first: Psn, count: u32) {
        match (self.len, count) {
            (0, _) => {}
            (_, 1) => _ = self.remove(first),
            _ => self.remove_words(first, count),
        }
    }

    // Not inlined, because otherwise the caller `remove_range` would not be inlined.
    #[inline(never)]
    fn remove_words(&mut self, first: Psn, count: u32) {
        let count = count.min(self.capacity());
        let mut done = 0;
        while done < count && self.len > 0 {
            let psn = first.plus(done);
            let at = psn.value() % WORD_BITS;
            let step = (WORD_BITS - at).min(count - done);
            let mask = (u64::MAX >> (WORD_BITS - step)) << at;
            let word = self.words.at_mut(Self::place(psn).0);
            self.len -= (*word & mask).count_ones();
            *word &= !mask;
            done += step;
        }
    }

    /// Returns the first PSN in the set among the `count` PSNs from `first` on.
    pub(crate) fn first_in(&self, first: Psn, count: u32) -> Option<Psn> {
        if self.len == 0 { None } else { self.first_where(first, count, |word| word) }
    }

    /// Returns the last PSN in the set among the `count` PSNs from `first` on.
    pub(crate) fn last_in(&self, first: Psn, count: u32) -> Option<Psn> {
        let mut left = if self.len == 0 { 0 } else { count.min(self.capacity()) };
        while left > 0 {
            let psn = first.plus(left - 1);
            let at = psn.value() % WORD_BITS;
            let (word, _) = Self::place(psn);
            let back = (self.words.at(word) << (WORD_BITS - 1 - at)).leading_zeros();
            if back <= at {
                return (back < left).then(|| psn.minus(back));
            }
            left = left.saturating_sub(at + 1);
        }
        None
    }

    /// Returns the first PSN not in the set among the `count` PSNs from `first` on.
    pub(crate) fn first_missing(&self, first: Psn, count: u32) -> Option<Psn> {
        if self.len == 0 {
            (count > 0).then_some(first)
        } else {
            self.first_where(first, count, |word| !word)
        }
    }

    fn first_where(&self, first: Psn, count: u32, select: impl Fn(u64) -> u64) -> Option<Psn> {
        let count = count.min(self.capacity());
        let mut done = 0;
        while done < count {
            let psn = first.plus(done);
            let at = psn.value() % WORD_BITS;
            let (word, _) = Self::place(psn);
            let found = (select(*self.words.at(word)) >> at).trailing_zeros();
            let step = WORD_BITS - at;
            if found < step {
                return (done + found < count).then(|| psn.plus(found));
            }
            done += step;
        }
        None
    }

    /// Returns a bitmap of the 64 PSNs from `first` on: bit `i` is set if `first + i` is in the set.
    #[inline]
    pub(crate) fn bits(&self, first: Psn) -> u64 {
        let [(word, low), (next, high)] = Self::words_of(first);
        (self.words.at(word) & low).rotate_right(first.value() % WORD_BITS)
            | (self.words.at(next) & high).rotate_right(first.value() % WORD_BITS)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "of 64 PSNs, the low 32")]
    pub(crate) fn bits32(&self, first: Psn) -> u32 {
        self.bits(first) as u32
    }

    /// Inserts `first + i` for each set bit `i` of `bits`.
    #[inline]
    pub(crate) fn insert_bits(&mut self, first: Psn, bits: u64) {
        let bits = bits.rotate_left(first.value() % WORD_BITS);
        for (word, mask) in Self::words_of(first) {
            let word = self.words.at_mut(word);
            let new = bits & mask & !*word;
            *word |= new;
            self.len += new.count_ones();
        }
    }

    /// Removes `first + i` for each set bit `i` of `bits`.
    #[inline]
    pub(crate) fn remove_bits(&mut self, first: Psn, bits: u64) {
        if self.is_empty() {
            return;
        }
        let bits = bits.rotate_left(first.value() % WORD_BITS);
        for (word, mask) in Self::words_of(first) {
            let word = self.words.at_mut(word);
            let old = bits & mask & *word;
            *word &= !old;
            self.len -= old.count_ones();
        }
    }

    /// The bits of the 64 PSNs from `first` on are in two words. Returns the index of each word, which is not reduced
    /// modulo the number of words, and the mask of the bits in this word.
    #[inline]
    fn words_of(first: Psn) -> [(u32, u64); 2] {
        let ((word, _), low) = (Self::place(first), u64::MAX << (first.value() % WORD_BITS));
        [(word, low), (word + 1, !low)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u32),
        Remove(u32),
        RemoveRange(u32, u32),
        InsertBits(u32, u64),
        RemoveBits(u32, u64),
    }

    fn numbers(first: u32, bits: u64, capacity: u32) -> impl Iterator<Item = u32> {
        (0..64).filter(move |i| bits >> i & 1 == 1).map(move |i| first + i).filter(move |n| *n < capacity)
    }

    fn step(capacity: u32) -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..capacity).prop_map(Step::Insert),
            (0..capacity).prop_map(Step::Remove),
            (0..capacity, 0..capacity)
                .prop_map(move |(from, n)| Step::RemoveRange(from, n.min(capacity - from))),
            (0..capacity, any::<u64>()).prop_map(|(from, bits)| Step::InsertBits(from, bits)),
            (0..capacity, any::<u64>()).prop_map(|(from, bits)| Step::RemoveBits(from, bits)),
        ]
    }

    proptest! {
        #[test]
        fn it_is_a_set(
            base in prop_oneof![Just(0u32), Just(Psn::COUNT - 1), Just(Psn::COUNT - 65), 0..Psn::COUNT],
            steps in prop::collection::vec(step(128), 0..200),
            from in 0u32..128,
        ) {
            let (base, mut set, mut model) = (Psn::new(base), PsnSet::new(128), BTreeSet::new());
            for step in steps {
                match step {
                    Step::Insert(i) => prop_assert_eq!(set.insert(base.plus(i)), model.insert(i)),
                    Step::Remove(i) => prop_assert_eq!(set.remove(base.plus(i)), model.remove(&i)),
                    Step::RemoveRange(first, n) => {
                        set.remove_range(base.plus(first), n);
                        model.retain(|i| !(first..first + n).contains(i));
                    }
                    Step::InsertBits(first, bits) => {
                        let known = bits & u64::MAX >> 64u32.saturating_sub(128 - first).min(63);
                        set.insert_bits(base.plus(first), known);
                        model.extend(numbers(first, bits, 128));
                    }
                    Step::RemoveBits(first, bits) => {
                        let known = bits & u64::MAX >> 64u32.saturating_sub(128 - first).min(63);
                        set.remove_bits(base.plus(first), known);
                        numbers(first, bits, 128).for_each(|i| _ = model.remove(&i));
                    }
                }
            }
            prop_assert_eq!(set.len(), model.len() as u32);
            let index = |psn: Option<Psn>| psn.map(|psn| psn.index_in(base, 128).unwrap());
            let count = 128 - from;
            prop_assert_eq!(index(set.first_in(base.plus(from), count)), model.range(from..).next().copied());
            prop_assert_eq!(index(set.last_in(base, from)), model.range(..from).next_back().copied());
            let missing = (from..128).find(|i| !model.contains(i));
            prop_assert_eq!(index(set.first_missing(base.plus(from), count)), missing);
            let bits = (0..64).filter(|i| from + i < 128 && model.contains(&(from + i)));
            let wanted = bits.fold(0u64, |bits, i| bits | 1 << i);
            // Of the bitmap returned, bits for PSNs from `base + 128` on are ignored: each such PSN shares its bit of
            // the set with a PSN from `base` on.
            let known = u64::MAX >> 64u32.saturating_sub(128 - from).min(63);
            prop_assert_eq!(set.bits(base.plus(from)) & known, wanted);
        }
    }
}
