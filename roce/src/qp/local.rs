//! Local operations of a send queue (local invalidate, IBA 10.6.5): executed in the order of the send queue, without a
//! packet and without a PSN.

use super::context::TxContext;
use super::outstanding::{Outstanding, Place};
use crate::port::Port;
use crate::queue::{SendOp, WcStatus};

/// If the next work request is a local operation that may start, executes this local operation and returns its
/// [`Place`] among the outstanding work requests; otherwise returns `None`. If the local operation fails, returns the
/// error status.
/// `is_una_end`: true if una is one past the last assigned PSN, that is, if all earlier work requests have completed,
/// or complete in this poll.
#[cold]
#[inline(never)]
pub(crate) fn start_local<P: Port>(
    outstanding: &mut Outstanding,
    is_una_end: bool,
    tx: &TxContext<'_, P>,
) -> Result<Option<Place>, WcStatus> {
    let Some(wqe) = outstanding.next_unassigned() else { return Ok(None) };
    let SendOp::LocalInvalidate { rkey } = wqe.op else { return Ok(None) };
    if wqe.flags.fence && !is_una_end {
        return Ok(None);
    }
    tx.memory.invalidate(tx.pd, rkey).map_err(|_| WcStatus::MwBindErr)?;
    Ok(Some(outstanding.assign_local()))
}
