//! Memory of the reorder buffers: stores requests in chains of cells, and limits the cells of each queue pair.
//!
//! ```text
//!   cells:    | for each queue pair: reserved | reserved | .. |      for any: unreserved            |
//!   request:  first cell -> cell -> last cell       a body of n bytes: n / CELL_BYTES cells, rounded up; at least 1
//!   free:     cell -> cell -> ..                    a request takes cells from the front, and returns them there
//!   by age:   oldest <-> .. <-> newest request, over all queue pairs
//! ```
//! A queue pair may take unreserved cells only while it occupies fewer unreserved cells than `REORDER_SHARE_OF_FREE`
//! times the number of free unreserved cells. Without this limit, one queue pair could take all unreserved cells
//! (dynamic thresholds, Choudhury and Hahne 1998).
//!
//! A request that takes the cells of an earlier request of the same length has them in the same order. The cells of
//! most requests are therefore consecutive; such a request is written by one copy, and executed from its cells without
//! a further copy. After a request took cells that are not consecutive, all cells are removed from the list of free
//! cells as soon as no request is buffered. The cells are then inserted again in the order of their indices, so that
//! the next requests take consecutive cells.

use crate::port::Payload;
use crate::psn::Psn;
use crate::qp::request::{Request as _, RequestHeader};
use crate::recovery::circular_array::CircularArray;
use crate::time::Instant;
use crate::wire::Packet;

/// Bytes reserved for each queue pair: 256 cells, for 256 short requests or 16 requests with 4096 bytes of payload. If
/// the reservations of all queue pairs would exceed half of the memory of the reorder buffers, fewer bytes are
/// reserved.
pub(crate) const REORDER_RESERVED_BYTES: usize = 256 * CELL_BYTES;

/// Factor of the dynamic threshold: a queue pair may take unreserved cells only while it occupies fewer unreserved
/// cells than this factor times the number of free unreserved cells.
pub(crate) const REORDER_SHARE_OF_FREE: u32 = 8;

/// Largest number of bytes that a request takes in the reorder buffer: a payload of path MTU 4096, extension headers,
/// and padding to whole cells.
pub(crate) const REORDER_REQUEST_BYTES: usize = 16 * CELL_BYTES;

/// Time after which a buffered request is dropped, in nanoseconds. A peer that has not failed closes the gap below
/// the request within this time, because the peer retransmits the missing packets many times in one second.
pub const REORDER_NANOS_MAX: u64 = 1_000_000_000;

const NONE: u32 = u32::MAX;

/// Bytes of a cell: the smallest path MTU and a RETH. At each path MTU, a FIRST and a MIDDLE of a WRITE take the same
/// number of cells (1 to 16), so that a FIRST or MIDDLE that reuses the cells of another FIRST or MIDDLE has
/// consecutive cells.
pub(crate) const CELL_BYTES: usize = 256 + 16;

/// Number of cells of a [`Segment`]. If no allocated cell is free, one more [`Segment`] is allocated.
const SEGMENT_CELLS: u32 = 4096;

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "a body has fewer than 2^32 bytes")]
pub(super) const fn cells_of(len_bytes: usize) -> u32 {
    if len_bytes <= CELL_BYTES { 1 } else { len_bytes.div_ceil(CELL_BYTES) as u32 }
}

/// A buffered request, recorded in its first cell.
#[derive(Clone, Copy, Debug)]
struct Request {
    header: RequestHeader,
    /// Index of the queue pair in the device's table of queue pairs.
    slot: u32,
    /// Length of extension headers and payload, in bytes.
    len_bytes: u32,
    buffered_at: Instant,
    older: u32,
    newer: u32,
    /// Whether the cells are consecutive and in one [`Segment`].
    is_consecutive: bool,
}

#[derive(Debug)]
struct Segment {
    /// Index of the next cell of the request, or of the next free cell. Stored separately from `requests`, so that the
    /// indices of the cells of a long request are in few cache lines.
    next: CircularArray<u32>,
    /// For each cell, the request whose first cell it is; `None` for the other cells.
    requests: CircularArray<Option<Request>>,
    bytes: CircularArray<[u8; CELL_BYTES]>,
}

impl Segment {
    /// Returns whether `cells` cells, linked by `next` from the cell with index `first` on, are consecutive and in this
    /// segment.
    #[inline]
    fn is_consecutive(&self, first: u32, cells: u32) -> bool {
        let Some([next @ .., _]) = self.next.slice(first, cells) else { return false };
        // The loop has no early exit, because otherwise the compiler would not vectorize it.
        next.iter().zip(first + 1..).fold(true, |all, (next, at)| all & (*next == at))
    }
}

