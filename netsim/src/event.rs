//! The event queue: entries ordered by time, then by insertion.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Slots of the wheel, one per nanosecond. Most events (ends of frames, arrivals over short cables) fit on the wheel.
const SLOTS: usize = 4096;
const WORD_BITS: usize = 64;
const WORDS: usize = SLOTS / WORD_BITS;

/// No entry.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Slot {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Node<T> {
    entry: T,
    next: u32,
}

/// A priority queue of entries by time, first in first out at the same time.
///
/// A timing wheel (Varghese and Lauck, SOSP 1987), and a heap for entries beyond its range. On the wheel the
/// cost of insertion and removal does not depend on the number of entries.
///
/// ```text
///            at_nanos                at_nanos + SLOTS
///   wheel:   |.|e|.|.|e|.|.|.|.|e|.|.|   each slot a list, in order of insertion
///                                    '-- heap: later entries, moved here as the wheel turns
/// ```
#[derive(Debug)]
pub struct EventQueue<T> {
    /// The time of the last entry removed.
    at_nanos: u64,
    slots: Box<[Slot]>,
    /// Bit n of word w is set if slot 64 w + n has entries.
    occupied: [u64; WORDS],
    /// Bit w is set if word w of `occupied` is not 0.
    summary: u64,
    nodes: Vec<Node<T>>,
    free: u32,
    /// Entries beyond the wheel: time, order of insertion, node.
    later: BinaryHeap<Reverse<(u64, u64, u32)>>,
    /// The earliest time in `later`; `u64::MAX` if `later` is empty.
    later_nanos: u64,
    added_later: u64,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue {
            at_nanos: 0,
            slots: vec![Slot { first: NONE, last: NONE }; SLOTS].into_boxed_slice(),
            occupied: [0; WORDS],
            summary: 0,
            nodes: Vec::new(),
            free: NONE,
            later: BinaryHeap::new(),
            later_nanos: u64::MAX,
            added_later: 0,
        }
    }
}

impl<T: Copy> EventQueue<T> {
    /// Adds an entry due at `nanos`. A time before that of the last entry removed panics in debug builds; in release
    /// builds such an entry is due at once.
    #[inline]
    pub fn schedule(&mut self, nanos: u64, entry: T) {
        debug_assert!(nanos >= self.at_nanos, "time runs forwards");
        let nanos = nanos.max(self.at_nanos);
        let node = self.new_node(entry);
        if nanos - self.at_nanos < SLOTS as u64 {
            self.put(nanos, node);
        } else {
            self.later.push(Reverse((nanos, self.added_later, node)));
            self.later_nanos = self.later_nanos.min(nanos);
            self.added_later += 1;
        }
    }

