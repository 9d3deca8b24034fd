//! Keeps a memif port apart from the thread on which its driver handles control messages: when the peer goes
//! away, that thread unmaps the very memory that a burst copies from and to. dpdk-sys/guard.c has the lock.

use std::marker::PhantomData;

/// Held while a memif port is attached, started, stopped, closed or detached.
pub(crate) struct Lock {
    /// To be released by the thread that took it.
    _not_send: PhantomData<*const ()>,
}

/// Whether the device `name` is one of the driver's.
pub(crate) fn concerns(name: &str) -> bool {
    name.starts_with("net_memif")
}

/// Takes the lock, where the device `name` needs it.
pub(crate) fn lock(name: &str) -> Option<Lock> {
    concerns(name).then(|| {
        // SAFETY: released by `drop`. Nothing that runs under the lock takes it again.
        unsafe { dpdk_sys::shim_guard_lock() };
        Lock { _not_send: PhantomData }
    })
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: taken by `lock`, in this thread.
        unsafe { dpdk_sys::shim_guard_unlock() };
    }
}
