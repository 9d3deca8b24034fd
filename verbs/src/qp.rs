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

use crate::context::Shared;
use crate::cq::{Cq, CqInner};
use crate::error::Error;
use crate::lock::Lock;
use crate::mr::{Pd, PdInner};

/// Posts that go out together. The first post since the device was last driven does not wait for more.
const POSTS_PER_PUSH: u32 = 16;

/// How long `modify` looks for the Ethernet address of a path's destination.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(3);

/// What a queue pair is created with (`ibv_qp_init_attr`).
#[derive(Clone)]
pub struct QpOptions<'a> {
    /// Where sends complete.
    pub send_cq: &'a Cq,
    /// Where receives complete.
    pub recv_cq: &'a Cq,
    /// Send work requests outstanding at most.
    pub max_send_wr: u32,
    /// Receive work requests outstanding at most.
    pub max_recv_wr: u32,
    /// Gather entries of a send at most.
    pub max_send_sge: u32,
    /// Scatter entries of a receive at most.
    pub max_recv_sge: u32,
    /// Inline bytes of a send at most.
    pub max_inline_bytes: u32,
    /// Every send completes visibly.
    pub signal_all: bool,
}

impl<'a> QpOptions<'a> {
    /// 128 work requests of one entry each way, 64 bytes inline, completions in `cq`.
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

/// How [`Qp::connect`] connects; the defaults are perftest's.
#[derive(Clone, Copy, Debug)]
pub struct ConnectOptions {
    /// Index of this side's GID.
    pub gid_index: u8,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// What the peer's requests may do.
    pub access: Access,
    /// READs outstanding, at both ends.
    pub rd_atomic: u8,
    /// Local ACK timeout: 4.096 us * 2^timeout.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries after receiver-not-ready; 7: for ever.
    pub rnr_retry: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Recovery; anything but the standard's go-back-N must have been agreed with the peer.
    pub recovery: RecoveryScheme,
    /// The order in which what the peer writes reaches this side's memory.
    pub placement: Placement,
    /// Congestion control of what this side sends; `None`: the device's.
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

/// A reliable connection's queue pair (`ibv_qp`). Posting takes a lock of its own queue only, so
/// two threads may post to it and others poll at the same time. Destroyed when dropped.
pub struct Qp {
    // Fields are dropped in this order, the domain last.
    shared: Arc<Shared>,
    qpn: Qpn,
    first_psn: Psn,
    send: Lock<SendPoster>,
    recv: Lock<RecvPoster>,
    /// Posts since the last push, and the device's count of polls then.
    posts_waiting: AtomicU32,
    polls_seen: AtomicU64,
    _cqs: [Arc<CqInner>; 2],
    pd: Arc<PdInner>,
}

impl Drop for Qp {
    fn drop(&mut self) {
        // It was created, and nobody else destroys it.
        let _ = self.shared.lock().map(|mut driven| driven.engine.destroy_qp(self.qpn));
    }
}

impl Qp {
    pub(crate) fn new(pd: &Pd, options: &QpOptions<'_>) -> Result<Self, Error> {
        let shared = pd.0.shared();
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
            pd: pd.0.clone(),
        })
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What the peer needs to know of this end, which will send from its GID `gid_index`.
    pub fn endpoint(&self, gid_index: u8) -> Endpoint {
        let gid = self.pd.context.gid(usize::from(gid_index)).unwrap_or(Gid::ZERO);
        Endpoint { lid: 0, qpn: self.qpn, psn: self.first_psn, gid }
    }

    /// Its state and attributes.
    pub fn query(&self) -> Option<(QpState, Attributes)> {
        self.shared.inspect().engine.query_qp(self.qpn).map(|(state, attributes, _)| (state, attributes))
    }

    /// Its counters.
    pub fn counters(&self) -> QpCounters {
        self.shared.inspect().engine.qp_counters(self.qpn).unwrap_or_default()
    }

    /// Changes its state and attributes (`ibv_modify_qp`). Where they name a path, waits until its
    /// Ethernet address is found.
    ///
    /// # Errors
    /// [`Error::Modify`] names what was missing or not allowed; [`Error::Unreachable`]; [`Error::NotUnicast`].
    pub fn modify(&self, attr: &QpAttr) -> Result<(), Error> {
        if let Some(path) = &attr.path {
            if !path.dgid.is_unicast() {
                return Err(Error::NotUnicast { dgid: path.dgid });
            }
            self.pd.context.resolve(path.dgid, path.sgid_index, RESOLVE_TIMEOUT)?;
        }
        let mut driven = self.shared.lock()?;
        if attr.path.is_some() {
            driven.learn_link_speed(self.shared.port.kind);
        }
        Ok(driven.engine.modify_qp(self.qpn, attr)?)
    }

    /// RESET to RTR: connects to `peer`, ready to receive.
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

    /// RESET to RTS: connects to `peer`, ready to send.
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
    /// [`Error::Post`], [`Error::DeviceFatal`]; nothing was posted.
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        self.send.lock().post(request)?;
        self.after_posts(1);
        Ok(())
    }

    /// Posts several send work requests, which go out together. Returns how many were posted, and
    /// why not the next.
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

    /// Sends what was posted, at once or when there is enough. Two threads that post at a time may
    /// miscount, which delays nothing for longer than a poll.
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
    /// [`Error::Post`], [`Error::DeviceFatal`]; nothing was posted.
    #[inline]
    pub fn post_recv(&self, request: &RecvRequest<'_>) -> Result<(), Error> {
        self.shared.check()?;
        Ok(self.recv.lock().post(request)?)
    }
}
