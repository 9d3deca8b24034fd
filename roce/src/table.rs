//! Tables of objects with unpredictable numbers: queue pairs, protection domains, completion queues, shared receive
//! queues. Memory regions have a table of their own (`mem/table`).
//!
//! ```text
//!   number, all bits random --its low bits--> index: | number, slot | .. | number, GONE | ..
//!                                                           |
//!   slots, dense:  | object | free | object | ..
//! ```
//!
//! All bits of a number are random, except the prefix of QPNs. Therefore, in a table of n objects, a guessed number is
//! that of an object with probability n / 2^(random bits), and a number does not reveal its slot. The index is an
//! open-addressing hash table; the hash is the low bits of the number. At most a quarter of the index entries is used,
//! so most lookups end at the first entry.
//!
//! A freed number is in quarantine until [`QUARANTINE_NUMBERS`] further numbers were freed: its index entry has `GONE`
//! instead of a slot. Otherwise a delayed packet could access a later object of the same number.

use std::collections::VecDeque;
use std::ops::Range;

use crate::prefetch::prefetch;
use crate::random::Random;

/// After this number of further frees in the same table, a freed QPN or key may be allocated a second time.
pub const QUARANTINE_NUMBERS: usize = 1 << 14;

/// Least ratio of index entries to numbers (of objects, or in quarantine) in the index, so that a search soon reaches
/// an empty entry.
const PLACES_PER_NUMBER: usize = 4;

const PLACES_MIN: usize = 64;

/// Value of `Entry::slot` for a number in quarantine. No object has this slot.
const GONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Number of an object, or number in quarantine. In an empty entry the number is 0, which no object has.
    number: u32,
    slot: u32,
}

const EMPTY: Entry = Entry { number: 0, slot: GONE };

/// Table of objects. Each object is looked up by a random number that the table allocates.
#[derive(Debug)]
pub(crate) struct Table<T> {
    /// Mask of the random bits of a number.
    random_mask: u32,
    /// Prefix: the bits that are not random (not in `random_mask`), equal in the numbers of all objects of this table.
    prefix: u32,
    max_len: usize,
    len: usize,
    slots: Vec<Option<T>>,
    /// Number of the object in each slot; the number of a free slot has no meaning.
    numbers: Vec<u32>,
    free: Vec<u32>,
    /// Hash table; its length is a power of two. A number is inserted into the entry that its low bits select or, if
    /// this entry is occupied, into the next empty entry.
    index: Box<[Entry]>,
    /// Numbers in quarantine, in the order in which they were freed.
    quarantine: VecDeque<u32>,
}

impl<T> Table<T> {
    /// Creates an empty table of at most `max_len` objects with numbers of `number_bits` bits, 1 to 32. A `max_len`
    /// above a quarter of all numbers is reduced to that quarter, so that numbers stay hard to guess.
    pub(crate) fn new(number_bits: u32, max_len: usize) -> Self {
        Table::with_prefix(0, number_bits, max_len)
    }

    /// Creates an empty table of at most `max_len` objects. The low `random_bits` bits of an object's number are
    /// random, and the bits above are those of `prefix`. `max_len` is reduced as by [`Table::new`].
    pub(crate) fn with_prefix(prefix: u32, random_bits: u32, max_len: usize) -> Self {
        let random_mask = u32::MAX >> (u32::BITS - random_bits);
        let max_len = max_len.min(random_mask as usize / PLACES_PER_NUMBER);
        Table {
            random_mask,
            prefix,
            max_len,
            len: 0,
            slots: Vec::new(),
            numbers: Vec::new(),
            free: Vec::new(),
            index: vec![EMPTY; PLACES_MIN].into_boxed_slice(),
            quarantine: VecDeque::new(),
        }
    }

