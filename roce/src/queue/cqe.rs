//! Completion queue entries, in the words of libibverbs.

use crate::id::Qpn;

/// How a work request ended: `enum ibv_wc_status`, same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    Success = 0,
    /// A receive was too short for the message, or a send too long.
    LocLenErr = 1,
    /// An inconsistency inside this side's queue pair.
    LocQpOpErr = 2,
    /// A local key did not open the memory of the work request.
    LocProtErr = 4,
    /// The queue pair was in error before the work request was done.
    WrFlushErr = 5,
    /// The peer's response made no sense.
    BadRespErr = 7,
    /// Local memory could not be accessed while a receive was filled.
    LocAccessErr = 8,
    /// The peer refused the request as invalid.
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not complete the request.
    RemOpErr = 11,
    /// No answer, after all retries.
    RetryExcErr = 12,
    /// The peer had no receive, after all retries.
    RnrRetryExcErr = 13,
}

impl WcStatus {
    /// The text of `ibv_wc_status_str`.
    pub const fn text(self) -> &'static str {
        match self {
            WcStatus::Success => "success",
            WcStatus::LocLenErr => "local length error",
            WcStatus::LocQpOpErr => "local QP operation error",
            WcStatus::LocProtErr => "local protection error",
            WcStatus::WrFlushErr => "Work Request Flushed Error",
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

/// What completed: `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// A SEND of this side.
    Send,
    /// An RDMA WRITE of this side.
    RdmaWrite,
    /// An RDMA READ of this side.
    RdmaRead,
    /// A receive filled by the peer's SEND.
    Recv,
    /// A receive consumed by the peer's RDMA WRITE with immediate.
    RecvRdmaWithImm,
}

/// A completion: `struct ibv_wc`. After an error only `wr_id`, `status` and `qpn` mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cqe {
    /// The work request's number.
    pub wr_id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub len_bytes: u32,
    /// The immediate, where the message carried one.
    pub imm: Option<u32>,
    /// This side's queue pair.
    pub qpn: Qpn,
}
