use crate::id::{QKey, Qpn};

/// Datagram extended transport header (IBA 9.3.2), 8 bytes. The reserved byte is sent as 0 and ignored when received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Q_Key; must equal the Q_Key of the destination queue pair.
    pub qkey: QKey,
    /// Queue pair that sent the datagram.
    pub src_qp: Qpn,
}

impl Deth {
    /// Length of the header in bytes.
    pub const LEN: usize = 8;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [k0, k1, k2, k3, _, q0, q1, q2] = *bytes;
        Deth {
            qkey: QKey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qp: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        bytes[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        bytes[4..].copy_from_slice(&self.src_qp.value().to_be_bytes());
    }
}
