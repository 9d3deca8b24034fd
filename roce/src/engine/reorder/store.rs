//! Memory of the reorder buffer: frames in chains of cells, and the share of each queue pair.
//!
//! ```text
//!   cells:    | for each queue pair: reserved | reserved | .. |      for any: unreserved            |
//!   frame:    first cell -> cell -> last cell         a frame of n bytes: n / CELL_BYTES cells, rounded up
//!   by age:   oldest <-> .. <-> newest frame, over all queue pairs
//! ```
//! A queue pair may take unreserved cells only while it has fewer of them than a multiple of the free ones, so that no
//! queue pair takes all of them (dynamic thresholds, Choudhury and Hahne 1998).

use crate::engine::limits::{REORDER_RESERVED_BYTES, REORDER_SHARE_OF_FREE};
use crate::psn::Psn;
use crate::time::Instant;

const NONE: u32 = u32::MAX;

/// Bytes of a cell. A frame of path MTU 4096 takes 17 cells, one with a message of up to 128 bytes takes one.
pub(super) const CELL_BYTES: usize = 256;

/// Number of cells allocated at once, when all cells before are taken for the first time: a megabyte.
const SEGMENT_CELLS: usize = 4096;

#[expect(clippy::cast_possible_truncation, reason = "a frame has fewer than 2^32 bytes")]
pub(super) const fn cells_of(len_bytes: usize) -> u32 {
    if len_bytes == 0 { 1 } else { len_bytes.div_ceil(CELL_BYTES) as u32 }
}

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

/// A buffered frame, kept at its first cell.
#[derive(Clone, Copy)]
struct Frame {
    owner: Owner,
    len_bytes: usize,
    buffered_at: Instant,
    older: u32,
    newer: u32,
}

#[derive(Clone, Copy)]
struct Cell {
    /// The next cell of the frame, or the next free cell.
    next: u32,
    frame: Option<Frame>,
}

struct Segment {
    bytes: Box<[u8]>,
    cells: Box<[Cell]>,
}

pub(super) struct Store {
    segments: Vec<Segment>,
    cells_max: u32,
    taken: u32,
    free: u32,
    /// Cells with an index below this number were taken at some time; the others were never taken.
    used: u32,
    oldest: u32,
    newest: u32,
    /// Number of queue pairs that may buffer packets, each with a reservation of `reserved` cells.
    owners: u32,
    reserved: u32,
    /// Number of cells taken beyond reservations, over all queue pairs.
    shared: u32,
}

#[expect(clippy::cast_possible_truncation, reason = "the number of cells is limited to 2^32 - 1 by `new`")]
impl Store {
    pub(super) fn new(bytes_max: usize) -> Self {
        Store {
            segments: Vec::new(),
            cells_max: (bytes_max / CELL_BYTES).min(NONE as usize) as u32,
            taken: 0,
            free: NONE,
            used: 0,
            oldest: NONE,
            newest: NONE,
            owners: 0,
            reserved: 0,
            shared: 0,
        }
    }

    #[inline]
    pub(super) fn taken(&self) -> u32 {
        self.taken
    }

    /// Divides the cells anew among the queue pairs that may buffer packets; `buffered` has the number of cells that
    /// each of them has taken.
    pub(super) fn divide(&mut self, buffered: impl Iterator<Item = u32> + Clone) {
        self.owners = buffered.clone().count() as u32;
        let reserved = (REORDER_RESERVED_BYTES / CELL_BYTES) as u32;
        self.reserved = reserved.min(self.cells_max / 2 / self.owners.max(1));
        self.shared = buffered.map(|buffered| buffered.saturating_sub(self.reserved)).sum();
    }

    /// Returns whether a queue pair that has taken `buffered` cells may take `cells` more.
    pub(super) fn has_room(&self, buffered: u32, cells: u32) -> bool {
        let free = self.cells_max.saturating_sub(self.reserved * self.owners).saturating_sub(self.shared);
        let growth = (buffered + cells).max(self.reserved) - buffered.max(self.reserved);
        let is_admitted = buffered.saturating_sub(self.reserved) < REORDER_SHARE_OF_FREE.saturating_mul(free);
        (growth == 0 || is_admitted && growth <= free) && self.taken + cells <= self.cells_max
    }

    fn cell(&self, at: u32) -> Option<&Cell> {
        self.segments.get(at as usize / SEGMENT_CELLS)?.cells.get(at as usize % SEGMENT_CELLS)
    }

