/// Flush extended transport header (IBA annex A19), 4 bytes: placement type and selectivity level of a FLUSH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement type, 4 bits; bit 0: global visibility, bit 1: persistence.
    pub placement: u8,
    /// Selectivity level, 2 bits; 0: the range of the RETH, 1: the whole memory region.
    pub selectivity: u8,
}

impl Feth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header; the reserved bits are ignored.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Feth { placement: bytes[3] & 0x0F, selectivity: (bytes[3] >> 4) & 3 }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = [0, 0, 0, ((self.selectivity & 3) << 4) | (self.placement & 0x0F)];
    }
}
