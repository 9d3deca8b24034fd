use std::sync::{Arc, PoisonError};

use super::error::{CreateError, DestroyError, check_range};
use super::limits::{DeviceLimits, MAX_CQE};
use crate::id::{LKey, RKey};
use crate::mem::{Access, Memory, MemoryTable, MemoryView, PdId};
use crate::queue::{CqId, CqPoller, SharedCq};
use crate::random::Random;
use crate::sync::{Mutex, MutexGuard};
use crate::table::Table;

const PD: &str = "protection domain";
const CQ: &str = "completion queue";
const NUMBER_BITS: u32 = 32;

struct CqRecord {
    shared: Arc<SharedCq>,
    /// Number of send and receive queues whose completions are written to this completion queue.
    users: u32,
}

struct Control {
    random: Random,
    /// Number of users of each protection domain: memory regions, shared receive queues, queue pairs and address
    /// handles (`AhId`).
    pds: Table<u32>,
    cqs: Table<CqRecord>,
}

/// The objects of a device that all its engines use: protection domains, memory regions and completion queues. All
/// methods may be called on any thread, also while other threads poll the engines.
///
/// # Example
/// Two engines of one device; queue pairs of each engine can use the same completion queue and memory region:
///
/// ```
/// # use roce::engine::{Engine, EngineConfig, SharedObjects};
/// # use roce::id::Mac;
/// # use roce::mem::{Access, Memory};
/// # use roce::neighbour::{Mode, NeighbourConfig};
/// # use roce::port::{PortCaps, loopback::Loopback};
/// # use std::net::{IpAddr, Ipv4Addr};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let mac = Mac([2, 0, 0, 0, 0, 1]);
/// # let caps = PortCaps { mac, mtu_bytes: 1500 };
/// # let (port_a, port_b) = Loopback::pair(caps, caps, 64);
/// # let gids = vec![(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)), 24)];
/// # let (gateway_v4, gateway_v6, vlan) = (None, None, None);
/// # let neighbour = NeighbourConfig { mac, mode: Mode::Dedicated, gids, gateway_v4, gateway_v6, vlan };
/// let config = EngineConfig::new([1; 32], neighbour);
/// let objects = SharedObjects::new([2; 32], &config.limits);
/// let a = Engine::with_objects(port_a, config.clone(), objects.clone())?;
/// let b = Engine::with_objects(port_b, EngineConfig { seed: [3; 32], ..config }, objects.clone())?;
///
/// let pd = objects.alloc_pd()?;
/// let (cq, completions) = objects.create_cq(16)?;
/// let memory = Memory::alloc(64);
/// let (lkey, rkey) = objects.register(pd, memory.clone(), memory.addr(), Access::LOCAL_WRITE)?;
/// # drop((a, b, cq, completions, rkey));
/// objects.deregister(lkey)?;
/// # Ok(())
/// # }
/// ```
pub struct SharedObjects {
    memory: Arc<MemoryTable>,
    control: Mutex<Control>,
}

