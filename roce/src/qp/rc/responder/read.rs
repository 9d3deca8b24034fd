//! Checks of a READ before it is queued (IBA 9.7.4.1).

use crate::mem::Access;
use crate::qp::context::RxContext;
use crate::qp::inbound::{INVALID, NO_ACCESS, Refusal};
use crate::qp::rc::read_queue::{NotQueued, ReadQueue};
use crate::qp::request::Request;
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::wire::Reth;

/// Checks a READ against access rights, responder resources and memory. Returns its RETH.
pub(super) fn authorize<R: Request>(
    request: &R,
    reads: &ReadQueue,
    rx: &mut RxContext<'_>,
) -> Result<Reth, Refusal> {
    let Some(reth) = request.reth().filter(|reth| reth.len_bytes <= MAX_MESSAGE_BYTES) else {
        return Err(INVALID);
    };
    if !rx.access.contains(Access::REMOTE_READ) {
        return Err(INVALID);
    }
    match reads.admit() {
        Ok(()) => {}
        Err(NotQueued::OverLimit) => return Err(INVALID),
        Err(_) => {
            rx.counters.read_deferred += 1;
            return Err(Refusal::Deferred);
        }
    }
    let memory = rx.memory.open_remote(rx.pd, reth.rkey, reth.va, reth.len_bytes, Access::REMOTE_READ);
    memory.map_err(|_| NO_ACCESS)?;
    Ok(reth)
}
