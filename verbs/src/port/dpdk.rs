//! A DPDK port as the engine's port.

use std::time::{Duration, Instant};

use dpdk_ffi::{Mbuf, PortError, TX_QUEUE_FRAMES};
use roce::port::{Port, PortCaps};

/// A DPDK port with the facts that the engine asks for.
pub struct DpdkPort {
    port: dpdk_ffi::Port,
    caps: PortCaps,
    /// Its link comes up only when the other end is there, and must be knocked for.
    knocks: bool,
    knocked: Option<Instant>,
}

/// Between two knocks: the two ends need some time to shake hands, more on a busy machine.
const KNOCK_INTERVAL: Duration = Duration::from_millis(300);

impl DpdkPort {
    /// Wraps a port.
    pub(super) fn new(port: dpdk_ffi::Port, caps: PortCaps, knocks: bool) -> Self {
        DpdkPort { port, caps, knocks, knocked: None }
    }

    /// The port beneath.
    pub fn inner(&self) -> &dpdk_ffi::Port {
        &self.port
    }

    /// Whether frames can be exchanged.
    pub fn is_up(&self) -> bool {
        self.port.is_started() && self.port.link().is_up
    }

    /// Tries to bring up a link that needs the other end. Returns whether it is up.
    ///
    /// # Errors
    /// What the driver refused; a later try may succeed.
    pub fn knock(&mut self) -> Result<bool, PortError> {
        let due = self.knocked.is_none_or(|at| at.elapsed() >= KNOCK_INTERVAL);
        if self.knocks && due && !self.is_up() {
            self.knocked = Some(Instant::now());
            self.port.restart()?;
        }
        Ok(self.is_up())
    }
}

impl Port for DpdkPort {
    type Frame = Mbuf;

    fn caps(&self) -> PortCaps {
        self.caps
    }

    #[inline]
    fn rx_burst(&mut self, frames: &mut Vec<Mbuf>, max: usize) -> usize {
        self.port.rx_burst(frames, max)
    }

    #[inline]
    fn free_frames(&mut self, frames: &mut Vec<Mbuf>) {
        Mbuf::free_bulk(frames);
    }

    #[inline]
    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if self.port.tx_queued() == TX_QUEUE_FRAMES {
            self.port.tx_flush();
        }
        self.port.tx_reserve(len_bytes)
    }

    #[inline]
    fn tx_flush(&mut self) {
        self.port.tx_flush();
    }
}
