//! Receive extended transport header: not of the standard (docs/WIRE.md), sent only by queue pairs that use
//! selective repeat. The header identifies the receive that a SEND consumes, and the position of the packet in the
//! SEND. The responder can therefore place an out-of-order payload on arrival (IRN section 5.3, RFC 5041 section 5).
//!
//! ```text
//!   bytes 0..3                 bytes 4..7
//!   | recv WQE sequence number | packet index in its message |
//! ```

/// Receive extended transport header, 8 bytes, of a numbered SEND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecvEth {
    /// Recv WQE sequence number: the number of WRITEs with immediate and of SENDs (with or without immediate) before
    /// this SEND on the connection, modulo 2^32.
    pub recv_seq: u32,
    /// Index of the packet in its message: 0 in the first packet.
    pub packet: u32,
}

impl RecvEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [r0, r1, r2, r3, p0, p1, p2, p3] = *bytes;
        RecvEth {
            recv_seq: u32::from_be_bytes([r0, r1, r2, r3]),
            packet: u32::from_be_bytes([p0, p1, p2, p3]),
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        let ([r0, r1, r2, r3], [p0, p1, p2, p3]) = (self.recv_seq.to_be_bytes(), self.packet.to_be_bytes());
        *bytes = [r0, r1, r2, r3, p0, p1, p2, p3];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        let header = RecvEth { recv_seq: 0x0102_0304, packet: 0x0506_0708 };
        let mut bytes = [0; 8];
        header.write(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(RecvEth::parse(&bytes), header);
    }
}
