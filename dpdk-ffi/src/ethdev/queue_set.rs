//! The queues of a port that one thread drives.

use super::queue::EthQueue;
use crate::mbuf::Mbuf;

/// All queues of a port, driven by one thread: receives from each queue in turn. Frames are sent on the
/// [first queue](QueueSet::first_mut) only, which keeps their order.
#[derive(Debug)]
pub struct QueueSet {
    // Apart from `others`, because most ports have one queue.
    first: EthQueue,
    others: Vec<EthQueue>,
    /// The queue to receive from next; 0: `first`.
    next_rx: usize,
}

impl QueueSet {
    /// `queues`: at least one, in the order of their numbers.
    pub(super) fn new(mut queues: impl Iterator<Item = EthQueue>) -> Self {
        let first = queues.next().expect("a port has a queue: the builder checks the number");
        Self { first, others: queues.collect(), next_rx: 0 }
    }

    /// Returns the queues, in the order of their numbers, each of which may move to a thread of its own.
    pub fn into_queues(self) -> Vec<EthQueue> {
        std::iter::once(self.first).chain(self.others).collect()
    }

    /// Returns the first queue.
    #[inline]
    pub fn first(&self) -> &EthQueue {
        &self.first
    }

    /// Returns the first queue, to send.
    #[inline]
    pub fn first_mut(&mut self) -> &mut EthQueue {
        &mut self.first
    }

    /// Returns all queues, as [`super::EthPort::start`] and [`super::EthPort::stop`] require.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut EthQueue> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }

    /// Appends at most `max` received frames to `frames` and returns their number. Does not block.
    ///
    /// Allocates only if `frames` has no room for `max` more.
    #[inline]
    pub fn rx_burst(&mut self, frames: &mut Vec<Mbuf>, max: usize) -> usize {
        let mut received = 0;
        for _ in 0..=self.others.len() {
            if received == max {
                break;
            }
            let queue = match self.next_rx.checked_sub(1) {
                Some(other) => self.others.get_mut(other).unwrap_or(&mut self.first),
                None => &mut self.first,
            };
            received += queue.rx_burst(frames, max - received);
            self.next_rx = if self.next_rx == self.others.len() { 0 } else { self.next_rx + 1 };
        }
        received
    }
}