    /// Reserves address space for `max_len` objects, so that no object moves when the table grows. The operating system
    /// provides memory only as objects are inserted. If the address space cannot be reserved, the table allocates
    /// memory as objects are inserted.
    pub(crate) fn with_reserved_slots(mut self) -> Self {
        let _ = self.slots.try_reserve_exact(self.max_len);
        self
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the largest number of objects of the table. The slot of each object is below this number.
    pub(crate) fn max_len(&self) -> usize {
        self.max_len
    }

    /// Inserts the object that `make` builds from its new number and slot. Returns the number; `None` if the table is
    /// full. Number 0, and numbers for which `refuse` returns true, are not allocated.
    pub(crate) fn insert_with(
        &mut self,
        random: &mut Random,
        refuse: impl Fn(u32) -> bool,
        make: impl FnOnce(u32, usize) -> T,
    ) -> Option<u32> {
        if self.len == self.max_len {
            return None;
        }
        // A new slot is below `max_len`, which is below 2^32, so the cast loses no bit.
        let slot = self.free.pop().unwrap_or(self.slots.len() as u32);
        // Most numbers are free, so the loop ends after a few draws.
        let number = loop {
            let drawn = random.bits() & self.random_mask | self.prefix;
            if drawn != 0 && !refuse(drawn) && self.place_of(drawn).is_none() {
                break drawn;
            }
        };
        let object = Some(make(number, slot as usize));
        match self.slots.get_mut(slot as usize) {
            Some(free) => {
                *free = object;
                self.numbers[slot as usize] = number;
            }
            None => {
                self.slots.push(object);
                self.numbers.push(number);
            }
        }
        self.len += 1;
        self.reserve_place();
        self.enter(Entry { number, slot });
        Some(number)
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(self.find(number))?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let slot = self.find(number);
        self.at_mut(slot)
    }

    /// Removes and returns the object with this number, and puts the number in quarantine.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let place = self.place_of(number)?;
        let slot = std::mem::replace(&mut self.index[place].slot, GONE);
        let value = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        self.len -= 1;
        if self.quarantine.len() == QUARANTINE_NUMBERS
            && let Some(oldest) = self.quarantine.pop_front()
        {
            self.forget(oldest);
        }
        self.quarantine.push_back(number);
        Some(value)
    }

    /// Returns the slot of the object with this number: an index below [`Table::max_len`] that no other object has.
    #[inline]
    pub(crate) fn slot_of(&self, number: u32) -> Option<usize> {
        let slot = self.find(number);
        (slot < self.slots.len()).then_some(slot)
    }

    /// Prefetches the entry that [`Table::slot_of`] reads first.
    #[inline]
    pub(crate) fn prefetch_number(&self, number: u32) {
        prefetch(&self.index[self.home(number)], 0..size_of::<Entry>());
    }

    /// Prefetches the bytes `range` of the object in `slot`.
    #[inline]
    pub(crate) fn prefetch(&self, slot: usize, range: Range<usize>) {
        self.slots.get(slot).into_iter().for_each(|object| prefetch(object, range.clone()));
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let objects = self.numbers.iter().zip(&self.slots);
        objects.filter_map(|(number, object)| Some((*number, object.as_ref()?)))
    }

    /// Returns the slot of the object with this number; for an unknown number, an index out of the range of slots.
    #[inline]
    fn find(&self, number: u32) -> usize {
        let home = self.index[self.home(number)];
        if home.number == number { home.slot as usize } else { self.find_behind(number) }
    }

    #[cold]
    fn find_behind(&self, number: u32) -> usize {
        self.place_of(number).map_or(GONE, |place| self.index[place].slot) as usize
    }

    #[inline]
    fn home(&self, number: u32) -> usize {
        number as usize & (self.index.len() - 1)
    }

    fn next(&self, place: usize) -> usize {
        (place + 1) & (self.index.len() - 1)
    }

    /// Returns the position, in the hash table `index`, of a number that has an object or is in quarantine; `None` for
    /// other numbers.
    fn place_of(&self, number: u32) -> Option<usize> {
        let mut place = self.home(number);
        loop {
            match self.index[place].number {
                0 => return None,
                found if found == number => return Some(place),
                _ => place = self.next(place),
            }
        }
    }

    fn reserve_place(&mut self) {
        let places = PLACES_PER_NUMBER * (self.len + self.quarantine.len());
        if places <= self.index.len() {
            return;
        }
        let doubled = vec![EMPTY; 2 * self.index.len()].into_boxed_slice();
        let before = std::mem::replace(&mut self.index, doubled);
        before.iter().filter(|entry| entry.number != 0).for_each(|entry| self.enter(*entry));
    }

    fn enter(&mut self, entry: Entry) {
        let mut place = self.home(entry.number);
        while self.index[place].number != 0 {
            place = self.next(place);
        }
        self.index[place] = entry;
    }

