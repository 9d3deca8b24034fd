//! Ethernet II header and the 802.1Q tag.

use crate::id::Mac;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86DD;
pub(crate) const ETHERTYPE_VLAN: u16 = 0x8100;
/// EtherType of the outer tag of 802.1ad (QinQ).
pub(crate) const ETHERTYPE_QINQ: u16 = 0x88A8;

/// Bits of the VLAN ID in the tag control information of an 802.1Q tag.
pub const VLAN_ID_MASK: u16 = 0xFFF;

/// Ethernet II header, 14 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthHeader {
    /// Destination Ethernet address.
    pub dst: Mac,
    /// Source Ethernet address.
    pub src: Mac,
    /// EtherType of the next header.
    pub ethertype: u16,
}

impl EthHeader {
    /// Length of the header in bytes.
    pub const LEN: usize = 14;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *bytes;
        EthHeader {
            dst: Mac([d0, d1, d2, d3, d4, d5]),
            src: Mac([s0, s1, s2, s3, s4, s5]),
            ethertype: u16::from_be_bytes([t0, t1]),
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[..6].copy_from_slice(&self.dst.0);
        bytes[6..12].copy_from_slice(&self.src.0);
        bytes[12..].copy_from_slice(&self.ethertype.to_be_bytes());
    }
}

/// The 4 bytes after the EtherType 0x8100 of a frame with an 802.1Q tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VlanTag {
    /// Priority (3 bits), drop eligible indicator (1 bit), VLAN identifier (12 bits).
    pub tci: u16,
    pub ethertype: u16,
}

impl VlanTag {
    pub(crate) const LEN: usize = 4;

    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [c0, c1, t0, t1] = *bytes;
        VlanTag { tci: u16::from_be_bytes([c0, c1]), ethertype: u16::from_be_bytes([t0, t1]) }
    }

    pub(crate) fn write(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[..2].copy_from_slice(&self.tci.to_be_bytes());
        bytes[2..].copy_from_slice(&self.ethertype.to_be_bytes());
    }
}
