/// Array whose length is a power of two, indexed modulo the length. Because the length divides 2^24 and 2^32, the
/// elements of consecutive PSNs, or of consecutive 32-bit counters, are adjacent even where the numbers wrap to 0.
#[derive(Clone, Debug)]
pub(crate) struct CircularArray<T> {
    values: Box<[T]>,
}

impl<T: Clone> CircularArray<T> {
    /// Creates an array of `len` copies of `value`; `len` is rounded up to a power of two.
    pub(crate) fn new(len: u32, value: T) -> Self {
        CircularArray { values: vec![value; len.next_power_of_two() as usize].into_boxed_slice() }
    }
}

impl<T> CircularArray<T> {
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "`new` takes the length as a `u32`")]
    pub(crate) fn len(&self) -> u32 {
        self.values.len() as u32
    }

    /// Returns the position of the element at `index`.
    #[inline]
    fn position(&self, index: u32) -> usize {
        index as usize & (self.values.len() - 1)
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by a length that is a power of two, never 0")]
    pub(crate) fn at(&self, index: u32) -> &T {
        &self.values[self.position(index)]
    }

    #[inline]
    #[expect(clippy::indexing_slicing, reason = "masked by a length that is a power of two, never 0")]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        let position = self.position(index);
        &mut self.values[position]
    }

    /// Returns the `len` elements from index `first` on; `None` if they are not adjacent, because they wrap.
    #[inline]
    pub(crate) fn slice(&self, first: u32, len: u32) -> Option<&[T]> {
        let first = self.position(first);
        self.values.get(first..first + len as usize)
    }

    /// As [`CircularArray::slice`]; the elements may be written.
    #[inline]
    pub(crate) fn slice_mut(&mut self, first: u32, len: u32) -> Option<&mut [T]> {
        let first = self.position(first);
        self.values.get_mut(first..first + len as usize)
    }

    /// Doubles the length. The elements at indices `first..first+len` stay at these indices (`len`: the old length).
    #[cold]
    pub(crate) fn double(&mut self, first: u32, value: T)
    where
        T: Clone,
    {
        let mut doubled = CircularArray::new(2 * self.len(), value);
        for index in (0..self.len()).map(|offset| first.wrapping_add(offset)) {
            doubled.at_mut(index).clone_from(self.at(index));
        }
        *self = doubled;
    }

    pub(crate) fn fill(&mut self, value: T)
    where
        T: Clone,
    {
        self.values.fill(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_valid_and_a_wrap_keeps_the_order() {
        for (len, rounded) in [(0, 1), (1, 1), (3, 4), (64, 64)] {
            let mut array = CircularArray::new(len, 0);
            assert_eq!(array.len(), rounded);
            let start = u32::MAX - rounded / 2;
            (0..rounded).for_each(|i| *array.at_mut(start.wrapping_add(i)) = i);
            (0..rounded).for_each(|i| assert_eq!(*array.at(start.wrapping_add(i)), i));
            assert_eq!(array.at(start), array.at(start.wrapping_add(rounded)));
            array.double(start, 0);
            assert_eq!(array.len(), 2 * rounded);
            (0..rounded).for_each(|i| assert_eq!(*array.at(start.wrapping_add(i)), i));
        }
    }
}
