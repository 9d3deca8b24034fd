//! Deadlines of queue pairs.
//!
//! ```text
//!   packet sent, ACK -> `due` of the queue pair; if the queue pair has no entry at or before `due`:
//!     entry in `ring` -- TIMER_CHECK_NANOS later --> `due` is cancelled:    no entry
//!                                                    `due` has not passed:  entry in `heap`, at `due`
//!                                                    `due` has passed:      `expire` returns the queue pair
//! ```
//!
//! If `due` is less than `TIMER_CHECK_NANOS` away, or `ring` is full, the entry is inserted into `heap` at once, at
//! `due`. If `heap` already has a later entry of the queue pair, this later entry is moved to `due`.
//!
//! If an ACK postpones or cancels a deadline, the entry does not change. When the entry expires, `due` is compared with
//! the clock. The queue pair, whose state is probably in no cache, is accessed only if `due` has passed. Most entries
//! never reach the heap, because most ACKs arrive within `TIMER_CHECK_NANOS`.

use std::collections::VecDeque;

use super::limits::{TIMER_CHECK_NANOS, TIMER_CHECKS_MAX};
use crate::time::{Instant, OptionalInstant};

const ABSENT: u32 = u32::MAX;

/// The timer of a queue pair.
#[derive(Clone, Copy, Debug)]
struct Timer {
    due: OptionalInstant,
    /// Time of an entry of the queue pair in `Timers::ring` (times of deadline checks) or `Timers::heap` (deadlines),
    /// or `NONE`. This field is never later than the deadline `due`, and `NONE` is later than all times. Therefore a
    /// queue pair with a deadline has an entry.
    entry: OptionalInstant,
}

const STOPPED: Timer = Timer { due: OptionalInstant::NONE, entry: OptionalInstant::NONE };

#[derive(Debug)]
pub(super) struct Timers {
    /// By slot of the queue pair.
    timers: Vec<Timer>,
    /// Times of deadline checks, and slots of queue pairs. A deadline check compares the deadline of the queue pair
    /// (`Timer::due`) with the clock. The times ascend, because the time of each entry is `TIMER_CHECK_NANOS` after the
    /// insertion of the entry. An entry is invalid while `heap` has an entry of the same queue pair; an invalid entry
    /// is removed without a deadline check.
    ring: VecDeque<(Instant, u32)>,
    /// Binary heap of deadlines and slots of queue pairs: the deadline of entry i is no later than those of entries
    /// 2i+1 and 2i+2.
    heap: Vec<(Instant, u32)>,
    /// Index in `heap` of the entry of each queue pair, by slot; `ABSENT` without an entry.
    places: Vec<u32>,
    /// Earliest time in `ring` and `heap`.
    earliest: OptionalInstant,
}

impl Timers {
    pub(super) fn new(slots: usize) -> Self {
        Timers {
            timers: vec![STOPPED; slots],
            ring: VecDeque::with_capacity(TIMER_CHECKS_MAX.min(slots)),
            heap: Vec::with_capacity(slots),
            places: vec![ABSENT; slots],
            earliest: OptionalInstant::NONE,
        }
    }

    /// Returns the time of the earliest entry of `ring` (times of deadline checks) and `heap` (deadlines). No queue
    /// pair has an earlier deadline, but an entry may be earlier than the deadline of its queue pair.
    #[inline]
    pub(super) fn earliest(&self) -> OptionalInstant {
        self.earliest
    }

    /// Sets the deadline of the queue pair with index `slot`; `None` cancels the deadline.
    #[inline]
    pub(super) fn set(&mut self, slot: usize, deadline: Option<Instant>, now: Instant) {
        let Some(timer) = self.timers.get_mut(slot) else { return };
        timer.due = deadline.map_or(OptionalInstant::NONE, OptionalInstant::some);
        if timer.due < timer.entry {
            self.enter(slot, now);
        }
    }

    /// Sets the deadline of the queue pair with index `slot` to `deadline`, unless the queue pair already has an
    /// earlier deadline.
    #[inline]
    pub(super) fn no_later_than(&mut self, slot: usize, deadline: Instant, now: Instant) {
        let Some(timer) = self.timers.get(slot) else { return };
        if OptionalInstant::some(deadline) < timer.due {
            self.set(slot, Some(deadline), now);
        }
    }

