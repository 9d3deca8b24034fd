//! A bounded lock-free ring between one producer and one consumer thread.
//!
//! ```text
//!            head (consumer owns)            tail (producer owns)
//!             |                                |
//!   [ free ][ published, not yet released ][ free ]
//!             ^ get(0)          get(len-1) ^
//! ```
//!
//! The consumer may read each published element in place, and releases elements in order, oldest first. Therefore the
//! ring of a send queue can store work requests until they are acknowledged. A staged element is written to its cell,
//! but is not published yet, so the consumer does not read the element.
//!
//! A growing ring starts with [`CELLS_MIN`] cells, so that an idle queue takes little memory. If all cells are in use,
//! [`Producer::has_room`] allocates at least twice as many cells, until the ring has cells for its depth:
//!
//! ```text
//!   producer   new cells, copies of head..tail --> Tail::grown     write to the new cells, then store `tail`
//!   consumer   load `tail`, then take Tail::grown: the new cells replace the old ones
//! ```
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use crate::sync::UnsafeCell;
use crate::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

use crate::start;

/// Number of cells of a new growing ring, unless its depth is smaller.
pub(super) const CELLS_MIN: u32 = 8;

/// Space between the positions of producer and consumer, for a ring that two threads use all the time: otherwise each
/// thread would remove the cache line with both positions from the cache of the other thread. 128 bytes, because the
/// prefetcher loads 64-byte lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Apart;

/// No space between the positions of producer and consumer, for the many rings of a device with many queue pairs:
/// besides the cache line of an element, producer and consumer then access only one line, that of both positions.
pub(crate) type Together = ();

/// Memory of one element. A cell is empty, or contains a staged element (written by the producer, not yet published),
/// or a published element that the consumer has not yet released.
struct Cell<T>(UnsafeCell<MaybeUninit<T>>);

// SAFETY: only the producer writes a cell: before the consumer has a reference to the cell, or while the position of
// the cell is outside head..tail. The consumer reads a cell only while this position is inside head..tail. Release
// stores and Acquire loads of the indices order writes and reads.
unsafe impl<T: Send> Sync for Cell<T> {}

/// Cells of a ring. Producer and consumer each store a reference to the cells, so that an access loads no reference
/// from the shared [`Indices`].
type Cells<T> = Arc<[Cell<T>]>;

#[inline]
fn cell<T>(cells: &Cells<T>, position: u32) -> &UnsafeCell<MaybeUninit<T>> {
    let place = position as usize & cells.len().wrapping_sub(1);
    // SAFETY: the number of cells is a power of two and never 0 (`new_cells`), so `place` is `position` modulo this
    // number, and below this number.
    unsafe { &cells.get_unchecked(place).0 }
}

/// Position of the producer, mode that the consumer sets, and new cells of a ring that grew, in one cache line.
struct Tail<T> {
    position: AtomicU32,
    /// Number that [`Consumer::set_mode`] writes and the producer reads; the ring does not interpret this number. The
    /// read is seldom a cache miss, because the producer also writes `position`, which is in the same cache line.
    mode: AtomicU8,
    /// New cells, which the producer uses already and the consumer does not use yet; null if both use the same cells.
    /// The pointer is from `Box::into_raw`.
    grown: AtomicPtr<Cells<T>>,
}

/// The positions of producer and consumer, in one cache line unless `S` is [`Apart`].
#[repr(C, align(64))]
struct Indices<T, S> {
    tail: Tail<T>,
    _space: S,
    head: AtomicU32,
}

impl<T> Tail<T> {
    /// Stores `cells`, or null for `None`, in `grown`; returns the cells stored before.
    fn exchange_grown(&self, cells: Option<Cells<T>>) -> Option<Cells<T>> {
        let new = cells.map_or(ptr::null_mut(), |cells| Box::into_raw(Box::new(cells)));
        let old = self.grown.swap(new, Ordering::AcqRel);
        // SAFETY: a pointer in `grown` that is not null is from Box::into_raw in this function, and the swap passes it
        // to one caller only.
        (!old.is_null()).then(|| *unsafe { Box::from_raw(old) })
    }
}

