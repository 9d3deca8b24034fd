//! Threads that EAL did not start.

use std::marker::PhantomData;

use crate::eal::Eal;
use crate::errno::Errno;
use crate::process;

/// Gives the calling thread an lcore ID, and so a cache of its own in every mempool, until dropped.
///
/// A thread without an lcore ID works, but more slowly: each allocation and each free accesses the pool's
/// shared ring with an atomic exchange, and so does each of the driver's. The thread that called
/// [`Eal::init`] has an ID.
///
/// Limits: a process has `RTE_MAX_LCORE` IDs (128 on Debian), including EAL's own. While registered, a thread
/// holds up to one and a half times the cache size of each pool it uses; those mbufs return to the pool when
/// the registration is dropped. Registration ends DPDK's support for secondary processes.
#[derive(Debug)]
pub struct ThreadRegistration {
    /// False if the thread had an ID before, which drop must not release.
    owns_id: bool,
    /// Not `Send`, because the ID belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// No lcore ID was available.
#[derive(Debug, thiserror::Error)]
#[error(
    "this thread cannot be registered with DPDK: {errno}. At most {max} threads of a process can be; the others \
     work without registration, only slower",
    max = dpdk_sys::SHIM_MAX_LCORE
)]
pub struct RegisterError {
    /// Error number reported.
    pub errno: Errno,
}

impl ThreadRegistration {
    /// Registers the calling thread. If it has an lcore ID already, neither this nor drop changes anything.
    pub fn new(_eal: Eal) -> Result<Self, RegisterError> {
        if is_registered() {
            return Ok(Self { owns_id: false, _not_send: PhantomData });
        }
        // SAFETY: EAL is initialised (the argument proves it), and this thread has no lcore id.
        match unsafe { dpdk_sys::rte_thread_register() } {
            0 => Ok(Self { owns_id: true, _not_send: PhantomData }),
            _ => Err(RegisterError { errno: Errno::last() }),
        }
    }
}

impl Drop for ThreadRegistration {
    fn drop(&mut self) {
        if !process::owns_eal() || !self.owns_id || !is_registered() {
            return;
        }
        crate::mempool::flush_own_caches();
        // SAFETY: this thread registered itself; the type cannot move to another one.
        unsafe { dpdk_sys::rte_thread_unregister() };
    }
}

/// Whether the calling thread has an lcore ID.
pub fn is_registered() -> bool {
    // SAFETY: both read thread-local or constant values.
    unsafe { dpdk_sys::shim_lcore_id() != dpdk_sys::shim_lcore_id_any() }
}
