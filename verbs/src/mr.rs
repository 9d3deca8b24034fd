//! Protection domains and memory regions.

use std::sync::Arc;

use roce::id::{LKey, RKey};
use roce::mem::{Access, AccessError, Memory, PdId};
use roce::queue::Sge;

use crate::error::Error;
use crate::objects::ContextObjects;

pub(crate) struct PdInner {
    pub(crate) objects: Arc<ContextObjects>,
    pub(crate) id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Fails after a fatal error, and while an object that was created through `ContextObjects` uses this protection
        // domain. In the second case, the drop of `objects` deallocates the protection domain.
        let _ = self.objects.dealloc_pd(self.id);
    }
}

/// A protection domain (`ibv_pd`). Clones are the same domain. The domain is deallocated when all its clones and all
/// its objects are dropped.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

impl Pd {
    pub(crate) fn new(objects: &Arc<ContextObjects>) -> Result<Self, Error> {
        let id = objects.alloc_pd()?;
        Ok(Pd(Arc::new(PdInner { objects: objects.clone(), id })))
    }

    /// Registers `memory` with the access rights `access` (`ibv_reg_mr`). Work requests address the region by the
    /// virtual addresses of `memory`.
    ///
    /// # Memory of the application
    /// Memory of [`Memory::from_raw`] must be mapped, readable, and writable if `access` has a right to write, until
    /// the region is deregistered. The registration makes all pages present; on-demand paging (`IBV_ACCESS_ON_DEMAND`)
    /// is not offered. If the program unmaps, protects or truncates registered memory, each later access fails (memory
    /// fault), as an access of an RDMA NIC to a withdrawn page fails:
    ///
    /// * A READ, WRITE or SEND of the peer completes at the peer with
    ///   [`WcStatus::RemOpErr`](crate::WcStatus::RemOpErr). The local queue pair changes to the state ERR
    ///   ([`Event::QpFatal`](crate::Event::QpFatal)), and a receive in use completes with
    ///   [`WcStatus::LocProtErr`](crate::WcStatus::LocProtErr). On an unreliable connection the peer's work request
    ///   completes without an error; a SEND has the local effects above, and a WRITE is dropped.
    /// * A work request of the local queue pair completes with [`WcStatus::LocProtErr`](crate::WcStatus::LocProtErr).
    ///
    /// To make these accesses fail, the first registration installs a handler of SIGSEGV and SIGBUS (x86-64 Linux; on
    /// other processors a memory fault ends the process). Faults of other code reach the action that the signal had
    /// before. A program that handles these signals should install its handler before the first registration. If the
    /// program installs a handler later, this later handler receives memory faults first, and should pass unknown
    /// faults to the action that it replaced, which is the handler of this crate. Otherwise no memory fault reaches the
    /// handler of this crate until the next registration installs this handler again. No thread that polls, posts or
    /// registers may block the two signals, because the kernel ends a process that faults while the signal is blocked.
    ///
    /// # Errors
    /// [`Error::UnusableMemory`] if the memory cannot be accessed; [`Error::Create`] if a right or the range is
    /// invalid, or the device has no room for the region.
    pub fn register(&self, memory: Memory, access: Access) -> Result<Mr, Error> {
        let addr = memory.addr();
        self.register_at(memory, addr, access)
    }

    /// Registers `memory` with the access rights `access`, so that work requests address the first byte of `memory` by
    /// `addr` (`ibv_reg_mr_iova`).
    pub fn register_at(&self, memory: Memory, addr: u64, access: Access) -> Result<Mr, Error> {
        let (lkey, rkey) = self.0.objects.register(self.0.id, memory.clone(), addr, access)?;
        Ok(Mr { pd: self.0.clone(), memory, addr, lkey, rkey })
    }

    /// Allocates `len_bytes` bytes of value 0, and registers them with the access rights `access`.
    pub fn alloc(&self, len_bytes: usize, access: Access) -> Result<Mr, Error> {
        self.register(Memory::alloc(len_bytes), access)
    }
}

/// A memory region (`ibv_mr`); deregistered when dropped.
pub struct Mr {
    pd: Arc<PdInner>,
    memory: Memory,
    addr: u64,
    lkey: LKey,
    rkey: RKey,
}

impl Mr {
    /// Returns the L_Key, for scatter/gather entries of this device's work requests.
    pub fn lkey(&self) -> LKey {
        self.lkey
    }

    /// Returns the R_Key, for the peer's RDMA READs and WRITEs.
    pub fn rkey(&self) -> RKey {
        self.rkey
    }

    /// Returns the address of the region's first byte, for work requests of this device and of the peer.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length of the region, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Returns a scatter/gather entry of `len_bytes` bytes from byte `offset` of the region on. The bounds are checked
    /// only when a work request uses the entry.
    pub fn sge(&self, offset: usize, len_bytes: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset as u64), len_bytes, lkey: self.lkey }
    }

    /// Copies `out.len()` bytes of the region, from byte `offset` on, into `out`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), AccessError> {
        self.memory.read(offset, out)
    }

    /// Copies `bytes` into the region, from byte `offset` of the region on.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), AccessError> {
        self.memory.write(offset, bytes)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Fails after a fatal error, and if the region was deregistered through `ContextObjects`.
        let _ = self.pd.objects.deregister(self.lkey);
    }
}
