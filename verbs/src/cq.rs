//! Completion queues.

use std::sync::Arc;

use roce::queue::{CqId, CqPoller, Cqe, Notify};

use crate::channel::CompChannel;
use crate::device::{Owner, Shared};
use crate::error::Error;
use crate::lock::{Lock, LockGuard};

pub(crate) struct CqInner {
    pub(crate) owner: Arc<Owner>,
    shared: Arc<Shared>,
    pub(crate) id: CqId,
    poller: Lock<CqPoller>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let Ok(mut driven) = self.shared.lock() else { return };
        driven.remove_channel(self.id);
        // Cannot be in use, because each queue pair holds its completion queues.
        let _ = driven.engine.destroy_cq(self.id);
    }
}

/// A completion queue (`ibv_cq`). Clones are the same queue.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

impl Cq {
    pub(crate) fn new(owner: &Arc<Owner>, depth: u32, channel: Option<&CompChannel>) -> Result<Self, Error> {
        let shared = owner.shared.clone();
        let mut driven = shared.lock()?;
        let (id, poller) = driven.engine.create_cq(depth)?;
        if let Some(channel) = channel {
            driven.add_channel(id, channel.inbox.clone());
        }
        drop(driven);
        Ok(Cq(Arc::new(CqInner { owner: owner.clone(), shared, id, poller: Lock::new(poller) })))
    }

    /// Returns the queue's number, which a channel's events carry.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// Appends at most `max` completions to `out` and returns their number (`ibv_poll_cq`). Polls the engine
    /// once if the queue is empty. Does not block.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`], after the last completion.
    #[inline]
    pub fn poll(&self, out: &mut Vec<Cqe>, max: usize) -> Result<usize, Error> {
        let mut poller = self.lock();
        let taken = poller.pop_into(out, max);
        if taken > 0 || max == 0 {
            return Ok(taken);
        }
        self.0.shared.drive()?;
        Ok(poller.pop_into(out, max))
    }

    /// Locks the queue's poller. Lock order: poller, then engine; a holder of the engine never locks a
    /// poller.
    #[inline]
    fn lock(&self) -> LockGuard<'_, CqPoller> {
        self.0.poller.lock()
    }

    /// Returns the oldest completion, if any. Polls the engine once if the queue is empty.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`], after the last completion.
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Cqe>, Error> {
        let mut poller = self.lock();
        if let Some(cqe) = poller.pop() {
            return Ok(Some(cqe));
        }
        self.0.shared.drive()?;
        Ok(poller.pop())
    }

    /// Requests one event on the queue's channel, for the next completion that `notify` names
    /// (`ibv_req_notify_cq`).
    pub fn request_notify(&self, notify: Notify) -> Result<(), Error> {
        Ok(self.0.shared.lock()?.engine.request_notify(self.0.id, notify)?)
    }
}
