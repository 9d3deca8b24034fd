//! Invalidate extended transport header (IBA 9.3.7).

use crate::id::RKey;

/// Invalidate extended transport header, 4 bytes: the key that a SEND WITH INVALIDATE takes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// Key to invalidate at the responder.
    pub rkey: RKey,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Ieth { rkey: RKey(u32::from_be_bytes(*bytes)) }
    }

    /// Writes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.rkey.0.to_be_bytes();
    }
}
