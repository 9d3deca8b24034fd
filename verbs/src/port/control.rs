//! Control of a DPDK port, separate from the port's data path.

use std::time::{Duration, Instant};

use dpdk_ffi::{EthPort, PortCounters, PortError, PortStats};

use super::dpdk::DpdkPort;
use crate::kernel::{Interface, speed_mbps};

/// Control of a DPDK port: link, statistics, and the restart of a memif client. DPDK permits control, except the
/// restart, while another thread receives and sends through the [`DpdkPort`].
pub struct PortControl {
    port: EthPort,
    /// Whether the port is restarted while the link is down. True on a memif client, whose link comes up only after the
    /// process that is the memif server has started.
    restarts: bool,
    restarted_at: Option<Instant>,
    /// Whether the network interface of the kernel is up and has a carrier; `None` on a port without such an interface.
    interface_is_up: Option<bool>,
    /// Speed of the link of the kernel's network interface, in Mbit/s; `None` if the speed is unknown.
    interface_speed_mbps: Option<u32>,
}

/// Shortest interval between two restarts of a port: long enough for memif client and server to connect.
const RESTART_INTERVAL: Duration = Duration::from_millis(300);

impl PortControl {
    pub(super) fn new(port: EthPort, restarts: bool) -> Self {
        PortControl { port, restarts, restarted_at: None, interface_is_up: None, interface_speed_mbps: None }
    }

    /// Returns the name of the DPDK driver.
    pub fn driver(&self) -> &str {
        &self.port.info().driver
    }

    /// Returns whether the port is started and its link is up. The link of a port on a network interface of the kernel
    /// is up if the interface is up and has a carrier, because the driver af_packet reports a link without looking at
    /// the carrier.
    pub fn is_up(&self) -> bool {
        self.port.is_started() && self.interface_is_up.unwrap_or_else(|| self.port.link().is_up)
    }

    /// Stores whether the network interface of the kernel is up and has a carrier, and the speed of its link.
    pub(crate) fn set_interface(&mut self, interface: &Interface) {
        self.interface_is_up = Some(interface.is_up && interface.has_carrier);
        self.interface_speed_mbps = speed_mbps(interface);
    }

    /// Returns the speed of the link in Mbit/s, as the DPDK driver reports it; `None` if this driver reports none.
    pub(crate) fn speed_mbps(&self) -> Option<u32> {
        Some(self.port.link().speed_mbps).filter(|mbps| *mbps != 0 && *mbps != u32::MAX)
    }

    /// Returns the speed of the link of the kernel's network interface in Mbit/s; `None` if the speed is
    /// unknown.
    pub(crate) fn interface_speed_mbps(&self) -> Option<u32> {
        self.interface_speed_mbps
    }

    /// Returns the statistics of the DPDK driver, if this driver has any, and the port's own counters.
    pub(crate) fn counters(&self) -> (Option<PortStats>, PortCounters) {
        (self.port.stats(), self.port.counters())
    }

    /// Returns the extended statistics of the DPDK driver, by name.
    pub(crate) fn xstats(&self) -> Vec<(String, u64)> {
        self.port.xstats()
    }

    /// Returns whether the port is a memif client, which is restarted while its link is down.
    pub(crate) fn restarts(&self) -> bool {
        self.restarts
    }

    /// Returns whether a restart is due: the port is a memif client, its link is down, and the last restart, if any,
    /// was at least `RESTART_INTERVAL` ago.
    pub(crate) fn is_restart_due(&self) -> bool {
        self.restarts && self.restarted_at.is_none_or(|at| at.elapsed() >= RESTART_INTERVAL) && !self.is_up()
    }

    /// Restarts the port. `data_path` is the data path of the same port, which no other thread can use meanwhile.
    ///
    /// # Errors
    /// The DPDK driver's error; a later call may succeed.
    pub(crate) fn restart(&mut self, data_path: &mut DpdkPort) -> Result<(), PortError> {
        self.restarted_at = Some(Instant::now());
        self.port.restart(data_path.queues_mut())
    }

    /// On a memif client whose link is down, restarts the port, at most once per `RESTART_INTERVAL`. Returns whether
    /// the link is up.
    ///
    /// # Errors
    /// The DPDK driver's error if the restart fails; a later call may succeed.
    pub fn poll_link(&mut self, data_path: &mut DpdkPort) -> Result<bool, PortError> {
        if self.is_restart_due() {
            self.restart(data_path)?;
        }
        Ok(self.is_up())
    }
}
