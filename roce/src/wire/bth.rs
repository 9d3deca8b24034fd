use super::opcode::Opcode;
use crate::id::{PKey, Qpn};
use crate::psn::Psn;

const SOLICITED: u8 = 0x80;
const MIG_REQ: u8 = 0x40;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// Mask of the 7 reserved bits after AckReq.
const RESERVED: u8 = 0x7F;

/// Values up to this number are numbers of PSNs; higher values are multiples of [`UNIT_PKTS`].
const EXACT_MAX: u8 = 63;
const UNIT_PKTS: u32 = 64;

/// The 7 reserved bits after AckReq. In a READ request under selective repeat: number of PSNs directly below the PSN of
/// the READ request that belong to READ requests, rounded down.
///
/// ```text
///   value   0 to 63   64   65    ...  127
///   PSNs    0 to 63   64   128   ...  4096
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecedingReads(u8);

impl PrecedingReads {
    /// The PSN directly below that of the READ request belongs to no READ request, or the sender does not set these bits.
    pub const NONE: PrecedingReads = PrecedingReads(0);
    /// The largest number of PSNs.
    pub(crate) const PKTS_MAX: u32 = UNIT_PKTS * (RESERVED - EXACT_MAX) as u32;

    /// Decodes byte 8 of the header.
    pub(super) fn parse(ack_byte: u8) -> Self {
        PrecedingReads(ack_byte & RESERVED)
    }

    /// Encodes a number of PSNs: rounds down from 64 on, and encodes more than 4096 PSNs as 4096.
    pub fn from_pkts(pkts: u32) -> Self {
        let units = pkts / UNIT_PKTS;
        let value = if units == 0 { pkts } else { units.saturating_add(EXACT_MAX.into()) };
        PrecedingReads(u8::try_from(value).map_or(RESERVED, |value| value.min(RESERVED)))
    }

    /// Returns the number of PSNs.
    pub fn pkts(self) -> u32 {
        match self.0.checked_sub(EXACT_MAX) {
            None | Some(0) => self.0.into(),
            Some(units) => u32::from(units) * UNIT_PKTS,
        }
    }
}

/// Base transport header (IBA 9.2), 12 bytes. The reserved bits are sent as zero and ignored when received, except
/// [`PrecedingReads`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Opcode: transport service, operation, and position of the packet in its message.
    pub opcode: Opcode,
    /// Solicited event (SE): the message's completion at the responder is a solicited event.
    pub solicited: bool,
    /// MigReq, the state of automatic path migration: 1 if the queue pair that sends the packet has migrated, or has no
    /// path migration.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0 to 3.
    pub pad_bytes: u8,
    /// Transport header version (TVer), 4 bits; 0 is the only version defined.
    pub tver: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward explicit congestion notification (FECN).
    pub fecn: bool,
    /// Backward explicit congestion notification (BECN); set in a CNP.
    pub becn: bool,
    /// Destination queue pair, 24 bits.
    pub dest_qp: Qpn,
    /// AckReq: the requester requests an ACK of this packet.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Length of the header in bytes.
    pub const LEN: usize = 12;

    /// Decodes the header; every bit pattern is valid. Always inlined, because a header returned through memory is
    /// stored field by field and then loaded whole, which causes a store-forwarding stall.
    #[inline(always)]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [opcode, flags, p0, p1, words @ ..] = bytes;
        // Bytes 4 to 11 are split into two arrays of 4 bytes. Otherwise the compiler loads the 8 bytes one by one.
        let [ecn_and_qp @ .., _, _, _, _] = words;
        let [_, _, _, _, ack_and_psn @ ..] = words;
        let (ecn_and_qp, ack_and_psn) = (u32::from_be_bytes(*ecn_and_qp), u32::from_be_bytes(*ack_and_psn));
        Bth {
            opcode: Opcode::new(*opcode),
            solicited: flags & SOLICITED != 0,
            mig_req: flags & MIG_REQ != 0,
            pad_bytes: pad_bytes(*flags),
            tver: tver(*flags),
            pkey: PKey(u16::from_be_bytes([*p0, *p1])),
            fecn: ecn_and_qp & front(FECN) != 0,
            becn: ecn_and_qp & front(BECN) != 0,
            dest_qp: Qpn::new(ecn_and_qp),
            ack_req: ack_and_psn & front(ACK_REQ) != 0,
            psn: Psn::new(ack_and_psn),
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        let [p0, p1] = self.pkey.0.to_be_bytes();
        let [_, q0, q1, q2] = self.dest_qp.value().to_be_bytes();
        let [_, n0, n1, n2] = self.psn.value().to_be_bytes();
        let flags = flags_byte(self.solicited, self.mig_req, self.pad_bytes) | (self.tver & 0x0F);
        let (ecn, ack) = (ecn_byte(self.fecn, self.becn), ack_byte(self.ack_req, PrecedingReads::NONE));
        *bytes = [self.opcode.value(), flags, p0, p1, ecn, q0, q1, q2, ack, n0, n1, n2];
    }
}

/// Returns the 32-bit value of the big-endian bytes `byte`, 0, 0, 0.
const fn front(byte: u8) -> u32 {
    u32::from_be_bytes([byte, 0, 0, 0])
}

/// Returns the pad count in `flags`, byte 1 of the header.
pub(super) const fn pad_bytes(flags: u8) -> u8 {
    (flags >> 4) & 3
}

/// Returns the transport header version in `flags`, byte 1 of the header.
pub(super) const fn tver(flags: u8) -> u8 {
    flags & 0x0F
}

/// Returns byte 1 of the header: SE, MigReq, pad count, and transport header version 0.
pub(super) const fn flags_byte(solicited: bool, mig_req: bool, pad_bytes: u8) -> u8 {
    (if solicited { SOLICITED } else { 0 }) | (if mig_req { MIG_REQ } else { 0 }) | ((pad_bytes & 3) << 4)
}

/// Returns byte 4 of the header: FECN and BECN. The ICRC does not cover this byte.
pub(super) const fn ecn_byte(fecn: bool, becn: bool) -> u8 {
    (if fecn { FECN } else { 0 }) | (if becn { BECN } else { 0 })
}

/// Returns byte 8 of the header: AckReq, and [`PrecedingReads`].
pub(super) const fn ack_byte(ack_req: bool, preceding_reads: PrecedingReads) -> u8 {
    (if ack_req { ACK_REQ } else { 0 }) | preceding_reads.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_preceding_reads_are_rounded_down() {
        for (pkts, decoded) in [
            (0, 0),
            (1, 1),
            (63, 63),
            (64, 64),
            (127, 64),
            (128, 128),
            (4095, 4032),
            (4096, 4096),
            (u32::MAX, 4096),
        ] {
            assert_eq!(PrecedingReads::from_pkts(pkts).pkts(), decoded, "{pkts}");
        }
        for value in 0..=RESERVED {
            let reads = PrecedingReads(value);
            assert_eq!(PrecedingReads::from_pkts(reads.pkts()), reads);
        }
    }
}
