//! Queue pair attributes, with the fields and units of `struct ibv_qp_attr`.

use crate::congestion::CongestionScheme;
use crate::id::{Gid, QKey, Qpn};
use crate::mem::{Access, PdId};
use crate::psn::Psn;
use crate::queue::{CqId, SrqId};
use crate::recovery::RecoveryScheme;

use super::service::ServiceType;
use super::state::{AttrMask, QpState};

/// Path MTU: the largest payload of a packet, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathMtu {
    /// 256 bytes.
    Mtu256,
    /// 512 bytes.
    Mtu512,
    /// 1024 bytes.
    Mtu1024,
    /// 2048 bytes.
    Mtu2048,
    /// 4096 bytes.
    Mtu4096,
}

/// Minimum difference between interface MTU and path MTU, in bytes, for headers and ICRC; Linux's rxe has the same
/// minimum.
pub const HEADER_ROOM_BYTES: usize = 80;

impl PathMtu {
    /// All path MTUs, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Returns the path MTU in bytes, 256 to 4096.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// Returns the path MTU of `bytes` bytes; `None` unless `bytes` is 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Returns the largest path MTU for an interface with an MTU of `mtu_bytes`; `None` below 336 bytes (256 + 80).
    pub fn largest_for(mtu_bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() as usize + HEADER_ROOM_BYTES <= mtu_bytes)
    }
}

/// Address vector to a peer (`struct ibv_ah_attr` with its global route, IBA 11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// GID of the peer.
    pub dgid: Gid,
    /// Index of the source GID in the port's GID table; source GID and `dgid` must both be IPv4, or both IPv6.
    pub sgid_index: u8,
    /// Flow label of the IPv6 header, 20 bits, from which the UDP source port is derived. 0: the UDP source port is
    /// derived from the local and the remote QPN.
    pub flow_label: u32,
    /// Time to live (IPv4) or hop limit (IPv6); 0 stands for 64.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN field. If the congestion control needs CE marks, ECN 0 is sent as ECT(0).
    pub traffic_class: u8,
}

impl AddressVector {
    /// Returns the address vector to `dgid` from the source GID of index `sgid_index`; all other fields are 0.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        AddressVector { dgid, sgid_index, flow_label: 0, hop_limit: 0, traffic_class: 0 }
    }
}

/// Parameters of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport service.
    pub service: ServiceType,
    /// Protection domain: the queue pair may access only memory regions of the same protection domain.
    pub pd: PdId,
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Shared receive queue; `None`: the queue pair has a receive queue of its own.
    pub srq: Option<SrqId>,
    /// Maximum number of outstanding send work requests.
    pub max_send_wr: u32,
    /// Maximum number of outstanding receive work requests; not used with a shared receive queue.
    pub max_recv_wr: u32,
    /// Maximum number of scatter/gather entries of a send work request.
    pub max_send_sge: u32,
    /// Maximum number of scatter entries of a receive work request; not used with a shared receive queue.
    pub max_recv_sge: u32,
    /// Maximum number of inline bytes of a send work request.
    pub max_inline_bytes: u32,
    /// True: every send work request writes a CQE (`sq_sig_all`). False: only signaled and failed send work requests
    /// write a CQE.
    pub signal_all: bool,
}

/// Order in which payloads of the peer's SENDs and WRITEs are placed (compare `ibv_query_qp_data_in_order`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Payloads are placed in PSN order, and the last byte of each payload is written last: if a program sees that the
    /// last byte of a message was written, the whole message is placed.
    #[default]
    InOrder,
    /// Payloads of WRITEs, and under selective repeat also of SENDs, are placed on arrival, even if out of order (RFC
    /// 5041 section 5). Until a message completes, the content of its destination memory is undefined. If two
    /// outstanding WRITEs write to the same address, the bytes of either WRITE may remain.
    Relaxed,
}

