//! The receive queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::ring::{Consumer, Producer, ring};
use super::sg::Lists;
use super::wqe::{PostError, RecvRequest, RecvWqe, SgList, Sge};
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
    wqes: Producer<RecvWqe>,
    sges: Producer<Sge>,
    size: RecvQueueSize,
    open: Arc<AtomicBool>,
}

/// The engine's end: receives from the oldest not completed to the newest posted.
pub struct RecvQueue {
    wqes: Consumer<RecvWqe>,
    sges: Consumer<Sge>,
    open: Arc<AtomicBool>,
}

/// A receive queue of the given size.
pub fn recv_queue(size: RecvQueueSize) -> (RecvPoster, RecvQueue) {
    let (wqe_in, wqe_out) = ring(size.depth);
    let (sge_in, sge_out) = ring(size.depth * size.max_sges.saturating_sub(1).max(1));
    let open = Arc::new(AtomicBool::new(false));
    let poster = RecvPoster { wqes: wqe_in, sges: sge_in, size, open: open.clone() };
    (poster, RecvQueue { wqes: wqe_out, sges: sge_out, open })
}

impl RecvPoster {
    /// Queues `request`. It needs no doorbell: the engine looks when a message arrives.
    #[inline]
    pub fn post(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if !self.open.load(Ordering::Relaxed) {
            return Err(PostError::WrongState);
        }
        let (count, max) = (request.sges.len(), self.size.max_sges);
        if count > max as usize {
            return Err(PostError::TooManySges { count, max });
        }
        let full = PostError::QueueFull { depth: self.size.depth };
        if !self.wqes.has_room(1) {
            return Err(full);
        }
        let list = SgList::new(request.sges, self.sges.position())
            .map_err(|len_bytes| PostError::TooLong { len_bytes })?;
        request.sges.iter().skip(1).try_for_each(|sge| self.sges.push(*sge)).map_err(|_| full)?;
        self.wqes.push(RecvWqe { wr_id: request.wr_id, list }).map_err(|_| full)
    }

    /// Work requests outstanding at most.
    pub fn depth(&self) -> u32 {
        self.size.depth
    }
}

impl RecvQueue {
    /// Lets posts through or refuses them.
    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// Whether no receive is posted.
    #[inline]
    pub fn is_empty(&mut self) -> bool {
        self.wqes.get(0).is_none()
    }

    /// The oldest receive.
    #[inline]
    pub fn oldest(&mut self) -> Option<&RecvWqe> {
        self.wqes.get(0)
    }

    /// The receive `index` places behind the oldest.
    pub fn nth(&mut self, index: u32) -> Option<&RecvWqe> {
        self.wqes.get(index)
    }

    /// Releases the oldest receive and its entries, once its message has completed.
    #[inline]
    pub fn release_oldest(&mut self) -> Option<RecvWqe> {
        let wqe = self.wqes.pop()?;
        self.sges.release(wqe.list.rest_count());
        Some(wqe)
    }

    /// The queue's scatter lists.
    #[inline]
    pub fn lists<'a>(&'a mut self, memory: &'a MemoryTable, pd: PdId) -> Lists<'a> {
        Lists { memory, pd, rest: &mut self.sges }
    }
}
