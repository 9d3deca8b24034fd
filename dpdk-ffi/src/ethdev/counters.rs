//! Counters of a port besides the driver's.

use std::sync::Arc;

use crate::counter::Counter;
use crate::memif;

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
    /// Counters of bursts on memif, which replace the driver's.
    pub(super) memif: memif::Counts,
}