    /// If the time of the earliest entry of `ring` (times of deadline checks) and `heap` (deadlines) has passed,
    /// removes this entry. Returns:
    /// * `None` if no entry was removed;
    /// * `Some(None)` if the queue pair of the removed entry still has an entry in `heap`, or has no deadline at or
    ///   before `now`;
    /// * otherwise `Some(Some(slot))`, with the index of this queue pair; `expire` has then cancelled the deadline of
    ///   this queue pair.
    pub(super) fn expire(&mut self, now: Instant) -> Option<Option<usize>> {
        let now = OptionalInstant::some(now);
        if self.earliest > now {
            return None;
        }
        let is_check = self.first_check() == self.earliest;
        let slot = if is_check { self.take_check() } else { Some(self.take(0)) };
        let expired = slot.filter(|slot| self.timers[*slot].due <= now);
        match expired {
            Some(slot) => self.timers[slot].due = OptionalInstant::NONE,
            None => slot.into_iter().for_each(|slot| self.insert(slot)),
        }
        self.find_earliest();
        Some(expired)
    }

    /// Removes one entry: if `ring` (times of deadline checks) is not empty, the first entry of `ring`; otherwise the
    /// first entry of `heap` (deadlines), unless this entry is at the deadline of its queue pair. If the queue pair of
    /// the removed entry has a deadline, but now no entry in `heap`, inserts the deadline into `heap`. Returns false if
    /// no entry was removed; `earliest` is then the earliest deadline.
    pub(super) fn settle(&mut self) -> bool {
        let slot = match self.heap.first() {
            _ if !self.ring.is_empty() => self.take_check(),
            Some(&(at, slot)) if self.timers[slot as usize].due != OptionalInstant::some(at) => {
                Some(self.take(0))
            }
            _ => return false,
        };
        slot.into_iter().for_each(|slot| self.insert(slot));
        self.find_earliest();
        true
    }

    pub(super) fn remove(&mut self, slot: usize) {
        let Some(&place) = self.places.get(slot) else { return };
        if place != ABSENT {
            self.take(place as usize);
            self.find_earliest();
        }
        // An entry of this slot may remain in `ring`. If a later queue pair gets the slot, the deadline check of this
        // entry compares the deadline of that queue pair with the clock, which does no harm.
        self.timers[slot] = STOPPED;
    }

    fn find_earliest(&mut self) {
        let heap = self.heap.first().map_or(OptionalInstant::NONE, |(at, _)| OptionalInstant::some(*at));
        self.earliest = heap.min(self.first_check());
    }

    fn first_check(&self) -> OptionalInstant {
        self.ring.front().map_or(OptionalInstant::NONE, |(at, _)| OptionalInstant::some(*at))
    }

    /// Adds an entry to `ring` (times of deadline checks) or `heap` (deadlines); the time of the entry is no later
    /// than the deadline of the queue pair.
    fn enter(&mut self, slot: usize, now: Instant) {
        let check = now.plus_nanos(TIMER_CHECK_NANOS);
        let is_near = self.timers[slot].due < OptionalInstant::some(check);
        if is_near || self.places[slot] != ABSENT || self.ring.len() == self.ring.capacity() {
            self.insert(slot);
        } else {
            self.ring.push_back((check, slot as u32));
            self.timers[slot].entry = OptionalInstant::some(check);
        }
        self.earliest = self.earliest.min(self.timers[slot].entry);
    }

    /// Removes the first entry of `ring` (times of deadline checks). Returns the slot of the entry's queue pair; `None`
    /// if `ring` is empty, or if `heap` (deadlines) has an entry of this queue pair.
    fn take_check(&mut self) -> Option<usize> {
        let (_, slot) = self.ring.pop_front()?;
        let slot = Some(slot as usize).filter(|slot| self.places[*slot] == ABSENT)?;
        self.timers[slot].entry = OptionalInstant::NONE;
        Some(slot)
    }

