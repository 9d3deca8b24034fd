//! Shared receive queues (SRQs, IBA 10.2.9): receives that several queue pairs take, in the order of posting.
//!
//! ```text
//!   application --post--> | r5 | r4 | r3 |  --take--> queue pair A holds r1   completes r1 after r2
//!                                           --take--> queue pair B holds r2
//! ```
//! When a queue pair takes a receive, the receive leaves the ring, and the scatter entries of the receive are copied to
//! the queue pair: the ring releases receives in order, but receives may complete in a different order.

use std::sync::Arc;

use super::doorbell::Doorbells;
use super::rq::{RecvPoster, RecvQueue, RecvQueueSize, recv_queue};
use super::work::Posting;
use super::wqe::{RecvWqe, Sge};
use crate::mem::PdId;
use crate::random::Random;
use crate::table::Table;

/// Random number that identifies a shared receive queue in its engine; never sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqId(pub u32);

/// Attributes of a shared receive queue (`ibv_srq_init_attr`, `ibv_srq_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Protection domain: the receives of the SRQ may name only memory regions of this protection domain.
    pub pd: PdId,
    /// Largest number of receives posted and not yet taken.
    pub max_wr: u32,
    /// Largest number of scatter entries of a receive.
    pub max_sge: u32,
    /// If fewer receives than this limit are left, `SrqLimitReached` is reported once and the limit becomes 0. 0: no
    /// limit.
    pub limit: u32,
}

struct SharedReceiveQueue {
    attr: SrqAttr,
    receives: RecvQueue,
    /// Number of queue pairs that use the SRQ.
    users: u32,
}

/// All shared receive queues of an engine.
pub(crate) struct SrqTable {
    queues: Table<SharedReceiveQueue>,
    /// SRQs whose limit was reached but not yet reported, each listed at most once.
    at_limit: Vec<SrqId>,
}

const SRQ_BITS: u32 = 32;

/// Index of no queue pair: a post to an SRQ sets no doorbell, because the receives in an SRQ are never flushed.
const NO_SLOT: usize = usize::MAX;

impl SrqTable {
    pub(crate) fn new(max_srqs: usize) -> Self {
        SrqTable { queues: Table::new(SRQ_BITS, max_srqs), at_limit: Vec::new() }
    }

    pub(crate) fn create(
        &mut self,
        random: &mut Random,
        attr: SrqAttr,
        doorbells: Arc<Doorbells>,
    ) -> Option<(SrqId, RecvPoster)> {
        let size = RecvQueueSize { depth: attr.max_wr, max_sges: attr.max_sge };
        let (poster, receives) = recv_queue(size, doorbells, NO_SLOT);
        receives.set_posting(Posting::Queued);
        let queue = SharedReceiveQueue { attr, receives, users: 0 };
        let number = self.queues.insert_with(random, |_| false, |_, _| queue)?;
        // `at_limit`, the list of SRQs whose limit was reached, gets room for all SRQs, so that taking a receive
        // allocates no memory.
        self.at_limit.reserve(self.queues.len());
        Some((SrqId(number), poster))
    }

    pub(crate) fn max_len(&self) -> usize {
        self.queues.max_len()
    }

    /// Returns the attributes, and the number of queue pairs that use the SRQ; `None` if `srq` does not exist.
    pub(crate) fn get(&self, srq: SrqId) -> Option<(SrqAttr, u32)> {
        self.queues.get(srq.0).map(|queue| (queue.attr, queue.users))
    }

    /// Returns the protection domain of each SRQ.
    pub(crate) fn pds(&self) -> impl Iterator<Item = PdId> {
        self.queues.iter().map(|(_, queue)| queue.attr.pd)
    }

    /// Adds a queue pair to the users of `srq`; [`SrqTable::release`] removes the queue pair.
    pub(crate) fn acquire(&mut self, srq: SrqId) {
        self.queues.get_mut(srq.0).into_iter().for_each(|queue| queue.users += 1);
    }

    pub(crate) fn release(&mut self, srq: SrqId) {
        self.queues.get_mut(srq.0).into_iter().for_each(|queue| queue.users -= 1);
    }

    pub(crate) fn destroy(&mut self, srq: SrqId) {
        self.at_limit.retain(|other| *other != srq);
        self.queues.remove(srq.0);
    }

    /// Sets the limit. If the SRQ already has fewer receives than `limit`, the limit is reached at once. Returns
    /// whether `srq` exists.
    pub(crate) fn set_limit(&mut self, srq: SrqId, limit: u32) -> bool {
        let Some(queue) = self.queues.get_mut(srq.0) else { return false };
        queue.attr.limit = limit;
        self.check_limit(srq);
        true
    }

    /// Removes the oldest receive. Copies all scatter entries of the receive, except the first, to `rest`.
    pub(crate) fn take(&mut self, srq: SrqId, rest: &mut [Sge]) -> Option<RecvWqe> {
        let wqe = self.queues.get_mut(srq.0)?.receives.take(rest)?;
        self.check_limit(srq);
        Some(wqe)
    }

    fn check_limit(&mut self, srq: SrqId) {
        let Some(queue) = self.queues.get_mut(srq.0) else { return };
        if queue.attr.limit > 0 && queue.receives.len() < queue.attr.limit {
            queue.attr.limit = 0;
            if !self.at_limit.contains(&srq) {
                self.at_limit.push(srq);
            }
        }
    }

    pub(crate) fn take_at_limit(&mut self) -> Option<SrqId> {
        self.at_limit.pop()
    }
}