impl SharedObjects {
    /// Creates a set without objects. `seed` is the seed of the keys, and of the numbers of protection domains and
    /// completion queues. `seed` must be random, except in simulations and tests, and must differ from the seeds of the
    /// engines.
    pub fn new(seed: [u8; 32], limits: &DeviceLimits) -> Arc<Self> {
        let control = Control {
            random: Random::new(seed),
            pds: Table::new(NUMBER_BITS, limits.max_pds),
            cqs: Table::new(NUMBER_BITS, limits.max_cqs),
        };
        let memory = Arc::new(MemoryTable::new(limits.max_mrs));
        Arc::new(SharedObjects { memory, control: Mutex::new(control) })
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new [`MemoryView`], by which one engine accesses the memory regions.
    pub(super) fn memory(&self) -> MemoryView {
        MemoryView::new(self.memory.clone())
    }

    /// Allocates a protection domain; [`CreateError::TooMany`] at the limit of the device.
    pub fn alloc_pd(&self) -> Result<PdId, CreateError> {
        let Control { random, pds, .. } = &mut *self.control();
        let max = pds.max_len();
        let number = pds.insert_with(random, |_| false, |_, _| 0);
        number.map(PdId).ok_or(CreateError::TooMany { what: "protection domains", max })
    }

    /// Deallocates a protection domain; [`DestroyError::Busy`] while a memory region, shared receive queue, queue pair
    /// or address handle uses the protection domain.
    pub fn dealloc_pd(&self, pd: PdId) -> Result<(), DestroyError> {
        let mut control = self.control();
        if *control.pds.get(pd.0).ok_or(DestroyError::Unknown(PD))? > 0 {
            return Err(DestroyError::Busy(PD));
        }
        control.pds.remove(pd.0);
        Ok(())
    }

    /// Registers `memory` as a memory region. `addr` is the address of the first byte of the region in work requests
    /// and in requests of peers. If the table of regions has no room left, this call waits until each engine that is in
    /// an epoch has left this epoch.
    pub fn register(
        &self,
        pd: PdId,
        memory: Memory,
        addr: u64,
        access: Access,
    ) -> Result<(LKey, RKey), CreateError> {
        self.acquire_pd(pd)?;
        // `control` is locked only while a number is drawn, because `register` may wait for the end of epochs.
        let registered = self.memory.register(|| self.control().random.bits(), pd, memory, addr, access);
        if registered.is_err() {
            self.release_pd(pd);
        }
        Ok(registered?)
    }

    /// Deregisters a memory region. Waits until each engine that is in an epoch has left this epoch; after this call
    /// no engine accesses the memory of the region.
    pub fn deregister(&self, lkey: LKey) -> Result<(), DestroyError> {
        let pd = self.memory.deregister(lkey).ok_or(DestroyError::Unknown("memory region"))?;
        self.release_pd(pd);
        Ok(())
    }

    /// Creates a completion queue, with a ring of `depth` entries (1 to [`MAX_CQE`]) for each engine that writes to the
    /// completion queue.
    pub fn create_cq(&self, depth: u32) -> Result<(CqId, CqPoller), CreateError> {
        check_range("completion queue entries", depth, 1, MAX_CQE)?;
        let Control { random, cqs, .. } = &mut *self.control();
        let max = cqs.max_len();
        let mut poller = None;
        let number = cqs.insert_with(
            random,
            |_| false,
            |number, _| {
                let (shared, end) = SharedCq::new(CqId(number), depth);
                poller = Some(end);
                CqRecord { shared, users: 0 }
            },
        );
        let created = number.map(CqId).zip(poller);
        created.ok_or(CreateError::TooMany { what: "completion queues", max })
    }

    /// Destroys a completion queue; [`DestroyError::Busy`] while a queue pair uses the completion queue.
    pub fn destroy_cq(&self, cq: CqId) -> Result<(), DestroyError> {
        let mut control = self.control();
        let record = control.cqs.get(cq.0).ok_or(DestroyError::Unknown(CQ))?;
        if record.users > 0 {
            return Err(DestroyError::Busy(CQ));
        }
        record.shared.destroy();
        control.cqs.remove(cq.0);
        Ok(())
    }

    /// Counts a further user of a protection domain, until [`SharedObjects::release_pd`].
    pub(super) fn acquire_pd(&self, pd: PdId) -> Result<(), CreateError> {
        *self.control().pds.get_mut(pd.0).ok_or(CreateError::Unknown(PD))? += 1;
        Ok(())
    }

    pub(super) fn release_pd(&self, pd: PdId) {
        self.control().pds.get_mut(pd.0).into_iter().for_each(|users| *users -= 1);
    }

    /// Counts a send queue and a receive queue as users of their completion queues, until
    /// [`SharedObjects::release_cqs`].
    pub(super) fn acquire_cqs(&self, cqs: [CqId; 2]) -> Result<[Arc<SharedCq>; 2], CreateError> {
        let mut control = self.control();
        let shared = |cq: CqId| control.cqs.get(cq.0).map(|record| record.shared.clone());
        let [Some(send), Some(recv)] = cqs.map(shared) else { return Err(CreateError::Unknown(CQ)) };
        for cq in cqs {
            control.cqs.get_mut(cq.0).into_iter().for_each(|record| record.users += 1);
        }
        Ok([send, recv])
    }

    pub(super) fn release_cqs(&self, cqs: [CqId; 2]) {
        let mut control = self.control();
        for cq in cqs {
            control.cqs.get_mut(cq.0).into_iter().for_each(|record| record.users -= 1);
        }
    }
}