impl<T> Drop for Tail<T> {
    fn drop(&mut self) {
        self.exchange_grown(None);
    }
}

pub(crate) struct Producer<T, S = Together> {
    cells: Cells<T>,
    indices: Arc<Indices<T, S>>,
    depth: u32,
    /// Number of elements for which the ring has cells; at most `depth`.
    limit: u32,
    tail: u32,
    head_seen: u32,
}

/// The part of a ring that the consumer uses: reads and releases elements.
pub(crate) struct Consumer<T, S = Together> {
    cells: Cells<T>,
    indices: Arc<Indices<T, S>>,
    head: u32,
    tail_seen: u32,
}

/// Creates a ring of at most `depth` elements and allocates all its cells, so that [`Producer::push`] allocates no
/// memory. Panics if `depth` is not 1 to 2^30; all callers have far smaller limits.
pub(crate) fn ring<T: Copy + Send>(depth: u32) -> (Producer<T, Apart>, Consumer<T, Apart>) {
    ring_of(start::ring_position(), depth, depth)
}

/// Creates a growing ring of at most `depth` elements, with `first` as the position of the first element. Panics as
/// [`ring`] does.
pub(super) fn growing_ring<T: Copy + Send>(first: u32, depth: u32) -> (Producer<T>, Consumer<T>) {
    ring_of(first, depth, depth.min(CELLS_MIN))
}

/// Creates a ring of at most `depth` elements that starts with `count` cells, rounded up to a power of two, and with
/// `first` as the position of the first element.
pub(super) fn ring_of<T: Copy + Send, S: Default>(
    first: u32,
    depth: u32,
    count: u32,
) -> (Producer<T, S>, Consumer<T, S>) {
    assert!((1..=1 << 30).contains(&depth), "ring depth {depth} is not in 1..=2^30");
    let cells: Cells<T> = new_cells(count);
    let grown = AtomicPtr::new(ptr::null_mut());
    let tail = Tail { position: AtomicU32::new(first), mode: AtomicU8::new(0), grown };
    let indices = Arc::new(Indices { tail, _space: S::default(), head: AtomicU32::new(first) });
    let consumer = Consumer { cells: cells.clone(), indices: indices.clone(), head: first, tail_seen: first };
    let limit = depth.min(len(&cells));
    (Producer { cells, indices, depth, limit, tail: first, head_seen: first }, consumer)
}

/// Allocates `count` empty cells, rounded up to a power of two.
fn new_cells<T>(count: u32) -> Cells<T> {
    (0..count.next_power_of_two()).map(|_| Cell(UnsafeCell::new(MaybeUninit::uninit()))).collect()
}

/// Returns the number of cells, at most 2^30.
fn len<T>(cells: &Cells<T>) -> u32 {
    cells.len() as u32 // `new_cells` takes the number of cells as a `u32`: the cast loses no bit
}

impl<T: Copy + Send, S> Producer<T, S> {
    pub(crate) fn depth(&self) -> u32 {
        self.depth
    }

    #[inline]
    pub(crate) fn has_room(&mut self, count: u32) -> bool {
        if self.tail.wrapping_sub(self.head_seen) + count <= self.limit {
            return true;
        }
        self.head_seen = self.indices.head.load(Ordering::Acquire);
        self.tail.wrapping_sub(self.head_seen) + count <= self.limit || self.grow(count)
    }

    /// If the depth permits `count` elements besides the elements in the ring (staged, or published and not released),
    /// replaces the cells by enough cells for all these elements. The number of cells at least doubles. Returns whether
    /// the depth permits the elements.
    #[cold]
    #[inline(never)]
    fn grow(&mut self, count: u32) -> bool {
        let published = self.tail.wrapping_sub(self.head_seen);
        if published + count > self.depth {
            return false;
        }
        let cells = new_cells((published + count).max(2 * len(&self.cells)));
        for position in (0..published).map(|index| self.head_seen.wrapping_add(index)) {
            // SAFETY: no thread except this producer writes the old cells, so a copy is no data race.
            let value = cell(&self.cells, position).with(|old| unsafe { *old });
            // SAFETY: no other reference to the new cells exists yet.
            cell(&cells, position).with_mut(|new| unsafe { *new = value });
        }
        // `grown` passes new cells to the consumer. If the consumer has not taken the cells of an earlier growth, these
        // cells are freed.
        drop(self.indices.tail.exchange_grown(Some(cells.clone())));
        self.limit = self.depth.min(len(&cells));
        self.cells = cells;
        true
    }