/// Attributes to modify, with the fields and units of `struct ibv_qp_attr`. `None` leaves an attribute unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// New state; `None`: unchanged.
    pub state: Option<QpState>,
    /// State assumed by the caller: if the queue pair is in another state, the modification is refused.
    pub current_state: Option<QpState>,
    /// Index of the P_Key in the P_Key table: 0, because the table has one entry.
    pub pkey_index: Option<u16>,
    /// Port number: 1, because a device has one port.
    pub port_num: Option<u8>,
    /// Access that the queue pair grants to the peer's requests.
    pub access: Option<Access>,
    /// Q_Key of a queue pair of UD: received packets must have this Q_Key.
    pub qkey: Option<QKey>,
    /// Address vector of this queue pair.
    pub path: Option<AddressVector>,
    /// Path MTU; must equal the path MTU of the peer.
    pub path_mtu: Option<PathMtu>,
    /// Queue pair number of the peer.
    pub dest_qpn: Option<Qpn>,
    /// PSN of the peer's first request.
    pub rq_psn: Option<Psn>,
    /// PSN of the first request that this queue pair sends.
    pub sq_psn: Option<Psn>,
    /// Responder resources, 0 to 128: READs served concurrently, and remembered to recognise duplicates (IBA
    /// 9.7.5.1.2).
    pub max_dest_rd_atomic: Option<u8>,
    /// Maximum number of outstanding READs, 0 to 128; must not exceed the peer's responder resources.
    pub max_rd_atomic: Option<u8>,
    /// Timer code in RNR NAKs to the peer, 5 bits: the shortest RNR wait of the peer (IBA 9.7.5.2.8).
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout: 4.096 us * 2^timeout, 5 bits; 0: infinite (IBA 9.7.6.1.3).
    pub timeout: Option<u8>,
    /// Retry count, 3 bits: number of local ACK timeouts and PSN sequence errors permitted without progress.
    pub retry_count: Option<u8>,
    /// RNR retry count, 3 bits: number of RNR NAKs permitted without progress; 7: no limit.
    pub rnr_retry: Option<u8>,
    /// Recovery scheme agreed with the peer. Extension to `ibv_qp_attr`. Default: improved go-back-N. Cannot be
    /// changed after the transition to RTR.
    pub recovery: Option<RecoveryScheme>,
    /// Order in which the peer's payloads are placed. Extension to `ibv_qp_attr`. Default: in order. Cannot be
    /// changed after the transition to RTR.
    pub placement: Option<Placement>,
    /// Congestion control of the requests and READ responses that this queue pair sends. Extension to `ibv_qp_attr`.
    /// Default: the scheme of the device. After the transition to RTS, a change takes effect only on a reliable
    /// connection, and only if the change is part of a transition from SQD to SQD.
    pub congestion: Option<CongestionScheme>,
    /// Upper bound of the first round trip to the peer in nanoseconds, for example a round trip measured on another
    /// connection to this peer (RFC 9040). Extension to `ibv_qp_attr`. Default: 3 ms. The first probe timeouts are at
    /// least three times this round trip, until this queue pair has measured its own. No effect after the transition to
    /// RTS.
    pub initial_rtt_nanos: Option<u32>,
}

impl QpAttr {
    /// Returns the attributes for a queue pair of `service`. RC: all attributes. UC: all except responder resources,
    /// `max_rd_atomic`, timers and retry counts. UD: only states, P_Key index, port number, Q_Key and `sq_psn`.
    pub fn of_service(self, service: ServiceType) -> QpAttr {
        match service {
            ServiceType::Rc => self,
            ServiceType::Uc => QpAttr {
                max_rd_atomic: None,
                max_dest_rd_atomic: None,
                min_rnr_timer: None,
                timeout: None,
                retry_count: None,
                rnr_retry: None,
                initial_rtt_nanos: None,
                ..self
            },
            ServiceType::Ud => QpAttr {
                state: self.state,
                current_state: self.current_state,
                pkey_index: self.pkey_index,
                port_num: self.port_num,
                qkey: self.qkey,
                sq_psn: self.sq_psn,
                ..QpAttr::default()
            },
        }
    }

    /// Returns the mask of the attributes that are `Some`, without `state` and the extensions to `ibv_qp_attr`.
    pub(crate) fn mask(&self) -> AttrMask {
        let given = [
            (self.current_state.is_some(), AttrMask::CUR_STATE),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port_num.is_some(), AttrMask::PORT),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.path.is_some(), AttrMask::AV),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.max_dest_rd_atomic.is_some(), AttrMask::MAX_DEST_RD_ATOMIC),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_QP_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_count.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
        ];
        given.into_iter().filter(|(is_given, _)| *is_given).fold(AttrMask::NONE, |all, (_, bit)| all | bit)
    }
}

