//! Counters that a thread increments while others read them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter of a queue. Only the thread that drives the queue increments it, so that an increment needs no atomic
/// read-modify-write; any thread reads and resets it.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// Sum of all increments, modulo 2^64.
    total: AtomicU64,
    /// `total` at the last reset. Apart from `total`, otherwise an increment could undo a reset by another thread.
    at_reset: AtomicU64,
}

impl Counter {
    /// Adds `count`. Called by one thread at a time.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        let total = self.total.load(Ordering::Relaxed).wrapping_add(count);
        self.total.store(total, Ordering::Relaxed);
    }

    /// Returns the sum of the increments since the last reset.
    pub(crate) fn get(&self) -> u64 {
        // `at_reset` is read first, because a reset between the two reads would make it larger than `total`.
        let at_reset = self.at_reset.load(Ordering::Acquire);
        self.total.load(Ordering::Relaxed).wrapping_sub(at_reset)
    }

    /// Sets the counter to zero.
    pub(crate) fn reset(&self) {
        self.at_reset.store(self.total.load(Ordering::Relaxed), Ordering::Release);
    }
}

/// Counters of a queue's bursts that replace the driver's, since the port was opened or its statistics reset.
#[derive(Debug, Default)]
pub(crate) struct BurstCounts {
    pub(crate) rx_frames: Counter,
    pub(crate) rx_bytes: Counter,
    /// Received frames dropped because they are too long, in too many pieces, or incomplete.
    pub(crate) rx_bad: Counter,
    /// Allocations for received frames that failed.
    pub(crate) rx_no_mbuf: Counter,
    pub(crate) tx_frames: Counter,
    pub(crate) tx_bytes: Counter,
    /// Frames dropped because a memif needs more of the peer's buffers for them than a frame may have, or because the
    /// kernel refuses them on a packet socket.
    pub(crate) tx_bad: Counter,
    /// Interrupts raised at the peer of a memif, each by a system call.
    pub(crate) tx_interrupts: Counter,
    /// Connections ended because of the writes of a memif's peer to the shared memory.
    pub(crate) violations: Counter,
}

impl BurstCounts {
    /// Sets the counters to zero.
    pub(crate) fn reset(&self) {
        let Self {
            rx_frames,
            rx_bytes,
            rx_bad,
            rx_no_mbuf,
            tx_frames,
            tx_bytes,
            tx_bad,
            tx_interrupts,
            violations,
        } = self;
        let received = [rx_frames, rx_bytes, rx_bad, rx_no_mbuf];
        let sent = [tx_frames, tx_bytes, tx_bad, tx_interrupts, violations];
        received.into_iter().chain(sent).for_each(Counter::reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_beside_increments_loses_none_of_them() {
        const ROUNDS: u64 = 100_000;
        let counter = Counter::default();
        counter.add(5);
        counter.reset();
        assert_eq!(counter.get(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| (0..ROUNDS).for_each(|_| counter.add(1)));
            scope.spawn(|| (0..ROUNDS).for_each(|_| counter.reset()));
        });
        assert!(counter.get() <= ROUNDS);
        counter.reset();
        counter.add(7);
        assert_eq!((counter.get(), counter.total.load(Ordering::Relaxed)), (7, ROUNDS + 12));
    }
}
