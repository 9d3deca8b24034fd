//! Immediate data (IBA 9.3.6).

/// Immediate data, 4 bytes.
///
/// `imm` is the four bytes, read as a big-endian number. In verbs the immediate data is in network byte order
/// (`__be32 imm_data`), which is `imm.to_be()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImmDt {
    /// The immediate data, in host byte order.
    pub imm: u32,
}

impl ImmDt {
    /// Length of the header in bytes.
    pub(crate) const LEN: usize = 4;

    /// Decodes the header; every bit pattern is valid.
    pub(crate) fn parse(bytes: &[u8; Self::LEN]) -> Self {
        ImmDt { imm: u32::from_be_bytes(*bytes) }
    }

    /// Encodes the header.
    pub(crate) fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.imm.to_be_bytes();
    }
}
