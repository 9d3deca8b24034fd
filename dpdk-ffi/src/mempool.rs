//! Pools of packet buffers.

use std::ffi::{CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dpdk_sys::{rte_mbuf, rte_mempool};

use crate::eal::Eal;
use crate::errno::Errno;
use crate::mbuf::Mbuf;
use crate::process;

/// Configuration of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MempoolConfig {
    /// Mbufs in the pool. A port needs its receive descriptors, its transmit descriptors, the mbufs that the
    /// program holds, and one and a half times `cache_mbufs` for each thread that drives it.
    pub mbufs: u32,
    /// Bytes of frame per mbuf, without the headroom.
    pub data_room_bytes: u16,
    /// Mbufs in the cache of each registered thread; 0: no cache.
    pub cache_mbufs: u32,
    /// Whether the mbufs are contiguous in one piece of memory, also across pages. A driver that shares the
    /// pool with the kernel (af_xdp) requires this: of another pool it loses frames sent from the mbufs at
    /// the end.
    pub packed: bool,
}

impl Default for MempoolConfig {
    /// 4,095 mbufs of 8 KiB, which hold an InfiniBand packet of the largest path MTU in one piece: 34 MiB.
    fn default() -> Self {
        Self { mbufs: 4095, data_room_bytes: 8192, cache_mbufs: 256, packed: false }
    }
}

/// Reason why a pool could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MempoolError {
    /// A configuration that DPDK cannot make.
    #[error("a mempool of {mbufs} mbufs with a cache of {cache_mbufs}: {reason}", mbufs = config.mbufs, cache_mbufs = config.cache_mbufs)]
    Invalid {
        /// The configuration.
        config: MempoolConfig,
        /// Defect of the configuration.
        reason: String,
    },
    /// DPDK has too little memory.
    #[error(
        "DPDK has no memory for a mempool of {mbufs} mbufs, about {needed_mib} MiB: {errno}. Reserve more \
         hugepages (/proc/sys/vm/nr_hugepages), or without hugepages start EAL with a larger -m; or use fewer mbufs",
        mbufs = config.mbufs
    )]
    NoMemory {
        /// The configuration.
        config: MempoolConfig,
        /// Memory needed, in MiB.
        needed_mib: u64,
        /// Error number reported.
        errno: Errno,
    },
}

/// A pool of mbufs. Clones share it; any thread may allocate from it.
///
/// The memory is DPDK's until the process ends. When the last handle is dropped, mbufs may still be in use;
/// the pool is then idle until a pool of the same configuration is made, which reuses it.
#[derive(Clone, Debug)]
pub struct Mempool(Arc<Pool>);

#[derive(Debug)]
struct Pool {
    raw: NonNull<rte_mempool>,
    config: MempoolConfig,
}

// SAFETY: rte_mempool is made for use from several threads at a time.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

/// Pools without a handle, to be reused.
static IDLE: Mutex<Vec<Pool>> = Mutex::new(Vec::new());
/// Number in the name of the next pool.
static NEXT_NAME: AtomicU32 = AtomicU32::new(0);

impl Mempool {
    /// Makes a pool, or reuses an idle one of the same configuration to which every mbuf has returned.
    ///
    /// # Errors
    /// [`MempoolError`]
    pub fn new(_eal: Eal, config: &MempoolConfig) -> Result<Self, MempoolError> {
        validate(config)?;
        let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = idle.iter().position(|pool| pool.config == *config && pool.available() == config.mbufs);
        let pool = match usable {
            Some(index) => idle.swap_remove(index),
            None => Pool::create(config)?,
        };
        Ok(Self(Arc::new(pool)))
    }

    /// Returns the approximate memory of an mbuf, in bytes: `data_room_bytes`, headroom, its own header and
    /// the pool's.
    pub const fn mbuf_bytes(data_room_bytes: u16) -> u64 {
        const HEADERS_BYTES: u64 = 192;
        data_room_bytes as u64 + dpdk_sys::SHIM_PKTMBUF_HEADROOM as u64 + HEADERS_BYTES
    }

    /// Returns the configuration of the pool.
    pub fn config(&self) -> &MempoolConfig {
        &self.0.config
    }

    /// Returns the mbufs that can be allocated, including those in other threads' caches. Slow: for tests and
    /// reports.
    pub fn available(&self) -> u32 {
        self.0.available()
    }

