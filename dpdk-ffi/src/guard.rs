//! Mutual exclusion of a memif port and the thread on which its driver handles control messages: when the
//! peer disconnects, that thread unmaps the memory that bursts copy from and to. dpdk-sys/guard.c has the
//! lock.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::ptr::NonNull;

use crate::process;

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

/// Takes the lock if it is free.
pub(crate) fn try_lock() -> Option<Lock> {
    // A `Lock` exists only if it was taken, because its drop releases the lock, whoever holds it.
    // SAFETY: released by `drop`.
    unsafe { dpdk_sys::shim_guard_try_lock() }.then(|| Lock { _not_send: PhantomData })
}

impl Drop for Lock {
    fn drop(&mut self) {
        // SAFETY: taken by `lock`, in this thread.
        unsafe { dpdk_sys::shim_guard_unlock() };
    }
}

/// The flag of a queue of a memif port, set during the queue's bursts. The driver's thread waits for the flags of all
/// queues.
pub(crate) struct BurstFlag(NonNull<dpdk_sys::shim_burst_flag>);

// SAFETY: bursts through `&mut self` write the flag, and the driver's thread reads it as an atomic.
unsafe impl Send for BurstFlag {}

impl BurstFlag {
    /// Makes the flag of a queue. Takes the lock of [`Lock`], so the calling thread must not hold a `Lock`.
    pub(crate) fn new() -> Self {
        // SAFETY: `drop` frees the flag.
        let flag = NonNull::new(unsafe { dpdk_sys::shim_guard_flag_new() });
        Self(flag.unwrap_or_else(|| handle_alloc_error(Layout::new::<[u64; 8]>())))
    }

    /// Begins a burst; `None` while a handler of the driver runs.
    #[inline]
    pub(crate) fn begin(&mut self) -> Option<Burst<'_>> {
        // SAFETY: the flag exists, and its bursts are made one at a time through `&mut self`; `Burst::drop` ends this
        // one.
        unsafe { dpdk_sys::shim_guard_burst_begin(self.0.as_ptr()) }.then(|| Burst { flag: self })
    }
}

impl Drop for BurstFlag {
    fn drop(&mut self) {
        if !process::owns_eal() {
            return;
        }
        // SAFETY: made by `new`; every burst has ended, because a burst borrows the flag.
        unsafe { dpdk_sys::shim_guard_flag_free(self.0.as_ptr()) };
    }
}

/// A burst. While it exists, the driver's thread unmaps no memory.
pub(crate) struct Burst<'a> {
    flag: &'a mut BurstFlag,
}

impl Drop for Burst<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: begun by `BurstFlag::begin`.
        unsafe { dpdk_sys::shim_guard_burst_end(self.flag.0.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_taken_stays_taken() {
        let _held = lock("net_memif0").expect("the name of a memif");
        assert!(try_lock().is_none());
        assert!(try_lock().is_none(), "the first attempt released the lock of another owner");
    }
}
