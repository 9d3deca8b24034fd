use crate::id::RKey;

/// Atomic extended transport header (IBA 9.3.4), 28 bytes, of a COMPARE SWAP or FETCH ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Virtual address of the 8 bytes, in the responder's memory, on which the operation acts. IBA requires a multiple
    /// of 8; `parse` accepts any value.
    pub va: u64,
    /// R_Key of the memory region.
    pub rkey: RKey,
    /// Value to store if the comparison succeeds (COMPARE SWAP), or to add (FETCH ADD).
    pub swap_or_add: u64,
    /// Value that COMPARE SWAP compares with the 8 bytes at `va`; not used by FETCH ADD.
    pub compare: u64,
}

impl AtomicEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 28;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(b: &[u8; Self::LEN]) -> Self {
        AtomicEth {
            va: u64::from_be_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]),
            rkey: RKey(u32::from_be_bytes([b[8], b[9], b[10], b[11]])),
            swap_or_add: u64::from_be_bytes([b[12], b[13], b[14], b[15], b[16], b[17], b[18], b[19]]),
            compare: u64::from_be_bytes([b[20], b[21], b[22], b[23], b[24], b[25], b[26], b[27]]),
        }
    }

    /// Encodes the header.
    pub fn write(&self, b: &mut [u8; Self::LEN]) {
        b[..8].copy_from_slice(&self.va.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
    }
}

/// Atomic acknowledge extended transport header (IBA 9.3.5.3), 8 bytes, of the response to an atomic request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// Value, before the atomic operation, of the 8 bytes at the virtual address of the request.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        AtomicAckEth { original: u64::from_be_bytes(*bytes) }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        *bytes = self.original.to_be_bytes();
    }
}