/// Attributes of one end of a connection, by default those of perftest. An unreliable connection uses path MTU, access
/// and congestion only. For the transitions to RTS see the example of [`Engine`](crate::engine::Engine).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnAttr {
    /// Path MTU, equal at both peers.
    pub path_mtu: PathMtu,
    /// Access rights of the peer's requests (`qp_access_flags`), limited by the rights of the memory region.
    pub access: Access,
    /// Maximum number of outstanding READs, 0 to 128; must not exceed the peer's responder resources.
    pub max_rd_atomic: u8,
    /// Responder resources, 0 to 128: READs served concurrently, and remembered to recognise duplicates (IBA
    /// 9.7.5.1.2).
    pub max_dest_rd_atomic: u8,
    /// Local ACK timeout, `4.096 us * 2^timeout`: 1 to 31; 0: no timeout (IBA 9.7.6.1.3).
    pub timeout: u8,
    /// Retry count, 0 to 7: number of local ACK timeouts and PSN sequence errors permitted without progress.
    pub retry_count: u8,
    /// RNR retry count, 0 to 6; 7: no limit.
    pub rnr_retry: u8,
    /// Timer code in RNR NAKs to the peer, 0 to 31: the shortest RNR wait of the peer (IBA 9.7.5.2.8).
    pub min_rnr_timer: u8,
    /// Recovery scheme. Selective repeat requires a peer with selective repeat and the same `window_pkts`.
    pub recovery: RecoveryScheme,
    /// Order in which the peer's payloads are placed.
    pub placement: Placement,
    /// Congestion control of the requests and READ responses that this queue pair sends; `None`: the scheme of the
    /// device.
    pub congestion: Option<CongestionScheme>,
    /// Upper bound of the first round trip to the peer in nanoseconds (RFC 9002, section 6.2.2). It includes the time
    /// that the peer, for example a soft-RoCE in a virtual machine, takes to start. The default of 3 ms suits a peer of
    /// which nothing is known. Longer round trips are known from the TCP connection by which the two ends exchanged
    /// their addresses (RFC 9040). 0: the first probe timeouts are those of IRN (SIGCOMM'18), of 100 us or 320 us, for
    /// networks with shorter round trips.
    pub initial_rtt_nanos: u32,
}

/// Default of [`ConnAttr::initial_rtt_nanos`], in nanoseconds.
const INITIAL_RTT_NANOS: u32 = 3_000_000;

impl Default for ConnAttr {
    fn default() -> Self {
        ConnAttr {
            path_mtu: PathMtu::Mtu1024,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            timeout: 14,
            retry_count: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            recovery: RecoveryScheme::ImprovedGoBackN,
            placement: Placement::InOrder,
            congestion: None,
            initial_rtt_nanos: INITIAL_RTT_NANOS,
        }
    }
}

impl ConnAttr {
    pub(crate) const RESET: ConnAttr = ConnAttr {
        path_mtu: PathMtu::Mtu256,
        access: Access::NONE,
        max_rd_atomic: 0,
        max_dest_rd_atomic: 0,
        timeout: 0,
        retry_count: 0,
        rnr_retry: 0,
        min_rnr_timer: 0,
        recovery: RecoveryScheme::ImprovedGoBackN,
        placement: Placement::InOrder,
        congestion: None,
        initial_rtt_nanos: INITIAL_RTT_NANOS,
    };

    /// Returns the attributes for the transition from RESET to INIT, on port 1.
    pub fn to_init(&self) -> QpAttr {
        QpAttr {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port_num: Some(1),
            access: Some(self.access),
            ..QpAttr::default()
        }
    }

    /// Returns the attributes for the transition from INIT to RTR. `path`: the address vector of this queue pair;
    /// `dest_qpn`: the QPN of the peer; `rq_psn`: the PSN of the peer's first request.
    pub fn to_rtr(&self, path: AddressVector, dest_qpn: Qpn, rq_psn: Psn) -> QpAttr {
        QpAttr {
            state: Some(QpState::Rtr),
            path: Some(path),
            path_mtu: Some(self.path_mtu),
            dest_qpn: Some(dest_qpn),
            rq_psn: Some(rq_psn),
            max_dest_rd_atomic: Some(self.max_dest_rd_atomic),
            min_rnr_timer: Some(self.min_rnr_timer),
            recovery: Some(self.recovery),
            placement: Some(self.placement),
            congestion: self.congestion,
            ..QpAttr::default()
        }
    }