/// Buffered requests of all queue pairs of a device.
#[derive(Debug)]
pub(crate) struct ReorderStore {
    segments: Vec<Segment>,
    cells_max: u32,
    taken: u32,
    free: u32,
    /// Number of cells that are taken or in the list of free cells: the cells with an index below this number. The
    /// other cells are unused.
    used: u32,
    /// Set when a request takes cells that are not consecutive. Cleared when no request is buffered any more: all cells
    /// are then removed from the list of free cells.
    is_fragmented: bool,
    oldest: u32,
    newest: u32,
    /// Number of cells that each queue pair occupies now; indexed as the device's table of queue pairs. `None`: the
    /// queue pair may not buffer requests.
    shares: Vec<Option<u32>>,
    /// Number of cells reserved for each queue pair that may buffer requests.
    reserved: u32,
    /// Sum of the reservations of all queue pairs, in cells.
    reservations: u32,
    /// Number of queue pairs that may buffer requests.
    owners: u32,
    /// Number of cells that queue pairs occupy now beyond their reservations, over all queue pairs.
    unreserved: u32,
    /// False if frames have phantom payloads, whose bytes cannot be compared.
    compares_bytes: bool,
    /// Body of the request in execution, if its cells are not consecutive; reused, so that execution does not allocate.
    body: Vec<u8>,
}

#[expect(clippy::cast_possible_truncation, reason = "the number of cells is limited to 2^32 - 1 by `new`")]
impl ReorderStore {
    /// Creates a store of at most `bytes_max` bytes. `payload`: whether the frames have real or phantom payloads.
    pub(crate) fn new(bytes_max: usize, payload: Payload) -> Self {
        ReorderStore {
            segments: Vec::new(),
            cells_max: (bytes_max / CELL_BYTES).min(NONE as usize) as u32,
            taken: 0,
            free: NONE,
            used: 0,
            is_fragmented: false,
            oldest: NONE,
            newest: NONE,
            shares: Vec::new(),
            reserved: 0,
            reservations: 0,
            owners: 0,
            unreserved: 0,
            compares_bytes: payload == Payload::Carried,
            body: Vec::with_capacity(REORDER_REQUEST_BYTES),
        }
    }

    /// Returns the number of bytes that the requests of all queue pairs occupy.
    pub(crate) fn occupied_bytes(&self) -> usize {
        self.taken as usize * CELL_BYTES
    }

    /// Permits the queue pair with index `slot`, which must have no buffered request, to buffer requests.
    pub(crate) fn open(&mut self, slot: usize) {
        if self.shares.len() <= slot {
            self.shares.resize(slot + 1, None);
        }
        if let Some(share) = self.shares.get_mut(slot) {
            self.owners += u32::from(share.replace(0).is_none());
        }
        self.divide();
    }

    /// Releases the reservation of the queue pair with index `slot`, which must have no buffered request.
    pub(crate) fn close(&mut self, slot: usize) {
        if self.shares.get_mut(slot).and_then(Option::take).is_some() {
            self.owners -= 1;
            self.divide();
        }
    }

    /// Recomputes the reservation of each queue pair that may buffer requests.
    fn divide(&mut self) {
        let reserved = (REORDER_RESERVED_BYTES / CELL_BYTES) as u32;
        let reserved = reserved.min(self.cells_max / 2 / self.owners.max(1));
        self.reservations = reserved * self.owners;
        // The queue pair that `open` adds or `close` removes has no buffered request, so `unreserved` changes only if
        // `reserved` changes.
        if std::mem::replace(&mut self.reserved, reserved) != reserved {
            let shares = self.shares.iter().flatten();
            self.unreserved = shares.map(|taken| taken.saturating_sub(reserved)).sum();
        }
    }

    fn share(&self, slot: usize) -> Option<u32> {
        *self.shares.get(slot)?
    }

    fn set_share(&mut self, slot: usize, taken: u32) {
        if let Some(Some(share)) = self.shares.get_mut(slot) {
            self.unreserved += taken.max(self.reserved);
            self.unreserved -= (*share).max(self.reserved);
            *share = taken;
        }
    }

