//! The receive ring of a packet socket (TPACKET_V2, Documentation/networking/packet_mmap.rst of Linux): slots that the
//! kernel fills in order. Each slot has room for a datagram of 64 KiB.
//!
//! ```text
//!   slot   tpacket2_hdr | sockaddr_ll | .. | virtio_net header (10) | frame
//!                                                                   ^ tp_mac
//! ```

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::offload::{DATAGRAM_BYTES_MAX, VNET_BYTES};

/// Bytes of a slot: the longest datagram that a port sends, its Ethernet header, and the headers in front, rounded up to
/// a multiple of 16 (`TPACKET_ALIGNMENT`). No multiple of a page, because then the first cache lines of all slots would
/// be in the same few sets of the processor's caches.
const SLOT_BYTES: usize = 65_792;
const BLOCK_BYTES: usize = 1 << 20;
/// Number of blocks. With half of them, 1 % of the frames of 32 queue pairs that send in both directions found no room,
/// because many frames arrive by themselves.
const BLOCKS: usize = 64;
const BLOCK_SLOTS: usize = BLOCK_BYTES / SLOT_BYTES;
const SLOTS: usize = BLOCK_SLOTS * BLOCKS;
const RING_BYTES: usize = BLOCK_BYTES * BLOCKS;
/// Memory of the kernel that a ring needs.
pub(crate) const RING_MEBIBYTES: usize = RING_BYTES >> 20;

const _: () = assert!(SLOT_BYTES.is_multiple_of(16) && SLOT_BYTES >= 128 + 14 + DATAGRAM_BYTES_MAX);

/// The ring that `PACKET_RX_RING` requests.
pub(super) const RING: libc::tpacket_req = libc::tpacket_req {
    tp_block_size: BLOCK_BYTES as u32,
    tp_block_nr: BLOCKS as u32,
    tp_frame_size: SLOT_BYTES as u32,
    tp_frame_nr: SLOTS as u32,
};

/// The mapped memory of a ring.
#[derive(Debug)]
pub(crate) struct Map(NonNull<u8>);

// SAFETY: the mapping has no tie to a thread.
unsafe impl Send for Map {}
// SAFETY: through a shared reference the ring is only read.
unsafe impl Sync for Map {}

impl Map {
    /// Maps the ring of a socket with a ring [`RING`].
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let address =
            unsafe { libc::mmap(std::ptr::null_mut(), RING_BYTES, protection, flags, fd.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        NonNull::new(address.cast()).map(Self).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which is not used after this.
        unsafe { libc::munmap(self.0.as_ptr().cast(), RING_BYTES) };
    }
}

/// The ring, as its reader uses it.
pub(super) struct Ring {
    map: Map,
    /// The slot that is read next.
    next: usize,
}

/// A received frame or datagram in its slot.
pub(super) struct Received<'a> {
    /// From the Ethernet destination address on, without the VLAN tag.
    pub(super) frame: &'a [u8],
    /// The header of virtio_net, in the byte order of the processor.
    pub(super) vnet: &'a [u8; VNET_BYTES],
    /// The VLAN tag, which the kernel has removed from the frame: TPID and TCI.
    pub(super) vlan_tag: Option<[u8; 4]>,
}

impl Ring {
    pub(super) fn new(map: Map) -> Self {
        Self { map, next: 0 }
    }

    fn slot(&self) -> NonNull<u8> {
        let at = self.next / BLOCK_SLOTS * BLOCK_BYTES + self.next % BLOCK_SLOTS * SLOT_BYTES;
        // SAFETY: `next` is below `SLOTS`, so the slot is within the mapping.
        unsafe { self.map.0.add(at) }
    }

    fn status(&self) -> &AtomicU32 {
        // SAFETY: a slot begins with its status, aligned to 16 bytes, which kernel and reader access atomically.
        unsafe { AtomicU32::from_ptr(self.slot().cast().as_ptr()) }
    }

    /// Returns whether no received frame is in the ring.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.status().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0
    }

    /// Returns the frame in the next slot; `Some(None)` if the kernel has cut the frame off. `None` if the ring is empty.
    #[inline]
    pub(super) fn front(&self) -> Option<Option<Received<'_>>> {
        if self.is_empty() {
            return None;
        }
        let slot = self.slot();
        // SAFETY: while the status has the bit `TP_STATUS_USER`, the slot is the reader's and begins with this header.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        // SAFETY: as above; all bytes of the slot are initialised, because the kernel zeroes the ring's memory.
        let bytes = unsafe { std::slice::from_raw_parts(slot.as_ptr(), SLOT_BYTES) };
        let (mac, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        let vnet = mac.checked_sub(VNET_BYTES).and_then(|at| bytes.get(at..)?.first_chunk());
        let frame = bytes.get(mac..mac + len).filter(|_| header.tp_len == header.tp_snaplen);
        let has_tag = header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let [a, b] = header.tp_vlan_tpid.to_be_bytes();
        let [c, d] = header.tp_vlan_tci.to_be_bytes();
        let vlan_tag = has_tag.then_some([a, b, c, d]);
        Some(frame.zip(vnet).map(|(frame, vnet)| Received { frame, vnet, vlan_tag }))
    }

    /// Returns the next slot to the kernel, whose frame has been read.
    #[inline]
    pub(super) fn release(&mut self) {
        self.status().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = if self.next + 1 == SLOTS { 0 } else { self.next + 1 };
    }
}
