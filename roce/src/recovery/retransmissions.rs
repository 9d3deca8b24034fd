//! Retransmissions in flight: a circular list in the order in which they were sent.
//!
//! ```text
//!   links     ends <-> oldest <-> .. <-> newest <-> ends      `ends` is the head of the list
//!   slot      0        1 + psn modulo window_pkts
//! ```

use super::circular_array::CircularArray;
use crate::psn::Psn;

/// Slot of the head of the list, whose links are the oldest and the newest entry.
const ENDS: u16 = 0;

/// Links of an entry, each 1 + PSN modulo window; both are `ENDS` if the entry is not in the list, or alone in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    /// Slot of the entry retransmitted next after this entry; of the head: the oldest entry.
    next: u16,
    /// Slot of the entry retransmitted last before this entry; of the head: the newest entry.
    before: u16,
}

/// The retransmitted packets of a window that are in flight, each with max_sent at the time of its retransmission.
#[derive(Clone, Debug)]
pub(crate) struct Retransmissions {
    ends: Link,
    /// Links of each packet, at its PSN modulo the window.
    links: CircularArray<Link>,
    /// max_sent when each packet was retransmitted, at its PSN modulo the window.
    sent_at: CircularArray<Psn>,
}

impl Retransmissions {
    /// Creates an empty list; `window_pkts` is a power of two below 2^16.
    pub(crate) fn new(window_pkts: u32) -> Self {
        debug_assert!(window_pkts.is_power_of_two() && window_pkts < u32::from(u16::MAX));
        Retransmissions {
            ends: Link::default(),
            links: CircularArray::new(window_pkts, Link::default()),
            sent_at: CircularArray::new(window_pkts, Psn::default()),
        }
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "masked by a window below 2^16")]
    fn slot(&self, psn: Psn) -> u16 {
        1 + (psn.value() & (self.links.len() - 1)) as u16
    }

    /// Returns the PSN of a slot, in the window that begins at `una`; `None` for the slot of the head.
    fn psn_of(&self, slot: u16, una: Psn) -> Option<Psn> {
        let index = u32::from(slot).checked_sub(1)?.wrapping_sub(una.value()) & (self.links.len() - 1);
        Some(una.plus(index))
    }

    fn link_mut(&mut self, slot: u16) -> &mut Link {
        match slot.checked_sub(1) {
            None => &mut self.ends,
            Some(index) => self.links.at_mut(u32::from(index)),
        }
    }

    /// Returns whether a retransmission of `psn` is in flight.
    #[inline]
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        *self.links.at(psn.value()) != Link::default() || self.ends.next == self.slot(psn)
    }

    /// Appends a retransmission of `psn`. `sent_at` is max_sent; it never decreases between calls.
    pub(crate) fn push(&mut self, psn: Psn, sent_at: Psn) {
        self.remove(psn);
        let (slot, newest) = (self.slot(psn), self.ends.before);
        *self.links.at_mut(psn.value()) = Link { next: ENDS, before: newest };
        self.link_mut(newest).next = slot;
        self.ends.before = slot;
        *self.sent_at.at_mut(psn.value()) = sent_at;
    }

    /// Removes `psn`, if in the list, because it was acknowledged or marked lost.
    #[inline]
    pub(crate) fn remove(&mut self, psn: Psn) {
        if self.contains(psn) {
            let Link { next, before } = std::mem::take(self.links.at_mut(psn.value()));
            self.link_mut(before).next = next;
            self.link_mut(next).before = before;
        }
    }

    /// Returns whether the oldest retransmission was sent while max_sent was below `end`. If `end` is largest acked
    /// minus the reordering threshold, that retransmission is lost, because a packet sent later was acknowledged.
    #[inline]
    pub(crate) fn is_below_threshold(&self, end: Psn) -> bool {
        let oldest = self.ends.next.checked_sub(1);
        oldest.is_some_and(|index| self.is_before(u32::from(index), end))
    }

    /// Returns whether the packet with PSN `index` modulo window was retransmitted while max_sent was below `end`.
    #[inline]
    fn is_before(&self, index: u32, end: Psn) -> bool {
        end.offset_from(*self.sent_at.at(index)).is_some_and(|offset| offset > 0)
    }

    /// Returns the entry after `psn` in the list (after `None`: the oldest), if it was retransmitted while max_sent was
    /// below `end`. `psn` must be in the list, and all entries in the window that begins at `una`.
    pub(crate) fn next_below_threshold(&self, psn: Option<Psn>, end: Psn, una: Psn) -> Option<Psn> {
        let link = psn.map_or(&self.ends, |psn| self.links.at(psn.value()));
        self.psn_of(link.next, una).filter(|next| self.is_before(next.value(), end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn they_are_a_list_in_the_order_sent(
            una in prop_oneof![Just(0u32), Just(Psn::COUNT - 30)],
            steps in prop::collection::vec((0u32..64, 0u32..3, any::<bool>()), 0..200),
        ) {
            let (una, mut list) = (Psn::new(una), Retransmissions::new(64));
            let mut model: Vec<(Psn, u32)> = Vec::new();
            let mut sent = 64;
            for (index, more, is_sent) in steps {
                let psn = una.plus(index);
                sent += more;
                model.retain(|(other, _)| *other != psn);
                if is_sent {
                    list.push(psn, una.plus(sent));
                    model.push((psn, sent));
                } else {
                    list.remove(psn);
                }
                for index in 0..64 {
                    let psn = una.plus(index);
                    prop_assert_eq!(list.contains(psn), model.iter().any(|(other, _)| *other == psn));
                }
                for end in [64, sent - 1, sent, sent + 1] {
                    let mut at = None;
                    for (psn, _) in model.iter().take_while(|(_, sent_at)| *sent_at < end) {
                        at = list.next_below_threshold(at, una.plus(end), una);
                        prop_assert_eq!(at, Some(*psn));
                    }
                    prop_assert_eq!(list.next_below_threshold(at, una.plus(end), una), None);
                    let is_below_threshold = model.first().is_some_and(|(_, sent_at)| *sent_at < end);
                    prop_assert_eq!(list.is_below_threshold(una.plus(end)), is_below_threshold);
                }
            }
        }
    }
}