    /// Removes `number` from the index, and moves following entries back towards the position that the low bits of
    /// their number select. Otherwise a search for the number of such an entry would end at the emptied position.
    fn forget(&mut self, number: u32) {
        let Some(mut hole) = self.place_of(number) else { return };
        let mut place = self.next(hole);
        while self.index[place].number != 0 {
            let mask = self.index.len() - 1;
            let from_home = place.wrapping_sub(self.home(self.index[place].number)) & mask;
            if from_home >= place.wrapping_sub(hole) & mask {
                self.index[hole] = self.index[place];
                hole = place;
            }
            place = self.next(place);
        }
        self.index[hole] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn insert<T>(table: &mut Table<T>, random: &mut Random, value: T) -> Option<u32> {
        table.insert_with(random, |_| false, |_, _| value)
    }

    #[test]
    fn numbers_find_their_object_and_stale_ones_do_not() {
        let mut random = Random::new([7; 32]);
        let mut table = Table::new(24, 256);
        let numbers: Vec<u32> = (0..256).map(|n| insert(&mut table, &mut random, n).unwrap()).collect();
        assert_eq!(insert(&mut table, &mut random, 0), None, "256 objects fill it");
        for (n, number) in numbers.iter().enumerate() {
            assert!(*number < 1 << 24);
            assert_eq!(table.get(*number), Some(&n));
            assert_eq!(table.slot_of(*number), Some(n), "slots are dense");
        }
        assert_eq!(table.remove(numbers[3]), Some(3));
        assert_eq!((table.get(numbers[3]), table.slot_of(numbers[3])), (None, None));
        assert_eq!(table.remove(numbers[3]), None);
        let again = insert(&mut table, &mut random, 1000).unwrap();
        assert_eq!((table.slot_of(again), table.get_mut(again)), (Some(3), Some(&mut 1000)));
        assert_eq!(table.get(0), None, "no object has the number of an empty place");
    }

    #[test]
    fn a_number_in_quarantine_is_not_given_until_enough_others_were_freed() {
        // Numbers have only 8 bits, so that freed numbers are soon drawn again. The largest `max_len` for 8 bits is 63.
        let mut random = Random::new([5; 32]);
        let mut table = Table::new(8, 63);
        let mut given: Vec<u32> = Vec::new();
        for _ in 0..200 {
            let number = insert(&mut table, &mut random, ()).unwrap();
            assert!(!given.contains(&number));
            given.push(number);
            table.remove(number);
        }
        assert_eq!((table.len(), table.slots.len(), table.quarantine.len()), (0, 1, 200));
    }

    #[test]
    fn the_quarantine_is_bounded_and_leaves_the_index_as_it_was() {
        let mut random = Random::new([6; 32]);
        let mut table = Table::new(24, 100);
        let kept: Vec<u32> = (0..50).map(|n| insert(&mut table, &mut random, n).unwrap()).collect();
        for _ in 0..3 * QUARANTINE_NUMBERS {
            let number = insert(&mut table, &mut random, 0).unwrap();
            table.remove(number);
        }
        let entered = table.index.iter().filter(|entry| entry.number != 0).count();
        assert_eq!((table.quarantine.len(), entered), (QUARANTINE_NUMBERS, QUARANTINE_NUMBERS + 50));
        assert!(table.index.len() <= 2 * PLACES_PER_NUMBER * (QUARANTINE_NUMBERS + 51));
        assert!(kept.iter().enumerate().all(|(n, number)| table.get(*number) == Some(&n)));
    }

    #[test]
    fn the_first_number_is_not_the_same_under_another_seed() {
        let first = |seed| insert(&mut Table::new(24, 8), &mut Random::new([seed; 32]), ()).unwrap();
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }

    proptest! {
        #[test]
        fn the_index_behaves_as_a_map(steps in proptest::collection::vec((any::<bool>(), 0u32..64), 0..400)) {
            // The 64 values of `number` have few different low bits: runs of colliding entries wrap around the end of
            // the index and have empty entries between them.
            let mut table = Table::<()>::new(32, 1000);
            let mut model = std::collections::BTreeMap::new();
            for (enters, key) in steps {
                let number = 1 + (key % 16) * 64 + 59 + key / 16;
                if enters && !model.contains_key(&number) && model.len() < 40 {
                    table.enter(Entry { number, slot: key });
                    model.insert(number, key);
                } else if !enters {
                    table.forget(number);
                    model.remove(&number);
                }
                for key in 0..64 {
                    let number = 1 + (key % 16) * 64 + 59 + key / 16;
                    let slot = table.place_of(number).map(|place| table.index[place].slot);
                    prop_assert_eq!(slot, model.get(&number).copied());
                }
            }
        }
    }
}