    /// Returns the position of the element to be staged next, modulo 2^32. `position % n` may be used as an index only
    /// if `n` is a power of two, because otherwise the remainder jumps when the position wraps at 2^32.
    pub(crate) fn position(&self) -> u32 {
        self.tail
    }

    /// Returns the mode that [`Consumer::set_mode`] set last; 0 before the first call.
    #[inline]
    pub(super) fn mode(&self) -> u8 {
        self.indices.tail.mode.load(Ordering::Relaxed)
    }

    /// Publishes `value`, and all staged elements before it.
    #[inline]
    pub(crate) fn push(&mut self, value: T) -> Result<(), T> {
        if !self.has_room(1) {
            return Err(value);
        }
        self.stage(value);
        self.publish();
        Ok(())
    }

    /// Writes `value` behind the other elements, where the consumer does not read it before [`Producer::publish`].
    /// Requires that [`Producer::has_room`] has returned true.
    #[inline]
    pub(super) fn stage(&mut self, value: T) {
        // SAFETY: `has_room` returned true, so the cell at `tail` is outside head..tail, and the consumer does not read
        // the cell. No other producer writes the cell (&mut self of a type that is not Clone).
        cell(&self.cells, self.tail).with_mut(|cell| unsafe { (*cell).write(value) });
        self.tail = self.tail.wrapping_add(1);
    }

    /// Publishes the staged elements: from now on the consumer may read these elements.
    #[inline]
    pub(super) fn publish(&mut self) {
        self.indices.tail.position.store(self.tail, Ordering::Release);
    }

    /// Returns the element staged last; `None` if no element is staged.
    #[inline]
    pub(super) fn last_staged(&mut self) -> Option<&mut T> {
        if self.staged() == 0 {
            return None;
        }
        let cell = cell(&self.cells, self.tail.wrapping_sub(1));
        // SAFETY: `stage` wrote the cell. The consumer does not read it, because it is not published, and no other
        // producer exists. The borrow of `self` excludes other references to the cell.
        Some(cell.with_mut(|cell| unsafe { (*cell).assume_init_mut() }))
    }

    /// Returns the number of staged elements.
    #[inline]
    pub(super) fn staged(&self) -> u32 {
        self.tail.wrapping_sub(self.indices.tail.position.load(Ordering::Relaxed))
    }

    /// Removes the `count` elements staged last, or all staged elements if fewer are staged.
    pub(super) fn unstage(&mut self, count: u32) {
        self.tail = self.tail.wrapping_sub(count.min(self.staged()));
    }
}

impl<T: Copy + Send, S> Consumer<T, S> {
    /// Sets the mode, a number that the producer reads. The ring does not interpret the mode.
    pub(super) fn set_mode(&self, mode: u8) {
        self.indices.tail.mode.store(mode, Ordering::Relaxed);
    }

    /// Returns the number of elements that the producer has published and the consumer has not yet released.
    #[inline]
    pub(crate) fn len(&mut self) -> u32 {
        let tail = &self.indices.tail;
        self.tail_seen = tail.position.load(Ordering::Acquire);
        // A relaxed load of `grown` is sufficient, because the producer stores `grown` before it stores `position`, and
        // `position` was loaded with Acquire.
        if !tail.grown.load(Ordering::Relaxed).is_null() {
            self.follow();
        }
        self.tail_seen.wrapping_sub(self.head)
    }

    /// If the ring grew, replaces the consumer's reference to the old cells by a reference to the producer's new cells.
    #[cold]
    #[inline(never)]
    fn follow(&mut self) {
        if let Some(cells) = self.indices.tail.exchange_grown(None) {
            self.cells = cells;
        }
    }

