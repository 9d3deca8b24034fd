//! Completion queue entries, named as in libibverbs.

use crate::id::Qpn;

/// Status of a completed work request: `enum ibv_wc_status`, with the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// The work request completed without error.
    Success = 0,
    /// A received message was longer than the scatter list of the receive, or a datagram to send was longer than the
    /// largest path MTU that the MTU of the port permits.
    LocLenErr = 1,
    /// The work request is a READ, and the local queue pair cannot send READs: `max_rd_atomic` is 0, or the transport
    /// service is UC. Or the local queue pair is of UD, and the work request is no datagram, or names an address handle
    /// that does not exist or is of another protection domain than the queue pair.
    LocQpOpErr = 2,
    /// An L_Key does not permit the access: no region has the key, or the region is of another protection domain, does
    /// not contain the range, or does not grant the right. Or the memory could not be accessed (memory fault).
    LocProtErr = 4,
    /// The queue pair went into error before the work request completed (flush).
    WrFlushErr = 5,
    /// A local invalidate failed (memory management operation error, IBA 11.6.2): no region has the R_Key of the
    /// work request, or the region is of another protection domain.
    MwBindErr = 6,
    /// A READ response had a wrong length, position (FIRST, MIDDLE, LAST, ONLY) or AETH.
    BadRespErr = 7,
    /// Memory named by the scatter list of a receive was not accessible. This engine reports `LocProtErr` instead.
    LocAccessErr = 8,
    /// The peer refused the work request by a NAK with the code invalid request.
    RemInvReqErr = 9,
    /// The peer refused the work request by a NAK with the code remote access error.
    RemAccessErr = 10,
    /// The peer refused the work request by a NAK with the code remote operational error.
    RemOpErr = 11,
    /// The retry count of the work request was exceeded.
    RetryExcErr = 12,
    /// The RNR retry count of the work request was exceeded.
    RnrRetryExcErr = 13,
}

impl WcStatus {
    /// Returns the text of `ibv_wc_status_str`.
    pub const fn text(self) -> &'static str {
        match self {
            WcStatus::Success => "success",
            WcStatus::LocLenErr => "local length error",
            WcStatus::LocQpOpErr => "local QP operation error",
            WcStatus::LocProtErr => "local protection error",
            WcStatus::WrFlushErr => "Work Request Flushed Error",
            WcStatus::MwBindErr => "memory management operation error",
            WcStatus::BadRespErr => "bad response error",
            WcStatus::LocAccessErr => "local access error",
            WcStatus::RemInvReqErr => "remote invalid request error",
            WcStatus::RemAccessErr => "remote access error",
            WcStatus::RemOpErr => "remote operation error",
            WcStatus::RetryExcErr => "transport retry counter exceeded",
            WcStatus::RnrRetryExcErr => "RNR retry counter exceeded",
        }
    }
}

/// Operation that completed: `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A SEND that the local queue pair sent.
    Send,
    /// An RDMA WRITE that the local queue pair sent.
    RdmaWrite,
    /// An RDMA READ that the local queue pair sent.
    RdmaRead,
    /// A local invalidate that the local queue pair executed.
    LocalInvalidate,
    /// A receive completed by a SEND.
    Recv,
    /// A receive completed by an RDMA WRITE with immediate.
    RecvRdmaWithImm,
}

/// IP header in the GRH area of a receive of UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NetworkHeader {
    /// 20 bytes of value 0, then an IPv4 header.
    Ipv4,
    /// An IPv6 header.
    Ipv6,
}

/// A completion: `struct ibv_wc`. After an error only `wr_id`, `status` and `qpn` are valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)] // `src_qpn`, `status` and `grh`, constant in successful CQEs of sends, lie within 8 bytes
pub struct Cqe {
    /// The application's number of the work request, as posted.
    pub wr_id: u64,
    /// Immediate data of the message received; `None` without immediate.
    pub imm: Option<u32>,
    /// Length in bytes of the message received (for UD, GRH area included), or of the send work request.
    pub len_bytes: u32,
    /// QPN of the local queue pair.
    pub qpn: Qpn,
    /// QPN of the queue pair that sent the datagram received; 0 if the work request received no datagram.
    pub src_qpn: Qpn,
    /// Operation that completed.
    pub opcode: WcOpcode,
    /// `Success`, or the error with which the work request failed.
    pub status: WcStatus,
    /// Header in the first 40 bytes of the receive (`IBV_WC_GRH`); `None` if the work request received no datagram.
    pub grh: Option<NetworkHeader>,
}

impl Cqe {
    /// Returns the completion of a work request that received neither a datagram nor immediate data.
    #[inline(always)]
    pub(crate) fn new(wr_id: u64, status: WcStatus, opcode: WcOpcode, len_bytes: u32, qpn: Qpn) -> Self {
        Cqe { wr_id, status, opcode, len_bytes, imm: None, qpn, src_qpn: Qpn::default(), grh: None }
    }
}

// Two completions share a cache line.
const _: () = assert!(size_of::<Cqe>() == 32);
