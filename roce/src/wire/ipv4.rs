//! IPv4 header without options (RFC 791).

/// IP protocol number of UDP, also the IPv6 next-header value.
pub const PROTOCOL_UDP: u8 = 17;
/// First byte of an IPv4 header without options: version 4, header length 5 words.
pub const VERSION_IHL: u8 = 0x45;
pub(crate) const DONT_FRAGMENT: u16 = 0x4000;
/// The bits of `flags_fragment` that are 0 in an unfragmented IP packet: "more fragments" and the fragment offset.
pub const FRAGMENT_BITS: u16 = 0x3FFF;

/// IPv4 header, 20 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Header {
    /// Version (4 bits) and header length in 4-byte words (4 bits).
    pub version_ihl: u8,
    /// Type of service: DSCP (6 bits) and ECN (2 bits).
    pub tos: u8,
    /// Length of header and payload in bytes.
    pub total_len_bytes: u16,
    /// Identification (RFC 6864); may differ in a retransmission.
    pub id: u16,
    /// 3 flag bits (reserved, "don't fragment", "more fragments"); 13 bits of fragment offset in units of 8 bytes.
    pub flags_fragment: u16,
    /// Time to live; not covered by the ICRC, because routers decrement this field.
    pub ttl: u8,
    /// Protocol of the payload; [`PROTOCOL_UDP`] in a RoCE v2 packet.
    pub protocol: u8,
    /// Header checksum (RFC 1071).
    pub checksum: u16,
    /// Source IPv4 address.
    pub src: [u8; 4],
    /// Destination IPv4 address.
    pub dst: [u8; 4],
}

impl Ipv4Header {
    /// Length of the header in bytes.
    pub const LEN: usize = 20;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        Ipv4Header {
            version_ihl: b[0],
            tos: b[1],
            total_len_bytes: u16::from_be_bytes([b[2], b[3]]),
            id: u16::from_be_bytes([b[4], b[5]]),
            flags_fragment: u16::from_be_bytes([b[6], b[7]]),
            ttl: b[8],
            protocol: b[9],
            checksum: u16::from_be_bytes([b[10], b[11]]),
            src: [b[12], b[13], b[14], b[15]],
            dst: [b[16], b[17], b[18], b[19]],
        }
    }

    /// Encodes the header.
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        b[0] = self.version_ihl;
        b[1] = self.tos;
        b[2..4].copy_from_slice(&self.total_len_bytes.to_be_bytes());
        b[4..6].copy_from_slice(&self.id.to_be_bytes());
        b[6..8].copy_from_slice(&self.flags_fragment.to_be_bytes());
        b[8] = self.ttl;
        b[9] = self.protocol;
        b[10..12].copy_from_slice(&self.checksum.to_be_bytes());
        b[12..16].copy_from_slice(&self.src);
        b[16..].copy_from_slice(&self.dst);
    }
}

/// Returns the sum of the header's ten 16-bit words. If the checksum is correct, [`fold`] of this sum is 0xFFFF.
pub(crate) fn word_sum(header: &[u8; Ipv4Header::LEN]) -> u32 {
    header.as_chunks::<2>().0.iter().map(|word| u32::from(u16::from_be_bytes(*word))).sum()
}

/// Folds a sum of 16-bit words to 16 bits, with end-around carry (RFC 1071).
pub(crate) const fn fold(sum: u32) -> u16 {
    let [h0, h1, l0, l1] = sum.to_be_bytes();
    let (sum, carry) = u16::from_be_bytes([h0, h1]).overflowing_add(u16::from_be_bytes([l0, l1]));
    // After a carry the 16-bit sum is at most 0xFFFE, so adding the carry does not overflow.
    if carry { sum + 1 } else { sum }
}

/// Returns whether the header checksum is correct; `header` must not be all zeroes. The checksum is correct if and only
/// if the sum of the 16-bit words is a multiple of 0xFFFF. Because 2^16 is 1 modulo 0xFFFF, 64-bit words in any byte
/// order may be summed instead.
pub(crate) fn checksum_ok(header: &[u8; Ipv4Header::LEN]) -> bool {
    let (first, words) = header.as_rchunks::<8>();
    let first = first.first_chunk().map_or(0, |first| u32::from_ne_bytes(*first));
    let sum = words.iter().fold(u64::from(first), |sum, word| {
        let (sum, carry) = sum.overflowing_add(u64::from_ne_bytes(*word));
        // After a carry the sum is below 2^64 - 1, so adding the carry does not overflow.
        sum.wrapping_add(u64::from(carry))
    });
    sum.is_multiple_of(0xFFFF)
}
