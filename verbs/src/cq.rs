//! Completion queues.

use std::sync::Arc;

use roce::queue::{CqId, CqNotifier, CqPoller, Cqe, Notify};

use crate::channel::CompChannel;
use crate::device::{ContextInner, Shared};
use crate::error::Error;
use crate::listeners::Object;
use crate::lock::{Lock, LockGuard};

pub(crate) struct CqInner {
    pub(crate) context: Arc<ContextInner>,
    shared: Arc<Shared>,
    pub(crate) id: CqId,
    poller: Lock<CqPoller>,
    notifier: CqNotifier,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // Fails only after a fatal error, if queue pairs of the completion queue were not destroyed: each queue pair
        // references its completion queues.
        let _ = self.shared.objects.destroy_cq(self.id);
        let Ok(mut driven) = self.shared.lock() else { return };
        driven.remove_channel(self.id);
        driven.listeners.remove(Object::Cq(self.id));
    }
}

/// A completion queue (`ibv_cq`). Clones are the same completion queue.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

impl Cq {
    pub(crate) fn new(
        context: &Arc<ContextInner>,
        depth: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Self, Error> {
        let shared = context.device.shared.clone();
        let mut driven = shared.lock()?;
        let (id, poller) = shared.objects.create_cq(depth)?;
        driven.listeners.add(Object::Cq(id), &context.events);
        if let Some(channel) = channel {
            driven.add_channel(id, channel.inbox.clone());
        }
        drop(driven);
        let (notifier, poller) = (poller.notifier(), Lock::new(poller));
        Ok(Cq(Arc::new(CqInner { context: context.clone(), shared, id, poller, notifier })))
    }

    /// Returns the number of this completion queue. [`CompChannel::wait`] returns this number for an event of the
    /// queue.
    pub fn id(&self) -> CqId {
        self.0.id
    }

    /// Appends at most `max` completions to `out` and returns their number (`ibv_poll_cq`). If the completion queue is
    /// empty, polls the engine once first, unless another thread drives the engine. Does not block: returns 0 while
    /// another thread polls this completion queue.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error, if the completion queue is empty or another thread polls it.
    ///
    /// # Example
    /// A SEND and its receive, over a connection as in the example of [`crate::Context`]:
    ///
    /// ```
    /// # use verbs::{Access, ConnectOptions, Context, DeviceOptions, QpOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse()?, &DeviceOptions::default())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
    /// # let (qp, peer) = (pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?);
    /// # let options = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
    /// # peer.connect(&qp.endpoint(1), &options)?;
    /// # qp.connect(&peer.endpoint(1), &options)?;
    /// use verbs::{RecvRequest, SendData, SendFlags, SendOp, SendRequest, WcStatus};
    ///
    /// let region = pd.alloc(64, Access::LOCAL_WRITE)?;
    /// peer.post_recv(&RecvRequest { wr_id: 1, sges: &[region.sge(0, 64)] })?;
    /// let flags = SendFlags { signaled: true, ..SendFlags::default() };
    /// let data = SendData::Inline(b"hello");
    /// qp.post_send(&SendRequest { wr_id: 2, op: SendOp::Send, flags, data })?;
    /// // `cq` receives the completions of both queue pairs.
    /// let mut completions = Vec::new();
    /// while completions.len() < 2 {
    ///     cq.poll(&mut completions, 16)?;
    /// }
    /// assert!(completions.iter().all(|cqe| cqe.status == WcStatus::Success && cqe.len_bytes == 5));
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn poll(&self, out: &mut Vec<Cqe>, max: usize) -> Result<usize, Error> {
        let Some(mut poller) = self.try_lock()? else { return Ok(0) };
        let taken = poller.pop_into(out, max);
        if taken > 0 || max == 0 {
            return Ok(taken);
        }
        self.0.shared.drive()?;
        Ok(poller.pop_into(out, max))
    }

    /// Locks the poller of the completion queue. If another thread has the lock, yields the processor, because that
    /// thread may be polling the engine, and returns `None`. Lock order: the poller before the engine.
    #[inline]
    fn try_lock(&self) -> Result<Option<LockGuard<'_, CqPoller>>, Error> {
        let poller = self.0.poller.try_lock();
        if poller.is_none() {
            std::thread::yield_now();
            self.0.shared.check()?;
        }
        Ok(poller)
    }

    /// Removes and returns the oldest completion. If the completion queue is empty, polls the engine once first.
    /// Returns `None` if the completion queue is empty after this poll, or while another thread polls the completion
    /// queue.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error, if the completion queue is empty or another thread polls it.
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Cqe>, Error> {
        let Some(mut poller) = self.try_lock()? else { return Ok(None) };
        if let Some(cqe) = poller.pop() {
            return Ok(Some(cqe));
        }
        self.0.shared.drive()?;
        Ok(poller.pop())
    }

    /// Requests one event on the completion channel of this completion queue (`ibv_req_notify_cq`). `notify` selects
    /// the cause: the next completion, or the next completion that is a solicited event or has an error.
    pub fn request_notify(&self, notify: Notify) -> Result<(), Error> {
        self.0.shared.check()?;
        self.0.notifier.request(notify);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Context, DeviceOptions};

    #[test]
    fn a_second_poller_does_not_wait_for_the_first() {
        let port = "eal:net_ring7,ip=10.0.7.1/24".parse().unwrap();
        let context = Context::open(&port, &DeviceOptions::default()).unwrap();
        let cq = context.create_cq(16, None).unwrap();
        let first = cq.0.poller.lock();
        assert_eq!((cq.poll(&mut Vec::new(), 1).unwrap(), cq.poll_one().unwrap()), (0, None));
        drop(first);
    }
}