    /// Returns whether the queue pair with index `slot` may buffer a request with `len_bytes` bytes of extension
    /// headers and payload.
    #[inline]
    pub(super) fn has_room(&self, slot: usize, len_bytes: usize) -> bool {
        let (Some(share), cells) = (self.share(slot), cells_of(len_bytes)) else { return false };
        self.taken + cells <= self.cells_max
            && (share + cells <= self.reserved || self.may_take_unreserved(share, cells))
    }

    fn may_take_unreserved(&self, share: u32, cells: u32) -> bool {
        let free = self.cells_max.saturating_sub(self.reservations).saturating_sub(self.unreserved);
        let growth = share + cells - share.max(self.reserved);
        share.saturating_sub(self.reserved) < REORDER_SHARE_OF_FREE.saturating_mul(free) && growth <= free
    }

    #[inline]
    fn segment(&self, at: u32) -> Option<&Segment> {
        self.segments.get((at / SEGMENT_CELLS) as usize)
    }

    #[inline]
    fn segment_mut(&mut self, at: u32) -> Option<&mut Segment> {
        self.segments.get_mut((at / SEGMENT_CELLS) as usize)
    }

    /// Returns the bytes of cell `at`, and the index of the cell linked after cell `at` (`Segment::next`).
    #[inline]
    fn cell(&self, at: u32) -> Option<(&[u8; CELL_BYTES], u32)> {
        let segment = self.segment(at)?;
        Some((segment.bytes.at(at), *segment.next.at(at)))
    }

    /// Returns the same as [`ReorderStore::cell`], with write access to the bytes.
    #[inline]
    fn cell_mut(&mut self, at: u32) -> Option<(&mut [u8; CELL_BYTES], u32)> {
        let segment = self.segment_mut(at)?;
        Some((segment.bytes.at_mut(at), *segment.next.at(at)))
    }

    #[inline]
    fn next(&self, at: u32) -> Option<u32> {
        Some(*self.segment(at)?.next.at(at))
    }

    #[inline]
    fn request(&self, at: u32) -> Option<&Request> {
        self.segment(at)?.requests.at(at).as_ref()
    }

    #[inline]
    fn request_mut(&mut self, at: u32) -> Option<&mut Request> {
        self.segment_mut(at)?.requests.at_mut(at).as_mut()
    }

    /// Removes the first cells, as many as `body` needs, from the list of free cells, and fills them with `body`.
    /// Returns the index of the first cell, and whether the cells are consecutive and in one [`Segment`].
    #[inline]
    fn take_cells(&mut self, body: &[u8]) -> Option<(u32, bool)> {
        let cells = cells_of(body.len());
        let free = self.used - self.taken;
        if free < cells {
            self.grow(cells - free);
        }
        let first = self.free;
        let segment = self.segment_mut(first)?;
        let is_consecutive = cells == 1 || segment.is_consecutive(first, cells);
        self.free = if is_consecutive {
            segment
                .bytes
                .slice_mut(first, cells)?
                .as_flattened_mut()
                .get_mut(..body.len())?
                .copy_from_slice(body);
            *segment.next.at(first + cells - 1)
        } else {
            self.is_fragmented = true;
            self.fill_chain(first, body)?
        };
        self.taken += cells;
        Some((first, is_consecutive))
    }

    /// Copies `body` into the chain of cells that begins at `first`. Returns the index of the cell linked after
    /// the last cell written.
    fn fill_chain(&mut self, first: u32, body: &[u8]) -> Option<u32> {
        let mut next = first;
        for part in body.chunks(CELL_BYTES) {
            let (bytes, after) = self.cell_mut(next)?;
            bytes.get_mut(..part.len())?.copy_from_slice(part);
            next = after;
        }
        Some(next)
    }

    /// Inserts `count` unused cells at the start of the list of free cells.
    #[cold]
    fn grow(&mut self, count: u32) {
        let end = self.used + count;
        while (self.segments.len() as u64 * u64::from(SEGMENT_CELLS)) < u64::from(end) {
            self.segments.push(Segment {
                next: CircularArray::new(SEGMENT_CELLS, NONE),
                requests: CircularArray::new(SEGMENT_CELLS, None),
                bytes: CircularArray::new(SEGMENT_CELLS, [0; CELL_BYTES]),
            });
        }
        let mut next = self.free;
        for at in (self.used..end).rev() {
            if let Some(segment) = self.segment_mut(at) {
                *segment.next.at_mut(at) = std::mem::replace(&mut next, at);
            }
        }
        (self.free, self.used) = (next, end);
    }

