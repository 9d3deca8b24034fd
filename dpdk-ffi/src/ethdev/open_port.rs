//! The open port, which its control and its queues own together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::counters::QueueCounters;
use super::info::PortInfo;
use super::interrupt;
use crate::device::Device;
use crate::guard;
use crate::mempool::Mempool;
use crate::packet;
use crate::port_id::PortId;
use crate::process;

/// Bursts that replace those of a port's driver.
pub(super) enum Replaced<'a> {
    /// None: the driver's bursts are used.
    No,
    /// Those of `memif`.
    Memif,
    /// Those of `packet`, on this socket.
    Packet(&'a packet::Socket),
}

/// An open port. Drop stops and closes the port and detaches its device.
pub(super) struct OpenPort {
    pub(super) info: PortInfo,
    /// The pool that the driver receives into: kept until the port is closed.
    pub(super) pool: Mempool,
    /// Whether the driver is started.
    pub(super) started: AtomicBool,
    /// Whether the link was down when its state was read last. False until the state is read.
    pub(super) link_is_down: AtomicBool,
    /// Counters of each queue, kept when the queue is dropped.
    pub(super) counters: Vec<Arc<QueueCounters>>,
    /// Queues that exist.
    queues: AtomicUsize,
    // Dropped last, because the port must be closed before its device is detached.
    device: Device,
}

impl OpenPort {
    pub(super) fn new(
        device: Device,
        info: PortInfo,
        pool: Mempool,
        counters: Vec<Arc<QueueCounters>>,
    ) -> Self {
        let (started, link_is_down, queues) =
            (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        Self { info, pool, started, link_is_down, counters, queues, device }
    }

    pub(super) fn id(&self) -> PortId {
        self.device.port_id()
    }

    pub(super) fn name(&self) -> &str {
        self.device.name()
    }

    /// Returns which bursts replace the driver's.
    pub(super) fn bursts(&self) -> Replaced<'_> {
        match self.device.packet_socket() {
            Some(socket) => Replaced::Packet(socket),
            None if dpdk_sys::STATIC && guard::concerns(self.name()) => Replaced::Memif,
            None => Replaced::No,
        }
    }

    /// Counts a queue that was made.
    pub(super) fn add_queue(&self) {
        self.queues.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a queue that is dropped, after its last burst: this burst happens before [`OpenPort::queues`] returns the
    /// lower number.
    pub(super) fn remove_queue(&self) {
        self.queues.fetch_sub(1, Ordering::Release);
    }

    /// Returns the number of queues that exist.
    pub(super) fn queues(&self) -> usize {
        self.queues.load(Ordering::Acquire)
    }
}

impl Drop for OpenPort {
    fn drop(&mut self) {
        if !process::owns_eal() {
            return;
        }
        // Both under one lock, otherwise a stopped memif server would accept the next client before it is
        // closed.
        let _guard = guard::lock(self.name());
        // A driver that cannot stop is closed nevertheless, because drop cannot fail.
        // SAFETY: the port is owned, has no queue left that could be in a burst, and is not used after this.
        unsafe {
            if *self.started.get_mut() {
                interrupt::stop(self.id(), &self.info.driver);
            }
            interrupt::settle(self.id(), &self.info.driver);
            dpdk_sys::rte_eth_dev_close(self.id());
        }
    }
}
