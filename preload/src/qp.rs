//! Queue pairs.

use std::ptr;

use libc::c_int;
use verbs::{QpQueues, Qpn};
use verbs_sys::{ibv_qp, ibv_qp_ex};

use crate::boundary::status;
use crate::builder::Building;
use crate::context::{ContextHandle, ours};
use crate::events::Unacknowledged;
use crate::next::next;

/// A queue pair. C code has pointers to `c`, the first field, which begins with `ibv_qp`.
#[repr(C)]
pub(crate) struct QpHandle {
    pub(crate) c: ibv_qp_ex,
    pub(crate) queues: QpQueues,
    pub(crate) qpn: Qpn,
    /// Whether the transport service is UD.
    pub(crate) is_ud: bool,
    pub(crate) async_events: Unacknowledged,
    /// Work requests between `ibv_wr_start` and `ibv_wr_complete`; `None` if the queue pair was created without
    /// `send_ops_flags`.
    pub(crate) building: Option<Building>,
}

/// Returns the queue pair at `qp` and its context; `None` if they are null or another library's.
///
/// # Safety
/// `qp` is null or points to a queue pair of any library.
pub(crate) unsafe fn qp_of<'a>(qp: *mut ibv_qp) -> Option<(&'a QpHandle, &'a ContextHandle)> {
    // SAFETY: as the caller states; all queue pairs of a context of ours are first fields of handles.
    unsafe {
        let context = ours(qp.as_ref()?.context)?;
        Some((&*qp.cast::<QpHandle>(), context))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program passes a queue pair.
    match unsafe { qp_of(qp) } {
        Some((handle, _)) if handle.building.is_some() => qp.cast(),
        Some(_) => ptr::null_mut(),
        None => next!(ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex, ptr::null_mut()),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the program passes a queue pair.
    match unsafe { qp_of(qp) } {
        Some((handle, context)) => status(|| {
            context.objects()?.destroy_qp(handle.qpn)?;
            handle.async_events.wait();
            // SAFETY: the handle is a box of `create`, and the program does not use it again.
            drop(unsafe { Box::from_raw(qp.cast::<QpHandle>()) });
            Ok(())
        }),
        None => next!(ibv_destroy_qp(qp: *mut ibv_qp) -> c_int, libc::ENOSYS),
    }
}