    /// Returns the position of the oldest element not released, modulo 2^32.
    pub(crate) fn position(&self) -> u32 {
        self.head
    }

    /// Returns the published element at `index`, counted from the oldest (0); `None` if at most `index` elements are
    /// published.
    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<&T> {
        if self.tail_seen.wrapping_sub(self.head) <= index && self.len() <= index {
            return None;
        }
        // SAFETY: `index` is below the number of published elements that the consumer has seen: below the number seen
        // before this call, or below that which `len` has just returned.
        Some(unsafe { self.element(index) })
    }

    /// Returns the element at `index` as [`Consumer::get`] does; `None` if this element is not below `tail_seen`, the
    /// tail position that the consumer read last. Does not read the tail position.
    #[inline]
    pub(super) fn seen(&self, index: u32) -> Option<&T> {
        // SAFETY: `index` is below the number of published elements that the consumer has seen.
        (index < self.tail_seen.wrapping_sub(self.head)).then(|| unsafe { self.element(index) })
    }

    /// Returns the element at `index`, counted from the oldest (0).
    ///
    /// # Safety
    /// `index` must be below `tail_seen` (the tail position that the consumer read last) - `head`, modulo 2^32.
    #[inline]
    unsafe fn element(&self, index: u32) -> &T {
        let cell = cell(&self.cells, self.head.wrapping_add(index));
        // SAFETY: head <= position < tail. The producer wrote the cell before its Release store of `tail`, and the
        // consumer read this `tail` by an Acquire load. The producer does not overwrite the cell until the consumer
        // advances `head`, which needs &mut self.
        cell.with(|cell| unsafe { (*cell).assume_init_ref() })
    }

    /// Releases the `count` oldest elements, so that the producer may overwrite their cells; releases all published
    /// elements if fewer than `count` are published.
    #[inline]
    pub(crate) fn release(&mut self, count: u32) {
        let published = self.tail_seen.wrapping_sub(self.head);
        let count = if count <= published { count } else { count.min(self.len()) };
        self.head = self.head.wrapping_add(count);
        self.indices.head.store(self.head, Ordering::Release);
    }

    /// Removes at most `max` of the oldest elements and appends them to `out`; returns their number.
    #[inline]
    pub(crate) fn pop_into(&mut self, out: &mut Vec<T>, max: usize) -> usize {
        let count = (self.len() as usize).min(max);
        out.reserve(count);
        // The ring has at most 2^30 elements, so the casts of `count` lose no bit.
        for index in 0..count as u32 {
            out.extend(self.get(index).copied());
        }
        self.release(count as u32);
        count
    }

    /// Removes and returns the oldest element; `None` if this element is not below `tail_seen`, the tail position that
    /// the consumer read last. Does not read the tail position.
    #[inline]
    pub(super) fn pop_seen(&mut self) -> Option<T> {
        let value = *self.seen(0)?;
        self.release(1);
        Some(value)
    }

    /// Removes and returns the oldest element.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let value = *self.get(0)?;
        self.release(1);
        Some(value)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    #[test]
    fn several_are_taken_at_once_and_no_more_than_asked() {
        let (mut producer, mut consumer) = ring::<u32>(3);
        let mut out = vec![9];
        assert_eq!(consumer.pop_into(&mut out, 2), 0);
        (0..3).for_each(|n| producer.push(n).unwrap());
        assert_eq!((consumer.pop_into(&mut out, 2), consumer.pop_into(&mut out, 2)), (2, 1));
        assert_eq!(out, [9, 0, 1, 2]);
        assert!(producer.has_room(3));
    }

