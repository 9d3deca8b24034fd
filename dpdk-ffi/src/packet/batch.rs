//! The arguments of `sendmmsg` for a burst of frames.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::offload::{HEADERS_BYTES_MAX, Layout, VNET_BYTES, write_headers};

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM` and `VIRTIO_NET_HDR_GSO_UDP_L4` of linux/virtio_net.h.
const NEEDS_CHECKSUM: u8 = 1;
pub(super) const UDP_SEGMENTATION: u8 = 5;

/// Largest number of frames of a burst that is sent.
pub(crate) const BURST_FRAMES_MAX: usize = 64;
/// Offset of the checksum in the UDP header.
const UDP_CHECKSUM: u16 = 6;
/// Parts of all messages: of a frame by itself, two; of a datagram of n frames, n + 2, and n is at least 2.
const PARTS_MAX: usize = 2 * BURST_FRAMES_MAX;

/// A burst of at most [`BURST_FRAMES_MAX`] frames: messages, each of one frame or of one datagram.
///
/// ```text
///   a frame      virtio_net header | frame
///   a datagram   virtio_net header | headers | payload of the first frame | payload of the second frame | ..
/// ```
pub(super) struct Batch {
    /// Messages, and parts of these messages, that are filled.
    len: usize,
    parts_len: usize,
    /// Number of frames of each message.
    frames: [usize; BURST_FRAMES_MAX],
    vnets: [[u8; VNET_BYTES]; BURST_FRAMES_MAX],
    headers: [[u8; HEADERS_BYTES_MAX]; BURST_FRAMES_MAX],
    parts: [libc::iovec; PARTS_MAX],
    messages: [libc::mmsghdr; BURST_FRAMES_MAX],
}

// SAFETY: the pointers are to this batch and to frames, are set by `push` and used by `send` only, and each burst begins
// with `clear`.
unsafe impl Send for Batch {}
// SAFETY: through a shared reference only numbers are read.
unsafe impl Sync for Batch {}

impl Batch {
    pub(super) fn new() -> Box<Self> {
        // SAFETY: numbers and null pointers, which are not used before `push` sets them.
        let (part, message) = unsafe { std::mem::zeroed() };
        Box::new(Self {
            len: 0,
            parts_len: 0,
            frames: [0; BURST_FRAMES_MAX],
            vnets: [[0; VNET_BYTES]; BURST_FRAMES_MAX],
            headers: [[0; HEADERS_BYTES_MAX]; BURST_FRAMES_MAX],
            parts: [part; PARTS_MAX],
            messages: [message; BURST_FRAMES_MAX],
        })
    }

    /// Removes all messages.
    pub(super) fn clear(&mut self) {
        (self.len, self.parts_len) = (0, 0);
    }

    /// Returns the number of frames of the first `messages` messages.
    pub(super) fn frames_of(&self, messages: usize) -> usize {
        self.frames.iter().take(messages.min(self.len)).sum()
    }

    /// Returns whether the first message is a datagram of several frames.
    pub(super) fn begins_with_datagram(&self) -> bool {
        self.len > 0 && self.frames.first().is_some_and(|frames| *frames > 1)
    }

    /// Adds a message of `frames`, which [`super::offload::group`] has found to be one datagram if there are several.
    /// `Batch::send` must be called before one of `frames` is freed.
    pub(super) fn push<'a>(&mut self, frames: impl ExactSizeIterator<Item = &'a [u8]> + Clone) {
        let (index, first_part) = (self.len, self.parts_len);
        let Some((vnet, count)) = self.vnets.get_mut(index).zip(self.frames.get_mut(index)) else { return };
        *count = frames.len();
        *vnet = [0; VNET_BYTES];
        let vnet_part = part(vnet);
        self.add_part(vnet_part);
        match frames.clone().next().and_then(|first| Some((first, Layout::of(first)?))) {
            Some((first, layout)) if frames.len() > 1 => self.add_datagram(index, first, layout, frames),
            _ => frames.for_each(|frame| self.add_part(part(frame))),
        }
        let parts = self.parts.get_mut(first_part..self.parts_len).unwrap_or_default();
        if let Some(message) = self.messages.get_mut(index) {
            (message.msg_hdr.msg_iov, message.msg_hdr.msg_iovlen) = (parts.as_mut_ptr(), parts.len());
            self.len += 1;
        }
    }

    fn add_datagram<'a>(
        &mut self,
        index: usize,
        first: &[u8],
        layout: Layout,
        frames: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let headers_bytes = layout.headers_bytes();
        let payload = |frame: &'a [u8]| frame.get(headers_bytes..).unwrap_or_default();
        let payload_bytes = frames.clone().map(|frame| payload(frame).len()).sum();
        if let Some((vnet, headers)) = self.vnets.get_mut(index).zip(self.headers.get_mut(index)) {
            *vnet = vnet_header(layout, first.len());
            write_headers(first, layout, payload_bytes, headers);
            let headers_part = part(headers.get(..headers_bytes).unwrap_or_default());
            self.add_part(headers_part);
        }
        frames.for_each(|frame| self.add_part(part(payload(frame))));
    }

    fn add_part(&mut self, part: libc::iovec) {
        if let Some(place) = self.parts.get_mut(self.parts_len) {
            *place = part;
            self.parts_len += 1;
        }
    }

    /// Sends the messages in order, and returns the number of messages sent: at least 1.
    ///
    /// # Errors
    /// The error of the first message, if it was not sent.
    ///
    /// # Safety
    /// All frames pushed since the last `clear` still exist, and this batch was not moved since.
    pub(super) unsafe fn send(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let messages = self.messages.as_mut_ptr();
        // SAFETY: `len` messages, whose parts are in this batch and in frames that exist by the caller's promise.
        let sent =
            unsafe { libc::sendmmsg(socket.as_raw_fd(), messages, self.len as u32, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

/// Returns the header of virtio_net of a datagram whose first frame has `frame_bytes` bytes.
fn vnet_header(layout: Layout, frame_bytes: usize) -> [u8; VNET_BYTES] {
    let headers_bytes = layout.headers_bytes();
    let [a, b] = (headers_bytes as u16).to_ne_bytes();
    let [c, d] = ((frame_bytes - headers_bytes) as u16).to_ne_bytes();
    let [e, f] = (layout.udp_at() as u16).to_ne_bytes();
    let [g, h] = UDP_CHECKSUM.to_ne_bytes();
    [NEEDS_CHECKSUM, UDP_SEGMENTATION, a, b, c, d, e, f, g, h]
}

/// Fields of the header of virtio_net of a received frame.
pub(super) struct Vnet {
    /// Kind of segmentation by which the datagram is to be divided (`gso_type`); 0: none.
    pub(super) segmentation: u8,
    /// Bytes of payload of each frame of the datagram (`gso_size`).
    pub(super) segment_bytes: usize,
    /// Offset of the UDP checksum (`csum_start` + `csum_offset`), if the frame has only the checksum of the pseudo header.
    pub(super) checksum_at: Option<usize>,
}

impl Vnet {
    pub(super) fn of(header: &[u8; VNET_BYTES]) -> Self {
        let [flags, kind, _, _, c, d, e, f, g, h] = *header;
        let checksum_at = usize::from(u16::from_ne_bytes([e, f])) + usize::from(u16::from_ne_bytes([g, h]));
        Vnet {
            // Without the bit of ECN, which concerns TCP.
            segmentation: kind & 0x7F,
            segment_bytes: usize::from(u16::from_ne_bytes([c, d])),
            checksum_at: (flags & NEEDS_CHECKSUM != 0).then_some(checksum_at),
        }
    }
}
