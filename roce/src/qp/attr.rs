//! Queue pair attributes, with the fields and units of `struct ibv_qp_attr`.

use crate::congestion::CongestionScheme;
use crate::id::{Gid, Qpn};
use crate::mem::{Access, PdId};
use crate::psn::Psn;
use crate::queue::CqId;
use crate::recovery::RecoveryScheme;

use super::state::{AttrMask, QpState};

/// Path MTU: the payload bytes of a full packet.
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

/// Bytes of an interface's MTU reserved for headers and ICRC (the value of Linux's rxe).
pub const HEADER_ROOM_BYTES: usize = 80;

impl PathMtu {
    /// All path MTUs, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// Returns the payload bytes of a full packet, 256 to 4096.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// Returns the path MTU of exactly `bytes`; `None` if there is none.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// Returns the largest path MTU that fits an interface of `mtu_bytes`; `None` below 336 bytes.
    pub fn largest_for(mtu_bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() as usize + HEADER_ROOM_BYTES <= mtu_bytes)
    }
}

/// Address vector of a peer (`struct ibv_ah_attr` with its global route, IBA 11.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// GID of the peer.
    pub dgid: Gid,
    /// Index of the local GID, which must be of the same family as `dgid` (IPv4 or IPv6).
    pub sgid_index: u8,
    /// Flow label of the IPv6 header, 20 bits; the UDP source port is derived from it. 0: the port is derived from
    /// both queue pair numbers.
    pub flow_label: u32,
    /// Time to live, or hop limit; 0: 64.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN. ECN bits of 0 become ECT(0) if the congestion control needs CE marks.
    pub traffic_class: u8,
}

impl AddressVector {
    /// Returns the address vector to `dgid` from the GID of index `sgid_index`; all other fields are 0.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        AddressVector { dgid, sgid_index, flow_label: 0, hop_limit: 0, traffic_class: 0 }
    }
}

/// Parameters of a new queue pair (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Protection domain of the queue pair, and of the memory it may access.
    pub pd: PdId,
    /// Completion queue of the send queue.
    pub send_cq: CqId,
    /// Completion queue of the receive queue.
    pub recv_cq: CqId,
    /// Maximum outstanding send work requests.
    pub max_send_wr: u32,
    /// Maximum outstanding receive work requests.
    pub max_recv_wr: u32,
    /// Maximum gather entries of a send work request.
    pub max_send_sge: u32,
    /// Maximum scatter entries of a receive work request.
    pub max_recv_sge: u32,
    /// Maximum inline bytes of a send work request.
    pub max_inline_bytes: u32,
    /// Every send work request writes a CQE (`sq_sig_all`); otherwise only signaled and failed ones do.
    pub signal_all: bool,
}

/// Order in which payload is placed in memory that a peer writes to (`ibv_query_qp_data_in_order`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// In PSN order: a reader that polls memory sees the first byte before the last, and a WRITE before the next.
    #[default]
    InOrder,
    /// SENDs and WRITEs on arrival, even out of order (RFC 5041 section 5). Memory is undefined until the
    /// completion, and of two concurrent WRITEs to the same bytes either may remain. A loss costs the responder
    /// less, because payloads do not wait in the reorder buffer.
    Relaxed,
}

/// Attributes to modify; `None` leaves one unchanged. Fields and units are those of `struct ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// New state; `None`: unchanged.
    pub state: Option<QpState>,
    /// State assumed by the caller; the modification is refused if the queue pair is in another.
    pub current_state: Option<QpState>,
    /// Index in the P_Key table, which has one entry.
    pub pkey_index: Option<u16>,
    /// Port number, from 1.
    pub port_num: Option<u8>,
    /// Access rights of the peer's requests.
    pub access: Option<Access>,
    /// Address vector of the peer.
    pub path: Option<AddressVector>,
    /// Path MTU; the peer's must be the same.
    pub path_mtu: Option<PathMtu>,
    /// Queue pair number of the peer.
    pub dest_qpn: Option<Qpn>,
    /// Expected PSN of the peer's first request.
    pub rq_psn: Option<Psn>,
    /// PSN of the first request.
    pub sq_psn: Option<Psn>,
    /// Responder resources: READs served at once for the peer, and remembered for duplicates (IBA 9.7.5.1.2).
    pub max_dest_rd_atomic: Option<u8>,
    /// Maximum outstanding READs; no more than the peer's responder resources.
    pub max_rd_atomic: Option<u8>,
    /// Timer code of RNR NAKs, 5 bits: the shortest wait before the peer retransmits (IBA 9.7.5.2.8).
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout: 4.096 us * 2^timeout, 5 bits; 0: infinite (IBA 9.7.6.1.3).
    pub timeout: Option<u8>,
    /// Retry count, 3 bits: timeouts and PSN sequence errors without progress before a work request fails.
    pub retry_count: Option<u8>,
    /// RNR retry count, 3 bits; 7: infinite.
    pub rnr_retry: Option<u8>,
    /// Recovery scheme agreed with the peer. Extension to `ibv_qp_attr`. Default: go-back-N. Takes effect if set no
    /// later than the transition to RTR.
    pub recovery: Option<RecoveryScheme>,
    /// Order in which the peer's payloads are placed. Extension to `ibv_qp_attr`. Default: in order. Takes effect if
    /// set no later than the transition to RTR.
    pub placement: Option<Placement>,
    /// Congestion control of this sender. Extension to `ibv_qp_attr`. Default: the device's. Takes effect if set no
    /// later than the transition to RTS.
    pub congestion: Option<CongestionScheme>,
}

impl QpAttr {
    /// Returns the attributes given, as bits of `enum ibv_qp_attr_mask`. Not counted: `state`, which every
    /// transition has, and the extensions, which have no bit.
    pub(crate) fn mask(&self) -> AttrMask {
        let given = [
            (self.current_state.is_some(), AttrMask::CUR_STATE),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port_num.is_some(), AttrMask::PORT),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
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

#[cfg(test)]
mod tests {
    use super::*;

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
