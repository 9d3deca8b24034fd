use crate::id::RKey;

/// Invalidate extended transport header (IBA 9.3.7), 4 bytes, of a SEND WITH INVALIDATE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// R_Key that the responder invalidates when it executes the SEND.
    pub rkey: RKey,
}

impl Ieth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Ieth { rkey: RKey(u32::from_be_bytes(*bytes)) }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.rkey.0.to_be_bytes();
    }
}