    /// Allocates an empty mbuf; `None` if the pool is exhausted.
    pub fn alloc(&self) -> Option<Mbuf> {
        let mut raw = ptr::null_mut();
        if !self.alloc_raw(std::slice::from_mut(&mut raw)) {
            return None;
        }
        // SAFETY: an mbuf just allocated, with no other owner.
        NonNull::new(raw).map(|raw| unsafe { Mbuf::from_raw(raw) })
    }

    /// Fills `mbufs` with empty mbufs, which the caller then owns. False, with `mbufs` unchanged, if the pool
    /// has fewer.
    pub(crate) fn alloc_raw(&self, mbufs: &mut [*mut rte_mbuf]) -> bool {
        let count = u32::try_from(mbufs.len()).unwrap_or(u32::MAX);
        // SAFETY: the pool lives forever, and `mbufs` takes `count` pointers.
        unsafe { dpdk_sys::shim_pktmbuf_alloc_bulk(self.raw(), mbufs.as_mut_ptr(), count) == 0 }
    }

    pub(crate) fn raw(&self) -> *mut rte_mempool {
        self.0.raw.as_ptr()
    }
}

impl Pool {
    fn create(config: &MempoolConfig) -> Result<Self, MempoolError> {
        let name = format!("dpdk_ffi_{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed));
        let name = CString::new(name).expect("no NUL in it");
        let room = config.data_room_bytes + dpdk_sys::SHIM_PKTMBUF_HEADROOM as u16;
        let MempoolConfig { mbufs, cache_mbufs, packed, .. } = *config;
        // SAFETY: a C string which is copied, and plain numbers.
        let raw = unsafe {
            let socket = i32::try_from(dpdk_sys::rte_socket_id()).unwrap_or(-1);
            if packed {
                let name = name.as_ptr();
                dpdk_sys::shim_pktmbuf_pool_create_packed(name, mbufs, cache_mbufs, room, socket)
            } else {
                dpdk_sys::rte_pktmbuf_pool_create(name.as_ptr(), mbufs, cache_mbufs, 0, room, socket)
            }
        };
        match NonNull::new(raw) {
            Some(raw) => Ok(Self { raw, config: *config }),
            None => {
                let mbuf_bytes = Mempool::mbuf_bytes(config.data_room_bytes);
                let needed_mib = (u64::from(config.mbufs) * mbuf_bytes).div_ceil(1 << 20);
                Err(MempoolError::NoMemory { config: *config, needed_mib, errno: Errno::last() })
            }
        }
    }

    fn available(&self) -> u32 {
        // SAFETY: the pool lives forever.
        unsafe { dpdk_sys::rte_mempool_avail_count(self.raw.as_ptr()) }
    }
}

impl Drop for Mempool {
    fn drop(&mut self) {
        if !process::owns_eal() {
            return;
        }
        // Only the last handle has exclusive access to the pool.
        if let Some(pool) = Arc::get_mut(&mut self.0) {
            let pool = Pool { raw: pool.raw, config: pool.config };
            IDLE.lock().unwrap_or_else(PoisonError::into_inner).push(pool);
        }
    }
}

fn validate(config: &MempoolConfig) -> Result<(), MempoolError> {
    let invalid = |reason: String| Err(MempoolError::Invalid { config: *config, reason });
    let cache_max = dpdk_sys::SHIM_MEMPOOL_CACHE_MAX_SIZE;
    if config.mbufs == 0 {
        return invalid("it needs at least one mbuf".to_owned());
    }
    if config.cache_mbufs > cache_max {
        return invalid(format!("a cache holds at most {cache_max}"));
    }
    // Because DPDK flushes a cache at one and a half times its size, the pool must be able to fill that.
    if u64::from(config.cache_mbufs) * 3 > u64::from(config.mbufs) * 2 {
        return invalid("the pool must be at least one and a half times the size of the cache".to_owned());
    }
    let room_max = u16::MAX - dpdk_sys::SHIM_PKTMBUF_HEADROOM as u16;
    if config.data_room_bytes > room_max {
        return invalid(format!("a data room is at most {room_max} bytes"));
    }
    Ok(())
}

/// Returns the mbufs in the calling thread's caches to their pools.
pub(crate) fn flush_own_caches() {
    unsafe extern "C" fn flush(pool: *mut rte_mempool, _argument: *mut c_void) {
        // SAFETY: rte_mempool_walk passes pools that exist; the cache touched is this thread's own.
        unsafe { dpdk_sys::shim_mempool_flush_own_cache(pool) };
    }
    // SAFETY: `flush` does not change the list of pools, which the walk holds locked.
    unsafe { dpdk_sys::rte_mempool_walk(Some(flush), ptr::null_mut()) };
}
