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
    /// Bytes of the frames that wait for a burst.
    queued_bytes: usize,
}

/// Between two knocks: the two ends need some time to shake hands, more on a busy machine.
const KNOCK_INTERVAL: Duration = Duration::from_millis(300);

/// A burst is sent when so much is queued, at the latest. Where the peer waits, as for the first frames after a
/// loss was repaired, it waits for a burst to be built: at 64 frames of 4 KiB that is 25 us, and the peer, no faster
/// than this side, never makes up for it. A burst costs a call of the driver, which at this size is lost in the noise.
const BURST_BYTES: usize = 32 << 10;

impl DpdkPort {
    /// Wraps a port.
    pub(super) fn new(port: dpdk_ffi::Port, caps: PortCaps, knocks: bool) -> Self {
        DpdkPort { port, caps, knocks, knocked: None, queued_bytes: 0 }
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
    pub fn poll_link(&mut self) -> Result<bool, PortError> {
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
        if self.queued_bytes >= BURST_BYTES || self.port.tx_queued() == TX_QUEUE_FRAMES {
            self.tx_flush();
        }
        self.queued_bytes += len_bytes;
        self.port.tx_reserve(len_bytes)
    }

    #[inline]
    fn tx_flush(&mut self) {
        self.queued_bytes = 0;
        self.port.tx_flush();
    }
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::*;
    use roce::engine::limits::{REORDER_FRAMES_MAX, RX_BURST_FRAMES};

    #[test]
    fn what_the_engine_keeps_leaves_enough_for_the_rings() {
        let spec = "eal:net_null1".parse().unwrap();
        let mut port = open(&spec, &dpdk_ffi::EalConfig::default()).unwrap().port;
        let mut kept = Vec::new();
        while kept.len() < REORDER_FRAMES_MAX + RX_BURST_FRAMES {
            assert_ne!(port.rx_burst(&mut kept, RX_BURST_FRAMES), 0, "{} frames are kept", kept.len());
        }
        let rings = 2 * u32::from(dpdk_ffi::DEFAULT_DESCRIPTORS);
        assert!(port.inner().pool().available() >= rings);
    }

    #[test]
    fn no_frame_waits_for_more_than_a_burst() {
        let spec = "eal:net_null0".parse().unwrap();
        let mut port = open(&spec, &dpdk_ffi::EalConfig::default()).unwrap().port;
        // 32 frames of 1 KiB are a burst, and 64 of any size.
        for (len_bytes, burst_frames) in [(1024, 32), (1025, 32), (1023, 33), (64, TX_QUEUE_FRAMES)] {
            for frame in 1..=burst_frames {
                assert_eq!(port.tx_reserve(len_bytes).unwrap().len(), len_bytes);
                assert_eq!(port.inner().tx_queued(), frame, "of {len_bytes} bytes");
            }
            assert!(port.tx_reserve(len_bytes).is_some());
            assert_eq!(port.inner().tx_queued(), 1, "of {len_bytes} bytes: a burst went");
            port.tx_flush();
            assert_eq!(port.inner().tx_queued(), 0);
        }
    }
}
