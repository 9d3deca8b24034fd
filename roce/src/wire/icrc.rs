//! The invariant CRC (IBA 7.8, annex A17): the CRC-32 of eight 0xFF bytes followed by the packet from its IP header to
//! its pad bytes. Fields that routers may change are masked: each bit of a masked field counts as 1.

use super::{bth::Bth, bth::PrecedingReads, ipv4::Ipv4Header, ipv6::Ipv6Header, udp::UdpHeader};

/// Length of the ICRC in bytes. The ICRC is the last field of every packet.
pub const ICRC_LEN: usize = 4;

/// State of the CRC register after eight 0xFF bytes, which replace the local route header (LRH) of InfiniBand.
const AFTER_LINK_HEADER: u32 = !0x2144_DF1C;

/// Length in bytes of the headers that contain all masked fields: IP, UDP and base transport header.
const V4_LEN: usize = Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN;
const V6_LEN: usize = Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN;

/// Masked bits of the first four bytes of the IP header. IPv4: type of service; IPv6: traffic class and flow label.
const V4_FRONT_MASK: [u8; 4] = [0, 0xFF, 0, 0];
const V6_FRONT_MASK: [u8; 4] = [0x0F, 0xFF, 0xFF, 0xFF];

/// Offsets, from the start of the IP header, of the masked bytes after the first four bytes of this header: TTL or hop
/// limit, IPv4 header checksum, UDP checksum, and the BTH byte of FECN and BECN.
const V4_MASKED: [usize; 6] = [8, 10, 11, 26, 27, 32];
const V6_MASKED: [usize; 4] = [7, 46, 47, 52];

/// Initial state of the CRC register: if all masked bits of a packet are 0, the CRC computed from this state is the
/// ICRC.
const V4_START: u32 = start_of_zeroes(V4_FRONT_MASK, &V4_MASKED);
const V6_START: u32 = start_of_zeroes(V6_FRONT_MASK, &V6_MASKED);

#[expect(clippy::indexing_slicing, reason = "evaluated for constants only, from offsets that are constants")]
const fn start_of_zeroes(front_mask: [u8; 4], masked: &[usize]) -> u32 {
    let mut register = AFTER_LINK_HEADER ^ u32::from_le_bytes(front_mask);
    let mut i = 0;
    while i < masked.len() {
        register ^= BEFORE[masked[i]][0xFF];
        i += 1;
    }
    register
}

/// Returns the ICRC of a packet, little-endian on the wire. `l3` is the packet from its IP header to the byte before
/// the ICRC; an IPv4 header must have no options. `None` if the IP version is neither 4 nor 6, or if `l3` ends within
/// the headers.
pub fn compute(l3: &[u8]) -> Option<u32> {
    Some(crc(start(l3)?, l3))
}

/// Returns the ICRC of `l3` with IP identification and AckReq replaced by those of `fields`. `None` if the IP version
/// is neither 4 nor 6, or if `l3` ends within the headers.
pub(super) fn compute_with(l3: &[u8], fields: RetransmitFields) -> Option<u32> {
    let RetransmitFields { ip_id: [id0, id1], ack_req } = RetransmitFields::of(l3)?;
    let changes = match l3.first()? >> 4 {
        4 => {
            before(4, id0 ^ fields.ip_id[0])?
                ^ before(5, id1 ^ fields.ip_id[1])?
                ^ before(V4_LEN - Bth::LEN + ACK_REQ_AT, ack_req ^ fields.ack_req)?
        }
        _ => before(V6_LEN - Bth::LEN + ACK_REQ_AT, ack_req ^ fields.ack_req)?,
    };
    Some(crc(start(l3)? ^ changes, l3))
}

/// Returns an initial state of the CRC register: the CRC of `l3`, computed from this state without masking, is the ICRC
/// of `l3`. `None` if the IP version is neither 4 nor 6, or if `l3` ends within the headers.
///
/// Because a CRC is linear, an XOR into the initial state has the same effect as masking a header byte. Without this
/// XOR, the packet would have to be copied, or the CRC computed in several parts.
#[inline(always)]
fn start(l3: &[u8]) -> Option<u32> {
    match l3.first()? >> 4 {
        4 => start_at(l3.first_chunk::<V4_LEN>()?, V4_START, V4_FRONT_MASK, &V4_MASKED),
        6 => start_v6(l3),
        _ => None,
    }
}

/// Returns an initial state of the CRC register for IPv6, as [`start`] does. Not inlined, because otherwise the
/// compiler merges the code of both IP versions, which costs 13 instructions per packet.
#[inline(never)]
fn start_v6(l3: &[u8]) -> Option<u32> {
    start_at(l3.first_chunk::<V6_LEN>()?, V6_START, V6_FRONT_MASK, &V6_MASKED)
}

#[inline(always)]
fn start_at<const N: usize>(
    header: &[u8; N],
    start: u32,
    front_mask: [u8; 4],
    masked: &[usize],
) -> Option<u32> {
    // A CRC-32 XORs the first four input bytes into the register. The masked bits of these bytes are also XORed into
    // the initial state, so that these bits cancel out.
    let front = u32::from_le_bytes(*header.first_chunk()?);
    let mut register = start ^ (front & u32::from_le_bytes(front_mask));
    for &at in masked {
        register ^= before(at, *header.get(at)?)?;
    }
    Some(register)
}

