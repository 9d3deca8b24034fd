//! Ports: the syntax of port names, the kinds of port, and the opening of each kind.

pub(crate) mod config;
mod control;
mod dpdk;
mod memif;
mod open;
mod spec;
mod vdev;

pub use control::PortControl;
pub use dpdk::DpdkPort;
pub use open::{Opened, SharedInterface, open};
pub use spec::{KINDS, PortKind, PortSpec, PortSpecError};

use roce::port::pcap::Pcap;
use roce::port::{Port, PortCaps};
use roce::time::Instant;
use std::fs::File;
use std::io::BufWriter;

use dpdk_ffi::Mbuf;

/// The data path of a DPDK port, with or without a capture of its frames.
pub enum Wire {
    /// A port without a capture.
    Bare(DpdkPort),
    /// A port whose frames, sent and received, are written to a capture file.
    Captured(Pcap<DpdkPort, BufWriter<File>>),
}

impl Wire {
    /// Returns the data path of the DPDK port.
    pub fn dpdk(&self) -> &DpdkPort {
        match self {
            Wire::Bare(port) => port,
            Wire::Captured(capture) => capture.inner(),
        }
    }

    /// Returns the data path of the DPDK port, mutably.
    pub fn dpdk_mut(&mut self) -> &mut DpdkPort {
        match self {
            Wire::Bare(port) => port,
            Wire::Captured(capture) => capture.inner_mut(),
        }
    }
}

impl Port for Wire {
    type Frame = Mbuf;

    fn caps(&self) -> PortCaps {
        self.dpdk().caps()
    }

    #[inline]
    fn rx_burst(&mut self, frames: &mut Vec<Mbuf>, max: usize) -> usize {
        match self {
            Wire::Bare(port) => port.rx_burst(frames, max),
            Wire::Captured(capture) => capture.rx_burst(frames, max),
        }
    }

    #[inline]
    fn free_frames(&mut self, frames: &mut Vec<Mbuf>) {
        self.dpdk_mut().free_frames(frames);
    }

    #[inline]
    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        match self {
            Wire::Bare(port) => port.tx_reserve(len_bytes),
            Wire::Captured(capture) => capture.tx_reserve(len_bytes),
        }
    }

    fn tx_cancel(&mut self) {
        match self {
            Wire::Bare(port) => port.tx_cancel(),
            Wire::Captured(capture) => capture.tx_cancel(),
        }
    }

    #[inline]
    fn tx_flush(&mut self) {
        match self {
            Wire::Bare(port) => port.tx_flush(),
            Wire::Captured(capture) => capture.tx_flush(),
        }
    }

    #[inline]
    fn set_now(&mut self, now: Instant) {
        match self {
            Wire::Bare(port) => port.set_now(now),
            Wire::Captured(capture) => capture.set_now(now),
        }
    }
}