    #[inline]
    fn new_node(&mut self, entry: T) -> u32 {
        let node = Node { entry, next: NONE };
        let place = self.free;
        if let Some(free) = self.nodes.get_mut(place as usize) {
            self.free = free.next;
            *free = node;
            return place;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Appends a node to the slot of `nanos`, which must be in the wheel's range.
    #[inline]
    fn put(&mut self, nanos: u64, node: u32) {
        let at = nanos as usize % SLOTS;
        let slot = &mut self.slots[at];
        let before = std::mem::replace(&mut slot.last, node);
        if before == NONE {
            slot.first = node;
            self.occupied[at / WORD_BITS] |= 1 << (at % WORD_BITS);
            self.summary |= 1 << (at / WORD_BITS);
        } else {
            self.nodes[before as usize].next = node;
        }
    }

    /// The time of the next entry; `None` if the queue is empty.
    #[inline]
    pub fn next_nanos(&self) -> Option<u64> {
        if self.summary == 0 {
            return self.later.peek().map(|Reverse((nanos, ..))| *nanos);
        }
        let at = self.at_nanos as usize % SLOTS;
        let (word, bit) = (at / WORD_BITS, at % WORD_BITS);
        let ahead = self.occupied[word] >> bit;
        let distance = if ahead != 0 {
            ahead.trailing_zeros() as usize
        } else {
            // Searches the words after `word`, then the words before it, then the bits of `word` below `bit`.
            let words = self.summary.rotate_right(word as u32) & !1;
            let step = if words != 0 { words.trailing_zeros() as usize } else { WORDS };
            let found = (word + step) % WORDS;
            step * WORD_BITS + self.occupied[found].trailing_zeros() as usize - bit
        };
        Some(self.at_nanos + distance as u64)
    }

    /// Removes and returns the next entry and its time, if the entry is due at or before `nanos`.
    #[inline]
    pub fn pop_until(&mut self, nanos: u64) -> Option<(u64, T)> {
        let due_nanos = self.next_nanos()?;
        if due_nanos > nanos {
            return None;
        }
        if due_nanos > self.at_nanos {
            self.at_nanos = due_nanos;
            if self.later_nanos.saturating_sub(due_nanos) < SLOTS as u64 {
                self.turn();
            }
        }
        let at = due_nanos as usize % SLOTS;
        let slot = &mut self.slots[at];
        let place = slot.first;
        let node = &mut self.nodes[place as usize];
        slot.first = std::mem::replace(&mut node.next, self.free);
        self.free = place;
        if slot.first == NONE {
            slot.last = NONE;
            let word = &mut self.occupied[at / WORD_BITS];
            *word &= !(1 << (at % WORD_BITS));
            if *word == 0 {
                self.summary &= !(1 << (at / WORD_BITS));
            }
        }
        Some((due_nanos, node.entry))
    }

    /// Moves the heap's entries that are now in the wheel's range to the wheel, before a later entry of the same time
    /// is inserted there.
    #[cold]
    fn turn(&mut self) {
        while let Some(&Reverse((nanos, _, node))) = self.later.peek()
            && nanos - self.at_nanos < SLOTS as u64
        {
            self.later.pop();
            self.put(nanos, node);
        }
        self.later_nanos = self.later.peek().map_or(u64::MAX, |Reverse((nanos, ..))| *nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix;
    use std::collections::BTreeMap;

    #[test]
    fn entries_come_by_time_and_then_in_the_order_of_their_adding() {
        let mut rng = SplitMix::new(1);
        for spread_nanos in [1, 3, 100, 4_095, 4_096, 4_097, 9_000, 1 << 40] {
            let mut queue = EventQueue::default();
            let mut model: BTreeMap<(u64, u32), ()> = BTreeMap::new();
            let (mut now, mut added) = (0, 0u32);
            for _ in 0..20_000 {
                if rng.up_to(2) > 0 {
                    let nanos = now + rng.bits() % spread_nanos;
                    queue.schedule(nanos, added);
                    model.insert((nanos, added), ());
                    added += 1;
                } else {
                    let until = now + rng.bits() % spread_nanos;
                    let first = model.first_key_value().map(|(key, ())| *key);
                    assert_eq!(queue.next_nanos(), first.map(|(nanos, _)| nanos));
                    let due = first.filter(|(nanos, _)| *nanos <= until);
                    assert_eq!(queue.pop_until(until), due);
                    if let Some(key) = due {
                        model.remove(&key);
                        now = key.0;
                    }
                }
            }
            assert!(added > 10_000 && model.len() < added as usize);
        }
    }

    #[test]
    fn the_end_of_time_is_a_time() {
        let mut queue = EventQueue::default();
        queue.schedule(u64::MAX, 'z');
        queue.schedule(0, 'a');
        assert_eq!(queue.pop_until(u64::MAX), Some((0, 'a')));
        assert_eq!(queue.pop_until(u64::MAX - 1), None);
        assert_eq!(queue.pop_until(u64::MAX), Some((u64::MAX, 'z')));
        assert_eq!(queue.next_nanos(), None);
    }
}