    fn cell_mut(&mut self, at: u32) -> Option<&mut Cell> {
        self.segments.get_mut(at as usize / SEGMENT_CELLS)?.cells.get_mut(at as usize % SEGMENT_CELLS)
    }

    fn frame_mut(&mut self, at: u32) -> Option<&mut Frame> {
        self.cell_mut(at)?.frame.as_mut()
    }

    fn bytes(&self, at: u32) -> Option<&[u8]> {
        let start = at as usize % SEGMENT_CELLS * CELL_BYTES;
        self.segments.get(at as usize / SEGMENT_CELLS)?.bytes.get(start..start + CELL_BYTES)
    }

    /// Takes a free cell, fills it with `bytes`, and makes `next` the next cell of its chain.
    fn take_cell(&mut self, bytes: &[u8], next: u32) -> Option<u32> {
        let at = match self.cell(self.free) {
            Some(cell) => {
                let next_free = cell.next;
                std::mem::replace(&mut self.free, next_free)
            }
            None => {
                if self.used as usize == self.segments.len() * SEGMENT_CELLS {
                    let cells = vec![Cell { next: NONE, frame: None }; SEGMENT_CELLS].into_boxed_slice();
                    let bytes = vec![0; SEGMENT_CELLS * CELL_BYTES].into_boxed_slice();
                    self.segments.push(Segment { bytes, cells });
                }
                self.used += 1;
                self.used - 1
            }
        };
        let start = at as usize % SEGMENT_CELLS * CELL_BYTES;
        let segment = self.segments.get_mut(at as usize / SEGMENT_CELLS)?;
        segment.bytes.get_mut(start..start + bytes.len())?.copy_from_slice(bytes);
        self.cell_mut(at)?.next = next;
        self.taken += 1;
        Some(at)
    }

    /// Buffers a copy of `frame` for a queue pair that has taken `buffered` cells before. Returns the first cell;
    /// `None` if too few cells are free.
    pub(super) fn insert(&mut self, owner: Owner, frame: &[u8], buffered: u32, now: Instant) -> Option<u32> {
        let cells = cells_of(frame.len());
        if self.taken + cells > self.cells_max {
            return None;
        }
        let mut at = NONE;
        for chunk in frame.chunks(CELL_BYTES).rev() {
            at = self.take_cell(chunk, at)?;
        }
        if at == NONE {
            at = self.take_cell(&[], NONE)?;
        }
        let older = std::mem::replace(&mut self.newest, at);
        match self.frame_mut(older) {
            Some(older) => older.newer = at,
            None => self.oldest = at,
        }
        self.cell_mut(at)?.frame =
            Some(Frame { owner, len_bytes: frame.len(), buffered_at: now, older, newer: NONE });
        self.shared += (buffered + cells).max(self.reserved) - buffered.max(self.reserved);
        Some(at)
    }

    pub(super) fn owner(&self, at: u32) -> Option<Owner> {
        Some(self.cell(at)?.frame?.owner)
    }

    pub(super) fn copy_to(&self, at: u32, frame: &mut Vec<u8>) {
        frame.clear();
        let mut left = self.cell(at).and_then(|cell| cell.frame).map_or(0, |frame| frame.len_bytes);
        let mut at = at;
        while let (true, Some(bytes), Some(cell)) = (left > 0, self.bytes(at), self.cell(at)) {
            let len = left.min(CELL_BYTES);
            frame.extend_from_slice(bytes.get(..len).unwrap_or_default());
            (left, at) = (left - len, cell.next);
        }
    }

    /// Frees the frame whose first cell is `at`. `buffered` is the number of cells that the frame's queue pair has
    /// taken, those of the frame included. Returns the number of cells of the frame.
    pub(super) fn remove(&mut self, at: u32, buffered: u32) -> Option<u32> {
        let Frame { len_bytes, older, newer, .. } = self.cell_mut(at)?.frame.take()?;
        let cells = cells_of(len_bytes);
        let mut last = at;
        for _ in 1..cells {
            last = self.cell(last)?.next;
        }
        let free = std::mem::replace(&mut self.free, at);
        self.cell_mut(last)?.next = free;
        match self.frame_mut(older) {
            Some(older) => older.newer = newer,
            None => self.oldest = newer,
        }
        match self.frame_mut(newer) {
            Some(newer) => newer.older = older,
            None => self.newest = older,
        }
        self.taken -= cells;
        self.shared -= buffered.max(self.reserved) - (buffered - cells).max(self.reserved);
        Some(cells)
    }

