//! The invariant CRC (IBA 7.8, annex A17): the CRC-32 of eight 0xFF bytes followed by the packet from its IP header to
//! its pad bytes. The fields that routers may change are masked: all their bits are taken as ones.

use super::{bth::Bth, ipv4::Ipv4Header, ipv6::Ipv6Header, udp::UdpHeader};
use crc32fast::Hasher;
use std::sync::LazyLock;

/// Length of the ICRC in bytes. The ICRC is the last field of every packet.
pub const ICRC_LEN: usize = 4;

/// Initial state of the CRC. Cloned for each packet, because `Hasher::new` looks up CPU features (31 instructions).
static HASHER: LazyLock<Hasher> = LazyLock::new(Hasher::new);

/// State of the CRC register after the eight 0xFF bytes, which stand for an InfiniBand link header.
const AFTER_LINK_HEADER: u32 = !0x2144_DF1C;

/// Length in bytes of the headers that contain all masked fields: IP, UDP and base transport header.
const V4_LEN: usize = Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN;
const V6_LEN: usize = Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN;

/// Length in bytes of the headers and the padding before them: `V4_LEN` or `V6_LEN`, rounded up to a multiple of 16.
const V4_BLOCKS: usize = V4_LEN.next_multiple_of(16);
const V6_BLOCKS: usize = V6_LEN.next_multiple_of(16);

/// Masked bits of IPv4 packets: type of service, TTL, header checksum, UDP checksum, and the BTH byte of FECN and BECN.
const V4_MASK: [u8; V4_BLOCKS] =
    in_blocks(V4_LEN, &[(1, 0xFF), (8, 0xFF), (10, 0xFF), (11, 0xFF), (26, 0xFF), (27, 0xFF), (32, 0xFF)]);

/// Masked bits of IPv6 packets: traffic class, flow label, hop limit, UDP checksum, and the BTH byte of FECN and BECN.
const V6_MASK: [u8; V6_BLOCKS] = in_blocks(
    V6_LEN,
    &[(0, 0x0F), (1, 0xFF), (2, 0xFF), (3, 0xFF), (7, 0xFF), (46, 0xFF), (47, 0xFF), (52, 0xFF)],
);

/// Bytes XORed into the padded headers. Four 0xFF bytes at the start of the padding set the CRC register to zero, and
/// the zeroes of the remaining padding leave the register at zero. `AFTER_LINK_HEADER`, XORed into the first four bytes
/// of the headers, then has the effect of eight 0xFF bytes before the headers.
const V4_START: [u8; V4_BLOCKS] = start(V4_LEN);
const V6_START: [u8; V6_BLOCKS] = start(V6_LEN);

const fn start<const N: usize>(len: usize) -> [u8; N] {
    let [a, b, c, d] = AFTER_LINK_HEADER.to_le_bytes();
    let mut blocks = in_blocks(len, &[(0, a), (1, b), (2, c), (3, d)]);
    let Some(front) = blocks.first_chunk_mut() else { panic!("blocks are longer than the register") };
    *front = [0xFF; 4];
    blocks
}

// The padding has room for the four 0xFF bytes of `start`.
const _: () = assert!(V4_BLOCKS - V4_LEN >= 4 && V6_BLOCKS - V6_LEN >= 4);

/// Returns `N` bytes. For each pair (offset, value) in `bytes`, byte `N - len + offset` is `value`; the others are 0.
#[expect(clippy::indexing_slicing, reason = "evaluated for constants only, from offsets that are constants")]
const fn in_blocks<const N: usize>(len: usize, bytes: &[(usize, u8)]) -> [u8; N] {
    let mut blocks = [0; N];
    let mut i = 0;
    while i < bytes.len() {
        blocks[N - len + bytes[i].0] = bytes[i].1;
        i += 1;
    }
    blocks
}

/// Returns the ICRC of a packet. `l3` is the packet from its IP header, without IPv4 options, to the byte before the
/// ICRC. `None` if the IP version is neither 4 nor 6, or if `l3` is too short for a base transport header. On the wire,
/// the ICRC is little-endian.
pub fn compute(l3: &[u8]) -> Option<u32> {
    match l3.first()? >> 4 {
        4 => {
            let (header, rest) = l3.split_first_chunk::<V4_LEN>()?;
            let mut blocks = [0; V4_BLOCKS];
            *blocks.last_chunk_mut()? = *header;
            Some(crc(&blocks, &V4_MASK, &V4_START, rest))
        }
        6 => {
            let (header, rest) = l3.split_first_chunk::<V6_LEN>()?;
            let mut blocks = [0; V6_BLOCKS];
            *blocks.last_chunk_mut()? = *header;
            Some(crc(&blocks, &V6_MASK, &V6_START, rest))
        }
        _ => None,
    }
}

