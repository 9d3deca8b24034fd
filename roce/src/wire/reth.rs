use crate::id::RKey;

/// RDMA extended transport header (IBA 9.3.3), 16 bytes: the memory of the responder that a request accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Virtual address of the first byte in the responder's memory.
    pub va: u64,
    /// R_Key of the memory region.
    pub rkey: RKey,
    /// DMA length: bytes of the whole message.
    pub len_bytes: u32,
}

impl Reth {
    /// Length of the header in bytes.
    pub const LEN: usize = 16;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = *bytes;
        Reth {
            va: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
            len_bytes: u32::from_be_bytes([l0, l1, l2, l3]),
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[..8].copy_from_slice(&self.va.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len_bytes.to_be_bytes());
    }
}
