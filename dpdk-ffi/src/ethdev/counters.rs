//! Counters of a port besides the driver's.

use std::sync::Arc;

use super::info::PortStats;
use crate::counter::{BurstCounts, Counter};

/// Counters of the port itself, besides the driver's [`super::PortStats`]: sums over its queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortCounters {
    /// Queued frames discarded unsent: by [`super::EthQueue::tx_discard`], or because the link was down, the port
    /// was stopped or the queue dropped.
    pub tx_discarded: u64,
    /// Times that the pool had no mbuf for a frame to send.
    pub tx_no_mbuf: u64,
    /// Flushes that left frames queued.
    pub tx_stalled: u64,
    /// Received chains dropped because the linear pool had no mbuf, or none large enough.
    pub rx_not_linear: u64,
}

impl PortCounters {
    /// Returns names and values, in the order of the fields.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
        let Self { tx_discarded, tx_no_mbuf, tx_stalled, rx_not_linear } = *self;
        [
            ("tx_discarded", tx_discarded),
            ("tx_no_mbuf", tx_no_mbuf),
            ("tx_stalled", tx_stalled),
            ("rx_not_linear", rx_not_linear),
        ]
        .into_iter()
    }

    /// Returns the sums over `queues`.
    pub(super) fn sum(queues: &[Arc<QueueCounters>]) -> Self {
        let mut sum = Self::default();
        for queue in queues {
            sum.tx_discarded += queue.tx_discarded.get();
            sum.tx_no_mbuf += queue.tx_no_mbuf.get();
            sum.tx_stalled += queue.tx_stalled.get();
            sum.rx_not_linear += queue.rx_not_linear.get();
        }
        sum
    }
}

/// Counters of a queue. Aligned to a cache line, because each queue may have a thread of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct QueueCounters {
    pub(super) tx_discarded: Counter,
    pub(super) tx_no_mbuf: Counter,
    pub(super) tx_stalled: Counter,
    pub(super) rx_not_linear: Counter,
    /// Of bursts that replace the driver's.
    pub(super) bursts: BurstCounts,
}

/// Returns the basic statistics of a port's queues, in place of the driver's, whose bursts are not used.
pub(super) fn stats<'a>(queues: impl Iterator<Item = &'a BurstCounts>) -> PortStats {
    let mut sum = PortStats::default();
    for counts in queues {
        sum.rx_frames += counts.rx_frames.get();
        sum.tx_frames += counts.tx_frames.get();
        sum.rx_bytes += counts.rx_bytes.get();
        sum.tx_bytes += counts.tx_bytes.get();
        sum.rx_errors += counts.rx_bad.get() + counts.violations.get();
        sum.tx_errors += counts.tx_bad.get();
        sum.rx_no_mbuf += counts.rx_no_mbuf.get();
    }
    sum
}

/// Returns the counters of a port's queues by the names that DPDK gives, and further ones. `is_memif`: with those of
/// memif ports.
pub(super) fn xstats<'a>(
    queues: impl Iterator<Item = &'a BurstCounts> + Clone,
    is_memif: bool,
) -> Vec<(String, u64)> {
    let sum =
        |counter: fn(&BurstCounts) -> &Counter| queues.clone().map(|counts| counter(counts).get()).sum();
    let mut named = vec![
        ("rx_good_packets", sum(|counts| &counts.rx_frames)),
        ("tx_good_packets", sum(|counts| &counts.tx_frames)),
        ("rx_good_bytes", sum(|counts| &counts.rx_bytes)),
        ("tx_good_bytes", sum(|counts| &counts.tx_bytes)),
        ("rx_mbuf_allocation_errors", sum(|counts| &counts.rx_no_mbuf)),
        ("rx_bad_frames", sum(|counts| &counts.rx_bad)),
        ("tx_bad_frames", sum(|counts| &counts.tx_bad)),
    ];
    if is_memif {
        named.push(("tx_interrupts", sum(|counts| &counts.tx_interrupts)));
        named.push(("peer_violations", sum(|counts| &counts.violations)));
    }
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
