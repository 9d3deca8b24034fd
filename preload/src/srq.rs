//! Shared receive queues.

use std::mem::zeroed;
use std::ptr;

use libc::c_int;
use verbs::{SrqAttr, SrqId, SrqQueue};
use verbs_sys::{
    IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_TYPE, IBV_SRQ_LIMIT, IBV_SRQT_BASIC, ibv_context, ibv_pd,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr, ibv_srq_init_attr_ex,
};

use crate::boundary::{Errno, INVALID, UNSUPPORTED, object, status};
use crate::context::{ContextHandle, ours, own};
use crate::events::Unacknowledged;
use crate::handle::Place;
use crate::mr::pd_of;
use crate::next::next;

/// A shared receive queue. C code has pointers to `c`, the first field.
#[repr(C)]
pub(crate) struct SrqHandle {
    c: ibv_srq,
    pub(crate) queue: SrqQueue,
    pub(crate) id: SrqId,
    pub(crate) async_events: Unacknowledged,
}

/// Returns the shared receive queue at `srq` and its context; `None` if they are null or another library's.
///
/// # Safety
/// `srq` is null or points to a shared receive queue of any library.
pub(crate) unsafe fn srq_of<'a>(srq: *mut ibv_srq) -> Option<(&'a SrqHandle, &'a ContextHandle)> {
    // SAFETY: as the caller states; all shared receive queues of a context of ours are first fields of handles.
    unsafe {
        let context = ours(srq.as_ref()?.context)?;
        Some((&*srq.cast::<SrqHandle>(), context))
    }
}

fn create(
    pd: *mut ibv_pd,
    srq_context: *mut libc::c_void,
    attr: &ibv_srq_attr,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: the program passes a protection domain.
    let (pd_handle, context) = unsafe { pd_of(pd) }.ok_or(INVALID)?;
    let place = Place::new();
    let wanted = SrqAttr {
        pd: pd_handle.id,
        max_wr: attr.max_wr,
        max_sge: attr.max_sge.max(1),
        limit: attr.srq_limit,
    };
    let (id, queue) = context.objects()?.create_srq(&wanted, place.cookie())?;
    // SAFETY: zeros are a value of each field: null pointers and an unlocked mutex.
    let mut c: ibv_srq = unsafe { zeroed() };
    // SAFETY: `pd` is a protection domain of ours.
    (c.context, c.pd, c.srq_context) = (unsafe { (*pd).context }, pd, srq_context);
    Ok(place.fill(SrqHandle { c, queue, id, async_events: Unacknowledged::default() }).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the program passes a protection domain.
    match unsafe { pd_of(pd) } {
        Some(_) => object(|| {
            // SAFETY: and attributes.
            let attr = unsafe { &*attr };
            create(pd, attr.srq_context, &attr.attr)
        }),
        None => next!(
            ibv_create_srq(pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> *mut ibv_srq,
            ptr::null_mut()
        ),
    }
}

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    object(|| {
        // SAFETY: the context's table of functions was used, and the program passes attributes.
        let attr = unsafe {
            own(context)?;
            &*attr
        };
        let known = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD;
        let is_basic = attr.comp_mask & IBV_SRQ_INIT_ATTR_TYPE == 0 || attr.srq_type == IBV_SRQT_BASIC;
        if attr.comp_mask & !known != 0 || !is_basic {
            return Err(UNSUPPORTED);
        }
        create(attr.pd, attr.srq_context, &attr.attr)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int {
    // SAFETY: the program passes a shared receive queue.
    match unsafe { srq_of(srq) } {
        Some((handle, context)) => status(|| {
            if mask.cast_unsigned() & !IBV_SRQ_LIMIT != 0 {
                return Err(UNSUPPORTED);
            }
            // SAFETY: and attributes.
            let limit = unsafe { (*attr).srq_limit };
            if mask == 0 { Ok(()) } else { Ok(context.objects()?.set_srq_limit(handle.id, limit)?) }
        }),
        None => next!(
            ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int,
            libc::ENOSYS
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: the program passes a shared receive queue.
    match unsafe { srq_of(srq) } {
        Some((handle, context)) => status(|| {
            let SrqAttr { max_wr, max_sge, limit, .. } =
                context.objects()?.query_srq(handle.id).ok_or(INVALID)?;
            // SAFETY: and room for the attributes.
            unsafe { attr.write(ibv_srq_attr { max_wr, max_sge, srq_limit: limit }) };
            Ok(())
        }),
        None => next!(
            ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int,
            libc::ENOSYS
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    // SAFETY: the program passes a shared receive queue.
    match unsafe { srq_of(srq) } {
        Some((handle, context)) => status(|| {
            context.objects()?.destroy_srq(handle.id)?;
            handle.async_events.wait();
            // SAFETY: the handle is a box of `create`, and the program does not use it again.
            drop(unsafe { Box::from_raw(srq.cast::<SrqHandle>()) });
            Ok(())
        }),
        None => next!(ibv_destroy_srq(srq: *mut ibv_srq) -> c_int, libc::ENOSYS),
    }
}
