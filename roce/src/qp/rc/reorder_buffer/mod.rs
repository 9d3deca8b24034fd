//! The reorder buffer of a queue pair: requests above the expected PSN, buffered as a copy, or placed; and early READs.
//!
//! ```text
//!   PSN        7 (expected)   8          9         10        11         12
//!   request    missing        buffered   missing   placed    buffered   early READ
//!   set                       x                    x         x          x     the bitmap of a SACK
//!   copies                    x                              x
//!   cells                     '-> chain of cells in `ReorderStore`: extension headers and payload
//! ```
//! Requests are copied, because otherwise even a short request would occupy a whole receive buffer of the port. For a
//! placed request, only the header fields that execution needs are recorded (`placing`). Of an
//! early READ, only the PSN is recorded.

#[cfg(test)]
mod reorder_tests;
mod store;

#[cfg(test)]
pub(crate) use store::CELL_BYTES;
pub use store::REORDER_NANOS_MAX;
pub(crate) use store::{REORDER_REQUEST_BYTES, ReorderStore};

use crate::psn::Psn;
use crate::qp::rc::placing::Placing;
use crate::qp::request::RequestHeader;
use crate::recovery::circular_array::CircularArray;
use crate::recovery::out_of_order_set::OutOfOrderSet;
use crate::recovery::psn_set::PsnSet;
use crate::time::Instant;
use crate::wire::Packet;

/// Out-of-order requests of a queue pair.
#[derive(Debug)]
pub(crate) struct ReorderBuffer {
    /// PSNs of buffered requests, of placed requests and of early READs.
    set: OutOfOrderSet,
    /// Number of early READs in `set`.
    early_reads: u32,
    /// PSNs of buffered requests.
    copies: PsnSet,
    /// Index of the first cell of each buffered request, by the request's PSN modulo the window; valid only for PSNs in
    /// `copies` (PSNs of buffered requests).
    cells: CircularArray<u32>,
    /// `None` unless placement is relaxed.
    placing: Option<Box<Placing>>,
}

impl ReorderBuffer {
    /// Creates a reorder buffer for a window of `window_pkts` PSNs, a power of two.
    pub(crate) fn new(window_pkts: u32, is_relaxed: bool) -> Self {
        ReorderBuffer {
            set: OutOfOrderSet::new(window_pkts),
            early_reads: 0,
            copies: PsnSet::new(window_pkts),
            cells: CircularArray::new(window_pkts, 0),
            placing: is_relaxed.then(|| Box::new(Placing::new(window_pkts))),
        }
    }

    #[inline]
    pub(crate) fn set(&self) -> &OutOfOrderSet {
        &self.set
    }

    #[inline]
    pub(crate) fn placing(&self) -> Option<&Placing> {
        self.placing.as_deref()
    }

    #[inline]
    pub(crate) fn placing_mut(&mut self) -> Option<&mut Placing> {
        self.placing.as_deref_mut()
    }

    /// Records that the request of `psn` was placed. `psn` must be in the window.
    #[inline]
    pub(crate) fn on_placed(&mut self, psn: Psn) {
        self.set.insert(psn);
    }

    /// Records the early READs with first PSNs `psns`, which must be in the window. `early_reads`: number of all early
    /// READs.
    pub(crate) fn on_early_reads(&mut self, psns: impl Iterator<Item = Psn>, early_reads: usize) {
        psns.for_each(|psn| self.set.insert(psn));
        self.early_reads = u32::try_from(early_reads).unwrap_or(u32::MAX);
    }

    /// Returns whether a request is buffered or placed; early READs do not count.
    #[inline]
    pub(crate) fn has_buffered_or_placed(&self) -> bool {
        self.set.len() > self.early_reads
    }

    #[inline]
    fn cell(&self, psn: Psn) -> Option<u32> {
        self.copies.contains(psn).then(|| *self.cells.at(psn.value()))
    }

