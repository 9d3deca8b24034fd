//! Work requests that a program builds between `ibv_wr_start` and `ibv_wr_complete`.

use std::cell::UnsafeCell;

use libc::c_uint;
use verbs::{PostError, SendBatch, SendFlags};
use verbs_sys::{
    IBV_QP_EX_WITH_LOCAL_INV, IBV_QP_EX_WITH_RDMA_READ, IBV_QP_EX_WITH_RDMA_WRITE,
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, IBV_QP_EX_WITH_SEND, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_SEND_FENCE,
    IBV_SEND_SIGNALED, IBV_SEND_SOLICITED,
};

use crate::boundary::{Errno, UNSUPPORTED};

/// Operations that a queue pair of UD has.
const DATAGRAM_OPS: u32 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

/// Operations that a queue pair of RC or UC has. A program that asks for another one would call a null pointer.
const SEND_OPS: u32 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_LOCAL_INV;

/// The work requests since `wr_start`, and the first error.
pub(crate) struct Builder {
    /// Keeps other threads out until `wr_complete` or `wr_abort`. Borrows the queues of the queue pair.
    pub(crate) batch: SendBatch<'static>,
    pub(crate) built: Result<(), PostError>,
}

impl Builder {
    /// Calls `step` for the next step of a work request, unless a step has failed.
    #[inline]
    pub(crate) fn step(&mut self, step: impl FnOnce(&mut SendBatch<'static>) -> Result<(), PostError>) {
        if self.built.is_ok() {
            self.built = step(&mut self.batch);
        }
    }

    /// Posts all work requests, or none after an error.
    #[inline]
    pub(crate) fn complete(self) -> Result<(), Errno> {
        if let Err(error) = self.built {
            self.batch.abort();
            return Err(error.into());
        }
        Ok(self.batch.complete()?)
    }
}

/// The builder of a queue pair; `None` outside of `wr_start` to `wr_complete` or `wr_abort`.
#[derive(Default)]
pub(crate) struct Building(UnsafeCell<Option<Builder>>);

// SAFETY: only the thread that has locked the send queue uses the builder.
unsafe impl Sync for Building {}

impl Building {
    /// Returns the builder of a queue pair with the operations `send_ops`.
    pub(crate) fn new(send_ops: u64, is_ud: bool) -> Result<Self, Errno> {
        let known = if is_ud { DATAGRAM_OPS } else { SEND_OPS };
        if send_ops & !u64::from(known) == 0 { Ok(Building::default()) } else { Err(UNSUPPORTED) }
    }

    /// Returns the builder.
    ///
    /// # Safety
    /// The thread has locked the send queue of the queue pair, and uses the builder only through this reference.
    #[expect(clippy::mut_from_ref, reason = "the caller states that no other reference exists")]
    #[inline]
    pub(crate) unsafe fn builder(&self) -> &mut Option<Builder> {
        // SAFETY: as the caller states.
        unsafe { &mut *self.0.get() }
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
