//! Bursts of a packet socket.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use dpdk_sys::rte_mbuf;

use super::batch::{Batch, UDP_SEGMENTATION, Vnet};
use super::offload::{group, segment};
use super::ring::{Map, Received, Ring};
use super::socket::Socket;
use crate::counter::BurstCounts;
use crate::mbuf::{Header, Mbuf, free};
use crate::mempool::Mempool;

/// Bytes of both Ethernet addresses, behind which a VLAN tag is.
const ADDRESSES_BYTES: usize = 12;

/// The receive queue and the transmit queue of a packet socket.
pub(crate) struct Queue {
    socket: Arc<Socket>,
    ring: Ring,
    /// Number of frames received of the datagram in the ring's next slot.
    segments: usize,
    /// Whether consecutive frames are sent as one datagram: until the kernel refuses a datagram as invalid, as Linux
    /// before 6.2 does.
    segments_udp: bool,
    /// Whether frames bypass the queueing discipline of the interface: until the kernel refuses a datagram and then takes
    /// its frames one by one, because a datagram that the device cannot divide is divided in front of the queueing
    /// discipline only.
    bypasses_qdisc: bool,
    /// Whether the kernel has refused a datagram that bypasses the queueing discipline, with ENOBUFS: the device cannot
    /// divide the datagram, has no link, or has no room. The next burst shows which, because its frames are sent one by
    /// one.
    is_datagram_refused: bool,
    /// MTU of the interface in bytes.
    mtu_bytes: usize,
    batch: Box<Batch>,
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("segments_udp", &self.segments_udp).finish_non_exhaustive()
    }
}

/// Outcome of copying a frame out of the ring.
enum Copied {
    /// The frame, and whether the slot has no further frame.
    Frame(Mbuf, bool),
    /// The frame or datagram cannot be received.
    Bad,
    /// The pool is exhausted.
    NoMbuf,
}

impl Queue {
    /// Creates the queues of `socket`, which was opened with `bypasses_qdisc`.
    pub(crate) fn new(socket: Arc<Socket>, map: Map, bypasses_qdisc: bool) -> Self {
        let ring = Ring::new(map);
        let batch = Batch::new();
        Self {
            socket,
            ring,
            segments: 0,
            segments_udp: true,
            bypasses_qdisc,
            is_datagram_refused: false,
            mtu_bytes: 0,
            batch,
        }
    }

    /// Sets the MTU of the interface in bytes. Until then, each frame is sent by itself.
    pub(crate) fn set_mtu_bytes(&mut self, mtu_bytes: usize) {
        self.mtu_bytes = mtu_bytes;
    }

    /// Returns whether a received frame waits.
    #[inline]
    pub(crate) fn has_received(&self) -> bool {
        !self.ring.is_empty()
    }

    /// Receives at most `frames.len()` frames and returns their number.
    pub(crate) fn rx(&mut self, pool: &Mempool, frames: &mut [*mut rte_mbuf], counts: &BurstCounts) -> usize {
        let (mut received, mut bytes) = (0, 0);
        for _ in 0..frames.len() {
            let Some(slot) = self.ring.front() else { break };
            let copied = slot.map_or(Copied::Bad, |slot| copy(&slot, self.segments, pool));
            let is_slot_done = match copied {
                Copied::Frame(frame, is_last) => {
                    bytes += frame.frame_len() as u64;
                    if let Some(place) = frames.get_mut(received) {
                        *place = frame.into_raw().as_ptr();
                    }
                    received += 1;
                    is_last
                }
                Copied::Bad => {
                    counts.rx_bad.add(1);
                    true
                }
                Copied::NoMbuf => {
                    counts.rx_no_mbuf.add(1);
                    break;
                }
            };
            self.segments += 1;
            if is_slot_done {
                self.ring.release();
                self.segments = 0;
            }
        }
        counts.rx_frames.add(received as u64);
        counts.rx_bytes.add(bytes);
        received
    }