    /// Buffers a copy of `packet`, whose PSN must be in the window and not buffered yet. If the queue pair with index
    /// `slot` has no room, drops its buffered requests above this PSN, highest PSN first, until there is room, and
    /// counts them in `dropped`. Returns whether the packet is buffered.
    #[inline]
    pub(crate) fn buffer(
        &mut self,
        packet: &Packet<'_>,
        (expected, slot, now): (Psn, usize, Instant),
        store: &mut ReorderStore,
        dropped: &mut u64,
    ) -> bool {
        let psn = packet.bth.psn;
        if !store.has_room(slot, packet.body().len())
            && !self.make_room(packet, (expected, slot), store, dropped)
        {
            return false;
        }
        let Some(cell) = store.insert(slot, packet, now) else { return false };
        *self.cells.at_mut(psn.value()) = cell;
        self.copies.insert(psn);
        self.set.insert(psn);
        true
    }

    #[cold]
    fn make_room(
        &mut self,
        packet: &Packet<'_>,
        (expected, slot): (Psn, usize),
        store: &mut ReorderStore,
        dropped: &mut u64,
    ) -> bool {
        let (distance, len_bytes) = (packet.bth.psn.distance_from(expected), packet.body().len());
        // To make room for a long request, it may be necessary to drop several short requests.
        while !store.has_room(slot, len_bytes) {
            let farthest = self.copies.last_in(expected, self.copies.capacity());
            let Some(farthest) = farthest.filter(|psn| psn.distance_from(expected) > distance) else {
                return false;
            };
            self.discard(expected, farthest, store);
            *dropped += 1;
        }
        true
    }

    /// Returns whether `packet`, whose PSN must be buffered or placed, has the same content as the request of its PSN;
    /// if not, the two packets are a conflict.
    pub(crate) fn is_same(&self, packet: &Packet<'_>, store: &ReorderStore) -> bool {
        match self.cell(packet.bth.psn) {
            Some(cell) => store.is_same(cell, packet),
            None => self.placing().is_none_or(|placing| placing.is_same(packet)),
        }
    }

    /// Returns `RequestHeader` and body (extension headers and payload) of the buffered request of the expected PSN.
    #[inline]
    pub(crate) fn buffered<'s>(
        &self,
        expected: Psn,
        store: &'s mut ReorderStore,
    ) -> Option<(RequestHeader, &'s [u8])> {
        store.gather(self.cell(expected)?)
    }

    /// Drops the buffered request of `psn`, if any.
    pub(crate) fn discard(&mut self, expected: Psn, psn: Psn, store: &mut ReorderStore) {
        if self.drop_copy(psn, store) {
            self.set.remove(expected, psn);
        }
    }

    /// Records that `ReorderStore` dropped the buffered request of `psn`.
    pub(crate) fn on_dropped(&mut self, expected: Psn, psn: Psn) {
        self.copies.remove(psn);
        self.set.remove(expected, psn);
    }

    /// Drops all requests, buffered or placed, and forgets all early READs.
    pub(crate) fn clear(&mut self, store: &mut ReorderStore) {
        self.drop_copies(Psn::new(0), self.copies.capacity(), store);
        self.set.clear();
        if let Some(placing) = self.placing_mut() {
            placing.clear();
        }
    }

    /// Frees the buffered request with PSN `psn`, if any. Returns whether a request was freed. `psn` remains in
    /// `set`, the PSNs of buffered requests and of placed requests.
    #[inline]
    fn drop_copy(&mut self, psn: Psn, store: &mut ReorderStore) -> bool {
        let Some(cell) = self.cell(psn) else { return false };
        store.remove(cell);
        self.copies.remove(psn);
        true
    }

    fn drop_copies(&mut self, first: Psn, span: u32, store: &mut ReorderStore) {
        while let Some(psn) = self.copies.first_in(first, span) {
            self.drop_copy(psn, store);
        }
    }

    /// Removes `expected` and the `span - 1` PSNs after it, because they were executed or refused.
    #[inline]
    pub(crate) fn pass(&mut self, expected: Psn, span: u32, store: &mut ReorderStore) {
        if !self.copies.is_empty() {
            if span == 1 {
                self.drop_copy(expected, store);
            } else {
                self.drop_copies(expected, span, store);
            }
        }
        self.set.advance(expected, span);
        if let Some(placing) = &mut self.placing {
            placing.pass(expected, span);
        }
    }
}
