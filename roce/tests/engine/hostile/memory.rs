//! One allocation with four regions between guards, and the ranges that may change.
#![allow(unsafe_code)] // regions that are parts of one allocation, as an application's are

use super::tape::{RethPlan, Target};
use roce::engine::Engine;
use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory, PdId};
use roce::port::Port;
use roce::wire::{Operation, Packet, Reth};
use std::ops::Range;

pub(crate) const REGION_BYTES: usize = 16 << 10;
const GUARD_BYTES: usize = 1 << 10;
const ARENA_BYTES: usize = 4 * REGION_BYTES + 5 * GUARD_BYTES;

/// Fill bytes of guards and regions. The engine must not send bytes of the guards or of the foreign region. The engine
/// may send bytes of the private region only in messages of the application.
pub(crate) const GUARD: u8 = 0xEE;
const SHARED: u8 = 0x22;
const READ_ONLY: u8 = 0x11;
pub(crate) const PRIVATE: u8 = 0x33;
pub(crate) const FOREIGN: u8 = 0xDD;

#[derive(Clone, Copy)]
struct Region {
    addr: u64,
    lkey: LKey,
    rkey: RKey,
}

pub(crate) struct Arena {
    memory: Memory,
    /// The content of the memory at the last check.
    before: Vec<u8>,
    now: Vec<u8>,
    /// Ranges of the shared region that WRITEs of the peer may change.
    written: Vec<Range<usize>>,
    regions: [Region; 4],
    pub shared_is_registered: bool,
}

const fn start_of(index: usize) -> usize {
    GUARD_BYTES + index * (REGION_BYTES + GUARD_BYTES)
}

fn index_of(target: Target) -> usize {
    match target {
        Target::Shared | Target::NoRegion => 0,
        Target::ReadOnly => 1,
        Target::Private => 2,
        Target::Foreign => 3,
    }
}

impl Arena {
    /// Registers the foreign region in `other_pd`, the other regions in `pd`.
    pub(crate) fn new<P: Port>(engine: &mut Engine<P>, pd: PdId, other_pd: PdId) -> Self {
        let memory = Memory::alloc(ARENA_BYTES);
        let mut before = vec![GUARD; ARENA_BYTES];
        for (index, fill) in [SHARED, READ_ONLY, PRIVATE, FOREIGN].into_iter().enumerate() {
            before[start_of(index)..][..REGION_BYTES].fill(fill);
        }
        memory.write(0, &before).unwrap();
        let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE;
        let rights = [remote, Access::REMOTE_READ, Access::LOCAL_WRITE, remote];
        let regions = std::array::from_fn(|index| {
            let part = part(&memory, index);
            // The read-only region is at the end of the address space, so that addresses beyond this region wrap.
            let addr = if index == 1 { u64::MAX - REGION_BYTES as u64 } else { part.addr() };
            let pd = if index == 3 { other_pd } else { pd };
            let (lkey, rkey) = engine.objects().register(pd, part, addr, rights[index]).unwrap();
            Region { addr, lkey, rkey }
        });
        let now = before.clone();
        Arena { memory, before, now, written: Vec::new(), regions, shared_is_registered: true }
    }

    pub(crate) fn addr(&self, target: Target) -> u64 {
        self.regions[index_of(target)].addr
    }

    pub(crate) fn rkey(&self, target: Target) -> RKey {
        let rkey = self.regions[index_of(target)].rkey;
        if target == Target::NoRegion { RKey(rkey.0 ^ 0x10) } else { rkey }
    }

    pub(crate) fn lkey(&self, target: Target) -> LKey {
        self.regions[index_of(target)].lkey
    }

    pub(crate) fn deregister<P: Port>(&mut self, engine: &mut Engine<P>) {
        if std::mem::take(&mut self.shared_is_registered) {
            engine.objects().deregister(self.regions[0].lkey).unwrap();
            self.written.clear();
        }
    }

    pub(crate) fn register<P: Port>(&mut self, engine: &mut Engine<P>, pd: PdId) {
        if !std::mem::replace(&mut self.shared_is_registered, true) {
            let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::LOCAL_WRITE;
            let part = part(&self.memory, 0);
            let addr = part.addr();
            let (lkey, rkey) = engine.objects().register(pd, part, addr, access).unwrap();
            self.regions[0] = Region { addr, lkey, rkey };
        }
    }

    pub(crate) fn reth(&self, plan: RethPlan) -> Reth {
        let base = self.addr(plan.target);
        let start = if plan.from_end {
            let last = base.wrapping_add(REGION_BYTES as u64).wrapping_sub(u64::from(plan.len_bytes));
            last.wrapping_sub(plan.offset as u64)
        } else {
            base.wrapping_add(plan.offset as u64)
        };
        Reth { va: start, rkey: self.rkey(plan.target), len_bytes: plan.len_bytes }
    }

    /// Records the memory that a packet of the peer may change.
    pub(crate) fn expect(&mut self, packet: &Packet<'_>) {
        if let (Operation::Write, Some(reth)) = (packet.info.operation, packet.reth()) {
            self.expect_write(reth.rkey, reth.va, reth.len_bytes);
        }
    }

    pub(crate) fn shared(&self, offset: usize, len_bytes: usize) -> Vec<u8> {
        let mut bytes = vec![0; len_bytes];
        self.memory.read(start_of(0) + offset, &mut bytes).unwrap();
        bytes
    }

    fn expect_write(&mut self, rkey: RKey, va: u64, len_bytes: u32) {
        let shared = self.regions[0];
        let Some(offset) = va.checked_sub(shared.addr).filter(|offset| *offset < REGION_BYTES as u64) else {
            return;
        };
        let fits = offset + u64::from(len_bytes) <= REGION_BYTES as u64;
        if self.shared_is_registered && rkey == shared.rkey && fits {
            let start = start_of(0) + offset as usize;
            let range = start..start + len_bytes as usize;
            if !self.written.contains(&range) {
                self.written.push(range);
            }
        }
    }

    /// Returns the range in the arena of the `len_bytes` bytes at address `sge_addr` of the private region.
    pub(crate) fn private(&self, sge_addr: u64, len_bytes: u32) -> Range<usize> {
        let start = start_of(2) + (sge_addr - self.regions[2].addr) as usize;
        start..start + len_bytes as usize
    }

    /// Panics if a byte has changed outside `local` and the ranges that the peer may change.
    pub(crate) fn check<'a>(&'a mut self, local: impl Iterator<Item = &'a Range<usize>>) {
        self.memory.read(0, &mut self.now).unwrap();
        if self.now == self.before {
            return;
        }
        let mut may_change = vec![false; ARENA_BYTES];
        local.chain(self.written.iter()).for_each(|range| may_change[range.clone()].fill(true));
        for (at, allowed) in may_change.into_iter().enumerate() {
            let (was, is) = (self.before[at], self.now[at]);
            assert!(allowed || was == is, "byte {at:#x} of the arena changed from {was:#x} to {is:#x}");
        }
        self.before.copy_from_slice(&self.now);
    }
}

fn part(memory: &Memory, index: usize) -> Memory {
    let base = memory.addr() as *mut u8;
    // SAFETY: the part lies inside the arena. The arena outlives the engine, because the harness drops the engine
    // first.
    unsafe { Memory::from_raw(base.add(start_of(index)), REGION_BYTES) }.unwrap()
}
