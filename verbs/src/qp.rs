//! Queue pairs.

use std::sync::Arc;

use roce::counters::QpCounters;
use roce::engine::Attributes;
use roce::id::{Gid, QKey, Qpn};
use roce::psn::Psn;
use roce::qp::{AddressVector, ConnAttr, Endpoint, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{RecvRequest, SendRequest};

use crate::cq::{Cq, CqInner};
use crate::device::Shared;
use crate::error::Error;
use crate::mr::{Pd, PdInner};
use crate::queues::QpQueues;
use crate::srq::{Srq, SrqInner};

/// Attributes that a queue pair is created with (`ibv_qp_init_attr`).
#[derive(Clone)]
pub struct QpOptions<'a> {
    /// Completion queue that receives the CQEs of send work requests.
    pub send_cq: &'a Cq,
    /// Completion queue that receives the CQEs of receive work requests.
    pub recv_cq: &'a Cq,
    /// Transport service.
    pub service: ServiceType,
    /// Shared receive queue; `None`: the queue pair has a receive queue of its own. With a shared receive queue,
    /// `max_recv_wr` and `max_recv_sge` are not used.
    pub srq: Option<&'a Srq>,
    /// Largest number of outstanding send work requests.
    pub max_send_wr: u32,
    /// Largest number of outstanding receive work requests.
    pub max_recv_wr: u32,
    /// Largest number of gather entries (local memory ranges) of a send work request.
    pub max_send_sge: u32,
    /// Largest number of scatter entries (local memory ranges) of a receive work request.
    pub max_recv_sge: u32,
    /// Largest inline payload of a send work request, in bytes.
    pub max_inline_bytes: u32,
    /// If true, every send work request has a CQE (`sq_sig_all`). If false, only signaled and failed work requests have
    /// a CQE.
    pub signal_all: bool,
}

impl<'a> QpOptions<'a> {
    /// Returns the defaults: a reliable connection, 128 send and 128 receive work requests of one scatter/gather entry
    /// each, 64 inline bytes, CQEs for signaled and failed sends only, and `cq` for all CQEs.
    pub fn new(cq: &'a Cq) -> Self {
        QpOptions {
            send_cq: cq,
            recv_cq: cq,
            service: ServiceType::Rc,
            srq: None,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 64,
            signal_all: false,
        }
    }
}

/// Options of [`Qp::connect`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectOptions {
    /// Index of the local GID.
    pub gid_index: u8,
    /// Traffic class of packets sent: DSCP (6 bits) and ECN field (2 bits).
    pub traffic_class: u8,
    /// Attributes of this end of the connection. If `conn.congestion` is `None`, the congestion control is
    /// [`DeviceOptions::congestion`](crate::DeviceOptions::congestion).
    pub conn: ConnAttr,
}

/// A queue pair (`ibv_qp`). The send queue and the receive queue have a lock each, so threads may post sends, post
/// receives and poll at the same time. The drop of a `Qp` destroys the queue pair.
pub struct Qp {
    qpn: Qpn,
    first_psn: Psn,
    service: ServiceType,
    queues: QpQueues,
    // The completion queues, the shared receive queue and the protection domain must outlive the queue pair.
    _cqs: [Arc<CqInner>; 2],
    _srq: Option<Arc<SrqInner>>,
    pd: Arc<PdInner>,
}

impl Drop for Qp {
    fn drop(&mut self) {
        // The destruction fails after a fatal error, and if the queue pair was destroyed through `ContextObjects`.
        let _ = self.pd.objects.destroy_qp(self.qpn);
    }
}

impl Pd {
    /// Creates a queue pair in state RESET (`ibv_create_qp`). The completion queues and the shared receive queue must
    /// be objects of the context that allocated the protection domain.
    pub fn create_qp(&self, options: &QpOptions<'_>) -> Result<Qp, Error> {
        Qp::new(self, options)
    }
}

impl Qp {
    fn new(pd: &Pd, options: &QpOptions<'_>) -> Result<Self, Error> {
        let init = QpInit {
            service: options.service,
            pd: pd.0.id,
            send_cq: options.send_cq.id(),
            recv_cq: options.recv_cq.id(),
            srq: options.srq.map(Srq::id),
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            max_send_sge: options.max_send_sge,
            max_recv_sge: options.max_recv_sge,
            max_inline_bytes: options.max_inline_bytes,
            signal_all: options.signal_all,
        };
        let (qpn, queues) = pd.0.objects.create_qp(&init, 0)?;
        Ok(Qp {
            qpn,
            first_psn: pd.0.objects.shared().inspect().engine.random_psn(),
            service: options.service,
            queues,
            _cqs: [options.send_cq.0.clone(), options.recv_cq.0.clone()],
            _srq: options.srq.map(|srq| srq.0.clone()),
            pd: pd.0.clone(),
        })
    }

    fn shared(&self) -> &Shared {
        self.pd.objects.shared()
    }

    /// Returns the transport service.
    pub fn service(&self) -> ServiceType {
        self.service
    }

    /// Returns the queue pair number, 24 bits.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the data that the peer needs to connect to this queue pair: QPN, PSN of the first request sent, and the
    /// GID of index `gid_index` (zero if the GID table has no entry of this index).
    pub fn endpoint(&self, gid_index: u8) -> Endpoint {
        let gid = self.shared().gid(usize::from(gid_index)).unwrap_or(Gid::ZERO);
        Endpoint { lid: 0, qpn: self.qpn, psn: self.first_psn, gid }
    }

