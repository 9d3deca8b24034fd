//! The implementation of the engine's [`Port`] by a DPDK port.

use std::collections::VecDeque;

use dpdk_ffi::{EthQueue, Mbuf, QueueSet, TX_QUEUE_FRAMES, WakeKind};
use roce::engine::QpnPrefix;
use roce::port::{Port, PortCaps};
use roce::wire::probable_dest_qp;

/// The data path of a DPDK port: all its queues, with the MAC and MTU that the engine reads ([`PortCaps`]).
pub struct DpdkPort {
    queues: QueueSet,
    caps: PortCaps,
    /// Bytes of all frames queued for the next burst to the driver.
    queued_bytes: usize,
    /// Bytes of queued frames at which a burst is sent.
    burst_bytes: usize,
    /// Prefix of the QPNs of this port. On an interface that several processes share, a packet to the port's own MAC
    /// and to a QPN with another prefix is for another process.
    qpn_prefix: QpnPrefix,
    /// Whether this port receives the frames that it sends to its own MAC, as an RDMA NIC does. Set when a queue pair
    /// is connected to a queue pair of the same device, or of another process on the same interface.
    loops_back: bool,
    /// Frames to the port itself that were sent and not yet received.
    looped: VecDeque<Mbuf>,
}

/// If `looped` (frames to the port itself, not yet received) has at least this number of frames, `tx_reserve` fails.
/// Frames that are reserved already, at most [`TX_QUEUE_FRAMES`], may still be added to `looped`.
const LOOPED_FRAMES_MAX: usize = TX_QUEUE_FRAMES;

/// Largest number of frames to the port itself that were sent and not yet received (`looped`), each in one mbuf.
pub(super) const LOOPED_MBUFS: usize = LOOPED_FRAMES_MAX + TX_QUEUE_FRAMES;

/// Bytes of queued frames at which a burst is sent: 32 KiB. Each frame waits until its burst is complete. Without this
/// limit, the first of [`TX_QUEUE_FRAMES`] (64) frames of 4 KiB, perhaps a retransmission, would wait 25 us until the
/// engine has written the last frame to its buffer.
const BURST_BYTES: usize = 32 << 10;
/// The same on a port with segmentation offload: the length of the longest datagram, because a call of the kernel's stack
/// takes longer than the engine needs for the frames of half a datagram.
const OFFLOAD_BURST_BYTES: usize = 64 << 10;

impl DpdkPort {
    pub(super) fn new(mut queues: QueueSet, caps: PortCaps, qpn_prefix: QpnPrefix) -> Self {
        queues.first_mut().set_mtu_bytes(caps.mtu_bytes);
        let burst_bytes = if queues.first().is_packet_socket() { OFFLOAD_BURST_BYTES } else { BURST_BYTES };
        let looped = VecDeque::new();
        DpdkPort { queues, caps, qpn_prefix, queued_bytes: 0, burst_bytes, loops_back: false, looped }
    }

    /// Returns the prefix that the QPNs of a device on this port have.
    pub fn qpn_prefix(&self) -> QpnPrefix {
        self.qpn_prefix
    }

    /// Returns all queues, as start and stop of the port require.
    pub(crate) fn queues_mut(&mut self) -> impl Iterator<Item = &mut EthQueue> {
        self.queues.iter_mut()
    }

    /// Sets the MTU in bytes that [`Port::caps`] returns, because the MTU of the kernel's interface has changed.
    pub fn set_mtu_bytes(&mut self, mtu_bytes: usize) {
        self.caps.mtu_bytes = mtu_bytes;
        self.queues.first_mut().set_mtu_bytes(mtu_bytes);
    }

    /// Returns how the port wakes a thread that sleeps until frames arrive; `None` if it cannot.
    pub fn wake_kind(&self) -> Option<WakeKind> {
        self.queues.first().wake_kind()
    }

    /// Makes the wake sources of all queues readable when the next frame arrives ([`EthQueue::arm`]). Returns false if
    /// a queue cannot be armed at present.
    pub(crate) fn arm(&mut self) -> bool {
        self.queues.iter_mut().all(EthQueue::arm)
    }

    pub(crate) fn disarm(&mut self) {
        self.queues.iter_mut().for_each(EthQueue::disarm);
    }

    /// Returns whether frames wait for room in the transmit ring. No wake source reports that the ring has room.
    pub(crate) fn is_tx_stalled(&self) -> bool {
        self.queues.first().is_tx_stalled()
    }

