//! UDP segmentation offload: the frames that the kernel makes from one datagram, and the datagram that is made from
//! frames.
//!
//! ```text
//!   frames         eth | ip 7 | udp | payload 0     eth | ip 8 | udp | payload 1     eth | ip 9 | udp | payload 2
//!   one datagram   eth | ip 7 | udp | payload 0 | payload 1 | payload 2
//! ```
//!
//! The kernel numbers the IPv4 headers of the frames from the identification of the datagram on, and all payloads but
//! the last have the same length.

use std::net::{Ipv4Addr, Ipv6Addr};

const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const UDP_BYTES: usize = 8;
/// Bytes of the longest headers in front of a UDP payload, without VLAN tag.
pub(super) const HEADERS_BYTES_MAX: usize = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES;
/// Largest number of frames of a datagram that is sent, as for UDP sockets (`UDP_MAX_SEGMENTS` of linux/udp.h before
/// Linux 6.9).
const TX_SEGMENTS_MAX: usize = 64;
/// Largest number of frames of a received datagram, as for UDP sockets since Linux 6.9. Without a limit, a container of
/// this machine could send datagrams of 65,507 frames.
const RX_SEGMENTS_MAX: usize = 128;
/// Length of the header of virtio_net in front of each frame, in bytes (`struct virtio_net_hdr` of linux/virtio_net.h).
pub(super) const VNET_BYTES: usize = 10;
/// Largest length of an IP packet in bytes.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_535;

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86DD;
const PROTOCOL_UDP: u8 = 17;
const DONT_FRAGMENT: u16 = 0x4000;
/// Position and length of the destination QPN in the UDP payload of a RoCE packet.
const DEST_QPN: (usize, usize) = (5, 3);

/// Headers of a frame in front of a UDP payload: Ethernet without VLAN tag, IP without options, UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Layout {
    /// Returns the layout of `frame`; `None` if `frame` has other headers or is shorter than these.
    pub(super) fn of(frame: &[u8]) -> Option<Self> {
        let version_ihl = *frame.get(ETHERNET_BYTES)?;
        let (layout, protocol_at) = match (u16_at(frame, 12)?, version_ihl) {
            (ETHERTYPE_IPV4, 0x45) => (Layout::V4, ETHERNET_BYTES + 9),
            (ETHERTYPE_IPV6, 0x60..=0x6F) => (Layout::V6, ETHERNET_BYTES + 6),
            _ => return None,
        };
        let is_udp = *frame.get(protocol_at)? == PROTOCOL_UDP;
        (is_udp && frame.len() >= layout.headers_bytes()).then_some(layout)
    }

    /// Returns the offset of the UDP header in the frame.
    pub(super) const fn udp_at(self) -> usize {
        match self {
            Layout::V4 => ETHERNET_BYTES + IPV4_BYTES,
            Layout::V6 => ETHERNET_BYTES + IPV6_BYTES,
        }
    }

    /// Returns the length of all headers, which is the offset of the UDP payload.
    pub(super) const fn headers_bytes(self) -> usize {
        self.udp_at() + UDP_BYTES
    }

    /// Returns the layout of `frame` if the kernel, given the headers and payload of `frame`, would make exactly
    /// `frame`, except for the UDP checksum: all lengths and the IPv4 checksum are correct, the packet is no fragment,
    /// and the UDP checksum is 0. Otherwise a frame with deliberate errors would be corrected on its way.
    pub(super) fn of_exact(frame: &[u8]) -> Option<Self> {
        let layout = Layout::of(frame)?;
        let ip = frame.get(ETHERNET_BYTES..)?;
        let is_exact = match layout {
            Layout::V4 => {
                usize::from(u16_at(ip, 2)?) == ip.len()
                    && u16_at(ip, 6)? & !DONT_FRAGMENT == 0
                    && sum(ip.get(..IPV4_BYTES)?) == 0xFFFF
            }
            Layout::V6 => usize::from(u16_at(ip, 4)?) + IPV6_BYTES == ip.len(),
        };
        let udp = frame.get(layout.udp_at()..)?;
        let is_exact = is_exact && usize::from(u16_at(udp, 4)?) == udp.len() && u16_at(udp, 6)? == 0;
        is_exact.then_some(layout)
    }
}

/// Returns how many of `frames`, from the first on, can be sent as one datagram: at least 1, if there is one. All have
/// the flow of the first frame and its destination QPN, by which the filters of sockets select packets; their payloads
/// are as long as that of the first frame, or, of the last one, shorter. No frame is longer than `mtu_bytes` and an
/// Ethernet header, because the kernel does not compare the frames of a datagram with the MTU.
pub(super) fn group<'a>(frames: impl IntoIterator<Item = &'a [u8]>, mtu_bytes: usize) -> usize {
    let mut frames = frames.into_iter();
    let Some(first) = frames.next() else { return 0 };
    let Some(layout) = Layout::of_exact(first).filter(|_| first.len() <= ETHERNET_BYTES + mtu_bytes) else {
        return 1;
    };
    let (mut count, mut ip_bytes) = (1, first.len() - ETHERNET_BYTES);
    for frame in frames {
        let payload_bytes = frame.len().saturating_sub(layout.headers_bytes());
        let is_next = frame.len() <= first.len()
            && payload_bytes > 0
            && ip_bytes + payload_bytes <= DATAGRAM_BYTES_MAX
            && count < TX_SEGMENTS_MAX
            && Layout::of_exact(frame) == Some(layout)
            && is_same_flow(first, frame, layout, count as u16);
        if !is_next {
            break;
        }
        (count, ip_bytes) = (count + 1, ip_bytes + payload_bytes);
        if frame.len() < first.len() {
            break;
        }
    }
    count
}

