//! Retransmissions in flight, in the order in which they were sent.
//!
//! ```text
//!   links     ends <-> oldest <-> .. <-> newest <-> ends
//!   slot      0        1 + psn modulo window_pkts
//! ```

use crate::psn::Psn;

/// Slot of the list's head, which links the oldest and the newest entry.
const ENDS: usize = 0;
/// Index in `links`: the entry retransmitted next; of the head, the oldest.
const NEXT: usize = 0;
/// Index in `links`: the entry retransmitted before; of the head, the newest.
const BEFORE: usize = 1;

/// Retransmitted packets of a window, each with max_sent at the time of its retransmission.
#[derive(Clone, Debug)]
pub(crate) struct Retransmissions {
    /// Per slot, the slots of its neighbours; `[0, 0]` if the slot is unlinked, or is the only entry.
    links: Box<[[u16; 2]]>,
    /// Per slot, max_sent when the packet was retransmitted.
    sent_at: Box<[u32]>,
}

impl Retransmissions {
    /// Creates an empty list; `window_pkts` is a power of two below 2^16.
    pub(crate) fn new(window_pkts: u32) -> Self {
        debug_assert!(window_pkts.is_power_of_two() && window_pkts < u32::from(u16::MAX));
        let places = window_pkts as usize + 1;
        Retransmissions {
            links: vec![[0; 2]; places].into_boxed_slice(),
            sent_at: vec![0; places].into_boxed_slice(),
        }
    }

    fn window_pkts(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    #[inline]
    fn place(&self, psn: Psn) -> usize {
        1 + (psn.value() & (self.window_pkts() - 1)) as usize
    }

    /// Returns the PSN of a slot in the window that begins with `una`; `None` for the head.
    fn psn_of(&self, place: usize, una: Psn) -> Option<Psn> {
        let index = (place as u32).checked_sub(1)?.wrapping_sub(una.value()) & (self.window_pkts() - 1);
        Some(una.plus(index))
    }

    /// Returns whether a retransmission of `psn` is in flight.
    #[inline]
    pub(crate) fn contains(&self, psn: Psn) -> bool {
        let place = self.place(psn);
        self.links[place] != [0; 2] || usize::from(self.links[ENDS][NEXT]) == place
    }

    /// Records a retransmission of `psn`. `sent_at` is max_sent; it never decreases between calls.
    pub(crate) fn push(&mut self, psn: Psn, sent_at: Psn) {
        self.remove(psn);
        let (place, newest) = (self.place(psn), self.links[ENDS][BEFORE]);
        self.links[place] = [ENDS as u16, newest];
        self.links[usize::from(newest)][NEXT] = place as u16;
        self.links[ENDS][BEFORE] = place as u16;
        self.sent_at[place] = sent_at.value();
    }

    /// Removes `psn`, if present: it was acknowledged, or marked lost once more.
    #[inline]
    pub(crate) fn remove(&mut self, psn: Psn) {
        if self.contains(psn) {
            let [next, before] = std::mem::take(&mut self.links[self.place(psn)]);
            self.links[usize::from(before)][NEXT] = next;
            self.links[usize::from(next)][BEFORE] = before;
        }
    }

    /// Returns whether `sent_at` of the oldest entry is below `end`. Where `end` is largest acked minus the reordering
    /// threshold, a packet sent after that retransmission was acknowledged, so the retransmission is lost.
    #[inline]
    pub(crate) fn is_below_threshold(&self, end: Psn) -> bool {
        let oldest = usize::from(self.links[ENDS][NEXT]);
        oldest != ENDS && self.is_before(oldest, end)
    }

    #[inline]
    fn is_before(&self, place: usize, end: Psn) -> bool {
        end.offset_from(Psn::new(self.sent_at[place])).is_some_and(|offset| offset > 0)
    }

    /// Returns the entry after `psn` (`None`: the oldest), if its `sent_at` is below `end`. `psn` must be in the list;
    /// all entries lie in the window from `una` on.
    pub(crate) fn next_below_threshold(&self, psn: Option<Psn>, end: Psn, una: Psn) -> Option<Psn> {
        let at = psn.map_or(ENDS, |psn| self.place(psn));
        let next = usize::from(self.links[at][NEXT]);
        self.psn_of(next, una).filter(|_| self.is_before(next, end))
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
