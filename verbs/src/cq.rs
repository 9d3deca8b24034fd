//! Completion queues.

use std::sync::Arc;

use roce::queue::{CqId, Cqe, Notify};

use crate::channel::CompChannel;
use crate::error::Error;
use crate::objects::ContextObjects;
use crate::queues::CqQueue;

pub(crate) struct CqInner {
    pub(crate) objects: Arc<ContextObjects>,
    pub(crate) id: CqId,
    queue: CqQueue,
}

impl Drop for CqInner {
    fn drop(&mut self) {
        // `destroy_cq` fails after a fatal error, and while a queue pair that was created through `ContextObjects` uses
        // this completion queue. In the second case, the drop of the `ContextObjects` destroys the completion queue.
        let _ = self.objects.destroy_cq(self.id);
    }
}

/// A completion queue (`ibv_cq`). Clones are the same completion queue.
#[derive(Clone)]
pub struct Cq(pub(crate) Arc<CqInner>);

impl Cq {
    pub(crate) fn new(
        objects: &Arc<ContextObjects>,
        depth: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Self, Error> {
        let (id, queue) = objects.create_cq(depth, channel, 0)?;
        Ok(Cq(Arc::new(CqInner { objects: objects.clone(), id, queue })))
    }

    /// Returns the number of this completion queue. Events of [`CompChannel::wait`] contain this number.
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
        self.0.queue.poll(out, max)
    }

    /// Removes and returns the oldest completion. If the completion queue is empty, polls the engine once first, unless
    /// another thread drives the engine. Returns `None` if the completion queue is still empty, or while another thread
    /// polls the completion queue.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error, if the completion queue is empty or another thread polls it.
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Cqe>, Error> {
        self.0.queue.poll_one()
    }

    /// Requests one event on the completion channel of this completion queue (`ibv_req_notify_cq`). `notify` selects
    /// the cause: the next completion, or the next completion that is a solicited event or has an error.
    pub fn request_notify(&self, notify: Notify) -> Result<(), Error> {
        self.0.queue.request_notify(notify)
    }
}
