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
