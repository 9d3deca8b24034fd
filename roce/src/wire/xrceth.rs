/// XRC extended transport header (IBA annex A14), 4 bytes. The reserved byte is sent as 0 and ignored when received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Number of the shared receive queue at the responder, 24 bits.
    pub srqn: u32,
}

impl XrcEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        XrcEth { srqn: u32::from_be_bytes(*bytes) & 0x00FF_FFFF }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = (self.srqn & 0x00FF_FFFF).to_be_bytes();
    }
}
