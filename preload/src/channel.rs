//! Completion channels.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::c_int;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use verbs::CompChannel;
use verbs_sys::{ibv_comp_channel, ibv_context};

use crate::boundary::{Errno, object, status};
use crate::context::{ContextHandle, ours};
use crate::next::next;

/// A completion channel. C code has pointers to `c`, the first field.
#[repr(C)]
pub(crate) struct ChannelHandle {
    c: ibv_comp_channel,
    pub(crate) channel: CompChannel,
    /// Descriptor of the program: an epoll on the channel's own descriptor, whose flag O_NONBLOCK is always set. The flag
    /// of this descriptor is the program's.
    pub(crate) fd: OwnedFd,
    /// Completion queues that use the channel.
    pub(crate) cqs: AtomicU32,
}

/// Returns the channel at `channel`; `None` if it is null or another library's.
///
/// # Safety
/// `channel` is null or points to a channel of any library.
pub(crate) unsafe fn channel_of<'a>(channel: *mut ibv_comp_channel) -> Option<&'a ChannelHandle> {
    // SAFETY: as the caller states; all channels of a context of ours are first fields of handles.
    unsafe {
        ours(channel.as_ref()?.context)?;
        Some(&*channel.cast::<ChannelHandle>())
    }
}

fn create(context: *mut ibv_context, handle: &ContextHandle) -> Result<*mut ibv_comp_channel, Errno> {
    let channel = handle.opened()?.create_comp_channel()?;
    let fd = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&fd, channel.as_fd(), EventData::new_u64(0), EventFlags::IN)?;
    let c = ibv_comp_channel { context, fd: fd.as_raw_fd(), refcnt: 0 };
    Ok(Box::into_raw(Box::new(ChannelHandle { c, channel, fd, cqs: AtomicU32::new(0) })).cast())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    // SAFETY: the program passes a context.
    match unsafe { ours(context) } {
        Some(handle) => object(|| create(context, handle)),
        None => next!(
            ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel,
            ptr::null_mut()
        ),
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the program passes a channel.
    match unsafe { channel_of(channel) } {
        Some(handle) => status(|| {
            if handle.cqs.load(Ordering::Acquire) > 0 {
                return Err(Errno(libc::EBUSY));
            }
            // SAFETY: the handle is a box of `create`, and the program does not use it again.
            drop(unsafe { Box::from_raw(channel.cast::<ChannelHandle>()) });
            Ok(())
        }),
        None => next!(ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int, libc::ENOSYS),
    }
}