    /// Returns the state and the attributes (`ibv_query_qp`), also after a fatal error; `None` if the queue pair was
    /// destroyed through `ContextObjects`, and in a forked process.
    pub fn query(&self) -> Option<(QpState, Attributes)> {
        self.pd.objects.query_qp(self.qpn).map(|(state, attributes, _)| (state, attributes))
    }

    /// Returns the counters of this queue pair.
    pub fn counters(&self) -> QpCounters {
        self.shared().try_inspect().and_then(|driven| driven.engine.qp_counters(self.qpn)).unwrap_or_default()
    }

    /// Changes the state and the attributes of the queue pair (`ibv_modify_qp`). If `attr` has an address vector,
    /// blocks until the destination's MAC is resolved, for 3 s at most.
    ///
    /// # Errors
    /// [`Error::Modify`] names the missing or refused attribute. If `attr` has an address vector: also the errors of
    /// [`Context::resolve`](crate::Context::resolve), and [`Error::NotUnicast`] if the destination GID is not unicast.
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        self.pd.objects.modify_qp(self.qpn, attr)
    }

    /// Moves the queue pair from RESET through INIT to RTR, connected to `peer`.
    ///
    /// # Errors
    /// The errors of [`Qp::modify`].
    pub fn connect_to_receive(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        self.modify(&options.conn.to_init())?;
        let path = AddressVector {
            traffic_class: options.traffic_class,
            ..AddressVector::new(peer.gid, options.gid_index)
        };
        self.modify(&options.conn.to_rtr(path, peer.qpn, peer.psn).of_service(self.service))
    }

    /// Moves the queue pair from RESET through INIT and RTR to RTS, connected to `peer`.
    ///
    /// # Errors
    /// The errors of [`Qp::modify`].
    pub fn connect(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        self.connect_to_receive(peer, options)?;
        self.modify(&options.conn.to_rts(self.first_psn).of_service(self.service))
    }

    /// Moves a queue pair of UD from RESET through INIT and RTR to RTS. Received datagrams must have the Q_Key `qkey`.
    ///
    /// # Errors
    /// The errors of [`Qp::modify`]; a queue pair of another transport service is refused.
    pub fn start_datagrams(&self, qkey: QKey) -> Result<(), Error> {
        let conn = ConnAttr::default();
        let to_init = QpAttr { qkey: Some(qkey), ..conn.to_init() };
        let to_rtr = QpAttr { state: Some(QpState::Rtr), ..QpAttr::default() };
        let attrs = [to_init, to_rtr, conn.to_rts(self.first_psn)];
        attrs.iter().try_for_each(|attr| self.modify(&attr.of_service(ServiceType::Ud)))
    }

    /// Posts a send work request (`ibv_post_send`).
    ///
    /// # Errors
    /// [`Error::Post`] if the work request is refused; [`Error::DeviceFatal`] after a fatal error. A failed call does
    /// not change the send queue.
    ///
    /// # Example
    /// A WRITE to the second half of a region, over a connection as in the example of [`crate::Context`]:
    ///
    /// ```
    /// # use verbs::{Access, ConnectOptions, Context, DeviceOptions, QpOptions, WcStatus};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let context = Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse()?, &DeviceOptions::default())?;
    /// # let (pd, cq) = (context.alloc_pd()?, context.create_cq(16, None)?);
    /// # let (qp, peer) = (pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?);
    /// # let options = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
    /// # peer.connect(&qp.endpoint(1), &options)?;
    /// # qp.connect(&peer.endpoint(1), &options)?;
    /// use verbs::{SendData, SendFlags, SendOp, SendRequest};
    ///
    /// let region = pd.alloc(64, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    /// region.write(0, b"hello")?;
    /// let op = SendOp::Write { remote_addr: region.addr() + 32, rkey: region.rkey() };
    /// let flags = SendFlags { signaled: true, ..SendFlags::default() };
    /// let data = SendData::Sges(&[region.sge(0, 5)]);
    /// qp.post_send(&SendRequest { wr_id: 1, op, flags, data })?;
    /// let cqe = loop {
    ///     if let Some(cqe) = cq.poll_one()? {
    ///         break cqe;
    ///     }
    /// };
    /// assert_eq!((cqe.wr_id, cqe.status), (1, WcStatus::Success));
    /// let mut written = [0; 5];
    /// region.read(32, &mut written)?;
    /// assert_eq!(&written, b"hello");
    /// # Ok(())
    /// # }
    /// ```
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), Error> {
        self.queues.post_send(request)
    }

    /// Posts the send work requests `requests` in order, and stops at the first refused work request. Returns the
    /// number of work requests posted, and the error of the refused work request. Locks the engine at most once.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> (usize, Result<(), Error>) {
        self.queues.post_sends(requests)
    }

    /// Posts a receive work request (`ibv_post_recv`).
    ///
    /// # Errors
    /// [`Error::Post`] if the work request is refused, or if the queue pair uses a shared receive queue;
    /// [`Error::DeviceFatal`] after a fatal error. A failed call does not change the receive queue.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.queues.post_recv(request)
    }
}