    /// Buffers a copy of the request of `packet`; the queue pair with index `slot` must have room. Returns the first
    /// cell of the copy; `None` if the queue pair may not buffer requests.
    pub(super) fn insert(&mut self, slot: usize, packet: &Packet<'_>, now: Instant) -> Option<u32> {
        self.insert_body(slot, packet.header(), packet.body(), now)
    }

    #[inline]
    fn insert_body(&mut self, slot: usize, header: RequestHeader, body: &[u8], now: Instant) -> Option<u32> {
        let share = self.share(slot)?;
        let (at, is_consecutive) = self.take_cells(body)?;
        let older = std::mem::replace(&mut self.newest, at);
        match self.request_mut(older) {
            Some(older) => older.newer = at,
            None => self.oldest = at,
        }
        let (slot, len_bytes) = (slot as u32, body.len() as u32);
        *self.segment_mut(at)?.requests.at_mut(at) =
            Some(Request { header, slot, len_bytes, buffered_at: now, older, newer: NONE, is_consecutive });
        self.set_share(slot as usize, share + cells_of(body.len()));
        Some(at)
    }

    /// Returns the bytes of each cell of the request whose first cell is `at`.
    fn body(&self, at: u32) -> impl Iterator<Item = &[u8]> {
        let mut left = self.request(at).map_or(0, |request| request.len_bytes as usize);
        let mut next = at;
        std::iter::from_fn(move || {
            let len_bytes = left.min(CELL_BYTES);
            let (bytes, after) = self.cell(next).filter(|_| left > 0)?;
            (left, next) = (left - len_bytes, after);
            bytes.get(..len_bytes)
        })
    }

    /// Returns whether `packet` and the request whose first cell is `at`, which have the same PSN, have the same
    /// content: opcode, solicited event, extension headers and payload. A retransmission may differ in other fields,
    /// for example AckReq. With phantom payloads, returns true.
    pub(super) fn is_same(&self, at: u32, packet: &Packet<'_>) -> bool {
        let Some(Request { header, len_bytes, .. }) = self.request(at) else { return false };
        let mut body = packet.body();
        let is_same = (header.info.opcode, header.solicited) == (packet.info.opcode, packet.bth.solicited)
            && *len_bytes as usize == body.len();
        !self.compares_bytes
            || is_same
                && self.body(at).all(|bytes| body.split_off(..bytes.len()).is_some_and(|part| part == bytes))
    }

    /// Returns header and body (extension headers and payload) of the request whose first cell is `at`.
    #[inline]
    pub(super) fn gather(&mut self, at: u32) -> Option<(RequestHeader, &[u8])> {
        let Request { header, len_bytes, is_consecutive, .. } = *self.request(at)?;
        let len_bytes = len_bytes as usize;
        if !is_consecutive {
            let mut body = std::mem::take(&mut self.body);
            body.clear();
            self.body(at).for_each(|bytes| body.extend_from_slice(bytes));
            self.body = body;
            return Some((header, &self.body));
        }
        let cells = self.segment(at)?.bytes.slice(at, cells_of(len_bytes))?;
        Some((header, cells.as_flattened().get(..len_bytes)?))
    }

    /// Frees the request whose first cell is `at`. Returns the index of its queue pair, and the header of the request.
    #[inline]
    pub(super) fn remove(&mut self, at: u32) -> Option<(usize, RequestHeader)> {
        let request = self.segment_mut(at)?.requests.at_mut(at).take()?;
        let cells = cells_of(request.len_bytes as usize);
        let mut last = at;
        if request.is_consecutive {
            last += cells - 1;
        } else {
            for _ in 1..cells {
                last = self.next(last)?;
            }
        }
        let free = std::mem::replace(&mut self.free, at);
        *self.segment_mut(last)?.next.at_mut(last) = free;
        match self.request_mut(request.older) {
            Some(older) => older.newer = request.newer,
            None => self.oldest = request.newer,
        }
        match self.request_mut(request.newer) {
            Some(newer) => newer.older = request.older,
            None => self.newest = request.older,
        }
        self.taken -= cells;
        let slot = request.slot as usize;
        if let Some(share) = self.share(slot) {
            self.set_share(slot, share - cells);
        }
        if self.taken == 0 && self.is_fragmented {
            (self.free, self.used, self.is_fragmented) = (NONE, 0, false);
        }
        Some((slot, request.header))
    }

