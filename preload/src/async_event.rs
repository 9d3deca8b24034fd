//! Asynchronous events of devices and objects.

use std::ptr;

use libc::c_int;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl};
use verbs::{AsyncEvent, Event};
use verbs_sys::{
    IBV_EVENT_COMM_EST, IBV_EVENT_CQ_ERR, IBV_EVENT_DEVICE_FATAL, IBV_EVENT_GID_CHANGE,
    IBV_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ERR, IBV_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_FATAL,
    IBV_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_SQ_DRAINED, IBV_EVENT_SRQ_ERR,
    IBV_EVENT_SRQ_LIMIT_REACHED, ibv_async_event, ibv_async_event__bindgen_ty_1, ibv_context, ibv_event_type,
};

use crate::boundary::{Errno, number};
use crate::context::{ContextHandle, ours};
use crate::cq::{CqHandle, cq_of};
use crate::events::Unacknowledged;
use crate::handle::of_cookie;
use crate::interrupt::{AGAIN, WAIT, cancellable, ends_wait};
use crate::next::next;
use crate::qp::{QpHandle, qp_of};
use crate::srq::{SrqHandle, srq_of};

/// Returns the type of an event.
fn event_type(event: Event) -> ibv_event_type {
    match event {
        Event::CqError(_) => IBV_EVENT_CQ_ERR,
        Event::QpFatal(_) => IBV_EVENT_QP_FATAL,
        Event::QpRequestError(_) => IBV_EVENT_QP_REQ_ERR,
        Event::QpAccessError(_) => IBV_EVENT_QP_ACCESS_ERR,
        Event::CommunicationEstablished(_) => IBV_EVENT_COMM_EST,
        Event::SendQueueDrained(_) => IBV_EVENT_SQ_DRAINED,
        Event::LastWqeReached(_) => IBV_EVENT_QP_LAST_WQE_REACHED,
        Event::SrqLimitReached(_) => IBV_EVENT_SRQ_LIMIT_REACHED,
        Event::PortActive => IBV_EVENT_PORT_ACTIVE,
        Event::PortError => IBV_EVENT_PORT_ERR,
        Event::GidChange => IBV_EVENT_GID_CHANGE,
        // A completion is an event of a completion channel.
        Event::DeviceFatal | Event::Completion(_) => IBV_EVENT_DEVICE_FATAL,
    }
}

/// Returns the counter of unacknowledged events of the object of an event; `None` for an event of the device.
///
/// # Safety
/// The object of the event is not destroyed during the call.
unsafe fn unacknowledged<'a>(event: &AsyncEvent) -> Option<&'a Unacknowledged> {
    // SAFETY: the cookie of an object is the address of its handle.
    unsafe {
        match event_type(event.event) {
            IBV_EVENT_CQ_ERR => Some(&of_cookie::<CqHandle>(event.cookie).async_events),
            IBV_EVENT_SRQ_LIMIT_REACHED => Some(&of_cookie::<SrqHandle>(event.cookie).async_events),
            _ if event.cookie != 0 => Some(&of_cookie::<QpHandle>(event.cookie).async_events),
            _ => None,
        }
    }
}

/// Takes an event; waits for one, for at most `WAIT`, unless the program's descriptor has O_NONBLOCK.
fn take(context: &ContextHandle) -> Result<Option<AsyncEvent>, Errno> {
    let count = |event: &AsyncEvent| {
        // SAFETY: the destruction of the object waits for this call.
        if let Some(unacknowledged) = unsafe { unacknowledged(event) } {
            unacknowledged.take();
        }
    };
    let fd = context.async_fd();
    let pending = || context.if_opened().and_then(|opened| opened.objects().poll_async_event_with(count));
    if let Some(event) = pending() {
        return Ok(Some(event));
    }
    if fcntl_getfl(&fd)?.contains(OFlags::NONBLOCK) {
        return Err(Errno(libc::EAGAIN));
    }
    let timeout = Timespec { tv_sec: WAIT.as_secs().cast_signed(), tv_nsec: 0 };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Err(error) if error != rustix::io::Errno::INTR || ends_wait() => Err(error.into()),
        _ => Ok(pending()),
    }
}

/// Takes an event as `take` does. Returns `AGAIN` if none occurred, -1 with errno after an error.
///
/// # Safety
/// `out` is a place for an event.
unsafe fn get(context: &ContextHandle, out: *mut ibv_async_event) -> c_int {
    number(|| {
        let Some(event) = take(context)? else { return Ok(AGAIN) };
        let element = if event.cookie == 0 {
            ibv_async_event__bindgen_ty_1 { port_num: 1 }
        } else {
            ibv_async_event__bindgen_ty_1 { qp: ptr::with_exposed_provenance_mut(event.cookie as usize) }
        };
        // SAFETY: the place is that of the caller.
        unsafe { out.write(ibv_async_event { element, event_type: event_type(event.event) }) };
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_async_event(
    context: *mut ibv_context,
    out: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        // SAFETY: the program passes room for an event.
        Some(handle) => cancellable(|| unsafe { get(handle, out) }),
        None => next!(
            ibv_get_async_event(context: *mut ibv_context, out: *mut ibv_async_event) -> c_int,
            -1
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the program passes an event of `ibv_get_async_event`, whose object waits for this call.
    let ours = unsafe {
        let element = (*event).element;
        match (*event).event_type {
            IBV_EVENT_CQ_ERR => cq_of(element.cq).map(|(cq, _)| &cq.async_events),
            IBV_EVENT_SRQ_ERR | IBV_EVENT_SRQ_LIMIT_REACHED => {
                srq_of(element.srq).map(|(srq, _)| &srq.async_events)
            }
            IBV_EVENT_QP_FATAL
            | IBV_EVENT_QP_REQ_ERR
            | IBV_EVENT_QP_ACCESS_ERR
            | IBV_EVENT_COMM_EST
            | IBV_EVENT_SQ_DRAINED
            | IBV_EVENT_QP_LAST_WQE_REACHED => qp_of(element.qp).map(|(qp, _)| &qp.async_events),
            _ => None,
        }
    };
    match ours {
        Some(unacknowledged) => unacknowledged.acknowledge(1),
        // An event of a device has no counter, in any library.
        None => next!(ibv_ack_async_event(event: *mut ibv_async_event) -> (), ()),
    }
}