    /// If the queue pair has a deadline, inserts an entry at the deadline into `heap`. If `heap` already has an entry
    /// of the queue pair, this entry must be later than the deadline, and is moved to the deadline.
    fn insert(&mut self, slot: usize) {
        let Some(deadline) = self.timers[slot].due.get() else { return };
        self.timers[slot].entry = self.timers[slot].due;
        if self.places[slot] == ABSENT {
            self.places[slot] = self.heap.len() as u32;
            self.heap.push((deadline, slot as u32));
        }
        let place = self.places[slot] as usize;
        self.heap[place].0 = deadline;
        self.rise(place);
    }

    /// Removes the entry at `place` of `heap`, and returns the slot of its queue pair.
    fn take(&mut self, place: usize) -> usize {
        let (_, slot) = self.heap.swap_remove(place);
        self.places[slot as usize] = ABSENT;
        self.timers[slot as usize].entry = OptionalInstant::NONE;
        if place < self.heap.len() {
            self.set_place(place);
            self.rise(place);
            self.sink(place);
        }
        slot as usize
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

    const SLOTS: usize = 16;

    /// Generates multiples of a quarter of `TIMER_CHECK_NANOS`, and values 1 ns below or above such a multiple. Some
    /// deadlines therefore coincide with checks.
    fn nanos() -> impl Strategy<Value = u64> {
        (0..13u64, 0..3u64)
            .prop_map(|(quarters, beside)| (quarters * TIMER_CHECK_NANOS / 4 + beside).saturating_sub(1))
    }

    proptest! {
        /// `ring` has room for `SLOTS` entries. Because `remove` leaves the entry of a queue pair in `ring`, a queue
        /// pair can have several entries there. Therefore the steps can fill `ring`; further deadlines are inserted
        /// into `heap`.
        #[test]
        fn behaves_as_a_map_of_deadlines(
            steps in proptest::collection::vec((0u8..48, 0usize..SLOTS + 1, nanos(), nanos()), 0..400)
        ) {
            let mut timers = Timers::new(SLOTS);
            let mut model: BTreeMap<usize, Instant> = BTreeMap::new();
            let mut now = Instant::from_nanos(7);
            for (kind, slot, wait_nanos, elapsed_nanos) in steps {
                let deadline = now.plus_nanos(wait_nanos);
                match kind {
                    0 => {
                        while timers.settle() {}
                        prop_assert_eq!(timers.earliest().get(), model.values().min().copied());
                    }
                    1 | 2 => {
                        now = now.plus_nanos(elapsed_nanos);
                        while let Some(expired) = timers.expire(now) {
                            let Some(slot) = expired else { continue };
                            prop_assert!(model.remove(&slot).is_some_and(|due| due <= now));
                        }
                        prop_assert!(model.values().all(|due| *due > now));
                    }
                    3..=9 => {
                        timers.remove(slot);
                        model.remove(&slot);
                    }
                    10..=13 => {
                        timers.set(slot, None, now);
                        model.remove(&slot);
                    }
                    14..=17 => {
                        timers.no_later_than(slot, deadline, now);
                        let entry = model.entry(slot).or_insert(deadline);
                        *entry = deadline.min(*entry);
                    }
                    _ => {
                        timers.set(slot, Some(deadline), now);
                        model.insert(slot, deadline);
                    }
                }
                model.remove(&SLOTS); // no such slot
                let earliest = timers.earliest().get();
                prop_assert!(model.values().all(|due| earliest.is_some_and(|earliest| earliest <= *due)));
                prop_assert!(timers.ring.len() <= SLOTS && timers.heap.len() <= SLOTS);
            }
        }
    }

    #[test]
    fn a_deadline_cancelled_before_the_check_never_reaches_the_heap() {
        let mut timers = Timers::new(SLOTS);
        for round in 0..100 {
            let now = Instant::from_nanos(round * TIMER_CHECK_NANOS);
            for slot in 0..SLOTS {
                timers.set(slot, Some(now.plus_nanos(2 * TIMER_CHECK_NANOS)), now);
                timers.set(slot, None, now);
                assert!(timers.heap.is_empty());
            }
            let next = now.plus_nanos(TIMER_CHECK_NANOS);
            while let Some(expired) = timers.expire(next) {
                assert_eq!(expired, None);
            }
            assert_eq!((timers.ring.len(), timers.earliest().get()), (0, None));
        }
    }
}
