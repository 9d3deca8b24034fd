//! Threads that EAL did not start.

use std::marker::PhantomData;

use crate::eal::Eal;
use crate::errno::Errno;

/// Gives the calling thread an lcore id, and with it a cache of its own in every mempool, until dropped.
///
/// A thread without one works too, only slower: each allocation and each free goes to the pool's shared ring
/// with an atomic exchange, and so does each of the driver's own. The thread that called [`Eal::init`] has an
/// id already.
///
/// Limits: there are `RTE_MAX_LCORE` ids in a process (128 on Debian, EAL's own one among them). While
/// registered, a thread holds up to one and a half times the cache size of each pool it uses; those mbufs
/// return to the pool when the registration is dropped. Registration ends DPDK's support for secondary
/// processes.
#[derive(Debug)]
pub struct ThreadRegistration {
    /// False where the thread had an id before: dropping this must not take that one away.
    owns_id: bool,
    /// The id belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

/// No lcore id could be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "this thread cannot be registered with DPDK: {errno}. At most {max} threads of a process can be; the others \
     work without registration, only slower",
    max = dpdk_sys::SHIM_MAX_LCORE
)]
pub struct RegisterError {
    /// What DPDK reported.
    pub errno: Errno,
}

impl ThreadRegistration {
    /// Registers the calling thread. Where it has an lcore id already, this does nothing, and neither does
    /// dropping the result.
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
        if !self.owns_id || !is_registered() {
            return;
        }
        crate::mempool::flush_own_caches();
        // SAFETY: this thread registered itself; the type cannot move to another one.
        unsafe { dpdk_sys::rte_thread_unregister() };
    }
}

/// Whether the calling thread has an lcore id.
pub fn is_registered() -> bool {
    // SAFETY: both read thread-local or constant values.
    unsafe { dpdk_sys::shim_lcore_id() != dpdk_sys::shim_lcore_id_any() }
}
