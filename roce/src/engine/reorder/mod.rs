//! The reorder buffer of a device: out-of-order packets of the queue pairs whose recovery scheme buffers packets.
//!
//! ```text
//!   index of a queue pair -> window: | . | psn 7 | . | psn 9 | .. |   by PSN modulo window
//!                                          |           '-> an entry of the copies: bytes of a short frame
//!                                          '-> an entry of the frames: the port's buffer
//! ```
//! The responder has the set of buffered PSNs, this module has the packets. A short frame is copied, because otherwise
//! its few bytes would occupy a whole buffer of the port's pool.

#[cfg(test)]
mod reorder_tests;
mod store;

use super::limits::{REORDER_COPIES_MAX, REORDER_COPY_BYTES, REORDER_FRAMES_MAX, REORDER_NANOS_MAX};
use crate::psn::Psn;
use crate::recovery::circular_array::CircularArray;
use crate::recovery::psn_set::PsnSet;
use crate::time::Instant;
use store::{Owner, Store};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The frame itself, in its buffer of the port's pool.
    Frame,
    /// A copy of the frame's bytes.
    Copy,
}

impl Kind {
    const ALL: [Kind; 2] = [Kind::Frame, Kind::Copy];

    pub(super) fn of(len_bytes: usize) -> Self {
        if len_bytes <= REORDER_COPY_BYTES { Kind::Copy } else { Kind::Frame }
    }
}

/// Whether a queue pair may buffer one more packet within its share of the reorder buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    Free,
    /// The packet may be buffered if this buffered packet of the same queue pair, whose PSN is higher, is dropped.
    Instead(Psn),
    None,
}

pub(super) enum Taken<F> {
    Frame(F),
    /// Length in bytes of a packet copied to the caller's buffer.
    Copy(usize),
}

struct Window {
    /// Index of each packet's entry in its `Store`, at PSN modulo window; valid for the PSNs in `frames` and `copies`.
    places: CircularArray<u32>,
    /// PSNs buffered as [`Kind::Frame`], and as [`Kind::Copy`]; a PSN is in at most one of the two sets.
    frames: PsnSet,
    copies: PsnSet,
}

impl Window {
    fn psns(&self, kind: Kind) -> &PsnSet {
        match kind {
            Kind::Frame => &self.frames,
            Kind::Copy => &self.copies,
        }
    }

    fn psns_mut(&mut self, kind: Kind) -> &mut PsnSet {
        match kind {
            Kind::Frame => &mut self.frames,
            Kind::Copy => &mut self.copies,
        }
    }

    fn buffered(&self, kind: Kind) -> usize {
        self.psns(kind).len() as usize
    }

    fn insert(&mut self, kind: Kind, psn: Psn, place: u32) {
        *self.places.at_mut(psn.value()) = place;
        self.psns_mut(kind).insert(psn);
    }

    /// Returns kind and entry of the packet buffered at `psn` modulo window; that packet's PSN may differ from `psn` by
    /// a multiple of the window.
    fn find(&self, psn: Psn) -> Option<(Kind, u32)> {
        let kind = Kind::ALL.into_iter().find(|kind| self.psns(*kind).contains(psn))?;
        Some((kind, *self.places.at(psn.value())))
    }
}

pub(super) struct ReorderBuffer<F> {
    windows: Vec<Option<Window>>,
    frames: Store<F>,
    copies: Store<usize>,
    /// The bytes of all copies: REORDER_COPY_BYTES bytes for each entry of `copies`.
    bytes: Box<[u8]>,
}

fn copy_range(place: u32) -> std::ops::Range<usize> {
    let start = place as usize * REORDER_COPY_BYTES;
    start..start + REORDER_COPY_BYTES
}

impl<F: AsRef<[u8]>> ReorderBuffer<F> {
    pub(super) fn new() -> Self {
        ReorderBuffer {
            windows: Vec::new(),
            frames: Store::new(REORDER_FRAMES_MAX),
            copies: Store::new(REORDER_COPIES_MAX),
            bytes: Box::default(),
        }
    }

