//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use roce::congestion::CongestionScheme;
use roce::counters::QpCounters;
use roce::engine::Attributes;
use roce::id::{Gid, Qpn};
use roce::mem::Access;
use roce::psn::Psn;
use roce::qp::{AddressVector, Endpoint, PathMtu, Placement, QpAttr, QpInit, QpState};
use roce::queue::{RecvPoster, RecvRequest, SendPoster, SendRequest};
use roce::recovery::RecoveryScheme;

use crate::cq::{Cq, CqInner};
use crate::device::Shared;
use crate::error::Error;
use crate::lock::Lock;
use crate::mr::{Pd, PdInner};

/// Work requests pushed to the engine together. The first one after a poll of the device is pushed at once.
const POSTS_PER_PUSH: u32 = 16;

/// Longest wait of `modify` for the MAC of an address vector's destination.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Attributes that a queue pair is created with (`ibv_qp_init_attr`).
#[derive(Clone)]
pub struct QpOptions<'a> {
    /// Completion queue of send work requests.
    pub send_cq: &'a Cq,
    /// Completion queue of receive work requests.
    pub recv_cq: &'a Cq,
    /// Outstanding send work requests, at most.
    pub max_send_wr: u32,
    /// Outstanding receive work requests, at most.
    pub max_recv_wr: u32,
    /// Gather entries of a send work request, at most.
    pub max_send_sge: u32,
    /// Scatter entries of a receive work request, at most.
    pub max_recv_sge: u32,
    /// Inline bytes of a send work request, at most.
    pub max_inline_bytes: u32,
    /// Every send work request produces a completion, signalled or not (`sq_sig_all`).
    pub signal_all: bool,
}

impl<'a> QpOptions<'a> {
    /// Defaults: 128 work requests of one entry each way, 64 inline bytes, `cq` for all completions.
    pub fn new(cq: &'a Cq) -> Self {
        QpOptions {
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 64,
            signal_all: false,
        }
    }
}

/// Connection attributes of [`Qp::connect`]; the defaults are perftest's.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Index of the local GID.
    pub gid_index: u8,
    /// Path MTU; the same at both peers.
    pub path_mtu: PathMtu,
    /// Access rights of the peer's requests.
    pub access: Access,
    /// READs outstanding as requester, and responder resources; 0 to 128.
    pub rd_atomic: u8,
    /// Local ACK timeout: 4.096 us * 2^timeout, 0 to 31; 0: none.
    pub timeout: u8,
    /// Retry count, 0 to 7: timeouts or PSN sequence errors without progress before a work request fails.
    pub retry_count: u8,
    /// RNR retry count, 0 to 6; 7: no limit.
    pub rnr_retry: u8,
    /// Code of the delay in RNR NAKs sent, 0 to 31.
    pub min_rnr_timer: u8,
    /// Traffic class of packets sent: DSCP and ECN.
    pub traffic_class: u8,
    /// Loss recovery. Selective repeat must have been agreed with the peer, including its window.
    pub recovery: RecoveryScheme,
    /// Order in which the peer's payloads are placed.
    pub placement: Placement,
    /// Congestion control of this sender; `None`: the device's ([`crate::DeviceOptions::congestion`]).
    pub congestion: Option<CongestionScheme>,
}

impl Default for ConnectOptions {
    fn default() -> Self {
        ConnectOptions {
            gid_index: 0,
            path_mtu: PathMtu::Mtu1024,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            rd_atomic: 16,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            traffic_class: 0,
            recovery: RecoveryScheme::ImprovedGoBackN,
            placement: Placement::InOrder,
            congestion: None,
        }
    }
}

/// A queue pair of a reliable connection (`ibv_qp`). Each of its two queues has a lock of its own, so threads
/// may post sends, post receives and poll at the same time. Destroyed when dropped.
pub struct Qp {
    // Dropped in this order: the domain last.
    shared: Arc<Shared>,
    qpn: Qpn,
    first_psn: Psn,
    send: Lock<SendPoster>,
    recv: Lock<RecvPoster>,
    /// Work requests posted since the last push.
    posts_waiting: AtomicU32,
    /// [`crate::drive::Activity::polls`] at the last push.
    polls_seen: AtomicU64,
    _cqs: [Arc<CqInner>; 2],
    _pd: Arc<PdInner>,
}

impl Drop for Qp {
    fn drop(&mut self) {
        // Cannot fail for a device that works, because `new` created `qpn` and nothing else destroys it.
        let _ = self.shared.lock().map(|mut driven| driven.engine.destroy_qp(self.qpn));
    }
}

impl Pd {
    /// Creates a queue pair in state RESET (`ibv_create_qp`).
    pub fn create_qp(&self, options: &QpOptions<'_>) -> Result<Qp, Error> {
        Qp::new(self, options)
    }
}

impl Qp {
    fn new(pd: &Pd, options: &QpOptions<'_>) -> Result<Self, Error> {
        let shared = pd.0.shared().clone();
        let init = QpInit {
            pd: pd.0.id,
            send_cq: options.send_cq.id(),
            recv_cq: options.recv_cq.id(),
            max_send_wr: options.max_send_wr,
            max_recv_wr: options.max_recv_wr,
            max_send_sge: options.max_send_sge,
            max_recv_sge: options.max_recv_sge,
            max_inline_bytes: options.max_inline_bytes,
            signal_all: options.signal_all,
        };
        let mut driven = shared.lock()?;
        let handles = driven.engine.create_qp(&init)?;
        let first_psn = driven.engine.random_psn();
        drop(driven);
        Ok(Qp {
            shared,
            qpn: handles.qpn,
            first_psn,
            send: Lock::new(handles.send),
            recv: Lock::new(handles.recv),
            posts_waiting: AtomicU32::new(0),
            polls_seen: AtomicU64::new(0),
            _cqs: [options.send_cq.0.clone(), options.recv_cq.0.clone()],
            _pd: pd.0.clone(),
        })
    }