/// Returns whether the headers of `frame` are those that the kernel makes for the frame number `index` of a datagram
/// with the headers of `first`, and the destination QPNs are equal.
fn is_same_flow(first: &[u8], frame: &[u8], layout: Layout, index: u16) -> bool {
    let same = |from: usize, to: usize| frame.get(from..to) == first.get(from..to);
    let ip = ETHERNET_BYTES;
    let ports_end = layout.udp_at() + 4;
    let is_same_ip = match layout {
        // All but total length (2), identification (4), checksum (10).
        Layout::V4 => {
            let id = |frame| u16_at(frame, ip + 4).unwrap_or(0);
            same(0, ip + 2)
                && id(frame) == id(first).wrapping_add(index)
                && same(ip + 6, ip + 10)
                && same(ip + 12, ports_end)
        }
        // All but payload length (4).
        Layout::V6 => same(0, ip + 4) && same(ip + 6, ports_end),
    };
    let qpn = layout.headers_bytes() + DEST_QPN.0;
    is_same_ip && same(qpn, qpn + DEST_QPN.1)
}

/// Writes the headers of the datagram with `payload_bytes` bytes of payload, of which `first` is the first frame, to the
/// front of `headers`. The UDP checksum is that of the pseudo header, which the kernel or the device completes.
pub(super) fn write_headers(
    first: &[u8],
    layout: Layout,
    payload_bytes: usize,
    headers: &mut [u8; HEADERS_BYTES_MAX],
) {
    let udp_bytes = (UDP_BYTES + payload_bytes) as u16;
    let (headers, _) = headers.split_at_mut(layout.headers_bytes());
    headers.copy_from_slice(first.get(..headers.len()).unwrap_or_default());
    set_lengths(headers, layout, udp_bytes, 0);
    let pseudo = [udp_bytes.to_be_bytes(), [0, PROTOCOL_UDP]].concat();
    let addresses = headers.get(layout.addresses()).unwrap_or_default();
    let checksum = fold(u64::from(sum(addresses)) + u64::from(sum(&pseudo)));
    put_u16(headers, layout.udp_at() + 6, checksum);
}

impl Layout {
    fn addresses(self) -> std::ops::Range<usize> {
        let bytes = match self {
            Layout::V4 => 2 * size_of::<Ipv4Addr>(),
            Layout::V6 => 2 * size_of::<Ipv6Addr>(),
        };
        self.udp_at() - bytes..self.udp_at()
    }
}

/// Sets both lengths, adds `index` to the IPv4 identification, and computes the IPv4 checksum.
fn set_lengths(headers: &mut [u8], layout: Layout, udp_bytes: u16, index: u16) {
    let ip = ETHERNET_BYTES;
    match layout {
        Layout::V4 => {
            put_u16(headers, ip + 2, udp_bytes + IPV4_BYTES as u16);
            let id = u16_at(headers, ip + 4).unwrap_or(0);
            put_u16(headers, ip + 4, id.wrapping_add(index));
            put_u16(headers, ip + 10, 0);
            let checksum = !sum(headers.get(ip..ip + IPV4_BYTES).unwrap_or_default());
            put_u16(headers, ip + 10, checksum);
        }
        Layout::V6 => put_u16(headers, ip + 4, udp_bytes),
    }
    put_u16(headers, layout.udp_at() + 4, udp_bytes);
}

/// A received frame, in two parts: headers and UDP payload.
pub(super) struct Segment<'a> {
    headers: [u8; HEADERS_BYTES_MAX],
    headers_bytes: usize,
    pub(super) payload: &'a [u8],
    /// Whether this is the last frame of its datagram.
    pub(super) is_last: bool,
}

impl Segment<'_> {
    pub(super) fn headers(&self) -> &[u8] {
        self.headers.get(..self.headers_bytes).unwrap_or_default()
    }
}

/// Returns frame number `index` of the received `datagram`, whose frames have `segment_bytes` bytes of payload, with UDP
/// checksum 0. `None` if the datagram has no such frame, more than [`RX_SEGMENTS_MAX`] frames, or headers of another
/// layout.
pub(super) fn segment(datagram: &[u8], segment_bytes: usize, index: usize) -> Option<Segment<'_>> {
    let layout = Layout::of(datagram)?;
    let (front, payloads) = datagram.split_at_checked(layout.headers_bytes())?;
    let count = payloads.len().div_ceil(segment_bytes.max(1));
    if count > RX_SEGMENTS_MAX {
        return None;
    }
    let payload = payloads.chunks(segment_bytes.max(1)).nth(index)?;
    let mut headers = [0; HEADERS_BYTES_MAX];
    let (written, _) = headers.split_at_mut(front.len());
    written.copy_from_slice(front);
    let udp_bytes = u16::try_from(UDP_BYTES + payload.len()).ok()?;
    // An IPv4 packet of this length would exceed the field for its length.
    udp_bytes.checked_add(IPV4_BYTES as u16)?;
    set_lengths(written, layout, udp_bytes, index as u16);
    put_u16(written, layout.udp_at() + 6, 0);
    Some(Segment { headers, headers_bytes: front.len(), payload, is_last: index + 1 == count })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(field) = bytes.get_mut(at..at + 2) {
        field.copy_from_slice(&value.to_be_bytes());
    }
}

/// Returns the Internet checksum's sum of `bytes`, an even number of bytes (RFC 1071), not complemented.
fn sum(bytes: &[u8]) -> u16 {
    fold(bytes.chunks_exact(2).map(|word| u64::from(u16::from_be_bytes([word[0], word[1]]))).sum())
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    sum as u16
}

#[cfg(test)]
#[path = "offload_tests.rs"]
mod tests;
