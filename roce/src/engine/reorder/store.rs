//! Entries of the reorder buffer for one kind of packet (frames or copies), and the share of each queue pair.
//!
//! ```text
//!   entries:  | for each queue pair: reserved | reserved | .. |      for any: unreserved            |
//!   by age:   oldest <-> .. <-> newest, over all queue pairs
//! ```
//! A queue pair may take an unreserved entry only while it has fewer unreserved entries than a multiple of the free
//! ones, so that no queue pair takes all of them (dynamic thresholds, Choudhury and Hahne 1998).

use crate::engine::limits::{REORDER_RESERVED, REORDER_SHARE_OF_FREE};
use crate::psn::Psn;
use crate::time::Instant;

const NONE: u32 = u32::MAX;

/// Queue pair (as index in the table of the device) and PSN of a buffered packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub slot: u32,
    pub psn: Psn,
}

impl Owner {
    #[expect(clippy::cast_possible_truncation, reason = "a slot of a table is below 2^32")]
    pub(super) fn new(slot: usize, psn: Psn) -> Self {
        Owner { slot: slot as u32, psn }
    }
}

/// An entry of the reorder buffer: either taken, and linked by age, or free, and linked by `newer` to the next free
/// entry.
struct Place<T> {
    taken: Option<(Owner, T)>,
    buffered_at: Instant,
    older: u32,
    newer: u32,
}

pub(super) struct Store<T> {
    places: Vec<Place<T>>,
    places_max: usize,
    free: u32,
    oldest: u32,
    newest: u32,
    len: usize,
    /// Number of queue pairs that may buffer packets, each with a reservation of `reserved` entries.
    owners: usize,
    reserved: usize,
    /// Number of entries taken beyond reservations, over all queue pairs.
    shared: usize,
}