    #[inline]
    pub(super) fn oldest(&self) -> Option<(Owner, Instant)> {
        let frame = self.cell(self.oldest)?.frame.as_ref()?;
        Some((frame.owner, frame.buffered_at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES_MAX: usize = 1 << 20;
    const CELLS_MAX: u32 = (BYTES_MAX / CELL_BYTES) as u32;
    const RESERVED: u32 = (REORDER_RESERVED_BYTES / CELL_BYTES) as u32;

    fn owner(slot: usize, psn: u32) -> Owner {
        Owner { slot: slot as u32, psn: Psn::new(psn) }
    }

    #[test]
    fn a_greedy_queue_pair_leaves_reservations_and_a_part_of_the_rest() {
        let mut store = Store::new(BYTES_MAX);
        store.divide([0; 4].into_iter());
        let mut buffered = [0; 4];
        for (greedy, buffered) in buffered.iter_mut().enumerate().take(3) {
            while store.has_room(*buffered, 1) {
                assert!(store.insert(owner(greedy, 0), &[], *buffered, Instant::ZERO).is_some());
                *buffered += 1;
            }
        }
        let rest = CELLS_MAX - 4 * RESERVED;
        let share = (REORDER_SHARE_OF_FREE * rest).div_ceil(REORDER_SHARE_OF_FREE + 1);
        assert_eq!(buffered[0] - RESERVED, share);
        assert!(buffered[1] > RESERVED, "the second finds cells of the rest");
        for n in 0..RESERVED {
            assert!(store.has_room(n, 1), "a reserved cell");
            assert!(store.insert(owner(3, 0), &[], n, Instant::ZERO).is_some());
        }
    }

    #[test]
    fn reservations_shrink_with_the_number_of_queue_pairs() {
        let mut store = Store::new(BYTES_MAX);
        store.divide(std::iter::repeat_n(0, CELLS_MAX as usize));
        assert_eq!(store.reserved, 0);
        assert!(store.has_room(0, 1), "of the rest");
        store.divide([CELLS_MAX].into_iter());
        assert_eq!((store.reserved, store.shared), (RESERVED, CELLS_MAX - RESERVED));
    }

    proptest! {
        #[test]
        fn frames_keep_their_bytes_and_leave_by_age(
            steps in proptest::collection::vec((0usize..4, 0usize..8, 0usize..3 * CELL_BYTES, any::<bool>()), 0..1000)
        ) {
            let mut store = Store::new(BYTES_MAX / 4);
            store.divide([0; 4].into_iter());
            // Frames by age, oldest first: first cell, owner, time in nanoseconds, bytes.
            let mut model: Vec<(u32, Owner, u64, Vec<u8>)> = Vec::new();
            let buffered = |model: &[(u32, Owner, u64, Vec<u8>)], slot: u32| {
                let of_slot = model.iter().filter(|(_, owner, ..)| owner.slot == slot);
                of_slot.map(|(.., frame)| cells_of(frame.len())).sum::<u32>()
            };
            for (time, (slot, pick, len, insert)) in steps.into_iter().enumerate() {
                let (time, has) = (time as u64, buffered(&model, slot as u32));
                if insert && store.has_room(has, cells_of(len)) {
                    let (owner, frame) = (owner(slot, time as u32), vec![time as u8; len]);
                    let at = store.insert(owner, &frame, has, Instant::from_nanos(time)).unwrap();
                    prop_assert!(model.iter().all(|(other, ..)| *other != at), "taken twice");
                    model.push((at, owner, time, frame));
                } else if !model.is_empty() {
                    let (at, owner, _, frame) = model.remove(pick % model.len());
                    let mut copy = vec![1; 3];
                    store.copy_to(at, &mut copy);
                    prop_assert_eq!((store.owner(at), &copy), (Some(owner), &frame));
                    let has = buffered(&model, owner.slot) + cells_of(frame.len());
                    prop_assert_eq!(store.remove(at, has), Some(cells_of(frame.len())));
                    prop_assert_eq!(store.owner(at), None);
                }
                let oldest = model.first().map(|(_, owner, time, _)| (*owner, Instant::from_nanos(*time)));
                prop_assert_eq!(store.oldest(), oldest);
                let cells = (0..4).map(|slot| buffered(&model, slot));
                prop_assert_eq!(store.taken(), cells.clone().sum::<u32>());
                prop_assert_eq!(store.shared, cells.map(|cells| cells.saturating_sub(store.reserved)).sum::<u32>());
            }
        }
    }
}
