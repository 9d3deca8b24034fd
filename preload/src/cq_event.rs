//! Events of completion queues (`ibv_get_cq_event`, `ibv_ack_cq_events`).

use libc::{c_int, c_uint, c_void};
use rustix::fs::{OFlags, fcntl_getfl};
use verbs::CompletionEvent;
use verbs_sys::{ibv_comp_channel, ibv_cq};

use crate::boundary::{Errno, number};
use crate::channel::{ChannelHandle, channel_of};
use crate::cq::{CqHandle, cq_of};
use crate::handle::of_cookie;
use crate::interrupt::{AGAIN, WAIT, cancellable, ends_wait};
use crate::next::next;

/// Takes an event; waits for one, for at most `WAIT`, unless the program's descriptor has O_NONBLOCK.
fn take(channel: &ChannelHandle) -> Result<Option<CompletionEvent>, Errno> {
    // SAFETY: the cookie is the address of the completion queue, whose destruction waits for this call.
    let count = |event: &CompletionEvent| unsafe { of_cookie::<CqHandle>(event.cookie) }.comp_events.take();
    if fcntl_getfl(&channel.fd)?.contains(OFlags::NONBLOCK) {
        return channel.channel.try_wait_with(count)?.map(Some).ok_or(Errno(libc::EAGAIN));
    }
    Ok(channel.channel.wait_unless(WAIT, count, ends_wait)?)
}

/// Takes an event as `take` does. Returns `AGAIN` if none occurred, -1 with errno after an error.
///
/// # Safety
/// `cq` and `cq_context` are places for pointers.
unsafe fn get(channel: &ChannelHandle, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int {
    number(|| {
        let Some(event) = take(channel)? else { return Ok(AGAIN) };
        // SAFETY: the completion queue is not destroyed before the program acknowledges the event; the places are those
        // of the caller.
        unsafe {
            let (own, context) = of_cookie::<CqHandle>(event.cookie).for_event();
            cq.write(own);
            cq_context.write(context);
        }
        Ok(0)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    // SAFETY: the program passes a channel, and room for the two pointers.
    match unsafe { channel_of(channel) } {
        // SAFETY: as above.
        Some(handle) => cancellable(|| unsafe { get(handle, cq, cq_context) }),
        None => next!(
            ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void)
                -> c_int,
            -1
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) {
    // SAFETY: the program passes a completion queue.
    match unsafe { cq_of(cq) } {
        Some((handle, _)) => handle.comp_events.acknowledge(nevents),
        None => next!(ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) -> (), ()),
    }
}
