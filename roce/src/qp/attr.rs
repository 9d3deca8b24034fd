//! Queue pair attributes, as `struct ibv_qp_attr` has them.

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

/// Bytes of headers and ICRC that a path MTU leaves room for on an interface (as Linux reckons).
pub const HEADER_ROOM_BYTES: usize = 80;

impl PathMtu {
    /// All of them, smallest first.
    pub const ALL: [PathMtu; 5] =
        [PathMtu::Mtu256, PathMtu::Mtu512, PathMtu::Mtu1024, PathMtu::Mtu2048, PathMtu::Mtu4096];

    /// The payload bytes of a full packet.
    pub const fn bytes(self) -> u32 {
        256 << self as u32
    }

    /// The path MTU of exactly `bytes`.
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.bytes() == bytes)
    }

    /// The largest that fits an interface of `mtu_bytes`, if any does.
    pub fn largest_for(mtu_bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() as usize + HEADER_ROOM_BYTES <= mtu_bytes)
    }
}

/// The path to a peer (`struct ibv_ah_attr` with its global route).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's GID.
    pub dgid: Gid,
    /// Index of this side's GID; same family as `dgid`.
    pub sgid_index: u8,
    /// Flow label, 20 bits; 0: derived from the two queue pair numbers.
    pub flow_label: u32,
    /// Time to live; 0: the default of 64.
    pub hop_limit: u8,
    /// Traffic class (DSCP and ECN).
    pub traffic_class: u8,
}

impl AddressVector {
    /// The path to `dgid` from the GID of index `sgid_index`, all else by default.
    pub const fn new(dgid: Gid, sgid_index: u8) -> Self {
        AddressVector { dgid, sgid_index, flow_label: 0, hop_limit: 0, traffic_class: 0 }
    }
}

/// What a queue pair is created with (`struct ibv_qp_init_attr`).
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Protection domain.
    pub pd: PdId,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
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

/// In which order payload reaches memory that a peer writes to (`ibv_query_qp_data_in_order`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As it was sent: whoever polls memory sees the first byte before the last, and a WRITE before the next.
    #[default]
    InOrder,
    /// SENDs and WRITEs as they come, where packets before them are missing: memory that is being written to says
    /// nothing before the completion, and of two WRITEs at once to the same bytes either may last. What is
    /// lost then costs a receiver less.
    Relaxed,
}

/// Attributes to change; `None` leaves one as it is. Fields and units as in `struct ibv_qp_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpAttr {
    /// The state to go to; `None`: stay.
    pub state: Option<QpState>,
    /// The state the caller believes the queue pair is in; refused when it is not.
    pub current_state: Option<QpState>,
    /// Index in the P_Key table, which has one entry.
    pub pkey_index: Option<u16>,
    /// Port number, from 1.
    pub port_num: Option<u8>,
    /// What the peer's requests may do.
    pub access: Option<Access>,
    /// The path to the peer.
    pub path: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: Option<PathMtu>,
    /// The peer's queue pair.
    pub dest_qpn: Option<Qpn>,
    /// First PSN expected from the peer.
    pub rq_psn: Option<Psn>,
    /// First PSN sent.
    pub sq_psn: Option<Psn>,
    /// READs served for the peer at once.
    pub max_dest_rd_atomic: Option<u8>,
    /// READs asked of the peer at once.
    pub max_rd_atomic: Option<u8>,
    /// Shortest wait asked of a peer that finds no receive, as a code of 5 bits.
    pub min_rnr_timer: Option<u8>,
    /// Local ACK timeout: 4.096 us * 2^timeout, 0 = never, 5 bits.
    pub timeout: Option<u8>,
    /// Retries after a timeout or a sequence error, 3 bits.
    pub retry_count: Option<u8>,
    /// Retries after receiver-not-ready, 3 bits; 7 = for ever.
    pub rnr_retry: Option<u8>,
    /// Recovery that was agreed with the peer; no attribute of the standard's, and go-back-N unless set
    /// before or with the change to RTR.
    pub recovery: Option<RecoveryScheme>,
    /// The order in which what the peer writes reaches this side's memory; no attribute of the standard's, and
    /// in order unless set before or with the change to RTR.
    pub placement: Option<Placement>,
    /// Congestion control, this side's alone; no attribute of the standard's, and the device's unless set
    /// before or with the change to RTS.
    pub congestion: Option<CongestionScheme>,
}

impl QpAttr {
    /// Which attributes are given, as bits of `enum ibv_qp_attr_mask`. The state itself is not
    /// counted: every transition has it.
    pub fn mask(&self) -> AttrMask {
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
