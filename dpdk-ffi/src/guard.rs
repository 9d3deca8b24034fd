//! Mutual exclusion of a memif port and the thread on which its driver handles control messages: when the
//! peer disconnects, that thread unmaps the memory that bursts copy from and to. dpdk-sys/guard.c has the
//! lock.

use std::marker::PhantomData;

/// Held while a memif port is attached, started, stopped, closed or detached.
pub(crate) struct Lock {
    /// Not `Send`, because the thread that took the lock must release it.
    _not_send: PhantomData<*const ()>,
}

/// Whether the device `name` is a memif.
pub(crate) fn concerns(name: &str) -> bool {
    name.starts_with("net_memif")
}

/// Takes the lock if the device `name` is a memif.
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
