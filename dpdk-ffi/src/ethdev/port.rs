//! Control of an open port.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::counters::{self, PortCounters};
use super::error::{Context, PortError};
use super::info::{self, Link, PortInfo, PortStats};
use super::interrupt;
use super::open_port::{OpenPort, Replaced};
use super::queue::EthQueue;
use crate::counter::BurstCounts;
use crate::guard;
use crate::memif;
use crate::port_id::PortId;

/// Control of an Ethernet port of this process: start and stop, link, MTU, statistics, interrupts. The port's frames
/// are received and sent by its queues ([`EthQueue`]), on other threads if wanted.
///
/// Control and queues own the port together. When the last of them is dropped, in whatever order, the port is stopped
/// and closed and its device detached. Mbufs received from it stay valid.
///
/// DPDK permits control beside bursts, except starting and stopping. An operation that no burst may accompany takes the
/// port's queues as `&mut`, which proves that no thread uses them. Operations of control exclude each other, so the
/// type is `Send` and not `Sync`: several threads share it through a mutex.
pub struct EthPort {
    open: Arc<OpenPort>,
    _not_sync: PhantomData<Cell<()>>,
}

impl EthPort {
    pub(super) fn new(open: Arc<OpenPort>) -> Self {
        Self { open, _not_sync: PhantomData }
    }

    /// Returns the port's number in this process.
    pub fn id(&self) -> PortId {
        self.open.id()
    }

    /// Returns the name that the device was attached by.
    pub fn name(&self) -> &str {
        self.open.name()
    }

    /// Returns the port's properties.
    pub fn info(&self) -> &PortInfo {
        &self.open.info
    }

