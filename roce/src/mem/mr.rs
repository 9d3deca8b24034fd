//! Memory regions: the bytes that a key identifies, their protection domain and access rights (IBA 10.6).

use std::sync::atomic::{AtomicU32, Ordering};

use super::copy::{Memory, Span};
use super::fault::MemoryFault;

/// Number of a protection domain in its device; never sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// Set of access rights of a memory region or a queue pair (`enum ibv_access_flags`, same bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// The empty set. Local work requests may read a region registered with this set, as they may read every region
    /// that is not invalidated.
    pub const NONE: Access = Access(0);
    /// Local work requests may write to the region (receives, RDMA READ).
    pub const LOCAL_WRITE: Access = Access(1);
    /// A peer's RDMA WRITE may write to the region.
    pub const REMOTE_WRITE: Access = Access(1 << 1);
    /// A peer's RDMA READ may read the region.
    pub const REMOTE_READ: Access = Access(1 << 2);
    /// A peer's atomic operations may read and write the region.
    pub(crate) const REMOTE_ATOMIC: Access = Access(1 << 3);
    /// Local work requests may read the region. Every region has this right until the region is invalidated.
    const LOCAL_READ: Access = Access(1 << 31);
    /// All rights that the application may set for a region or a queue pair.
    pub const ALL: Access = Access(0xF);

    /// Returns whether all rights of `other` are in this set.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl std::ops::BitOr for Access {
    type Output = Access;

    #[inline]
    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryError {
    UnknownKey,
    WrongPd,
    OutOfBounds,
    NoAccess,
    /// The bytes could not be accessed (memory fault).
    Fault,
}

impl From<MemoryFault> for MemoryError {
    #[inline]
    fn from(_: MemoryFault) -> Self {
        MemoryError::Fault
    }
}

/// Reason why a region was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegisterError {
    /// The access rights include remote write or remote atomic, but not local write (IBA 10.6.3.1).
    #[error("remote write and remote atomic rights need local write too: add Access::LOCAL_WRITE")]
    NeedsLocalWrite,
    /// The access rights include bits that this engine does not support.
    #[error(
        "access bits {0:#x} are not supported (known: local write, remote write, remote read, remote atomic)"
    )]
    UnknownAccess(u32),
    /// The memory region would exceed the 64-bit address space.
    #[error("a region of {len_bytes} bytes at {addr:#x} runs past the end of the address space")]
    Wraps {
        /// Address of the first byte of the region.
        addr: u64,
        /// Length of the region in bytes.
        len_bytes: usize,
    },
    /// The device already has the maximum number of memory regions (`max_mr`).
    #[error("all {0} memory regions of the device are in use: deregister one, or raise max_mr")]
    TooMany(usize),
}

#[derive(Debug)]
pub(crate) struct MemoryRegion {
    pd: PdId,
    addr: u64,
    memory: Memory,
    /// Rights, [`Access::LOCAL_READ`] included; 0 after the region was invalidated.
    access: AtomicU32,
}

impl MemoryRegion {
    /// Creates a region. `addr` is the address of the first byte of the region in work requests and in requests of
    /// peers.
    pub(super) fn new(pd: PdId, addr: u64, memory: Memory, access: Access) -> Result<Self, RegisterError> {
        if !Access::ALL.contains(access) {
            return Err(RegisterError::UnknownAccess(access.0 & !Access::ALL.0));
        }
        let needs_local = access.0 & (Access::REMOTE_WRITE.0 | Access::REMOTE_ATOMIC.0) != 0;
        if needs_local && !access.contains(Access::LOCAL_WRITE) {
            return Err(RegisterError::NeedsLocalWrite);
        }
        let len_bytes = memory.len_bytes();
        if addr.checked_add(len_bytes as u64).is_none() {
            return Err(RegisterError::Wraps { addr, len_bytes });
        }
        let access = AtomicU32::new((access | Access::LOCAL_READ).0);
        Ok(MemoryRegion { pd, addr, memory, access })
    }

    pub(super) fn pd(&self) -> PdId {
        self.pd
    }

    /// Removes all access rights; see [`super::MemoryView::invalidate`].
    pub(super) fn invalidate(&self) {
        self.access.store(Access::NONE.0, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn open(
        &self,
        pd: PdId,
        addr: u64,
        len_bytes: u32,
        access: Access,
    ) -> Result<Span<'_>, MemoryError> {
        if self.pd != pd {
            return Err(MemoryError::WrongPd);
        }
        if !Access(self.access.load(Ordering::Relaxed)).contains(access | Access::LOCAL_READ) {
            return Err(MemoryError::NoAccess);
        }
        let offset = addr.checked_sub(self.addr).ok_or(MemoryError::OutOfBounds)?;
        let offset = usize::try_from(offset).map_err(|_| MemoryError::OutOfBounds)?;
        self.memory.span(offset, len_bytes as usize).ok_or(MemoryError::OutOfBounds)
    }
}
