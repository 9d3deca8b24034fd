//! Completion queues.

use std::sync::Arc;

use roce::queue::{CqId, CqPoller, Cqe, Notify};

use crate::channel::CompChannel;
use crate::context::{Context, Shared};
use crate::error::Error;
use crate::lock::{Lock, LockGuard};

pub(crate) struct CqInner {
    context: Context,
    shared: Arc<Shared>,
    pub(crate) id: CqId,
    poller: Lock<CqPoller>,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        let Ok(mut driven) = self.shared.lock() else { return };
        driven.remove_channel(self.id);
        // Queue pairs hold their queues, so nothing uses it any more.
        let _ = driven.engine.destroy_cq(self.id);
    }
}

/// A completion queue (`ibv_cq`). Clones are the same queue.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

impl Cq {
    pub(crate) fn new(context: &Context, depth: u32, channel: Option<&CompChannel>) -> Result<Self, Error> {
        let shared = context.shared();
        let mut driven = shared.lock()?;
        let (id, poller) = driven.engine.create_cq(depth)?;
        if let Some(channel) = channel {
            driven.add_channel(id, channel.inbox.clone());
        }
        drop(driven);
        Ok(Cq(Arc::new(CqInner { context: context.clone(), shared, id, poller: Lock::new(poller) })))
    }

    /// Its number, which a channel's events carry.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// The device.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Appends completions to `out`, at most `max`; returns how many. Drives the device where there
    /// are none yet. Does not block.
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

    /// Whoever drives the engine may hold this lock; who holds the engine never takes it.
    #[inline]
    fn lock(&self) -> LockGuard<'_, CqPoller> {
        self.0.poller.lock()
    }

    /// The next completion, if there is one. Drives the device where there is none.
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

    /// Asks for one event on the queue's channel at the next completion (`ibv_req_notify_cq`).
    pub fn request_notify(&self, notify: Notify) -> Result<(), Error> {
        Ok(self.0.shared.lock()?.engine.request_notify(self.0.id, notify)?)
    }
}