    /// Returns whether frames were sent to the port itself and not yet received.
    pub(crate) fn has_looped(&self) -> bool {
        !self.looped.is_empty()
    }

    /// Enables the loopback. From now on, if the port sends a frame to its own MAC, and the destination QPN has the
    /// prefix of the port or the frame has no QPN, the port receives this frame. A shared port then also receives such
    /// frames from other processes on the same interface.
    pub fn loop_back(&mut self) {
        if self.loops_back {
            return;
        }
        self.loops_back = true;
        self.looped.reserve(LOOPED_MBUFS);
        if self.qpn_prefix.bits() != 0 {
            self.queues.iter_mut().for_each(|queue| queue.exchange_sent());
        }
    }
}

impl Port for DpdkPort {
    type Frame = Mbuf;

    fn caps(&self) -> PortCaps {
        self.caps
    }

    #[inline]
    fn rx_burst(&mut self, frames: &mut Vec<Mbuf>, max: usize) -> usize {
        if self.looped.is_empty() {
            return self.queues.rx_burst(frames, max);
        }
        let looped = self.looped.len().min(max);
        frames.extend(self.looped.drain(..looped));
        looped + self.queues.rx_burst(frames, max - looped)
    }

    #[inline]
    fn free_frames(&mut self, frames: &mut Vec<Mbuf>) {
        Mbuf::free_bulk(frames);
    }

    #[inline]
    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if self.queued_bytes >= self.burst_bytes || self.queues.first().tx_queued() == TX_QUEUE_FRAMES {
            self.tx_flush();
        }
        if self.looped.len() >= LOOPED_FRAMES_MAX {
            return None;
        }
        self.queued_bytes += len_bytes;
        self.queues.first_mut().tx_reserve(len_bytes)
    }

    /// Does not subtract the cancelled frame from `queued_bytes`, so `tx_reserve` may send a burst of fewer than
    /// `burst_bytes` bytes.
    fn tx_cancel(&mut self) {
        self.queues.first_mut().tx_cancel();
    }

    #[inline]
    fn tx_flush(&mut self) {
        self.queued_bytes = 0;
        if self.loops_back {
            let (mac, prefix) = (self.caps.mac.0, self.qpn_prefix);
            // If a frame to the MAC of this port has no QPN (for example, an ARP reply), the frame is for this port.
            let is_own = |frame: &[u8]| {
                frame.first_chunk() == Some(&mac)
                    && probable_dest_qp(frame).is_none_or(|qpn| prefix.contains(qpn))
            };
            self.queues.first_mut().tx_take(is_own, &mut self.looped);
        }
        self.queues.first_mut().tx_flush();
    }
}

#[cfg(test)]
mod tests {
    use super::super::open;
    use super::*;
    use roce::engine::limits::RX_BURST_FRAMES;

    #[test]
    fn what_the_engine_keeps_leaves_enough_for_the_rings() {
        let spec = "eal:net_null1".parse().unwrap();
        let mut port = open(&spec, &dpdk_ffi::EalConfig::default(), QpnPrefix::default()).unwrap().port;
        let mut kept = Vec::new();
        while kept.len() < RX_BURST_FRAMES {
            assert_ne!(port.rx_burst(&mut kept, RX_BURST_FRAMES), 0, "{} frames are kept", kept.len());
        }
        let rings = 2 * u32::from(dpdk_ffi::DEFAULT_DESCRIPTORS);
        assert!(port.queues.first().pool().available() >= rings);
    }

    #[test]
    fn no_frame_waits_for_more_than_a_burst() {
        let spec = "eal:net_null0".parse().unwrap();
        let mut port = open(&spec, &dpdk_ffi::EalConfig::default(), QpnPrefix::default()).unwrap().port;
        // A burst ends with the frame that completes 32 KiB, or with the 64th frame.
        for (len_bytes, burst_frames) in [(1024, 32), (1025, 32), (1023, 33), (64, TX_QUEUE_FRAMES)] {
            for frame in 1..=burst_frames {
                assert_eq!(port.tx_reserve(len_bytes).unwrap().len(), len_bytes);
                assert_eq!(port.queues.first().tx_queued(), frame, "of {len_bytes} bytes");
            }
            assert!(port.tx_reserve(len_bytes).is_some());
            assert_eq!(port.queues.first().tx_queued(), 1, "of {len_bytes} bytes: a burst went");
            port.tx_flush();
            assert_eq!(port.queues.first().tx_queued(), 0);
        }
    }
}
