//! Immediate data (IBA 9.3.6).

/// Immediate data, 4 bytes.
///
/// The standard gives them no meaning, only an order: `imm` is the four bytes read as a big-endian
/// number. The verbs interface shows the bytes themselves (`__be32 imm_data`), which is `imm.to_be()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// The value.
    pub imm: u32,
}

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        ImmDt { imm: u32::from_be_bytes(*bytes) }
    }

    /// Writes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.imm.to_be_bytes();
    }
}
