//! Work requests that a program builds between `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use libc::c_uint;
use verbs::{QpQueues, SendData, SendFlags, SendOp, SendRequest, Sge};
use verbs_sys::{
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_SEND_FENCE,
    IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
};

use crate::boundary::{Errno, UNSUPPORTED};

/// Operations that a queue pair of ours has. A program that asks for another one would call a null pointer.
const SEND_OPS: u32 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_LOCAL_INV;

/// The bytes of a work request: a range of `Builder::sges`, or of `Builder::bytes`.
pub(crate) enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

pub(crate) struct Wr {
    pub(crate) wr_id: u64,
    pub(crate) flags: SendFlags,
    pub(crate) op: SendOp,
    pub(crate) data: Data,
}

/// The work requests since `wr_start`. The vectors are emptied and used again.
#[derive(Default)]
pub(crate) struct Builder {
    pub(crate) wrs: Vec<Wr>,
    pub(crate) sges: Vec<Sge>,
    pub(crate) bytes: Vec<u8>,
}

impl Builder {
    pub(crate) fn clear(&mut self) {
        self.wrs.clear();
        self.sges.clear();
        self.bytes.clear();
    }

    /// Posts the work requests in order, until one is refused.
    pub(crate) fn post(&self, queues: &QpQueues) -> Result<(), Errno> {
        let mut batch = queues.send_batch()?;
        for wr in &self.wrs {
            let data = match &wr.data {
                Data::Sges(range) => SendData::Sges(&self.sges[range.clone()]),
                Data::Inline(range) => SendData::Inline(&self.bytes[range.clone()]),
            };
            batch.post(&SendRequest { wr_id: wr.wr_id, op: wr.op, flags: wr.flags, data })?;
        }
        Ok(())
    }
}

/// The builder of a queue pair, and the lock that a thread has from `wr_start` to `wr_complete` or `wr_abort`.
#[derive(Default)]
pub(crate) struct Building {
    pub(crate) is_locked: AtomicBool,
    pub(crate) builder: UnsafeCell<Builder>,
}

// SAFETY: only the thread that has set `is_locked` uses `builder`.
unsafe impl Sync for Building {}

impl Building {
    /// Returns the builder of a queue pair with the operations `send_ops`.
    pub(crate) fn new(send_ops: u64) -> Result<Self, Errno> {
        if send_ops & !u64::from(SEND_OPS) == 0 { Ok(Building::default()) } else { Err(UNSUPPORTED) }
    }
}

/// Returns the flags of `enum ibv_send_flags`, without inline.
pub(crate) fn flags_of(flags: c_uint) -> SendFlags {
    SendFlags {
        signaled: flags & IBV_SEND_SIGNALED != 0,
        solicited: flags & IBV_SEND_SOLICITED != 0,
        fence: flags & IBV_SEND_FENCE != 0,
    }
}