    #[test]
    fn cells_are_allocated_as_elements_need_them() {
        let (mut producer, mut consumer) = growing_ring::<u32>(0, 3 * CELLS_MIN);
        let fill = |producer: &mut Producer<u32>, count: u32| (0..count).all(|n| producer.push(n).is_ok());
        for _ in 0..10 {
            assert!(fill(&mut producer, CELLS_MIN));
            (0..CELLS_MIN).for_each(|n| assert_eq!(consumer.pop(), Some(n)));
        }
        assert_eq!(len(&producer.cells), CELLS_MIN, "elements that are released need no further cells");
        assert!(fill(&mut producer, 3 * CELLS_MIN));
        assert_eq!((len(&producer.cells), producer.push(0)), (4 * CELLS_MIN, Err(0)));
        // The producer has replaced the cells twice since the consumer last popped an element.
        assert_eq!((consumer.pop(), len(&consumer.cells)), (Some(0), 4 * CELLS_MIN));
        assert_eq!(Arc::strong_count(&producer.cells), 2);
    }

    #[test]
    fn staged_elements_are_changed_or_removed_before_they_are_published() {
        let (mut producer, mut consumer) = growing_ring::<u32>(u32::MAX - 3, 2 * CELLS_MIN);
        assert_eq!(producer.last_staged(), None);
        (0..2 * CELLS_MIN).for_each(|n| {
            assert!(producer.has_room(1));
            producer.stage(n);
        });
        assert_eq!((consumer.pop(), producer.staged(), producer.has_room(1)), (None, 2 * CELLS_MIN, false));
        producer.unstage(2 * CELLS_MIN - 2);
        *producer.last_staged().unwrap() = 7;
        producer.publish();
        assert_eq!(producer.last_staged(), None);
        producer.unstage(1);
        assert_eq!([(); 3].map(|()| consumer.pop()), [Some(0), Some(7), None]);
    }

    #[test]
    fn cells_that_no_end_uses_are_freed() {
        let (mut producer, consumer) = growing_ring::<u32>(0, 2 * CELLS_MIN);
        (0..2 * CELLS_MIN).for_each(|n| producer.push(n).unwrap());
        let cells = producer.cells.clone();
        drop(producer);
        assert_eq!(Arc::strong_count(&cells), 2);
        drop(consumer);
        assert_eq!(Arc::strong_count(&cells), 1);
    }

    #[test]
    fn two_threads_pass_every_element_in_order() {
        const COUNT: u32 = if cfg!(miri) { 200 } else { 200_000 };
        let (mut producer, mut consumer) = growing_ring::<u32>(start::ring_position(), 48);
        let writer = std::thread::spawn(move || {
            for value in 0..COUNT {
                while producer.push(value).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        for expected in 0..COUNT {
            let got = loop {
                match consumer.pop() {
                    Some(value) => break value,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(got, expected);
        }
        writer.join().unwrap();
        assert!(consumer.len() == 0);
    }

    proptest! {
        #[test]
        fn behaves_as_a_bounded_queue(
            first in prop_oneof![Just(0), u32::MAX - 40..=u32::MAX],
            depth in prop_oneof![1u32..9, CELLS_MIN - 1..=4 * CELLS_MIN + 1],
            growing in any::<bool>(),
            steps in proptest::collection::vec(0u32..12, 0..200),
        ) {
            let ring = if growing { growing_ring::<u32>(first, depth) } else { ring_of::<u32, Together>(first, depth, depth) };
            let (mut producer, mut consumer) = ring;
            let mut model = VecDeque::new();
            let (mut pushed, mut popped) = (first, first);
            for (value, step) in steps.into_iter().enumerate() {
                let value = value as u32;
                if step < 6 {
                    let fits = (model.len() as u32) < depth;
                    prop_assert_eq!(producer.push(value).is_ok(), fits);
                    if fits {
                        model.push_back(value);
                        pushed = pushed.wrapping_add(1);
                    }
                } else if step < 9 {
                    popped = popped.wrapping_add(u32::from(!model.is_empty()));
                    prop_assert_eq!(consumer.pop(), model.pop_front());
                } else {
                    let index = step - 9;
                    prop_assert_eq!(consumer.get(index), model.get(index as usize));
                    prop_assert_eq!(consumer.len() as usize, model.len());
                }
                prop_assert_eq!((producer.position(), consumer.position()), (pushed, popped));
            }
        }
    }
}
