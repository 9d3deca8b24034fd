//! Memory regions: the bytes that a key identifies, their protection domain and access rights (IBA 10.6).

use super::copy::{Memory, Span};
use crate::id::{LKey, RKey};
use crate::random::Random;
use crate::table::Table;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of a protection domain in its engine; never sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PdId(pub u32);

/// Set of access rights of a memory region or a queue pair (`enum ibv_access_flags`, same bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access(pub u32);

impl Access {
    /// No access right. Local work requests need no right to read a region.
    pub const NONE: Access = Access(0);
    /// Local work requests may write to the region (receives, RDMA READ).
    pub const LOCAL_WRITE: Access = Access(1);
    /// A peer's RDMA WRITE may write to the region.
    pub const REMOTE_WRITE: Access = Access(1 << 1);
    /// A peer's RDMA READ may read the region.
    pub const REMOTE_READ: Access = Access(1 << 2);
    /// A peer's atomic operations may read and write the region.
    pub(crate) const REMOTE_ATOMIC: Access = Access(1 << 3);
    /// Right of local work requests to read a region, which every region has until the region is invalidated.
    const LOCAL_READ: Access = Access(1 << 31);
    /// All rights that this engine supports.
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
    #[inline]
    fn open(&self, pd: PdId, addr: u64, len_bytes: u32, access: Access) -> Result<Span<'_>, MemoryError> {
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

const KEY_BITS: u32 = 32;

/// All memory regions of a device, by key. The L_Key and the R_Key of a region are the same number.
#[derive(Debug)]
pub(crate) struct MemoryTable {
    regions: Table<MemoryRegion>,
}

impl MemoryTable {
    pub(crate) fn new(max_regions: usize) -> Self {
        MemoryTable { regions: Table::new(KEY_BITS, max_regions) }
    }

    pub(crate) fn register(
        &mut self,
        random: &mut Random,
        pd: PdId,
        memory: Memory,
        addr: u64,
        access: Access,
    ) -> Result<(LKey, RKey), RegisterError> {
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
        let region = MemoryRegion { pd, addr, memory, access };
        let full = RegisterError::TooMany(self.regions.max_len());
        let key = self.regions.insert_with(random, |_| false, |_, _| region).ok_or(full)?;
        Ok((LKey(key), RKey(key)))
    }

    /// Removes the region with the key `lkey`. Returns the protection domain of the region; `None` if no region has
    /// this key.
    pub(crate) fn deregister(&mut self, lkey: LKey) -> Option<PdId> {
        self.regions.remove(lkey.0).map(|region| region.pd)
    }

    /// Invalidates both keys of the region with key `rkey`, which must be of `pd` (IBA 10.6.5). Until the region is
    /// deregistered, no access to its bytes is permitted. The invalidation of an invalid region has no effect.
    pub(crate) fn invalidate(&self, pd: PdId, rkey: RKey) -> Result<(), MemoryError> {
        let region = self.regions.get(rkey.0).ok_or(MemoryError::UnknownKey)?;
        if region.pd != pd {
            return Err(MemoryError::WrongPd);
        }
        region.access.store(Access::NONE.0, Ordering::Relaxed);
        Ok(())
    }

    /// Returns `len_bytes` bytes at `addr` of the region with key `lkey`, for a local work request. The region must be
    /// of `pd` and grant `access`: [`Access::LOCAL_WRITE`] to write, [`Access::NONE`] to read. If `len_bytes` is 0, the
    /// span is empty, and neither key nor address is checked.
    #[inline]
    pub(crate) fn open_local(
        &self,
        pd: PdId,
        lkey: LKey,
        addr: u64,
        len_bytes: u32,
        access: Access,
    ) -> Result<Span<'_>, MemoryError> {
        if len_bytes == 0 {
            return Ok(Span::EMPTY);
        }
        self.regions.get(lkey.0).ok_or(MemoryError::UnknownKey)?.open(pd, addr, len_bytes, access)
    }

