//! Protection domains and memory regions.

use std::sync::Arc;

use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory, OutOfRange, PdId};
use roce::queue::Sge;

use crate::device::{Owner, Shared};
use crate::error::Error;

pub(crate) struct PdInner {
    owner: Arc<Owner>,
    pub(crate) id: PdId,
}

impl PdInner {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.owner.shared
    }
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Cannot be in use, because regions and queue pairs hold the domain.
        let _ = self.shared().lock().map(|mut driven| driven.engine.dealloc_pd(self.id));
    }
}

/// A protection domain (`ibv_pd`). Clones are the same domain, deallocated when its last object is dropped.
#[derive(Clone)]
pub struct Pd(pub(crate) Arc<PdInner>);

impl Pd {
    pub(crate) fn new(owner: &Arc<Owner>) -> Result<Self, Error> {
        let id = owner.shared.lock()?.engine.alloc_pd()?;
        Ok(Pd(Arc::new(PdInner { owner: owner.clone(), id })))
    }

    /// Registers `memory` with the rights `access` (`ibv_reg_mr`). Requests name it by its virtual addresses.
    pub fn register(&self, memory: Memory, access: Access) -> Result<Mr, Error> {
        let addr = memory.addr();
        self.register_at(memory, addr, access)
    }

    /// Registers `memory` so that its first byte has the address `addr` (`ibv_reg_mr_iova`).
    pub fn register_at(&self, memory: Memory, addr: u64, access: Access) -> Result<Mr, Error> {
        let (lkey, rkey) =
            self.0.shared().lock()?.engine.register(self.0.id, memory.clone(), addr, access)?;
        Ok(Mr { pd: self.0.clone(), memory, addr, lkey, rkey })
    }

    /// Allocates and registers `len_bytes` zero bytes.
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
    /// Returns the L_Key, for work requests of this device.
    pub fn lkey(&self) -> LKey {
        self.lkey
    }

    /// Returns the R_Key, for requests of the peer.
    pub fn rkey(&self) -> RKey {
        self.rkey
    }

    /// Returns the address of the first byte, as work requests and remote requests name it.
    pub fn addr(&self) -> u64 {
        self.addr
    }

    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.memory.len_bytes()
    }

    /// Returns a scatter/gather entry of `len_bytes` at `offset`. Its bounds are checked when it is used.
    pub fn sge(&self, offset: usize, len_bytes: u32) -> Sge {
        Sge { addr: self.addr.wrapping_add(offset as u64), len_bytes, lkey: self.lkey }
    }

    /// Copies the bytes at `offset` into `out`.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfRange> {
        self.memory.read(offset, out)
    }

    /// Copies `bytes` to `offset`.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), OutOfRange> {
        self.memory.write(offset, bytes)
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // Cannot fail for a device that works, because nothing else deregisters the region.
        let _ = self.pd.shared().lock().map(|mut driven| driven.engine.deregister(self.lkey));
    }
}
