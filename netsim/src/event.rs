//! What is going to happen, by time and then by the order of cause.

/// One bucket for "now" and one for each bit of a time.
const BUCKETS: usize = 65;

/// Entries to come, earliest first; of two at the same time the one added first comes first.
///
/// A radix heap (Ahuja, Mehlhorn, Orlin, Tarjan, "Faster algorithms for the shortest path problem",
/// 1990): time never runs backwards, so an entry waits in the bucket of the highest bit in which its
/// time differs from the last one taken, and moves only to lower buckets as that time comes near.
/// Adding and taking cost a few sequential copies each, where a binary heap would miss the cache.
///
/// ```text
///   bucket 0   due at `last_nanos`, taken from the front
///   bucket b   times that differ from `last_nanos` in bit b-1 and in none above
/// ```
/// Entries of one time are always in one bucket, in the order of their adding: when the lowest bucket
/// is spread over those below it, these are empty.
#[derive(Debug)]
pub struct EventQueue<T> {
    last_nanos: u64,
    buckets: [Vec<(u64, T)>; BUCKETS],
    /// The earliest time in each bucket that has any.
    earliest_nanos: [u64; BUCKETS],
    /// Bit b: bucket b has entries.
    occupied: u128,
    /// How many of bucket 0 are taken.
    taken: usize,
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue {
            last_nanos: 0,
            buckets: std::array::from_fn(|_| Vec::new()),
            earliest_nanos: [u64::MAX; BUCKETS],
            occupied: 0,
            taken: 0,
        }
    }
}

impl<T: Copy> EventQueue<T> {
    /// Adds an entry for `nanos`, which must not be before the last one taken (it is then due at
    /// once).
    #[inline]
    pub fn schedule(&mut self, nanos: u64, entry: T) {
        debug_assert!(nanos >= self.last_nanos, "time runs forwards");
        self.put(nanos.max(self.last_nanos), entry);
    }

    #[inline]
    fn put(&mut self, nanos: u64, entry: T) {
        let bucket = (u64::BITS - (nanos ^ self.last_nanos).leading_zeros()) as usize;
        self.buckets[bucket].push((nanos, entry));
        self.earliest_nanos[bucket] = self.earliest_nanos[bucket].min(nanos);
        self.occupied |= 1 << bucket;
    }

    /// When the next entry is due.
    #[inline]
    pub fn next_nanos(&self) -> Option<u64> {
        let lowest = self.occupied.trailing_zeros() as usize;
        self.earliest_nanos.get(lowest).copied()
    }

    /// Takes the next entry if it is due at `nanos` or before.
    #[inline]
    pub fn pop_until(&mut self, nanos: u64) -> Option<(u64, T)> {
        if self.next_nanos()? > nanos {
            return None;
        }
        if self.occupied & 1 == 0 {
            self.spread();
        }
        let entry = *self.buckets[0].get(self.taken)?;
        self.taken += 1;
        if self.taken == self.buckets[0].len() {
            self.buckets[0].clear();
            self.empty(0);
            self.taken = 0;
        }
        Some(entry)
    }

    fn empty(&mut self, bucket: usize) {
        self.earliest_nanos[bucket] = u64::MAX;
        self.occupied &= !(1 << bucket);
    }

    /// Moves to the next time and spreads the lowest bucket over those below it.
    fn spread(&mut self) {
        let lowest = self.occupied.trailing_zeros() as usize;
        self.last_nanos = self.earliest_nanos[lowest];
        let mut entries = std::mem::take(&mut self.buckets[lowest]);
        self.empty(lowest);
        for (nanos, entry) in entries.drain(..) {
            self.put(nanos, entry);
        }
        // Its room is kept: nothing of it went back into the same bucket.
        self.buckets[lowest] = entries;
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
        for spread_nanos in [1, 3, 100, 5_000, 1 << 40] {
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
