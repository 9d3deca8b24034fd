//! What the engine asks of an Ethernet port, a port without hardware, and decorators for any port.

use crate::id::Mac;
use crate::time::Instant;

pub mod events;
pub mod fault;
pub mod loopback;
pub mod pcap;
mod staging;

/// Ethernet header with one VLAN tag, in bytes: what a frame carries besides its IP packet.
const ETHERNET_OVERHEAD_BYTES: usize = 14 + 4;

/// Facts of a port that do not change while it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortCaps {
    /// The port's own Ethernet address.
    pub mac: Mac,
    /// The largest IP packet it carries, in bytes (the interface's MTU).
    pub mtu_bytes: usize,
}

impl PortCaps {
    /// The longest frame of this port in bytes: its MTU, an Ethernet header and one VLAN tag.
    pub const fn frame_bytes_max(&self) -> usize {
        self.mtu_bytes + ETHERNET_OVERHEAD_BYTES
    }
}

/// What a port does with the payload of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// It arrives as it was sent, under an ICRC.
    Carried,
    /// A simulation that carries headers and lengths alone: payload bytes are unspecified at the
    /// receiver, whose regions had better be [`crate::mem::Memory::phantom`]; a packet's ICRC is
    /// [`PHANTOM_ICRC`], and another one where the frame was corrupted. Payloads that the protocol
    /// itself reads (selective acknowledgements) arrive whole.
    Phantom,
}

/// The ICRC of a good packet whose payload is not carried.
pub const PHANTOM_ICRC: u32 = 0;

/// An Ethernet port: bursts of whole frames, without FCS, in and out.
///
/// Contract:
/// * One thread at a time. No method blocks.
/// * A received frame is one contiguous run of bytes and belongs to the caller until dropped.
/// * Every buffer that `tx_reserve` hands out is sent, in order, by the next `tx_flush`; there is
///   no taking it back, so a caller reserves only what it then fills completely. What was in the
///   buffer before is unspecified.
/// * A port may lose frames, as networks do; it never changes or duplicates them.
pub trait Port {
    /// A received frame, from destination address to the end of the payload.
    type Frame: AsRef<[u8]>;

    /// The port's address and limits.
    fn caps(&self) -> PortCaps;

    /// Appends frames that have arrived to `frames`, at most `max`; returns how many.
    fn rx_burst(&mut self, frames: &mut Vec<Self::Frame>, max: usize) -> usize;

    /// Drops received frames, all at once: cheaper than one by one where buffers go back to a pool.
    fn free_frames(&mut self, frames: &mut Vec<Self::Frame>) {
        frames.clear();
    }

    /// A transmit buffer of exactly `len_bytes` bytes, or `None` where the port is full for now
    /// (the caller tries again at a later poll, after a flush).
    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]>;

    /// Sends everything reserved since the last flush.
    fn tx_flush(&mut self);

    /// Whether payload is carried; constant while the port is open, and where it is constant for the
    /// type the engine is compiled for it.
    #[inline]
    fn payload(&self) -> Payload {
        Payload::Carried
    }

    /// Tells the port the time, once per poll and before its other calls. Only ports that stamp
    /// or delay frames care; a decorator hands it on.
    fn set_now(&mut self, _now: Instant) {}
}