    /// Returns the queue pair number, 24 bits.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the endpoint that the peer connects to: QPN, first PSN sent, and the GID of index `gid_index`
    /// (zero where the table has none).
    pub fn endpoint(&self, gid_index: u8) -> Endpoint {
        let gid = self.shared.gid(usize::from(gid_index)).unwrap_or(Gid::ZERO);
        Endpoint { lid: 0, qpn: self.qpn, psn: self.first_psn, gid }
    }

    /// Returns the state and the attributes (`ibv_query_qp`).
    pub fn query(&self) -> Option<(QpState, Attributes)> {
        self.shared.inspect().engine.query_qp(self.qpn).map(|(state, attributes, _)| (state, attributes))
    }

    /// Returns the counters of this queue pair.
    pub fn counters(&self) -> QpCounters {
        self.shared.inspect().engine.qp_counters(self.qpn).unwrap_or_default()
    }

    /// Changes the state and attributes (`ibv_modify_qp`). If `attr` has an address vector, blocks until the
    /// destination's MAC is resolved, for 3 s at most.
    ///
    /// # Errors
    /// [`Error::Modify`] names the missing or refused attribute; [`Error::Unreachable`];
    /// [`Error::NotUnicast`].
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        if let Some(path) = &attr.path {
            if !path.dgid.is_unicast() {
                return Err(Error::NotUnicast { dgid: path.dgid });
            }
            self.shared.resolve(path.dgid, path.sgid_index, RESOLVE_TIMEOUT)?;
        }
        let mut driven = self.shared.lock()?;
        if attr.path.is_some() {
            driven.learn_link_speed(self.shared.port.kind);
        }
        Ok(driven.engine.modify_qp(self.qpn, attr)?)
    }

    /// Takes the queue pair from RESET over INIT to RTR, connected to `peer`.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn connect_to_receive(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        self.modify(&QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port_num: Some(1),
            access: Some(options.access),
            ..QpAttr::default()
        })?;
        let path = AddressVector {
            traffic_class: options.traffic_class,
            ..AddressVector::new(peer.gid, options.gid_index)
        };
        self.modify(&QpAttr {
            state: Some(QpState::Rtr),
            path: Some(path),
            path_mtu: Some(options.path_mtu),
            dest_qpn: Some(peer.qpn),
            rq_psn: Some(peer.psn),
            max_dest_rd_atomic: Some(options.rd_atomic),
            min_rnr_timer: Some(options.min_rnr_timer),
            recovery: Some(options.recovery),
            placement: Some(options.placement),
            congestion: options.congestion,
            ..QpAttr::default()
        })
    }

    /// Takes the queue pair from RESET over INIT and RTR to RTS, connected to `peer`.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn connect(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<(), Error> {
        self.connect_to_receive(peer, options)?;
        self.modify(&QpAttr {
            state: Some(QpState::Rts),
            timeout: Some(options.timeout),
            retry_count: Some(options.retry_count),
            rnr_retry: Some(options.rnr_retry),
            sq_psn: Some(self.first_psn),
            max_rd_atomic: Some(options.rd_atomic),
            ..QpAttr::default()
        })
    }

    /// Posts a send work request.
    ///
    /// # Errors
    /// [`Error::Post`], [`Error::DeviceFatal`]; the send queue is unchanged.
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
        self.shared.check()?;
        self.send.lock().post(request)?;
        self.after_posts(1);
        Ok(())
    }

    /// Posts `requests` in order, with one push. Returns how many were posted, and the error of the first
    /// that was refused.
    pub fn post_sends(&self, requests: &[SendRequest<'_>]) -> (usize, Result<(), Error>) {
        if let Err(error) = self.shared.check() {
            return (0, Err(error));
        }
        let mut send = self.send.lock();
        let mut posted = 0;
        let mut refused = Ok(());
        for request in requests {
            if let Err(error) = send.post(request) {
                refused = Err(error.into());
                break;
            }
            posted += 1;
        }
        drop(send);
        self.after_posts(posted as u32);
        (posted, refused)
    }

    /// Pushes posted work requests: at once if the device was polled since the last push, otherwise when
    /// `POSTS_PER_PUSH` have been posted. The next poll sends the others. Threads that post at the same time
    /// may miscount, which delays a request until that poll at most.
    #[inline]
    fn after_posts(&self, count: u32) {
        let activity = &self.shared.activity;
        let waiting = self.posts_waiting.load(Ordering::Relaxed) + count;
        let is_first = self.polls_seen.load(Ordering::Relaxed) != activity.polls();
        if !is_first && waiting < POSTS_PER_PUSH {
            self.posts_waiting.store(waiting, Ordering::Relaxed);
            return;
        }
        self.shared.push();
        self.posts_waiting.store(0, Ordering::Relaxed);
        self.polls_seen.store(activity.polls(), Ordering::Relaxed);
    }

    /// Posts a receive work request.
    ///
    /// # Errors
    /// [`Error::Post`], [`Error::DeviceFatal`]; the receive queue is unchanged.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        Ok(self.recv.lock().post(request)?)
    }
}
