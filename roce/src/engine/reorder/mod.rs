//! The reorder buffer of a device: out-of-order packets of the queue pairs whose recovery scheme buffers packets.
//!
//! ```text
//!   index of a queue pair -> window: | . | psn 7 | . | psn 9 | .. |   by PSN modulo window
//!                                          '-> chain of cells in the store: the bytes of the frame
//! ```
//! The responder has the set of buffered PSNs, this module has the frames. A frame is copied, because otherwise the
//! port's pool would need a buffer for each of them, and a short frame would occupy a whole buffer.

#[cfg(test)]
mod reorder_tests;
mod store;

use super::limits::REORDER_NANOS_MAX;
use crate::psn::Psn;
use crate::recovery::circular_array::CircularArray;
use crate::recovery::psn_set::PsnSet;
use crate::time::Instant;
use store::{CELL_BYTES, Owner, Store, cells_of};

/// Whether a queue pair may buffer one more packet within its share of the reorder buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// The packet may be buffered if this buffered packet of the same queue pair, whose PSN is higher, is dropped.
    Instead(Psn),
    None,
}

struct Window {
    /// First cell of each packet, at PSN modulo window; valid for the PSNs in `psns`.
    places: CircularArray<u32>,
    psns: PsnSet,
    cells: u32,
}

pub(super) struct ReorderBuffer {
    windows: Vec<Option<Window>>,
    store: Store,
}

impl ReorderBuffer {
    pub(super) fn new(bytes_max: usize) -> Self {
        ReorderBuffer { windows: Vec::new(), store: Store::new(bytes_max) }
    }

    fn window(&self, slot: usize) -> Option<&Window> {
        self.windows.get(slot)?.as_ref()
    }

    /// Lets the queue pair with index `slot` buffer packets in a window of `window_pkts` PSNs, a power of two.
    pub(super) fn open(&mut self, slot: usize, window_pkts: u32) {
        if self.windows.len() <= slot {
            self.windows.resize_with(slot + 1, || None);
        }
        self.clear(slot);
        if let Some(window) = self.windows.get_mut(slot) {
            let (places, psns) = (CircularArray::new(window_pkts, 0), PsnSet::new(window_pkts));
            *window = Some(Window { places, psns, cells: 0 });
        }
        self.divide();
    }

    /// Drops the buffered packets of the queue pair with index `slot`, and releases its reservation.
    pub(super) fn close(&mut self, slot: usize) {
        self.clear(slot);
        if self.windows.get_mut(slot).and_then(Option::take).is_some() {
            self.divide();
        }
    }

    fn divide(&mut self) {
        self.store.divide(self.windows.iter().flatten().map(|window| window.cells));
    }

    pub(super) fn clear(&mut self, slot: usize) {
        let mut from = Psn::new(0);
        while let Some(window) = self.window(slot)
            && let Some(psn) = window.psns.first_in(from, window.places.len() - from.value())
        {
            self.discard(slot, psn);
            from = psn;
        }
    }

    /// Returns the number of bytes that the packets of all queue pairs occupy.
    pub(super) fn occupied_bytes(&self) -> usize {
        self.store.taken() as usize * CELL_BYTES
    }

    pub(super) fn room(&self, slot: usize, len_bytes: usize, psn: Psn, expected: Psn) -> Room {
        let Some(window) = self.window(slot) else { return Room::None };
        if self.store.has_room(window.cells, cells_of(len_bytes)) {
            return Room::Free;
        }
        let farthest = window.psns.last_in(expected, window.places.len());
        let is_farther = |farthest: &Psn| farthest.distance_from(expected) > psn.distance_from(expected);
        farthest.filter(is_farther).map_or(Room::None, Room::Instead)
    }

    /// Buffers a copy of `frame`; drops a packet buffered before at `psn` modulo window. Returns false if no room is
    /// left.
    pub(super) fn buffer(&mut self, slot: usize, psn: Psn, frame: &[u8], now: Instant) -> bool {
        self.discard(slot, psn);
        let Some(window) = self.windows.get_mut(slot).and_then(Option::as_mut) else { return false };
        let Some(place) = self.store.insert(Owner::new(slot, psn), frame, window.cells, now) else {
            return false;
        };
        window.cells += cells_of(frame.len());
        *window.places.at_mut(psn.value()) = place;
        window.psns.insert(psn);
        true
    }

    fn find(&self, slot: usize, psn: Psn) -> Option<u32> {
        let window = self.window(slot).filter(|window| window.psns.contains(psn))?;
        let place = *window.places.at(psn.value());
        // The packet at `psn` modulo window may have another PSN.
        self.store.owner(place).filter(|owner| owner.psn == psn).map(|_| place)
    }

    pub(super) fn copy_to(&self, slot: usize, psn: Psn, frame: &mut Vec<u8>) -> bool {
        let place = self.find(slot, psn);
        place.inspect(|place| self.store.copy_to(*place, frame)).is_some()
    }

    /// Moves the packet `psn`, if buffered, to `frame`. Returns whether it was buffered.
    pub(super) fn take(&mut self, slot: usize, psn: Psn, frame: &mut Vec<u8>) -> bool {
        let is_buffered = self.copy_to(slot, psn, frame);
        if is_buffered {
            self.discard(slot, psn);
        }
        is_buffered
    }

    /// Drops the packet buffered at `psn` modulo window, if any.
    pub(super) fn discard(&mut self, slot: usize, psn: Psn) {
        let Some(window) = self.windows.get_mut(slot).and_then(Option::as_mut) else { return };
        if window.psns.contains(psn) {
            window.psns.remove(psn);
            let place = *window.places.at(psn.value());
            window.cells -= self.store.remove(place, window.cells).unwrap_or(0);
        }
    }

    #[inline]
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.store.oldest().map(|(_, buffered_at)| buffered_at.plus_nanos(REORDER_NANOS_MAX))
    }

    /// Drops one expired packet, if any. Returns the index of its queue pair, and its PSN.
    #[inline]
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<(usize, Psn)> {
        if self.store.taken() == 0 { None } else { self.pop_oldest_expired(now) }
    }

    /// `cold` keeps this code out of line: inlined, it would occupy registers in each idle poll.
    #[cold]
    fn pop_oldest_expired(&mut self, now: Instant) -> Option<(usize, Psn)> {
        let is_expired =
            |(_, buffered_at): &(Owner, Instant)| buffered_at.plus_nanos(REORDER_NANOS_MAX) <= now;
        let (Owner { slot, psn }, _) = self.store.oldest().filter(is_expired)?;
        self.discard(slot as usize, psn);
        Some((slot as usize, psn))
    }
}