    /// Lets the queue pair with index `slot` buffer packets in a window of `window_pkts` PSNs, a power of two.
    pub(super) fn open(&mut self, slot: usize, window_pkts: u32) {
        if self.bytes.is_empty() {
            self.bytes = vec![0; REORDER_COPIES_MAX * REORDER_COPY_BYTES].into_boxed_slice();
        }
        if self.windows.len() <= slot {
            self.windows.resize_with(slot + 1, || None);
        }
        self.clear(slot);
        if let Some(window) = self.windows.get_mut(slot) {
            let (frames, copies) = (PsnSet::new(window_pkts), PsnSet::new(window_pkts));
            *window = Some(Window { places: CircularArray::new(window_pkts, 0), frames, copies });
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
        let windows = self.windows.iter().flatten();
        self.frames.divide(windows.clone().map(|window| window.buffered(Kind::Frame)));
        self.copies.divide(windows.map(|window| window.buffered(Kind::Copy)));
    }

    pub(super) fn clear(&mut self, slot: usize) {
        for kind in Kind::ALL {
            let mut from = Psn::new(0);
            while let Some(window) = self.windows.get(slot).and_then(Option::as_ref)
                && let Some(psn) = window.psns(kind).first_in(from, window.places.len() - from.value())
            {
                self.release(slot, psn);
                from = psn;
            }
        }
    }

    pub(super) fn len(&self) -> (usize, usize) {
        (self.frames.len(), self.copies.len())
    }

    pub(super) fn room(&self, slot: usize, kind: Kind, psn: Psn, expected: Psn) -> Room {
        let Some(window) = self.windows.get(slot).and_then(Option::as_ref) else { return Room::None };
        let has_room = match kind {
            Kind::Frame => self.frames.has_room(window.buffered(kind)),
            Kind::Copy => self.copies.has_room(window.buffered(kind)),
        };
        if has_room {
            return Room::Free;
        }
        let farthest = window.psns(kind).last_in(expected, window.places.len());
        let is_farther = |farthest: &Psn| farthest.distance_from(expected) > psn.distance_from(expected);
        farthest.filter(is_farther).map_or(Room::None, Room::Instead)
    }

    /// Buffers `frame`; drops a packet buffered before at `psn` modulo window.
    pub(super) fn buffer_frame(&mut self, slot: usize, psn: Psn, frame: F, now: Instant) {
        self.release(slot, psn);
        let Some(window) = self.windows.get_mut(slot).and_then(Option::as_mut) else { return };
        let (owner, buffered) = (Owner::new(slot, psn), window.buffered(Kind::Frame));
        if let Some(place) = self.frames.insert(owner, frame, buffered, now) {
            window.insert(Kind::Frame, psn, place);
        }
    }

    /// Buffers a copy of `frame`; drops a packet buffered before at `psn` modulo window.
    pub(super) fn buffer_copy(&mut self, slot: usize, psn: Psn, frame: &[u8], now: Instant) {
        self.release(slot, psn);
        let Some(window) = self.windows.get_mut(slot).and_then(Option::as_mut) else { return };
        let (owner, buffered) = (Owner::new(slot, psn), window.buffered(Kind::Copy));
        let Some(place) = self.copies.insert(owner, frame.len(), buffered, now) else { return };
        if let Some(room) = self.bytes.get_mut(copy_range(place)).and_then(|room| room.get_mut(..frame.len()))
        {
            room.copy_from_slice(frame);
        }
        window.insert(Kind::Copy, psn, place);
    }

    pub(super) fn get(&self, slot: usize, psn: Psn) -> Option<&[u8]> {
        let (kind, place) = self.windows.get(slot)?.as_ref()?.find(psn)?;
        let (owner, bytes) = match kind {
            Kind::Frame => self.frames.get(place).map(|(owner, frame)| (owner, frame.as_ref()))?,
            Kind::Copy => {
                let (owner, len_bytes) = self.copies.get(place)?;
                (owner, self.bytes.get(copy_range(place))?.get(..*len_bytes)?)
            }
        };
        (owner.psn == psn).then_some(bytes)
    }

    /// Removes and returns the packet `psn`, if buffered. The bytes of a [`Kind::Copy`] are copied into `room`.
    pub(super) fn take(
        &mut self,
        slot: usize,
        psn: Psn,
        room: &mut [u8; REORDER_COPY_BYTES],
    ) -> Option<Taken<F>> {
        let bytes = self.get(slot, psn)?;
        if Kind::of(bytes.len()) == Kind::Copy {
            room.get_mut(..bytes.len())?.copy_from_slice(bytes);
        }
        self.release(slot, psn)
    }

    /// Drops the packet buffered at `psn` modulo window, if any.
    pub(super) fn discard(&mut self, slot: usize, psn: Psn) {
        self.release(slot, psn);
    }

    fn release(&mut self, slot: usize, psn: Psn) -> Option<Taken<F>> {
        let window = self.windows.get_mut(slot)?.as_mut()?;
        let (kind, place) = window.find(psn)?;
        let buffered = window.buffered(kind);
        window.psns_mut(kind).remove(psn);
        match kind {
            Kind::Frame => self.frames.remove(place, buffered).map(|(_, frame)| Taken::Frame(frame)),
            Kind::Copy => self.copies.remove(place, buffered).map(|(_, len_bytes)| Taken::Copy(len_bytes)),
        }
    }

    #[inline]
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        let (frame, copy) = (self.frames.oldest(), self.copies.oldest());
        let buffered_at = frame.into_iter().chain(copy).map(|(_, buffered_at)| buffered_at).min()?;
        Some(buffered_at.plus_nanos(REORDER_NANOS_MAX))
    }

