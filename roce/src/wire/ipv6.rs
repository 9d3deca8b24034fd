//! IPv6 header (RFC 8200). IPv6 extension headers are neither sent nor accepted.

pub(crate) const NEXT_HEADER_FRAGMENT: u8 = 44;

/// IPv6 header, 40 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Header {
    /// Version, 4 bits; 6 in a valid header.
    pub version: u8,
    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    pub tclass: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Number of bytes of the packet that follow the IPv6 header.
    pub payload_len_bytes: u16,
    /// Protocol of the payload, or type of the next extension header.
    pub next_header: u8,
    /// Hop limit; not covered by the ICRC, because routers decrement this field.
    pub hop_limit: u8,
    /// Source IPv6 address.
    pub src: [u8; 16],
    /// Destination IPv6 address.
    pub dst: [u8; 16],
}

impl Ipv6Header {
    /// Length of the header in bytes.
    pub const LEN: usize = 40;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        let [v0, v1, v2, v3, l0, l1, next_header, hop_limit, addresses @ ..] = b;
        let mut src = [0; 16];
        let mut dst = [0; 16];
        src.copy_from_slice(&addresses[..16]);
        dst.copy_from_slice(&addresses[16..]);
        Ipv6Header {
            version: v0 >> 4,
            tclass: (v0 << 4) | (v1 >> 4),
            flow_label: u32::from_be_bytes([0, v1 & 0x0F, *v2, *v3]),
            payload_len_bytes: u16::from_be_bytes([*l0, *l1]),
            next_header: *next_header,
            hop_limit: *hop_limit,
            src,
            dst,
        }
    }

    /// Encodes the header.
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        let word =
            u32::from(self.version) << 28 | u32::from(self.tclass) << 20 | (self.flow_label & 0xF_FFFF);
        b[..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len_bytes.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src);
        b[24..].copy_from_slice(&self.dst);
    }
}
