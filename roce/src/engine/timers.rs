//! Deadlines of queue pairs: a heap with at most one entry per queue pair.
//!
//! If the deadline of a queue pair is postponed, its entry does not change. When the entry expires, the requester
//! checks its own deadline, and a new entry is inserted. Therefore an ACK, which rearms the timer of its queue pair,
//! does not change the heap.

use crate::time::Instant;

const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
pub(super) struct Timers {
    /// Binary heap of deadlines and slots of queue pairs: the deadline of entry i is no later than those of entries
    /// 2i+1 and 2i+2.
    heap: Vec<(Instant, u32)>,
    /// Index in `heap` of the entry of each queue pair, by slot; `ABSENT` without an entry.
    places: Vec<u32>,
}

impl Timers {
    pub(super) fn new(slots: usize) -> Self {
        Timers { heap: Vec::with_capacity(slots), places: vec![ABSENT; slots] }
    }

    #[inline]
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.heap.first().map(|(at, _)| *at)
    }

    /// Returns the earliest entry: its deadline, and the slot of its queue pair.
    pub(super) fn first(&self) -> Option<(Instant, usize)> {
        self.heap.first().map(|(at, slot)| (*at, *slot as usize))
    }

    /// Sets the deadline in the entry of the queue pair with index `slot` to `deadline`, unless the entry has an
    /// earlier deadline.
    #[inline]
    pub(super) fn no_later_than(&mut self, slot: usize, deadline: Instant) {
        let Some(&place) = self.places.get(slot) else { return };
        if place == ABSENT {
            self.heap.push((deadline, slot as u32));
            self.rise(self.heap.len() - 1);
        } else if deadline < self.heap[place as usize].0 {
            self.heap[place as usize].0 = deadline;
            self.rise(place as usize);
        }
    }

    pub(super) fn pop_due(&mut self, now: Instant) -> Option<usize> {
        let (at, slot) = *self.heap.first()?;
        if at > now {
            return None;
        }
        self.take(0);
        Some(slot as usize)
    }

    pub(super) fn remove(&mut self, slot: usize) {
        if let Some(&place) = self.places.get(slot)
            && place != ABSENT
        {
            self.take(place as usize);
        }
    }

    fn take(&mut self, place: usize) {
        let (_, slot) = self.heap.swap_remove(place);
        self.places[slot as usize] = ABSENT;
        if place < self.heap.len() {
            self.set_place(place);
            self.rise(place);
            self.sink(place);
        }
    }

    fn set_place(&mut self, place: usize) {
        let slot = self.heap[place].1;
        self.places[slot as usize] = place as u32;
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.set_place(a);
        self.set_place(b);
    }

    fn rise(&mut self, mut place: usize) {
        self.set_place(place);
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / 2].0 {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2];
            let earlier = children
                .into_iter()
                .filter(|child| *child < self.heap.len())
                .min_by_key(|child| self.heap[*child].0)
                .filter(|child| self.heap[*child].0 < self.heap[place].0);
            let Some(child) = earlier else { return };
            self.swap(place, child);
            place = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn behaves_as_a_map_of_earliest_deadlines(
            steps in proptest::collection::vec((0u8..10, 0usize..8, 0u64..40), 0..300)
        ) {
            let mut timers = Timers::new(8);
            let mut model: BTreeMap<usize, u64> = BTreeMap::new();
            for (kind, slot, at) in steps {
                match kind {
                    0..=5 => {
                        timers.no_later_than(slot, Instant::from_nanos(at));
                        let entry = model.entry(slot).or_insert(at);
                        *entry = at.min(*entry);
                    }
                    6 => {
                        timers.remove(slot);
                        model.remove(&slot);
                    }
                    _ => {
                        let due = timers.pop_due(Instant::from_nanos(at));
                        let earliest = model.values().min().copied();
                        prop_assert_eq!(due.is_some(), earliest.is_some_and(|e| e <= at));
                        if let Some(slot) = due {
                            prop_assert_eq!(model.remove(&slot), earliest);
                        }
                    }
                }
                prop_assert_eq!(timers.earliest().map(Instant::as_nanos), model.values().min().copied());
            }
        }
    }
}