    /// Drops one expired packet, if any. Returns the index of its queue pair, and its PSN.
    #[inline]
    pub(super) fn pop_expired(&mut self, now: Instant) -> Option<(usize, Psn)> {
        if self.frames.len() + self.copies.len() == 0 { None } else { self.pop_oldest_expired(now) }
    }

    /// `cold` keeps this code out of line: inlined, it would occupy registers in each idle poll.
    #[cold]
    fn pop_oldest_expired(&mut self, now: Instant) -> Option<(usize, Psn)> {
        let is_expired =
            |(_, buffered_at): &(Owner, Instant)| buffered_at.plus_nanos(REORDER_NANOS_MAX) <= now;
        let oldest = self.frames.oldest().filter(is_expired);
        let (Owner { slot, psn }, _) = oldest.or_else(|| self.copies.oldest().filter(is_expired))?;
        self.release(slot as usize, psn);
        Some((slot as usize, psn))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::ZERO;

    #[test]
    fn packets_come_back_by_their_psn_and_leave_with_their_queue_pair() {
        let mut reorder = ReorderBuffer::<Vec<u8>>::new();
        reorder.open(3, 64);
        let (psn, tiny, long) = (Psn::new(0xFF_FFFF), vec![1; 70], vec![2; 300]);
        assert_eq!((Kind::of(tiny.len()), Kind::of(long.len())), (Kind::Copy, Kind::Frame));
        reorder.buffer_copy(3, psn, &tiny, NOW);
        reorder.buffer_frame(3, psn.plus(2), long.clone(), NOW);
        reorder.buffer_copy(3, psn.plus(66), &tiny, NOW);
        reorder.buffer_frame(9, psn, long.clone(), NOW);
        assert_eq!(reorder.len(), (0, 2), "one took another's place, one has no window");
        assert_eq!((reorder.get(3, psn), reorder.get(3, psn.plus(2))), (Some(&tiny[..]), None));
        let mut room = [0; REORDER_COPY_BYTES];
        assert!(matches!(reorder.take(3, psn, &mut room), Some(Taken::Copy(70))));
        assert_eq!(room[..70], tiny);
        assert!(reorder.take(3, psn, &mut room).is_none());
        assert!(reorder.take(3, psn.plus(2), &mut room).is_none(), "replaced");
        reorder.buffer_frame(3, psn.plus(4), long.clone(), NOW);
        assert_eq!(reorder.get(3, psn.plus(4)), Some(&long[..]));
        reorder.close(3);
        assert_eq!((reorder.len(), reorder.get(3, psn.plus(4))), ((0, 0), None));
    }

    #[test]
    fn the_farthest_of_its_kind_makes_room() {
        let mut reorder = ReorderBuffer::<Vec<u8>>::new();
        reorder.open(0, 4096);
        let expected = Psn::new(0xFF_FF00);
        let mut ahead = 4095;
        while reorder.room(0, Kind::Frame, expected.plus(ahead), expected) == Room::Free {
            reorder.buffer_frame(0, expected.plus(ahead), vec![0; 300], NOW);
            ahead -= 1;
        }
        let room = |psn| reorder.room(0, Kind::Frame, psn, expected);
        assert_eq!(room(expected.plus(ahead)), Room::Instead(expected.plus(4095)));
        assert_eq!(room(expected.plus(4095)), Room::None);
        assert_eq!(reorder.room(0, Kind::Copy, expected.plus(1), expected), Room::Free);
    }

    #[test]
    fn the_oldest_expires_first_and_whoever_it_is() {
        let mut reorder = ReorderBuffer::<Vec<u8>>::new();
        (0..2).for_each(|slot| reorder.open(slot, 64));
        let at = |micros: u64| Instant::from_nanos(1000 * micros);
        let psn = Psn::new(5);
        reorder.buffer_frame(1, psn, vec![0; 300], at(1));
        reorder.buffer_copy(0, psn, &[0; 60], at(2));
        reorder.buffer_frame(0, psn.plus(1), vec![0; 300], at(3));
        assert!(matches!(reorder.take(1, psn, &mut [0; REORDER_COPY_BYTES]), Some(Taken::Frame(_))));
        let due = |micros| at(micros).plus_nanos(REORDER_NANOS_MAX);
        assert_eq!((reorder.next_expiry(), reorder.pop_expired(at(3))), (Some(due(2)), None));
        assert_eq!(reorder.pop_expired(due(2)), Some((0, psn)));
        assert_eq!(reorder.pop_expired(due(2)), None);
        assert_eq!(
            (reorder.next_expiry(), reorder.pop_expired(due(3))),
            (Some(due(3)), Some((0, psn.plus(1))))
        );
        assert_eq!((reorder.next_expiry(), reorder.len()), (None, (0, 0)));
    }
}