    /// Stops and starts the port, as a memif client must to connect to a server that was restarted. Queued
    /// frames are discarded. `queues`: as for [`EthPort::stop`].
    ///
    /// # Errors
    /// `QueuesInUse`; the port is then unchanged. `Refused`; the port is then stopped, and may be restarted.
    pub fn restart<'a>(
        &mut self,
        queues: impl IntoIterator<Item = &'a mut EthQueue>,
    ) -> Result<(), PortError> {
        let mut queues = self.all("cannot restart", queues)?;
        self.stop_all(&mut queues)?;
        self.start_all(&mut queues)
    }

    /// Starts the port, unless it is started. `queues`: as for [`EthPort::stop`].
    ///
    /// # Errors
    /// `QueuesInUse`, `Refused`
    pub fn start<'a>(&mut self, queues: impl IntoIterator<Item = &'a mut EthQueue>) -> Result<(), PortError> {
        let mut queues = self.all("cannot start", queues)?;
        self.start_all(&mut queues)
    }

    /// Stops the port, which then neither receives nor sends. Queued frames are discarded. `queues`: all queues of the
    /// port that are not dropped.
    ///
    /// # Errors
    /// `QueuesInUse`, `Refused`
    pub fn stop<'a>(&mut self, queues: impl IntoIterator<Item = &'a mut EthQueue>) -> Result<(), PortError> {
        let mut queues = self.all("cannot stop", queues)?;
        self.stop_all(&mut queues)
    }

    /// Checks that `queues` are all queues of the port, so that none is in a burst.
    fn all<'a>(
        &self,
        operation: &'static str,
        queues: impl IntoIterator<Item = &'a mut EthQueue>,
    ) -> Result<Vec<&'a mut EthQueue>, PortError> {
        let own: Vec<_> = queues.into_iter().filter(|queue| queue.is_of(&self.open)).collect();
        match self.open.queues() - own.len() {
            0 => Ok(own),
            missing => Err(self.context().queues_in_use(operation, missing)),
        }
    }

    fn start_all(&mut self, queues: &mut [&mut EthQueue]) -> Result<(), PortError> {
        if !self.is_started() {
            let _guard = guard::lock(self.name());
            memif::starting(Some(self.id()));
            // SAFETY: the port is configured and its queues are set up; none is in a burst (`all`).
            let started = self.check("cannot start", || unsafe { dpdk_sys::rte_eth_dev_start(self.id()) });
            memif::starting(None);
            started?;
            self.open.started.store(true, Ordering::Relaxed);
        }
        queues.iter_mut().for_each(|queue| queue.set_started(true));
        Ok(())
    }

    fn stop_all(&mut self, queues: &mut [&mut EthQueue]) -> Result<(), PortError> {
        for queue in queues {
            queue.tx_discard();
            queue.set_started(false);
        }
        if self.open.started.swap(false, Ordering::Relaxed) {
            let _guard = guard::lock(self.name());
            // SAFETY: the port is started, and none of its queues is in a burst (`all`).
            self.check("cannot stop", || unsafe { interrupt::stop(self.id(), &self.info().driver) })?;
        }
        Ok(())
    }

    /// Whether the port is started.
    pub fn is_started(&self) -> bool {
        self.open.started.load(Ordering::Relaxed)
    }

    /// Returns the driver's MTU: the largest IP packet, in bytes. Drivers without an MTU return 1,500.
    pub fn mtu_bytes(&self) -> u16 {
        let mut mtu_bytes = 0;
        // SAFETY: the port exists.
        unsafe { dpdk_sys::rte_eth_dev_get_mtu(self.id(), &mut mtu_bytes) };
        mtu_bytes
    }

    /// Sets the MTU; on af_packet, that of the kernel's interface.
    ///
    /// # Errors
    /// `OutOfRange`, `Refused`
    pub fn set_mtu_bytes(&mut self, mtu_bytes: u16) -> Result<(), PortError> {
        let (min, max) = (self.info().min_mtu_bytes, self.info().max_mtu_bytes);
        if !(min..=max).contains(&mtu_bytes) {
            return Err(self.context().out_of_range("an MTU in bytes of", mtu_bytes, min, max));
        }
        // SAFETY: the port exists.
        self.check("cannot change the MTU", || unsafe { dpdk_sys::rte_eth_dev_set_mtu(self.id(), mtu_bytes) })
    }

    /// Enables or disables promiscuous mode. No error if the device has no such mode.
    ///
    /// # Errors
    /// `Refused`
    pub fn set_promiscuous(&mut self, promiscuous: bool) -> Result<(), PortError> {
        self.check("cannot change promiscuous mode", || {
            // SAFETY: the port exists.
            let ret = unsafe {
                match promiscuous {
                    true => dpdk_sys::rte_eth_promiscuous_enable(self.id()),
                    false => dpdk_sys::rte_eth_promiscuous_disable(self.id()),
                }
            };
            if ret == -libc::ENOTSUP { 0 } else { ret }
        })
    }

    /// Returns the state of the link. While the state that was returned last is down, queues discard frames that the
    /// driver does not take. Not for the data path, because some drivers query the device.
    pub fn link(&self) -> Link {
        let (mut speed_mbps, mut up) = (0, 0);
        // SAFETY: the port exists, and both places are writable.
        unsafe { dpdk_sys::shim_link_get(self.id(), &mut speed_mbps, &mut up) };
        self.open.link_is_down.store(up == 0, Ordering::Relaxed);
        Link { is_up: up != 0, speed_mbps }
    }

    /// Returns the driver's statistics; `None` if it has none.
    pub fn stats(&self) -> Option<PortStats> {
        match self.open.bursts() {
            Replaced::No => info::stats(self.id()),
            Replaced::Memif => Some(counters::stats(self.burst_counts())),
            Replaced::Packet(socket) => {
                Some(PortStats { rx_missed: socket.missed(), ..counters::stats(self.burst_counts()) })
            }
        }
    }

    /// Returns the driver's extended statistics, by name.
    pub fn xstats(&self) -> Vec<(String, u64)> {
        match self.open.bursts() {
            Replaced::No => info::xstats(self.id()),
            Replaced::Memif => {
                let mut xstats = counters::xstats(self.burst_counts(), true);
                xstats.push(("peers_refused".to_owned(), memif::refused(self.id())));
                xstats
            }
            Replaced::Packet(socket) => {
                let mut xstats = counters::xstats(self.burst_counts(), false);
                xstats.push(("rx_missed_errors".to_owned(), socket.missed()));
                xstats
            }
        }
    }

    /// Sets the driver's statistics to zero, if the driver can. A driver may miss the reset of a counter that a burst
    /// increments at the same time.
    pub fn reset_stats(&mut self) {
        self.burst_counts().for_each(BurstCounts::reset);
        if let Replaced::Packet(socket) = self.open.bursts() {
            socket.reset_missed();
        }
        // SAFETY: the port exists.
        unsafe { dpdk_sys::rte_eth_stats_reset(self.id()) };
    }

    fn burst_counts(&self) -> impl Iterator<Item = &BurstCounts> + Clone {
        self.open.counters.iter().map(|counters| &counters.bursts)
    }

    /// Returns the counters of the port itself.
    pub fn counters(&self) -> PortCounters {
        PortCounters::sum(&self.open.counters)
    }

    fn context(&self) -> Context<'_> {
        Context { device: self.name(), driver: &self.info().driver }
    }

    fn check(&self, operation: &str, call: impl FnOnce() -> i32) -> Result<(), PortError> {
        self.context().check(|| operation.to_owned(), call)
    }
}

impl fmt::Debug for EthPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EthPort")
            .field("name", &self.name())
            .field("driver", &self.info().driver)
            .field("started", &self.is_started())
            .field("queues", &self.open.queues())
            .finish_non_exhaustive()
    }
}