/// Returns the CRC-32 of `bytes`, computed from the initial state `register` of the CRC register.
#[cfg(not(miri))]
fn crc(register: u32, bytes: &[u8]) -> u32 {
    let mut crc = libdeflater::Crc::with_initial(!register);
    crc.update(bytes);
    crc.sum()
}

/// Computes the CRC-32 of `bytes` from the initial state `register` of the CRC register; in Rust for Miri, which cannot
/// execute the C code of `libdeflater`.
#[cfg(miri)]
fn crc(register: u32, bytes: &[u8]) -> u32 {
    let [table, ..] = &AFTER;
    let step = |register: u32, byte: &u8| {
        let [low, ..] = register.to_le_bytes();
        (register >> 8) ^ table.get(usize::from(low ^ byte)).copied().unwrap_or_default()
    };
    !bytes.iter().fold(register, step)
}

/// The fields that the ICRC covers and that may differ between transmissions of the same packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RetransmitFields {
    /// Identification of the IPv4 header; 0 if the packet is IPv6.
    ip_id: [u8; 2],
    /// AckReq and [`PrecedingReads`].
    ack_req: u8,
}

impl RetransmitFields {
    pub(super) fn preceding_reads(self) -> PrecedingReads {
        PrecedingReads::parse(self.ack_req)
    }

    #[inline]
    pub(super) fn of(l3: &[u8]) -> Option<Self> {
        let [version, _, _, _, id_high, id_low, ..] = l3.first_chunk::<V4_LEN>()?;
        let (ip_id, headers_len) =
            if version >> 4 == 4 { ([*id_high, *id_low], V4_LEN) } else { ([0; 2], V6_LEN) };
        Some(RetransmitFields { ip_id, ack_req: *l3.get(headers_len - Bth::LEN + ACK_REQ_AT)? })
    }
}

/// Offset of the byte that contains AckReq, from the start of the base transport header.
const ACK_REQ_AT: usize = 8;

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

/// Returns the value to XOR into the initial CRC register instead of XORing `byte` into the packet at offset `at`;
/// `None` if `at` is `V6_LEN` or more.
#[inline(always)]
fn before(at: usize, byte: u8) -> Option<u32> {
    BEFORE.get(at)?.get(usize::from(byte)).copied()
}

/// `BEFORE[n][byte]`: the state of the CRC register from which `n` zero bytes lead to the state `byte`.
static BEFORE: [[u32; 256]; V6_LEN] = before_each();

#[expect(clippy::indexing_slicing, reason = "evaluated for `BEFORE` only, from no input")]
const fn before_each() -> [[u32; 256]; V6_LEN] {
    let mut table = [[0; 256]; V6_LEN];
    let mut byte: u32 = 0;
    while byte < 256 {
        let mut register = byte;
        let mut n = 0;
        while n < V6_LEN {
            table[n][byte as usize] = register;
            let mut bit = 0;
            while bit < 8 {
                // Reverses the CRC step of one bit (see `after`): bit 31 of the register is 1 if that step XORed the
                // polynomial.
                let out = register >> 31;
                register = ((register ^ (out * 0xEDB8_8320)) << 1) | out;
                bit += 1;
            }
            n += 1;
        }
        byte += 1;
    }
    table
}

/// Offsets, from the start of the IP header, of the bytes that the ICRC covers and that differ between packets of a
/// [`super::HeaderTemplate`]: IP length, IPv4 identification, UDP length, and of the base transport header the opcode,
/// the flags byte, the AckReq byte and the PSN.
const V4_VARYING: [usize; 12] = [2, 3, 4, 5, 24, 25, 28, 29, 36, 37, 38, 39];
const V6_VARYING: [usize; 10] = [4, 5, 44, 45, 48, 49, 56, 57, 58, 59];

/// Returns the ICRC of the IPv4 packet `l3`. `header_crc` is the ICRC of the packet's headers with zeroes at
/// `V4_VARYING`, the offsets of the bytes that differ between packets of a template. `None` if `l3` is shorter than the
/// headers.
///
/// Because a CRC is linear, the effect of each byte at `V4_VARYING` is an XOR into `header_crc`. Other header bytes are
/// not loaded, because a load that spans the stores of several fields causes a store-forwarding stall.
pub(super) fn extend_v4(header_crc: u32, l3: &[u8]) -> Option<u32> {
    let (header, rest) = l3.split_first_chunk::<V4_LEN>()?;
    extend(header_crc, header, &V4_VARYING, rest)
}

/// Returns the ICRC of the IPv6 packet `l3`. `header_crc` is the ICRC of the packet's headers with zeroes at
/// `V6_VARYING`, the offsets of the bytes that differ between packets of a template. `None` if `l3` is shorter than the
/// headers.
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
    Some(crc(!sum, rest))
}

/// A CNP that a ConnectX-4 Lx sent: the bytes from IP header to ICRC.
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
