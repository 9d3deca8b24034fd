//! Doorbells: bits by which posting threads notify the engine that a queue pair has new work requests.

use crate::sync::atomic::{AtomicU64, Ordering};

const WORD_BITS: usize = u64::BITS as usize;

/// One doorbell bit per queue pair, indexed by the queue pair's slot, and one summary bit per word of doorbell bits, so
/// that a poll of an idle device reads few words.
#[derive(Debug)]
pub struct Doorbells {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
}

impl Doorbells {
    /// Creates doorbells of `slots` queue pairs, all clear.
    pub fn new(slots: usize) -> Self {
        let zeroed = |bits: usize| (0..bits.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        let words: Box<[AtomicU64]> = zeroed(slots);
        let summary = zeroed(words.len());
        Doorbells { words, summary }
    }

    /// Sets the doorbell of the queue pair in slot `slot`. All earlier writes of the calling thread are visible to the
    /// thread that drains this doorbell.
    #[inline]
    pub fn ring(&self, slot: usize) {
        let (word, bit) = (slot / WORD_BITS, 1 << (slot % WORD_BITS));
        if let Some(bits) = self.words.get(word)
            && bits.fetch_or(bit, Ordering::AcqRel) == 0
            && let Some(bits) = self.summary.get(word / WORD_BITS)
        {
            bits.fetch_or(1 << (word % WORD_BITS), Ordering::Release);
        }
    }

    /// Returns whether any doorbell is set.
    #[inline]
    pub fn any(&self) -> bool {
        self.summary.iter().any(|bits| bits.load(Ordering::Relaxed) != 0)
    }

    /// Clears each doorbell that is set, and calls `rung` with the slot of its queue pair.
    #[inline]
    pub fn drain(&self, mut rung: impl FnMut(usize)) {
        self.drain_words(|slots| slots.for_each(&mut rung));
    }

    /// Clears each doorbell that is set. For each word of doorbell bits, calls `rung` once with the slots of the
    /// doorbells that were set in this word.
    #[inline]
    pub(crate) fn drain_words(&self, mut rung: impl FnMut(Slots)) {
        for (index, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let words = Slots { first: index * WORD_BITS, bits: summary.swap(0, Ordering::Acquire) };
            for word in words {
                let bits = self.words.get(word).map_or(0, |bits| bits.swap(0, Ordering::AcqRel));
                rung(Slots { first: word * WORD_BITS, bits });
            }
        }
    }
}

/// Indices of the bits that are set in one word.
#[derive(Clone, Copy)]
pub(crate) struct Slots {
    /// Index of bit 0 of `bits`: 64 times the index of the word from which `bits` was read.
    first: usize,
    bits: u64,
}

impl Iterator for Slots {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let bit = self.bits.trailing_zeros() as usize;
        (self.bits != 0).then(|| {
            self.bits &= self.bits - 1;
            self.first + bit
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_ring_is_heard_once() {
        let bells = Doorbells::new(5000);
        for slot in [0, 63, 64, 4999, 63] {
            bells.ring(slot);
        }
        let mut on_progress = Vec::new();
        bells.drain(|slot| on_progress.push(slot));
        assert_eq!(on_progress, [0, 63, 64, 4999]);
        assert!(!bells.any());
        bells.ring(64);
        assert!(bells.any());
        on_progress.clear();
        bells.drain(|slot| on_progress.push(slot));
        assert_eq!(on_progress, [64]);
    }

    #[test]
    fn a_slot_out_of_range_rings_nothing() {
        let bells = Doorbells::new(64);
        bells.ring(6400);
        bells.drain(|slot| panic!("{slot} rang"));
    }
}