/// Returns the ICRC of `l3` with IP identification and AckReq replaced by those of `fields`; `None` as for [`compute`].
pub(super) fn compute_with(l3: &[u8], fields: RetransmitFields) -> Option<u32> {
    match l3.first()? >> 4 {
        4 => {
            let (header, rest) = l3.split_first_chunk::<V4_LEN>()?;
            let mut blocks = [0; V4_BLOCKS];
            *blocks.last_chunk_mut()? = *header;
            let headers: &mut [u8; V4_LEN] = blocks.last_chunk_mut()?;
            [headers[4], headers[5]] = fields.ip_id;
            headers[V4_LEN - Bth::LEN + ACK_REQ_AT] = fields.ack_req;
            Some(crc(&blocks, &V4_MASK, &V4_START, rest))
        }
        6 => {
            let (header, rest) = l3.split_first_chunk::<V6_LEN>()?;
            let mut blocks = [0; V6_BLOCKS];
            *blocks.last_chunk_mut()? = *header;
            let headers: &mut [u8; V6_LEN] = blocks.last_chunk_mut()?;
            headers[V6_LEN - Bth::LEN + ACK_REQ_AT] = fields.ack_req;
            Some(crc(&blocks, &V6_MASK, &V6_START, rest))
        }
        _ => None,
    }
}

/// The fields that the ICRC covers and that may differ between transmissions of the same packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RetransmitFields {
    /// IPv4 identification; zero in IPv6 packets.
    ip_id: [u8; 2],
    ack_req: u8,
}

impl RetransmitFields {
    pub(super) fn of(l3: &[u8]) -> Option<Self> {
        let at = |at: usize| l3.get(at).copied();
        match l3.first()? >> 4 {
            4 => {
                let ack_req = at(V4_LEN - Bth::LEN + ACK_REQ_AT)?;
                Some(RetransmitFields { ip_id: [at(4)?, at(5)?], ack_req })
            }
            _ => Some(RetransmitFields { ip_id: [0; 2], ack_req: at(V6_LEN - Bth::LEN + ACK_REQ_AT)? }),
        }
    }
}

/// Offset of the byte that contains AckReq, from the start of the base transport header.
const ACK_REQ_AT: usize = 8;

/// Returns the ICRC of the headers in `blocks`, masked by `mask`, and of `rest`.
///
/// The padding aligns the headers to the 16-byte blocks that the CRC loads. Without the padding, a load would span
/// several stores, which causes a store-forwarding stall.
fn crc<const N: usize>(blocks: &[u8; N], mask: &[u8; N], start: &[u8; N], rest: &[u8]) -> u32 {
    // The array is built by index, because zipped iterators first write an array of zeroes (4 instructions more).
    let at = |bytes: &[u8; N], i: usize| bytes.get(i).copied().unwrap_or_default();
    let masked: [u8; N] = std::array::from_fn(|i| (at(blocks, i) | at(mask, i)) ^ at(start, i));
    let mut hasher = HASHER.clone();
    hasher.update(&masked);
    hasher.update(rest);
    hasher.finalize()
}

/// `AFTER[n][byte]`: state of the CRC register, initially zero, after `byte` and then `n` zero bytes.
static AFTER: [[u32; 256]; V6_LEN] = after();

#[expect(clippy::indexing_slicing, reason = "evaluated for `AFTER` only, from no input")]
const fn after() -> [[u32; 256]; V6_LEN] {
    let mut table = [[0; 256]; V6_LEN];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut register = byte;
        let mut bit = 0;
        while bit < 8 {
            register = if register & 1 != 0 { (register >> 1) ^ 0xEDB8_8320 } else { register >> 1 };
            bit += 1;
        }
        table[0][byte as usize] = register;
        byte += 1;
    }
    let mut n = 1;
    while n < V6_LEN {
        let mut byte = 0;
        while byte < 256 {
            let before: u32 = table[n - 1][byte];
            table[n][byte] = (before >> 8) ^ table[0][(before & 0xFF) as usize];
            byte += 1;
        }
        n += 1;
    }
    table
}

