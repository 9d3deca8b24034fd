//! Objects by unpredictable number.
//!
//! ```text
//!   31 or 23          index_shift + index_bits     index_shift          0
//!   |  random         |  index of the slot          |  random           |
//! ```
//!
//! The index bits find the slot in one step; a stale or guessed number misses on the random bits.
//! Free indices are handed out in random order, so no bit of a number can be foretold.

use crate::random::Random;

/// Where the index lies in a number and how long numbers are.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bits of a whole number: at most 32.
    pub number_bits: u32,
    /// Random bits below the index.
    pub index_shift: u32,
    /// Bits of the index: the table holds at most 2^index_bits objects.
    pub index_bits: u32,
}

impl Layout {
    /// The index in a number.
    pub const fn index_of(self, number: u32) -> usize {
        ((number >> self.index_shift) & ((1 << self.index_bits) - 1)) as usize
    }

    const fn index_mask(self) -> u32 {
        ((1 << self.index_bits) - 1) << self.index_shift
    }

    const fn number_mask(self) -> u32 {
        if self.number_bits == 32 { u32::MAX } else { (1 << self.number_bits) - 1 }
    }
}

/// How many free indices a table keeps ready, so that the next one is a random choice.
const MIN_FREE_INDICES: usize = 64;

/// A table of `T` by number.
#[derive(Debug)]
pub struct Table<T> {
    layout: Layout,
    slots: Vec<Option<(u32, T)>>,
    free: Vec<u32>,
    len: usize,
    max_len: usize,
}

impl<T> Table<T> {
    /// An empty table of at most `max_len` objects (and at most what `layout` can number).
    pub fn new(layout: Layout, max_len: usize) -> Self {
        let max_len = max_len.min(1 << layout.index_bits);
        Table { layout, slots: Vec::new(), free: Vec::new(), len: 0, max_len }
    }

    /// Objects in the table.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the table has no object.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The most objects the table takes.
    pub fn max_len(&self) -> usize {
        self.max_len
    }

    /// The most slots there may be: every index is below it. More than objects, where these are few.
    pub fn max_slots(&self) -> usize {
        self.max_len.next_power_of_two().max(2 * MIN_FREE_INDICES).min(1 << self.layout.index_bits)
    }

    /// Puts in what `make` builds for the new number; a number that `refuse` names is not given.
    /// `None` where the table is full.
    pub fn insert_with(
        &mut self,
        random: &mut Random,
        refuse: impl Fn(u32) -> bool,
        make: impl FnOnce(u32) -> T,
    ) -> Option<u32> {
        if self.len == self.max_len {
            return None;
        }
        if self.free.len() < MIN_FREE_INDICES {
            let grown = (self.slots.len() * 2).max(2 * MIN_FREE_INDICES).min(self.max_slots());
            self.free.extend((self.slots.len()..grown).map(|index| index as u32));
            self.slots.resize_with(grown, || None);
        }
        let pick = random.below(self.free.len() as u32) as usize;
        let index = self.free.swap_remove(pick);
        let placed = index << self.layout.index_shift;
        let number = loop {
            let drawn = (random.bits() & !self.layout.index_mask() | placed) & self.layout.number_mask();
            if !refuse(drawn) {
                break drawn;
            }
        };
        self.slots[index as usize] = Some((number, make(number)));
        self.len += 1;
        Some(number)
    }

    /// The object of this number.
    pub fn get(&self, number: u32) -> Option<&T> {
        match self.slots.get(self.layout.index_of(number)) {
            Some(Some((own, value))) if *own == number => Some(value),
            _ => None,
        }
    }

    /// The object of this number, to change.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        match self.slots.get_mut(self.layout.index_of(number)) {
            Some(Some((own, value))) if *own == number => Some(value),
            _ => None,
        }
    }

    /// Takes the object of this number out.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let index = self.layout.index_of(number);
        let slot = self.slots.get_mut(index)?;
        if !matches!(slot, Some((own, _)) if *own == number) {
            return None;
        }
        let (_, value) = slot.take()?;
        self.free.push(index as u32);
        self.len -= 1;
        Some(value)
    }

    /// The index of a number: below [`Table::max_slots`], and no two objects' the same.
    #[inline]
    pub fn index_of(&self, number: u32) -> usize {
        self.layout.index_of(number)
    }

    /// The object at an index.
    #[inline]
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.as_mut().map(|(_, value)| value)
    }

    /// All objects with their numbers, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().flatten().map(|(number, value)| (*number, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout { number_bits: 24, index_shift: 4, index_bits: 8 };

    #[test]
    fn numbers_find_their_object_and_stale_ones_do_not() {
        let mut random = Random::new([7; 32]);
        let mut table = Table::new(LAYOUT, usize::MAX);
        let numbers: Vec<u32> =
            (0..256).map(|n| table.insert_with(&mut random, |_| false, |_| n).unwrap()).collect();
        assert_eq!(table.insert_with(&mut random, |_| false, |_| 0), None, "2^8 objects fill it");
        for (n, number) in numbers.iter().enumerate() {
            assert!(*number < 1 << 24);
            assert_eq!(table.get(*number), Some(&n));
        }
        assert_eq!(table.remove(numbers[3]), Some(3));
        assert_eq!(table.get(numbers[3]), None);
        assert_eq!(table.remove(numbers[3]), None);
        let again = table.insert_with(&mut random, |number| number == numbers[3], |_| 1000).unwrap();
        assert_ne!(again, numbers[3]);
        assert_eq!(table.get_mut(again), Some(&mut 1000));
        assert_eq!(table.get(again ^ 1), None, "the random bits must match too");
    }

    #[test]
    fn every_index_is_below_max_slots() {
        for max_len in [1, 8, 100, 200, 256] {
            let mut random = Random::new([3; 32]);
            let mut table = Table::new(LAYOUT, max_len);
            while let Some(number) = table.insert_with(&mut random, |_| false, |_| ()) {
                assert!(table.index_of(number) < table.max_slots(), "{max_len} objects");
            }
            assert_eq!(table.len(), max_len);
        }
    }

    #[test]
    fn the_first_number_is_not_the_same_under_another_seed() {
        let first = |seed| {
            let mut table = Table::new(LAYOUT, 8);
            table.insert_with(&mut Random::new([seed; 32]), |_| false, |_| ()).unwrap()
        };
        assert_eq!(first(1), first(1));
        assert_ne!(first(1), first(2));
    }
}
