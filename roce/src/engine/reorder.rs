//! Frames kept until the packets before them have come, for queue pairs whose recovery says so.
//!
//! ```text
//!   slot of the queue pair -> ring of its window: | . | psn 7 | . | psn 9 | .. |   by PSN modulo window
//! ```
//! The responder knows which PSNs are kept; here are the frames. What it has passed by stays until its
//! place is needed, or the queue pair ends.

use super::limits::KEPT_FRAMES_MAX;
use crate::psn::Psn;

struct Ring<F> {
    places: Box<[Option<(Psn, F)>]>,
}

impl<F> Ring<F> {
    fn place(&mut self, psn: Psn) -> Option<&mut Option<(Psn, F)>> {
        let mask = self.places.len() - 1;
        self.places.get_mut(psn.value() as usize & mask)
    }
}

/// The frames kept by one device.
pub(super) struct Reorder<F> {
    rings: Vec<Option<Ring<F>>>,
    kept: usize,
}

impl<F> Reorder<F> {
    /// Keeps nothing.
    pub(super) fn new() -> Self {
        Reorder { rings: Vec::new(), kept: 0 }
    }

    /// Makes room for the window of the queue pair in `slot`, a power of two.
    pub(super) fn open(&mut self, slot: usize, window_pkts: u32) {
        if self.rings.len() <= slot {
            self.rings.resize_with(slot + 1, || None);
        }
        self.close(slot);
        let places = (0..window_pkts).map(|_| None).collect();
        self.rings[slot] = Some(Ring { places });
    }

    /// Drops what is kept for the queue pair in `slot`.
    pub(super) fn close(&mut self, slot: usize) {
        if let Some(ring) = self.rings.get_mut(slot).and_then(Option::take) {
            self.kept -= ring.places.iter().flatten().count();
        }
    }

    /// Whether one more frame may be kept.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.kept < KEPT_FRAMES_MAX
    }

    /// Keeps a frame.
    pub(super) fn keep(&mut self, slot: usize, psn: Psn, frame: F) {
        let place = self.rings.get_mut(slot).and_then(Option::as_mut).and_then(|ring| ring.place(psn));
        if let Some(place) = place {
            self.kept += usize::from(place.replace((psn, frame)).is_none());
        }
    }

    /// Takes out the frame of `psn`, where it is kept.
    pub(super) fn take(&mut self, slot: usize, psn: Psn) -> Option<F> {
        let place = self.rings.get_mut(slot)?.as_mut()?.place(psn)?;
        let (kept, frame) = place.take()?;
        self.kept -= 1;
        (kept == psn).then_some(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_by_their_psn_and_leave_with_their_queue_pair() {
        let mut reorder = Reorder::new();
        reorder.open(3, 64);
        let psn = Psn::new(0xFF_FFFF);
        reorder.keep(3, psn, 'a');
        reorder.keep(3, psn.plus(2), 'b');
        reorder.keep(3, psn.plus(66), 'c');
        reorder.keep(9, psn, 'x');
        assert_eq!(reorder.kept, 2, "one took another's place, one has no window");
        assert_eq!(reorder.take(3, psn), Some('a'));
        assert_eq!(reorder.take(3, psn), None);
        assert_eq!(reorder.take(3, psn.plus(2)), None, "replaced");
        reorder.keep(3, psn.plus(4), 'd');
        reorder.close(3);
        assert_eq!((reorder.kept, reorder.take(3, psn.plus(4))), (0, None));
    }
}
