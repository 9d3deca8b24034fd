//! [`Port`], the data path through which the engine uses an Ethernet port; ports in memory without hardware
//! (`loopback`); and decorators, each of which wraps a port. Control of a port (link, statistics, start and stop) is
//! not part of [`Port`]: the engine needs only the constant [`PortCaps`].

use crate::id::Mac;
use crate::time::Instant;

pub mod events;
pub mod fault;
pub mod impairment;
pub mod loopback;
pub mod pcap;
pub mod probability;
mod staging;

/// Bytes of a frame in addition to its IP packet: Ethernet header and one VLAN tag, without FCS.
const ETHERNET_OVERHEAD_BYTES: usize = 14 + 4;

/// Properties of a port that are constant while the port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCaps {
    /// The port's own MAC.
    pub mac: Mac,
    /// MTU: length of the largest IP packet in bytes.
    pub mtu_bytes: usize,
}

impl PortCaps {
    /// Returns the longest frame of this port in bytes: its MTU, an Ethernet header and one VLAN tag.
    pub const fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes + ETHERNET_OVERHEAD_BYTES
    }
}

/// Whether a port transmits the payload of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Payload is transmitted. The engine that sends a packet computes the ICRC, and the engine that receives the
    /// packet checks the ICRC.
    Carried,
    /// In a simulation, only headers, lengths and the bitmaps of SACKs are transmitted. The payload bytes of a
    /// received packet are unspecified, so all memory should be [`crate::mem::Memory::phantom`]. The ICRC of a packet
    /// is [`PHANTOM_ICRC`], or another value if the frame was corrupted.
    Phantom,
}

/// The ICRC of an uncorrupted packet on a [`Payload::Phantom`] port.
pub const PHANTOM_ICRC: u32 = 0;

/// The data path of an Ethernet port: receives and sends bursts of whole frames, without FCS. On a device with several
/// queues, a `Port` has one or more receive queues, from which it receives in turn, and sends on one transmit queue.
/// Each engine has a `Port` of its own.
///
/// Contract:
/// * `&mut self` ensures that one thread at a time calls methods of the port. If several threads drive an engine in
///   turn, the port of this engine must be `Send`; a port used by only one thread, such as a simulated port, need not
///   be `Send`. No method blocks.
/// * A received frame is one contiguous run of bytes, and belongs to the caller until the caller drops the `Frame`.
/// * The next `tx_flush` sends every buffer that `tx_reserve` has returned and `tx_cancel` has not cancelled, in the
///   order of the `tx_reserve` calls. The caller must fill these buffers completely. The initial contents of a buffer
///   are unspecified.
/// * A port may lose frames. Only a decorator with impairments changes or duplicates frames.
pub trait Port {
    /// A received frame, from the Ethernet destination address to the last byte before the FCS.
    type Frame: AsRef<[u8]>;

    /// Returns the MAC and the MTU of the port.
    fn caps(&self) -> PortCaps;

    /// Appends at most `max` received frames to `frames`, and returns the number of frames appended.
    fn rx_burst(&mut self, frames: &mut Vec<Self::Frame>, max: usize) -> usize;

    /// Frees the buffers of all `frames`. A port with a buffer pool returns the buffers to the pool in one operation.
    fn free_frames(&mut self, frames: &mut Vec<Self::Frame>) {
        frames.clear();
    }

    /// Reserves a transmit buffer of exactly `len_bytes` bytes. `None` if no buffer is free; the caller retries in a
    /// later poll, after a `tx_flush`.
    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]>;

    /// Cancels the transmit buffer that the last `tx_reserve` returned: this buffer is not sent. This `tx_reserve` must
    /// have returned a buffer, and no other method may have been called since.
    fn tx_cancel(&mut self);

    /// Sends all buffers reserved since the last `tx_flush`.
    fn tx_flush(&mut self);

    /// Returns whether payload is transmitted; constant while the port is open. If an implementation always returns the
    /// same value, the compiler removes the code for the other value from the engine.
    #[inline]
    fn payload(&self) -> Payload {
        Payload::Carried
    }

    /// Sets the time of the port. The engine calls `set_now` at the start of `Engine::poll` and of `Engine::push`.
    /// Ports that timestamp or delay frames use this time. A decorator also calls `set_now` of its inner port.
    fn set_now(&mut self, _now: Instant) {}
}