    /// Returns the time at which the oldest request expires.
    #[inline]
    pub(crate) fn next_expiry(&self) -> Option<Instant> {
        if self.taken == 0 {
            return None;
        }
        Some(self.request(self.oldest)?.buffered_at.plus_nanos(REORDER_NANOS_MAX))
    }

    /// Frees one expired request, if any. Returns the index of its queue pair, and the PSN of the request.
    pub(crate) fn pop_expired(&mut self, now: Instant) -> Option<(usize, Psn)> {
        self.next_expiry().filter(|expiry| *expiry <= now)?;
        let (slot, header) = self.remove(self.oldest)?;
        Some((slot, header.psn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Opcode;
    use proptest::prelude::*;

    const BYTES_MAX: usize = 1 << 20;
    const CELLS_MAX: u32 = (BYTES_MAX / CELL_BYTES) as u32;
    const RESERVED: u32 = (REORDER_RESERVED_BYTES / CELL_BYTES) as u32;

    fn header(psn: u32) -> RequestHeader {
        let info = Opcode::RC_SEND_ONLY.info().expect("an opcode of the table");
        RequestHeader { info, psn: Psn::new(psn), ack_req: false, solicited: false }
    }

    fn store_of(bytes_max: usize, slots: usize) -> ReorderStore {
        let mut store = ReorderStore::new(bytes_max, Payload::Carried);
        (0..slots).for_each(|slot| store.open(slot));
        store
    }

    /// Buffers empty requests until there is no room. Returns the number of requests.
    fn fill(store: &mut ReorderStore, slot: usize) -> u32 {
        let mut count = 0;
        while store.has_room(slot, 0) {
            assert!(store.insert_body(slot, header(count), &[], Instant::ZERO).is_some());
            count += 1;
        }
        count
    }

    #[test]
    fn a_greedy_queue_pair_leaves_reservations_and_a_part_of_the_rest() {
        let ends_at_the_limit = 4 * RESERVED + 200 * (REORDER_SHARE_OF_FREE + 1);
        for cells_max in [CELLS_MAX, ends_at_the_limit] {
            let mut store = store_of(cells_max as usize * CELL_BYTES, 4);
            let taken = [0, 1, 2].map(|greedy| fill(&mut store, greedy));
            let rest = cells_max - 4 * RESERVED;
            let share = (REORDER_SHARE_OF_FREE * rest).div_ceil(REORDER_SHARE_OF_FREE + 1);
            assert_eq!(taken[0] - RESERVED, share);
            assert!(taken[1] > RESERVED, "the second finds cells of the rest");
            assert!(fill(&mut store, 3) >= RESERVED, "its reservation");
        }
    }

    #[test]
    fn reservations_shrink_with_the_number_of_queue_pairs() {
        let mut store = store_of(BYTES_MAX, CELLS_MAX as usize);
        assert_eq!(store.reserved, 0);
        assert!(store.has_room(7, 1), "of the rest");
        (1..CELLS_MAX as usize).for_each(|slot| store.close(slot));
        let taken = fill(&mut store, 0);
        assert_eq!((store.reserved, store.unreserved), (RESERVED, taken - RESERVED));
        assert!(!store.has_room(7, 1), "closed");
    }

    #[test]
    fn cells_of_a_shrinking_reservation_become_unreserved() {
        let mut store = store_of(BYTES_MAX, 1);
        (0..RESERVED).for_each(|_| assert!(store.insert_body(0, header(0), &[], Instant::ZERO).is_some()));
        assert_eq!(store.unreserved, 0);
        for slot in 1..CELLS_MAX as usize {
            store.open(slot);
            assert_eq!(store.unreserved, RESERVED - store.reserved);
        }
        assert_eq!(store.reserved, 0);
    }

    #[test]
    fn memory_grows_by_the_cells_that_are_not_free() {
        let mut store = store_of(2 * SEGMENT_CELLS as usize * CELL_BYTES, 1);
        let [first, _] = [3, 1].map(|cells| fill_with(&mut store, cells, 0));
        assert!(store.remove(first).is_some());
        fill_with(&mut store, 4, 0);
        assert_eq!(store.used, 5, "three cells were free");
        (store.taken..SEGMENT_CELLS).for_each(|_| assert!(fill_with(&mut store, 1, 0) < SEGMENT_CELLS));
        assert_eq!(store.segments.len(), 1, "exactly full");
    }

    #[test]
    fn first_and_middle_of_a_write_take_equally_many_cells() {
        for mtu_bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(cells_of(mtu_bytes), cells_of(mtu_bytes + crate::wire::Reth::LEN), "{mtu_bytes}");
        }
    }

    fn fill_with(store: &mut ReorderStore, cells: u32, byte: u8) -> u32 {
        let body = vec![byte; cells as usize * CELL_BYTES];
        store.insert_body(0, header(0), &body, Instant::ZERO).expect("there is room")
    }

    #[test]
    fn a_request_in_two_segments_keeps_its_bytes() {
        let mut store = store_of(2 * SEGMENT_CELLS as usize * CELL_BYTES, 1);
        let requests: Vec<u32> =
            (0..=255).cycle().take(2000).map(|byte| fill_with(&mut store, 3, byte)).collect();
        assert_eq!(store.segments.len(), 2);
        for (at, byte) in requests.into_iter().zip((0..=255).cycle()) {
            let crosses = at % SEGMENT_CELLS > SEGMENT_CELLS - 3;
            assert_eq!(store.request(at).map(|request| request.is_consecutive), Some(!crosses));
            assert_eq!(store.gather(at).map(|(_, body)| body.to_vec()), Some(vec![byte; 3 * CELL_BYTES]));
            assert!(store.remove(at).is_some());
        }
    }

    #[test]
    fn after_an_empty_store_cells_are_consecutive_again() {
        let mut store = store_of(BYTES_MAX, 1);
        let [a, b, c] = [3, 1, 3].map(|cells| fill_with(&mut store, cells, 0));
        [c, a].into_iter().for_each(|at| assert!(store.remove(at).is_some()));
        let mixed = fill_with(&mut store, 4, 1);
        assert_eq!(store.request(mixed).map(|request| request.is_consecutive), Some(false));
        [mixed, b].into_iter().for_each(|at| assert!(store.remove(at).is_some()));
        let next = fill_with(&mut store, 4, 2);
        assert_eq!(store.request(next).map(|request| request.is_consecutive), Some(true));
    }

    proptest! {
        #[test]
        fn requests_keep_their_bytes_and_leave_by_age(
            steps in proptest::collection::vec((0usize..4, 0usize..8, 0usize..3 * CELL_BYTES, any::<bool>()), 0..1000)
        ) {
            let mut store = store_of(BYTES_MAX / 4, 4);
            // Buffered requests, oldest first: first cell; index of the queue pair; a number that is both time in
            // nanoseconds and PSN; body.
            let mut model: Vec<(u32, usize, u32, Vec<u8>)> = Vec::new();
            let taken = |model: &[(u32, usize, u32, Vec<u8>)], slot: usize| {
                let of_slot = model.iter().filter(|(_, other, ..)| *other == slot);
                of_slot.map(|(.., body)| cells_of(body.len())).sum::<u32>()
            };
            for (time, (slot, pick, len, insert)) in steps.into_iter().enumerate() {
                let time = time as u32;
                if insert && store.has_room(slot, len) {
                    let body = vec![time as u8; len];
                    let now = Instant::from_nanos(u64::from(time));
                    let at = store.insert_body(slot, header(time), &body, now).unwrap();
                    prop_assert!(model.iter().all(|(other, ..)| *other != at), "taken twice");
                    model.push((at, slot, time, body));
                } else if !model.is_empty() {
                    let (at, slot, time, body) = model.remove(pick % model.len());
                    if pick % 2 == 0 {
                        let (header, copy) = store.gather(at).unwrap();
                        prop_assert_eq!((header.psn, copy), (Psn::new(time), body.as_slice()));
                    }
                    let removed = store.remove(at).map(|(slot, header)| (slot, header.psn));
                    prop_assert_eq!(removed, Some((slot, Psn::new(time))));
                    prop_assert!(store.request(at).is_none() && store.remove(at).is_none());
                }
                let oldest = model.first().map(|(_, _, time, _)| u64::from(*time) + REORDER_NANOS_MAX);
                prop_assert_eq!(store.next_expiry(), oldest.map(Instant::from_nanos));
                let cells = (0..4).map(|slot| taken(&model, slot));
                prop_assert_eq!(store.taken, cells.clone().sum::<u32>());
                prop_assert!((0..4).all(|slot| store.share(slot) == Some(taken(&model, slot))));
                let unreserved = cells.map(|cells| cells.saturating_sub(store.reserved)).sum::<u32>();
                prop_assert_eq!(store.unreserved, unreserved);
            }
        }
    }
}
