//! The receive queue.

use super::sg::Lists;
use super::work::{WorkPoster, WorkQueue, Wqe, work_queue};
use super::wqe::{PostError, RecvRequest, RecvWqe, SgList};
use crate::mem::{MemoryTable, PdId};

/// Sizes of a receive queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvQueueSize {
    /// Work requests outstanding at most.
    pub depth: u32,
    /// Scatter entries of one work request at most.
    pub max_sges: u32,
}

/// The application's end: posts receives.
pub struct RecvPoster {
    work: WorkPoster<RecvWqe>,
}

/// The engine's end: receives from the oldest not completed to the newest posted.
pub struct RecvQueue {
    work: WorkQueue<RecvWqe>,
}

/// A receive queue of the given size.
pub fn recv_queue(size: RecvQueueSize) -> (RecvPoster, RecvQueue) {
    let (poster, queue) = work_queue(size.depth, size.max_sges);
    (RecvPoster { work: poster }, RecvQueue { work: queue })
}

impl Wqe for RecvWqe {
    #[inline]
    fn list(&self) -> &SgList {
        &self.list
    }
}

impl RecvPoster {
    /// Queues `request`. It needs no doorbell: the engine looks when a message arrives.
    #[inline]
    pub fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.work.admit()?;
        let list = self.work.list_of(request.sges)?;
        self.work.push(RecvWqe { wr_id: request.wr_id, list })
    }

    /// Work requests outstanding at most.
    pub fn depth(&self) -> u32 {
        self.work.depth()
    }
}

impl RecvQueue {
    /// Lets posts through or refuses them.
    pub fn set_open(&self, open: bool) {
        self.work.set_open(open);
    }

    /// Whether no receive is posted.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.work.get(0).is_none()
    }

    /// The oldest receive.
    #[inline]
    pub fn oldest(&mut self) -> Option<&RecvWqe> {
        self.work.get(0)
    }

    /// The receive `index` places behind the oldest.
    pub fn nth(&mut self, index: u32) -> Option<&RecvWqe> {
        self.work.get(index)
    }

    /// Releases the oldest receive and its entries, once its message has completed.
    #[inline]
    pub fn release_oldest(&mut self) -> Option<RecvWqe> {
        self.work.release_oldest()
    }

    /// The queue's scatter lists.
    #[inline]
    pub fn lists<'a>(&'a mut self, memory: &'a MemoryTable, pd: PdId) -> Lists<'a> {
        self.work.lists(memory, pd)
    }
}