    /// Sends `frames` in order, as many as the kernel takes; frees those and returns their number.
    #[inline]
    pub(crate) fn tx(&mut self, frames: &mut [*mut rte_mbuf], counts: &BurstCounts) -> usize {
        self.fill(frames);
        // SAFETY: the frames exist until they are freed below, and the batch is in a box.
        let outcome = unsafe { self.batch.send(self.socket.fd()) };
        let taken = match outcome {
            Ok(messages) => {
                if std::mem::take(&mut self.is_datagram_refused) {
                    self.bypasses_qdisc = false;
                    self.socket.use_qdisc();
                }
                let taken = self.batch.frames_of(messages);
                counts.tx_frames.add(taken as u64);
                counts.tx_bytes.add(frames.iter().take(taken).map(|raw| data(raw).len() as u64).sum());
                taken
            }
            Err(error) => self.on_refused(error.raw_os_error(), counts),
        };
        free(frames.get_mut(..taken).unwrap_or_default());
        taken
    }

    fn fill(&mut self, frames: &[*mut rte_mbuf]) {
        self.batch.clear();
        let groups = self.segments_udp && !self.is_datagram_refused;
        let mut rest = frames;
        while !rest.is_empty() {
            let count = if groups { group(rest.iter().map(data), self.mtu_bytes) } else { 1 };
            let (message, others) = rest.split_at(count.clamp(1, rest.len()));
            self.batch.push(message.iter().map(data));
            rest = others;
        }
    }

    /// Returns the number of frames that the kernel will never take, of a burst whose first message it refused.
    #[cold]
    fn on_refused(&mut self, errno: Option<i32>, counts: &BurstCounts) -> usize {
        let is_datagram = self.batch.begins_with_datagram();
        match errno {
            // The socket's send buffer or the queue of the interface is full, or the interface has no link.
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => {
                self.is_datagram_refused = errno == Some(libc::ENOBUFS) && is_datagram && self.bypasses_qdisc;
                0
            }
            Some(libc::EINVAL) if is_datagram => {
                self.segments_udp = false;
                0
            }
            // The interface is down or gone, or the frame is longer than its MTU permits.
            _ => {
                let frames = self.batch.frames_of(1);
                counts.tx_bad.add(frames as u64);
                frames
            }
        }
    }
}

/// Returns the bytes of a frame to be sent, which is in one mbuf.
fn data(raw: &*mut rte_mbuf) -> &[u8] {
    // SAFETY: an mbuf that the caller of `tx` owns until `tx` returns, with initialised bytes.
    NonNull::new(*raw).map_or(&[], |raw| unsafe { Header::new(raw).bytes() })
}

/// Copies frame number `index` of the frame or datagram in a slot.
fn copy(slot: &Received<'_>, index: usize, pool: &Mempool) -> Copied {
    let vnet = Vnet::of(slot.vnet);
    match vnet.segmentation {
        0 => copy_frame(slot, vnet.checksum_at, pool),
        UDP_SEGMENTATION => match segment(slot.frame, vnet.segment_bytes, index) {
            Some(frame) => copy_parts(slot, frame.headers(), frame.payload, frame.is_last, pool),
            None => Copied::Bad,
        },
        _ => Copied::Bad,
    }
}

/// Copies a frame. If the frame has only the checksum of the pseudo header, because it has been on no link, writes 0: no
/// checksum.
fn copy_frame(slot: &Received<'_>, checksum_at: Option<usize>, pool: &Mempool) -> Copied {
    let mut copied = copy_parts(slot, slot.frame, &[], true, pool);
    if let (Copied::Frame(frame, _), Some(at)) = (&mut copied, checksum_at) {
        let at = at + slot.vlan_tag.map_or(0, |tag| tag.len());
        if let Some(checksum) = frame.data_mut().get_mut(at..at + 2) {
            checksum.fill(0);
        }
    }
    copied
}

/// Copies `headers`, with the slot's VLAN tag, and `payload` into an mbuf.
fn copy_parts(slot: &Received<'_>, headers: &[u8], payload: &[u8], is_last: bool, pool: &Mempool) -> Copied {
    let tag = slot.vlan_tag.as_ref().map_or(&[][..], |tag| tag);
    let (addresses, others) =
        headers.split_at(if tag.is_empty() { 0 } else { ADDRESSES_BYTES.min(headers.len()) });
    let parts = [addresses, tag, others, payload];
    let len = parts.iter().map(|part| part.len()).sum();
    let Some(mut frame) = pool.alloc() else { return Copied::NoMbuf };
    let Ok(mut room) = frame.append(len) else { return Copied::Bad };
    for part in parts {
        let Some((front, back)) = room.split_at_mut_checked(part.len()) else { break };
        front.copy_from_slice(part);
        room = back;
    }
    Copied::Frame(frame, is_last)
}
