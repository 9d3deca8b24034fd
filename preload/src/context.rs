//! Contexts: `struct verbs_context` with its table of functions, and the device of `verbs` behind it, whose port is
//! opened by the first call that needs the port. A program that only lists devices and their attributes opens no port.

use std::mem::{offset_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};

use libc::c_int;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use verbs::packet_events::describe_outcome;
use verbs::{Context, ContextObjects, DeviceAttr};
use verbs_sys::{ibv_context, verbs_context};

use crate::boundary::{Errno, explain, status};
use crate::device::{self, DeviceHandle, has_link, while_opening};
use crate::next::next;

/// Value of `abi_compat` by which a program recognises a `verbs_context` (`__VERBS_ABI_IS_EXTENDED`).
const ABI_IS_EXTENDED: usize = usize::MAX;

/// A context of a device of this process. C code has pointers to `verbs.context`.
#[repr(C)]
pub(crate) struct ContextHandle {
    verbs: verbs_context,
    pub(crate) device: &'static DeviceHandle,
    /// The context of `verbs`, from the first call that needs the port.
    opened: OnceLock<Context>,
    opens: Mutex<()>,
    /// `async_fd` of the program: readable while an asynchronous event is pending. An epoll, because the flag O_NONBLOCK
    /// is to be the program's, and because the context's own descriptor exists only when the port is open.
    async_fd: OwnedFd,
}

impl ContextHandle {
    /// Opens a context; `fill` sets the functions of its table.
    pub(crate) fn open(
        device: &'static DeviceHandle,
        fill: fn(&mut verbs_context),
    ) -> Result<*mut ibv_context, Errno> {
        let async_fd = epoll::create(CreateFlags::CLOEXEC)?;
        // SAFETY: zeros are a value of each field: null pointers, no functions, an unlocked mutex.
        let mut verbs: verbs_context = unsafe { zeroed() };
        verbs.sz = size_of::<verbs_context>();
        verbs.context.device = device.as_ptr();
        verbs.context.abi_compat = ptr::without_provenance_mut(ABI_IS_EXTENDED);
        verbs.context.async_fd = async_fd.as_raw_fd();
        verbs.context.cmd_fd = -1;
        verbs.context.num_comp_vectors = 1;
        fill(&mut verbs);
        let (opened, opens) = (OnceLock::new(), Mutex::new(()));
        let handle = Box::into_raw(Box::new(ContextHandle { verbs, device, opened, opens, async_fd }));
        device.contexts.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the handle was just made.
        Ok(unsafe { &raw mut (*handle).verbs.context })
    }

    /// Returns the context of `verbs`; opens the port if no call has opened it yet. A failure is reported, and the next
    /// call tries again.
    pub(crate) fn opened(&self) -> Result<&Context, Errno> {
        if let Some(context) = self.opened.get() {
            return Ok(context);
        }
        let _alone = self.opens.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = self.opened.get() {
            return Ok(context);
        }
        let context = while_opening(|| Context::open(&self.device.spec, &self.device.options));
        let context = context.map_err(|error| {
            explain(self.device.name(), &error);
            Errno::from(error)
        })?;
        if !has_link(context.attr().kind) {
            context.ignore_link_events();
        }
        epoll::add(&self.async_fd, context.async_event_fd(), EventData::new_u64(0), EventFlags::IN)?;
        Ok(self.opened.get_or_init(|| context))
    }

    pub(crate) fn objects(&self) -> Result<&ContextObjects, Errno> {
        self.opened().map(Context::objects)
    }

    /// Returns the context of `verbs` if the port is open.
    pub(crate) fn if_opened(&self) -> Option<&Context> {
        self.opened.get()
    }

    pub(crate) fn attr(&self) -> Result<DeviceAttr, Errno> {
        self.opened().map(Context::attr)
    }

    /// Reports the outcomes of the packet events, if this is the last context of its device.
    fn report_events(&self) {
        let is_last = self.device.contexts.fetch_sub(1, Ordering::Relaxed) == 1;
        let outcomes = self.if_opened().filter(|_| is_last).map(Context::event_outcomes).unwrap_or_default();
        for (number, outcome) in (1..).zip(&outcomes) {
            explain(self.device.name(), format_args!("event {number}: {}", describe_outcome(outcome)));
        }
    }

    pub(crate) fn async_fd(&self) -> impl AsFd + '_ {
        self.async_fd.as_fd()
    }
}

/// Returns the context of this process at `context`; `None` for a context of another library.
///
/// # Safety
/// `context` is null or points to an open context of any library. The reference is not used after `ibv_close_device`.
pub(crate) unsafe fn ours<'a>(context: *mut ibv_context) -> Option<&'a ContextHandle> {
    // SAFETY: the caller passes a context or null, and a context has a device.
    unsafe {
        device::ours(context.as_ref()?.device)?;
        let offset = offset_of!(ContextHandle, verbs) + offset_of!(verbs_context, context);
        Some(&*context.byte_sub(offset).cast::<ContextHandle>())
    }
}

/// Returns the context of this process at `context`.
///
/// # Safety
/// `context` points to an open context of this library, for example because its table of functions was used.
pub(crate) unsafe fn own<'a>(context: *mut ibv_context) -> Result<&'a ContextHandle, Errno> {
    // SAFETY: as the caller states.
    unsafe { ours(context) }.ok_or(Errno(libc::EINVAL))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the program passes an open context.
    match unsafe { ours(context) } {
        Some(handle) => status(|| {
            handle.report_events();
            // SAFETY: the handle is a box of `ContextHandle::open`, and the program does not use the context again.
            drop(unsafe { Box::from_raw(ptr::from_ref(handle).cast_mut()) });
            Ok(())
        }),
        None => next!(ibv_close_device(context: *mut ibv_context) -> c_int, -1),
    }
}