impl<T> Store<T> {
    pub(super) fn new(places_max: usize) -> Self {
        Store {
            places: Vec::new(),
            places_max,
            free: NONE,
            oldest: NONE,
            newest: NONE,
            len: 0,
            owners: 0,
            reserved: 0,
            shared: 0,
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Divides the entries anew among the queue pairs that may buffer packets; `buffered` has the number of packets
    /// that each of them has buffered.
    pub(super) fn divide(&mut self, buffered: impl Iterator<Item = usize> + Clone) {
        // Allocates all entries at the first call, so that buffering a packet allocates no memory.
        self.places.reserve_exact(self.places_max - self.places.len());
        self.owners = buffered.clone().count();
        self.reserved = REORDER_RESERVED.min(self.places_max / 2 / self.owners.max(1));
        self.shared = buffered.map(|buffered| buffered.saturating_sub(self.reserved)).sum();
    }

    pub(super) fn has_room(&self, buffered: usize) -> bool {
        let left = self.places_max - self.reserved * self.owners;
        let free = left.saturating_sub(self.shared);
        let is_admitted = buffered < self.reserved || buffered - self.reserved < REORDER_SHARE_OF_FREE * free;
        is_admitted && self.len < self.places_max
    }

    /// Buffers `value` for a queue pair that has buffered `buffered` packets before. Returns the index of the entry;
    /// `None` if no entry is free.
    pub(super) fn insert(&mut self, owner: Owner, value: T, buffered: usize, now: Instant) -> Option<u32> {
        let taken = Place { taken: Some((owner, value)), buffered_at: now, older: self.newest, newer: NONE };
        let places = self.places.len();
        let at = match self.places.get_mut(self.free as usize) {
            Some(place) => {
                let next_free = std::mem::replace(place, taken).newer;
                std::mem::replace(&mut self.free, next_free)
            }
            None if places == self.places_max => return None,
            None => {
                let at = u32::try_from(places).ok()?;
                self.places.push(taken);
                at
            }
        };
        match self.places.get_mut(self.newest as usize) {
            Some(newest) => newest.newer = at,
            None => self.oldest = at,
        }
        self.newest = at;
        self.len += 1;
        self.shared += usize::from(buffered >= self.reserved);
        Some(at)
    }

    pub(super) fn get(&self, at: u32) -> Option<&(Owner, T)> {
        self.places.get(at as usize)?.taken.as_ref()
    }

    /// Frees the entry with index `at` and returns its packet. `buffered` is the number of packets that the packet's
    /// queue pair has buffered, this packet included.
    pub(super) fn remove(&mut self, at: u32, buffered: usize) -> Option<(Owner, T)> {
        let place = self.places.get_mut(at as usize)?;
        let taken = place.taken.take()?;
        let (older, newer) = (place.older, place.newer);
        place.newer = std::mem::replace(&mut self.free, at);
        match self.places.get_mut(older as usize) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.places.get_mut(newer as usize) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        self.len -= 1;
        self.shared -= usize::from(buffered > self.reserved);
        Some(taken)
    }

    #[inline]
    pub(super) fn oldest(&self) -> Option<(Owner, Instant)> {
        let place = self.places.get(self.oldest as usize)?;
        place.taken.as_ref().map(|(owner, _)| (*owner, place.buffered_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PLACES: usize = 256;

    fn owner(slot: usize, psn: u32) -> Owner {
        Owner { slot: slot as u32, psn: Psn::new(psn) }
    }

    #[test]
    fn the_greedy_leave_what_is_reserved_and_some_of_the_rest() {
        let mut store = Store::new(PLACES);
        store.divide([0; 4].into_iter());
        let mut buffered = [0; 4];
        for (greedy, buffered) in buffered.iter_mut().enumerate().take(3) {
            while store.has_room(*buffered) {
                assert!(store.insert(owner(greedy, 0), (), *buffered, Instant::ZERO).is_some());
                *buffered += 1;
            }
        }
        let rest = PLACES - 4 * REORDER_RESERVED;
        assert_eq!(
            buffered[0] - REORDER_RESERVED,
            (REORDER_SHARE_OF_FREE * rest).div_ceil(REORDER_SHARE_OF_FREE + 1)
        );
        assert!(buffered[1] > REORDER_RESERVED, "the second finds some of the rest");
        for n in 0..REORDER_RESERVED {
            assert!(store.has_room(n), "what is reserved");
            assert!(store.insert(owner(3, 0), (), n, Instant::ZERO).is_some());
        }
    }

    #[test]
    fn what_is_reserved_shrinks_where_many_share() {
        let mut store = Store::<()>::new(PLACES);
        store.divide(std::iter::repeat_n(0, PLACES));
        assert_eq!(store.reserved, 0);
        assert!(store.has_room(0), "of the rest");
        store.divide([PLACES].into_iter());
        assert_eq!((store.reserved, store.shared), (REORDER_RESERVED, PLACES - REORDER_RESERVED));
    }

    proptest! {
        #[test]
        fn places_are_taken_once_and_given_back_by_age(
            steps in proptest::collection::vec((0usize..4, 0usize..8, any::<bool>()), 0..1000)
        ) {
            let mut store = Store::new(PLACES);
            store.divide([0; 4].into_iter());
            // Taken entries by age, oldest first: index, owner, and time in nanoseconds.
            let mut model: Vec<(u32, Owner, u64)> = Vec::new();
            for (time, (slot, pick, keep)) in steps.into_iter().enumerate() {
                let time = time as u64;
                let buffered = |model: &[(u32, Owner, u64)], slot: u32| {
                    model.iter().filter(|(_, owner, _)| owner.slot == slot).count()
                };
                let has = buffered(&model, slot as u32);
                if keep && store.has_room(has) {
                    let owner = owner(slot, time as u32);
                    let at = store.insert(owner, time, has, Instant::from_nanos(time)).unwrap();
                    prop_assert!(model.iter().all(|(other, ..)| *other != at), "taken twice");
                    model.push((at, owner, time));
                } else if !model.is_empty() {
                    let (at, owner, time) = model.remove(pick % model.len());
                    let has = buffered(&model, owner.slot) + 1;
                    prop_assert_eq!(store.get(at), Some(&(owner, time)));
                    prop_assert_eq!(store.remove(at, has), Some((owner, time)));
                    prop_assert_eq!(store.get(at), None);
                }
                let oldest = model.first().map(|(_, owner, time)| (*owner, Instant::from_nanos(*time)));
                prop_assert_eq!((store.len(), store.oldest()), (model.len(), oldest));
                let shared = (0..4).map(|slot| buffered(&model, slot).saturating_sub(store.reserved)).sum::<usize>();
                prop_assert_eq!(store.shared, shared);
            }
        }
    }
}
