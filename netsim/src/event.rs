//! What is going to happen, by time and then by the order of cause.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::network::LinkId;

/// Something that happens at a known time.
pub(crate) enum Event {
    /// The last bit of the frame under way leaves the sender.
    Sent {
        /// On which link.
        link: LinkId,
    },
    /// A frame reaches the far end.
    Arrived {
        /// Of which link.
        link: LinkId,
        /// The frame.
        frame: Vec<u8>,
    },
    /// A frame held back for others to pass has waited long enough.
    HeldTooLong {
        /// On which link.
        link: LinkId,
        /// Which one of the link's held frames.
        held: u64,
    },
}

struct Scheduled {
    nanos: u64,
    sequence: u64,
    event: Event,
}

impl Scheduled {
    fn key(&self) -> (u64, u64) {
        (self.nanos, self.sequence)
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    /// The earliest is the greatest, because a binary heap gives the greatest first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Events to come.
#[derive(Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Scheduled>,
    sequence: u64,
}

impl Events {
    /// Adds an event; of two at the same time the one added first happens first.
    pub(crate) fn schedule(&mut self, nanos: u64, event: Event) {
        self.heap.push(Scheduled { nanos, sequence: self.sequence, event });
        self.sequence += 1;
    }

    /// When the next event happens.
    pub(crate) fn next_nanos(&self) -> Option<u64> {
        self.heap.peek().map(|next| next.nanos)
    }

    /// Takes the next event if it happens at `nanos` or before.
    pub(crate) fn pop_until(&mut self, nanos: u64) -> Option<(u64, Event)> {
        if self.next_nanos()? > nanos {
            return None;
        }
        self.heap.pop().map(|next| (next.nanos, next.event))
    }
}