/// Offsets, from the IP header, of the bytes that the ICRC covers and that differ between packets of a
/// [`super::HeaderTemplate`]: lengths, identification, opcode, flags, AckReq, PSN.
const V4_VARYING: [usize; 12] = [2, 3, 4, 5, 24, 25, 28, 29, 36, 37, 38, 39];
const V6_VARYING: [usize; 10] = [4, 5, 44, 45, 48, 49, 56, 57, 58, 59];

/// Returns the ICRC of the IPv4 packet `l3`. `header_crc` is the ICRC of the packet's headers with zeroes at
/// `V4_VARYING`. `None` if `l3` is shorter than the headers.
///
/// A CRC is linear: each byte at `V4_VARYING` XORs a contribution of its own into `header_crc`. Other header bytes are
/// not loaded, because a load that spans the stores of several fields causes a store-forwarding stall.
pub(super) fn extend_v4(header_crc: u32, l3: &[u8]) -> Option<u32> {
    let (header, rest) = l3.split_first_chunk::<V4_LEN>()?;
    extend(header_crc, header, &V4_VARYING, rest)
}

/// Does the same as [`extend_v4`], for an IPv6 packet.
pub(super) fn extend_v6(header_crc: u32, l3: &[u8]) -> Option<u32> {
    let (header, rest) = l3.split_first_chunk::<V6_LEN>()?;
    extend(header_crc, header, &V6_VARYING, rest)
}

/// Returns the ICRC of `header` and `rest`. `header_crc` is the ICRC of `header` with zeroes at the offsets `varying`.
#[inline(always)]
fn extend<const N: usize>(header_crc: u32, header: &[u8; N], varying: &[usize], rest: &[u8]) -> Option<u32> {
    let mut sum = header_crc;
    for &at in varying {
        let byte = *header.get(at)?;
        sum ^= AFTER.get(N - 1 - at)?.get(usize::from(byte))?;
    }
    let mut hasher = Hasher::new_with_initial(sum);
    hasher.update(rest);
    Some(hasher.finalize())
}

/// A CNP captured on a ConnectX-4 Lx: the bytes from IP header to ICRC.
#[cfg(test)]
pub(crate) const CONNECTX_4_CNP: [u8; 60] = [
    0x45, 0xC2, 0x00, 0x3C, 0x71, 0x8C, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0A, 0x00, 0x11, 0x01, 0x0A,
    0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xB7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xFF, 0xFF, 0x40, 0x00,
    0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xFD, 0x00, 0x2A,
];

#[cfg(test)]
mod tests {
    use super::*;

    /// A UC SEND ONLY packet of a ConnectX NIC, from the RoCE tests of scapy: the bytes from IP header to ICRC.
    const UC_SEND_ONLY: [u8; 64] = [
        0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xB4, 0xD5, 0xC0, 0xA8, 0x00, 0x07, 0xC0,
        0xA8, 0x00, 0x07, 0xC0, 0x00, 0x12, 0xB7, 0x00, 0x2C, 0xAC, 0xA2, 0x24, 0x60, 0xFF, 0xFF, 0x00, 0x00,
        0x00, 0xD3, 0x00, 0xCF, 0x17, 0x10, 0x46, 0x30, 0x81, 0x8B, 0xE2, 0x89, 0x35, 0xD9, 0x0E, 0x9A, 0x95,
        0x50, 0x54, 0x01, 0xBE, 0x88, 0x5E, 0x50, 0x00, 0x00, 0x78, 0xF3, 0x53, 0xF3,
    ];

    #[test]
    fn packets_of_network_adapters_have_the_icrc_we_compute() {
        for packet in [&UC_SEND_ONLY[..], &CONNECTX_4_CNP[..]] {
            let (covered, icrc) = packet.split_last_chunk::<4>().unwrap();
            assert_eq!(compute(covered), Some(u32::from_le_bytes(*icrc)));
        }
    }

    #[test]
    fn what_is_no_packet_has_no_icrc() {
        assert_eq!(compute(&[]), None);
        assert_eq!(compute(&[0x45; V4_LEN - 1]), None);
        assert_eq!(compute(&[0x60; V6_LEN - 1]), None);
        assert_eq!(compute(&[0x50; V6_LEN]), None);
    }
}
