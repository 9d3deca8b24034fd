//! Receive queues.

use std::sync::Arc;

use super::doorbell::Doorbells;
use super::sg::Lists;
use super::work::{PosterConfig, Posting, WorkPoster, WorkQueue, Wqe, work_queue};
use super::wqe::{PostError, RecvRequest, RecvWqe, SgList, Sge};
use crate::mem::{MemoryView, PdId};
use crate::start;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvQueueSize {
    pub depth: u32,
    pub max_sges: u32,
}

/// The part of a receive queue or shared receive queue that the application uses: posts receives.
pub struct RecvPoster {
    work: WorkPoster<RecvWqe>,
}

pub(crate) struct RecvQueue {
    work: WorkQueue<RecvWqe>,
}

/// Creates a receive queue, which refuses posts until [`RecvQueue::set_posting`] is called. In state ERR, a post sets
/// the doorbell of the queue pair with index `slot`.
pub(crate) fn recv_queue(
    size: RecvQueueSize,
    doorbells: Arc<Doorbells>,
    slot: usize,
) -> (RecvPoster, RecvQueue) {
    let config = PosterConfig::new(size.max_sges, false, slot);
    let (poster, queue) = work_queue(start::ring_position(), size.depth, config, doorbells);
    (RecvPoster { work: poster }, RecvQueue { work: queue })
}

impl Wqe for RecvWqe {
    #[inline]
    fn list(&self) -> &SgList {
        &self.list
    }
}

impl RecvPoster {
    /// Queues `request`. In state ERR, sets the doorbell, so that the engine flushes the receive. In other states the
    /// engine reads the queue when a message arrives.
    #[inline(always)] // See `SendPoster::stage`.
    pub fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.work.admit()?;
        self.work.check_room()?;
        let (position, len_bytes) = self.work.stage_sges(request.sges)?;
        let list = SgList::new(request.sges, position, len_bytes);
        self.work.stage(RecvWqe { wr_id: request.wr_id, list });
        self.work.publish();
        if self.work.is_flushed() {
            self.work.ring_doorbell();
        }
        Ok(())
    }

    /// Returns whether the engine flushes posted receives (state ERR).
    #[inline]
    pub fn is_flushed(&self) -> bool {
        self.work.is_flushed()
    }

    /// Returns the number of receives that may be outstanding at once.
    pub fn depth(&self) -> u32 {
        self.work.depth()
    }
}

impl RecvQueue {
    pub(crate) fn set_posting(&self, posting: Posting) {
        self.work.set_posting(posting);
    }

    /// Returns the number of receives posted, and not removed from the queue by `release_oldest` or `take`.
    pub(super) fn len(&mut self) -> u32 {
        self.work.len()
    }

    /// Removes the oldest receive of an SRQ. Copies all scatter entries of the receive, except the first, to `rest`.
    pub(super) fn take(&mut self, rest: &mut [Sge]) -> Option<RecvWqe> {
        let wqe = self.work.take(rest)?;
        Some(RecvWqe { list: wqe.list.at_start(), ..wqe })
    }

    #[inline]
    pub(crate) fn oldest(&mut self) -> Option<&RecvWqe> {
        self.work.get(0)
    }

    pub(crate) fn nth(&mut self, index: u32) -> Option<&RecvWqe> {
        self.work.get(index)
    }

    #[inline]
    pub(crate) fn release_oldest(&mut self) -> Option<RecvWqe> {
        self.work.release_oldest()
    }

    #[inline]
    pub(crate) fn lists<'a>(&'a mut self, memory: &'a MemoryView, pd: PdId) -> Lists<'a> {
        self.work.lists(memory, pd)
    }
}
