//! Shared receive queues.

use std::sync::Arc;

use roce::queue::{RecvRequest, SrqAttr, SrqId};

use crate::error::Error;
use crate::mr::{Pd, PdInner};
use crate::queues::SrqQueue;

/// Attributes that a shared receive queue is created with (`ibv_srq_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct SrqOptions {
    /// Largest number of receives posted and not yet taken by a queue pair.
    pub max_wr: u32,
    /// Largest number of scatter entries (local memory ranges) of a receive.
    pub max_sge: u32,
    /// Initial limit ([`Srq::set_limit`]), compared with the number of remaining receives when a queue pair takes a
    /// receive.
    pub limit: u32,
}

impl Default for SrqOptions {
    /// Returns the defaults: at most 128 receives of one scatter entry each; no limit event ([`Srq::set_limit`]).
    fn default() -> Self {
        SrqOptions { max_wr: 128, max_sge: 1, limit: 0 }
    }
}

pub(crate) struct SrqInner {
    pd: Arc<PdInner>,
    pub(crate) id: SrqId,
    queue: SrqQueue,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // Fails after a fatal error, and while a queue pair that was created through `ContextObjects` uses this shared
        // receive queue. In the second case, the drop of `objects` destroys the shared receive queue.
        let _ = self.pd.objects.destroy_srq(self.id);
    }
}

/// A shared receive queue (`ibv_srq`). Several queue pairs take its receives, in the order of posting. Clones are the
/// same queue. The queue is destroyed when all its clones and queue pairs are dropped.
///
/// # Example
/// A SEND over an unreliable connection, into a receive of a shared receive queue:
///
/// ```
/// use verbs::{Access, ConnectOptions, Context, DeviceOptions, QpOptions, ServiceType, SrqOptions, WcStatus};
/// use verbs::{RecvRequest, SendData, SendFlags, SendOp, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse()?, &DeviceOptions::default())?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
/// let srq = pd.create_srq(&SrqOptions { max_wr: 4, ..SrqOptions::default() })?;
/// let options = QpOptions { service: ServiceType::Uc, srq: Some(&srq), ..QpOptions::new(&cq) };
/// let (qp, peer) = (pd.create_qp(&options)?, pd.create_qp(&options)?);
/// let connect = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
/// peer.connect(&qp.endpoint(1), &connect)?;
/// qp.connect(&peer.endpoint(1), &connect)?;
///
/// let region = pd.alloc(64, Access::LOCAL_WRITE)?;
/// region.write(0, b"hello")?;
/// srq.post_recv(&RecvRequest { wr_id: 1, sges: &[region.sge(32, 32)] })?;
/// let (op, data) = (SendOp::Send, SendData::Sges(&[region.sge(0, 5)]));
/// qp.post_send(&SendRequest { wr_id: 2, op, flags: SendFlags::default(), data })?;
/// let received = loop {
///     if let Some(cqe) = cq.poll_one()? {
///         break cqe;
///     }
/// };
/// assert_eq!((received.wr_id, received.status, received.qpn), (1, WcStatus::Success, peer.qpn()));
/// let mut bytes = [0; 5];
/// region.read(32, &mut bytes)?;
/// assert_eq!(&bytes, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Srq(pub(crate) Arc<SrqInner>);

impl Pd {
    /// Creates a shared receive queue (`ibv_create_srq`).
    pub fn create_srq(&self, options: &SrqOptions) -> Result<Srq, Error> {
        let SrqOptions { max_wr, max_sge, limit } = *options;
        let attr = SrqAttr { pd: self.0.id, max_wr, max_sge, limit };
        let (id, queue) = self.0.objects.create_srq(&attr, 0)?;
        Ok(Srq(Arc::new(SrqInner { pd: self.0.clone(), id, queue })))
    }
}

impl Srq {
    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`Error::Post`] if the receive is refused; [`Error::DeviceFatal`] after a fatal error. A failed call does not
    /// change the queue.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.0.queue.post_recv(request)
    }

    /// Sets the limit (`ibv_modify_srq` with `IBV_SRQ_LIMIT`). As soon as fewer than `limit` receives remain, perhaps
    /// already at this call, the device reports [`Event::SrqLimitReached`](crate::Event) once. `limit` 0: no limit.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        self.0.pd.objects.set_srq_limit(self.0.id, limit)
    }

    /// Returns the attributes (`ibv_query_srq`); `None` if the shared receive queue was destroyed through
    /// [`ContextObjects`](crate::ContextObjects), and in a forked process.
    pub fn query(&self) -> Option<SrqOptions> {
        let attr = self.0.pd.objects.query_srq(self.0.id)?;
        Some(SrqOptions { max_wr: attr.max_wr, max_sge: attr.max_sge, limit: attr.limit })
    }

    /// Returns the number of this queue, which [`Event::SrqLimitReached`](crate::Event) contains.
    pub fn id(&self) -> SrqId {
        self.0.id
    }
}
