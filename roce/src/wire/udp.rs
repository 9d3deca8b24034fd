//! UDP header, and the choice of the UDP source port. Routers hash this port to spread flows over equal-cost paths.

use crate::id::Qpn;

/// UDP destination port of RoCE v2 (IANA "roce").
pub const ROCE_PORT: u16 = 4791;

/// UDP header, 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpHeader {
    /// Source port; the parser accepts any value.
    pub source_port: u16,
    /// Destination port; [`ROCE_PORT`] in a RoCE v2 packet.
    pub dest_port: u16,
    /// Length of header and payload in bytes.
    pub len_bytes: u16,
    /// Checksum; sent as 0 (no checksum), because the ICRC covers the payload. Ignored when received.
    pub checksum: u16,
}

impl UdpHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header; every bit pattern is valid.
    #[inline(always)]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [s0, s1, d0, d1, l0, l1, c0, c1] = *bytes;
        UdpHeader {
            source_port: u16::from_be_bytes([s0, s1]),
            dest_port: u16::from_be_bytes([d0, d1]),
            len_bytes: u16::from_be_bytes([l0, l1]),
            checksum: u16::from_be_bytes([c0, c1]),
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[..2].copy_from_slice(&self.source_port.to_be_bytes());
        bytes[2..4].copy_from_slice(&self.dest_port.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes[6..].copy_from_slice(&self.checksum.to_be_bytes());
    }
}

/// Returns the UDP source port (0xC000 to 0xFFFF) for a flow label (20 bits): 0xC000 plus the XOR of the low 14 bits
/// and the high 6 bits of the flow label.
pub const fn udp_source_port(flow_label: u32) -> u16 {
    let label = flow_label & 0xF_FFFF;
    // The mask leaves 14 bits, so the cast loses no bit.
    0xC000 | ((label ^ (label >> 14)) & 0x3FFF) as u16
}

/// Returns the flow label (20 bits) from which to compute the UDP source port if the address vector has flow label 0.
/// Both directions use the same UDP source port, because the result does not depend on the order of the QPNs.
pub const fn flow_label_from_qpns(local: Qpn, remote: Qpn) -> u32 {
    let product = local.value() as u64 * remote.value() as u64;
    // XORs the 48 bits of `product` into 20 bits, so that every bit of `product` has an effect on the flow label.
    ((product ^ (product >> 20) ^ (product >> 40)) & 0xF_FFFF) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_port_folds_the_flow_label() {
        assert_eq!(udp_source_port(0), 0xC000);
        assert_eq!(udp_source_port(0x3FFF), 0xFFFF);
        assert_eq!(udp_source_port(0xF_FFFF), 0xC000 | (0x3FFF ^ 0x3F));
        assert_eq!(udp_source_port(0x4001), 0xC000, "the top six bits fold onto the low ones");
        assert_eq!(udp_source_port(0x10_0001), 0xC001, "bits above the 20th do not count");
    }

    #[test]
    fn both_ends_of_a_connection_derive_one_flow_label() {
        let (a, b) = (Qpn::new(0x12_3456), Qpn::new(0xFE_DCBA));
        assert_eq!(flow_label_from_qpns(a, b), flow_label_from_qpns(b, a));
        assert_ne!(flow_label_from_qpns(a, b), flow_label_from_qpns(a, Qpn::new(0xFE_DCBB)));
        assert!(flow_label_from_qpns(a, b) < 1 << 20);
    }
}