    /// Returns the attributes for the transition from RTR to RTS; this queue pair's first request has PSN `sq_psn`.
    pub fn to_rts(&self, sq_psn: Psn) -> QpAttr {
        QpAttr {
            state: Some(QpState::Rts),
            sq_psn: Some(sq_psn),
            max_rd_atomic: Some(self.max_rd_atomic),
            timeout: Some(self.timeout),
            retry_count: Some(self.retry_count),
            rnr_retry: Some(self.rnr_retry),
            initial_rtt_nanos: Some(self.initial_rtt_nanos),
            ..QpAttr::default()
        }
    }

    pub(crate) fn updated(&self, attr: &QpAttr) -> ConnAttr {
        ConnAttr {
            path_mtu: attr.path_mtu.unwrap_or(self.path_mtu),
            access: attr.access.unwrap_or(self.access),
            max_rd_atomic: attr.max_rd_atomic.unwrap_or(self.max_rd_atomic),
            max_dest_rd_atomic: attr.max_dest_rd_atomic.unwrap_or(self.max_dest_rd_atomic),
            timeout: attr.timeout.unwrap_or(self.timeout),
            retry_count: attr.retry_count.unwrap_or(self.retry_count),
            rnr_retry: attr.rnr_retry.unwrap_or(self.rnr_retry),
            min_rnr_timer: attr.min_rnr_timer.unwrap_or(self.min_rnr_timer),
            recovery: attr.recovery.unwrap_or(self.recovery),
            placement: attr.placement.unwrap_or(self.placement),
            congestion: attr.congestion.or(self.congestion),
            initial_rtt_nanos: attr.initial_rtt_nanos.unwrap_or(self.initial_rtt_nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::state::check_transition;

    #[test]
    fn three_transitions_set_every_attribute() {
        let conn = ConnAttr {
            path_mtu: PathMtu::Mtu2048,
            access: Access::REMOTE_READ,
            max_rd_atomic: 1,
            max_dest_rd_atomic: 2,
            timeout: 3,
            retry_count: 4,
            rnr_retry: 5,
            min_rnr_timer: 6,
            recovery: RecoveryScheme::SelectiveRepeat { window_pkts: 128 },
            placement: Placement::Relaxed,
            congestion: Some(CongestionScheme::None),
            initial_rtt_nanos: 10,
        };
        let (path, psn) = (AddressVector::new(Gid::ZERO, 0), Psn::new(7));
        let attrs = [conn.to_init(), conn.to_rtr(path, Qpn::new(8), psn), conn.to_rts(psn)];
        let (mut state, mut now) = (QpState::Reset, ConnAttr::RESET);
        for attr in attrs {
            let to = attr.state.expect("a transition");
            assert_eq!(check_transition(ServiceType::Rc, state, to, attr.mask()), Ok(()));
            let attr_of_uc = attr.of_service(ServiceType::Uc);
            assert_eq!(check_transition(ServiceType::Uc, state, to, attr_of_uc.mask()), Ok(()));
            let qkey = (to == QpState::Init).then_some(QKey(9));
            let attr_of_ud = QpAttr { qkey, ..attr }.of_service(ServiceType::Ud);
            assert_eq!(check_transition(ServiceType::Ud, state, to, attr_of_ud.mask()), Ok(()));
            (state, now) = (to, now.updated(&attr));
        }
        assert_eq!((state, now), (QpState::Rts, conn));
        assert_eq!(ConnAttr::RESET.initial_rtt_nanos, ConnAttr::default().initial_rtt_nanos);
        assert_eq!(now.updated(&QpAttr::default()), conn);
    }

    #[test]
    fn the_path_mtu_leaves_room_for_headers() {
        assert_eq!(PathMtu::largest_for(1500), Some(PathMtu::Mtu1024));
        assert_eq!(PathMtu::largest_for(4176), Some(PathMtu::Mtu4096));
        assert_eq!(PathMtu::largest_for(4175), Some(PathMtu::Mtu2048));
        assert_eq!(PathMtu::largest_for(300), None);
        assert_eq!(PathMtu::from_bytes(2048), Some(PathMtu::Mtu2048));
        assert_eq!(PathMtu::from_bytes(1000), None);
    }
}
