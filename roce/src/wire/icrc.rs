//! The invariant CRC (IBA 7.8, annex A17): CRC-32 of everything from the IP header to the pad bytes,
//! with the fields that routers may change read as ones.

use super::{Bth, Ipv4Header, Ipv6Header, UdpHeader};
use crc32fast::Hasher;

/// CRC-32 of the eight bytes of ones which stand for the link header, as a state to continue from.
const AFTER_LINK_HEADER: u32 = 0x2144_DF1C;

/// IP, UDP and base transport header: where all masked fields lie.
const V4_LEN: usize = Ipv4Header::LEN + UdpHeader::LEN + Bth::LEN;
const V6_LEN: usize = Ipv6Header::LEN + UdpHeader::LEN + Bth::LEN;

/// The ICRC of a packet. `l3` is the packet from its IP header to the byte before the ICRC. `None`
/// where it is neither IPv4 without options nor IPv6, or too short for a base transport header.
///
/// The value goes on the wire little-endian.
pub fn compute(l3: &[u8]) -> Option<u32> {
    match l3.first()? >> 4 {
        4 => {
            let (header, rest) = l3.split_first_chunk::<V4_LEN>()?;
            Some(crc(&masked_v4(header), rest))
        }
        6 => {
            let (header, rest) = l3.split_first_chunk::<V6_LEN>()?;
            Some(crc(&masked_v6(header), rest))
        }
        _ => None,
    }
}

/// Type of service, TTL, header checksum, UDP checksum and the congestion bits become ones.
fn masked_v4(header: &[u8; V4_LEN]) -> [u8; V4_LEN] {
    let mut masked = *header;
    masked[1] = 0xFF;
    masked[8] = 0xFF;
    masked[10..12].fill(0xFF);
    masked[26..28].fill(0xFF);
    masked[32] = 0xFF;
    masked
}

/// Traffic class, flow label, hop limit, UDP checksum and the congestion bits become ones.
fn masked_v6(header: &[u8; V6_LEN]) -> [u8; V6_LEN] {
    let mut masked = *header;
    masked[0] |= 0x0F;
    masked[1..4].fill(0xFF);
    masked[7] = 0xFF;
    masked[46..48].fill(0xFF);
    masked[52] = 0xFF;
    masked
}

fn crc(header: &[u8], rest: &[u8]) -> u32 {
    let mut hasher = Hasher::new_with_initial(AFTER_LINK_HEADER);
    hasher.update(header);
    hasher.update(rest);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A UC SEND ONLY of a ConnectX NIC: the example of scapy's RoCE tests.
    const UC_SEND_ONLY: [u8; 64] = [
        0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xB4, 0xD5, 0xC0, 0xA8, 0x00, 0x07, 0xC0,
        0xA8, 0x00, 0x07, 0xC0, 0x00, 0x12, 0xB7, 0x00, 0x2C, 0xAC, 0xA2, 0x24, 0x60, 0xFF, 0xFF, 0x00, 0x00,
        0x00, 0xD3, 0x00, 0xCF, 0x17, 0x10, 0x46, 0x30, 0x81, 0x8B, 0xE2, 0x89, 0x35, 0xD9, 0x0E, 0x9A, 0x95,
        0x50, 0x54, 0x01, 0xBE, 0x88, 0x5E, 0x50, 0x00, 0x00, 0x78, 0xF3, 0x53, 0xF3,
    ];

    /// A congestion notification captured on a ConnectX-4 Lx.
    const CNP: [u8; 60] = [
        0x45, 0xC2, 0x00, 0x3C, 0x71, 0x8C, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, 0x0A, 0x00, 0x11, 0x01, 0x0A,
        0x00, 0x12, 0x01, 0x00, 0x00, 0x12, 0xB7, 0x00, 0x28, 0x00, 0x00, 0x81, 0x00, 0xFF, 0xFF, 0x40, 0x00,
        0x01, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        0x00, 0x00, 0x00, 0x00, 0x00, 0x82, 0xFD, 0x00, 0x2A,
    ];

    #[test]
    fn packets_of_network_adapters_have_the_icrc_we_compute() {
        for packet in [&UC_SEND_ONLY[..], &CNP[..]] {
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