    /// Returns `len_bytes` bytes at `addr` of the region with key `rkey`, for a peer's request. The region must be of
    /// `pd` and grant `access`. If `len_bytes` is 0, neither key nor address is checked (IBA C9-88), and the span is
    /// empty.
    #[inline]
    pub(crate) fn open_remote(
        &self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len_bytes: u32,
        access: Access,
    ) -> Result<Span<'_>, MemoryError> {
        self.open_local(pd, LKey(rkey.0), addr, len_bytes, access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (MemoryTable, Memory, LKey, RKey) {
        let mut table = MemoryTable::new(8);
        let memory = Memory::alloc(100);
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let keys =
            table.register(&mut Random::new([1; 32]), PdId(1), memory.clone(), 0x1000, access).unwrap();
        (table, memory, keys.0, keys.1)
    }

    #[test]
    fn a_key_opens_its_range_to_its_domain_for_its_rights() {
        let (table, _, lkey, rkey) = table();
        let open = |pd, addr, len, access| {
            table.open_remote(PdId(pd), rkey, addr, len, access).map(|s| s.len_bytes())
        };
        assert_eq!(open(1, 0x1000, 100, Access::REMOTE_WRITE), Ok(100));
        assert_eq!(open(1, 0x1001, 100, Access::REMOTE_WRITE), Err(MemoryError::OutOfBounds));
        assert_eq!(open(1, 0xFFF, 1, Access::REMOTE_WRITE), Err(MemoryError::OutOfBounds));
        assert_eq!(open(1, u64::MAX, 2, Access::REMOTE_WRITE), Err(MemoryError::OutOfBounds));
        assert_eq!(open(1, 0x1000, 1, Access::REMOTE_READ), Err(MemoryError::NoAccess));
        assert_eq!(open(2, 0x1000, 1, Access::REMOTE_WRITE), Err(MemoryError::WrongPd));
        assert_eq!(open(2, 5, 0, Access::REMOTE_READ), Ok(0), "no bytes, no check");
        let wrong = LKey(lkey.0 ^ 1);
        assert!(matches!(
            table.open_local(PdId(1), wrong, 0x1000, 1, Access::NONE),
            Err(MemoryError::UnknownKey)
        ));
    }

    #[test]
    fn an_invalidated_key_opens_nothing_and_can_be_deregistered() {
        let (mut table, _, lkey, rkey) = table();
        assert_eq!(table.invalidate(PdId(2), rkey), Err(MemoryError::WrongPd));
        assert_eq!(table.invalidate(PdId(1), RKey(rkey.0 ^ 1)), Err(MemoryError::UnknownKey));
        let open = |table: &MemoryTable, access| {
            table.open_local(PdId(1), lkey, 0x1000, 1, access).map(|span| span.len_bytes())
        };
        assert_eq!(open(&table, Access::NONE), Ok(1), "a failed invalidation has no effect");
        for _ in 0..2 {
            assert_eq!(table.invalidate(PdId(1), rkey), Ok(()));
            for access in [Access::NONE, Access::LOCAL_WRITE, Access::REMOTE_WRITE] {
                assert_eq!(open(&table, access), Err(MemoryError::NoAccess));
            }
        }
        assert_eq!(table.deregister(lkey), Some(PdId(1)));
        assert_eq!(table.invalidate(PdId(1), rkey), Err(MemoryError::UnknownKey));
    }

    #[test]
    fn registration_refuses_what_the_standard_refuses() {
        let (mut table, memory, lkey, _) = table();
        let mut random = Random::new([2; 32]);
        let mut register = |addr, access| table.register(&mut random, PdId(1), memory.clone(), addr, access);
        assert_eq!(register(0, Access::REMOTE_WRITE), Err(RegisterError::NeedsLocalWrite));
        assert_eq!(register(0, Access(1 << 6)), Err(RegisterError::UnknownAccess(1 << 6)));
        assert!(matches!(register(u64::MAX - 10, Access::NONE), Err(RegisterError::Wraps { .. })));
        for _ in 0..7 {
            register(0, Access::REMOTE_READ).unwrap();
        }
        assert_eq!(register(0, Access::NONE), Err(RegisterError::TooMany(8)));
        assert_eq!((table.deregister(lkey), table.deregister(lkey)), (Some(PdId(1)), None));
    }
}
