use crate::id::Msn;

/// NAK code: the reason why a responder refuses a request (IBA table 46).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// PSN sequence error: a request was received out of order. The PSN of the NAK is the expected PSN.
    PsnSequenceError,
    /// Invalid request: malformed, or not allowed by the queue pair.
    InvalidRequest,
    /// Remote access error: R_Key, protection domain, range or rights of the memory region forbid the access.
    RemoteAccessError,
    /// Remote operational error: an error in the responder itself prevents the execution of the request.
    RemoteOperationalError,
    /// Invalid RD request: only for reliable datagrams.
    InvalidRdRequest,
    /// A reserved NAK code, 5 to 31.
    Reserved(u8),
}

impl NakCode {
    const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => NakCode::PsnSequenceError,
            1 => NakCode::InvalidRequest,
            2 => NakCode::RemoteAccessError,
            3 => NakCode::RemoteOperationalError,
            4 => NakCode::InvalidRdRequest,
            other => NakCode::Reserved(other),
        }
    }

    const fn bits(self) -> u8 {
        match self {
            NakCode::PsnSequenceError => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccessError => 2,
            NakCode::RemoteOperationalError => 3,
            NakCode::InvalidRdRequest => 4,
            NakCode::Reserved(bits) => bits & VALUE,
        }
    }
}

/// Mask of the low five bits of a syndrome: credit code, RNR timer code or NAK code.
const VALUE: u8 = 0x1F;
/// Types of a syndrome (its high three bits), which select the meaning of the low five bits.
const ACK: u8 = 0x00;
const RNR_NAK: u8 = 0x20;
const NAK: u8 = 0x60;

/// AETH syndrome (IBA table 44). Decoding and then encoding preserves every byte value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// ACK, with a credit code.
    Ack {
        /// End-to-end flow control credit code, 5 bits; [`Syndrome::CREDITS_UNLIMITED`] (31): no flow control.
        credits: u8,
    },
    /// RNR NAK: no receive was posted. The requester retransmits after `rnr_timer_nanos(timer)` nanoseconds.
    RnrNak {
        /// RNR timer code, 5 bits.
        timer: u8,
    },
    /// NAK, with its NAK code.
    Nak(NakCode),
    /// A reserved value of the syndrome byte, 0x40 to 0x5F or 0x80 to 0xFF.
    Reserved(u8),
}

impl Syndrome {
    /// The credit code of a responder without end-to-end flow control.
    pub const CREDITS_UNLIMITED: u8 = 0x1F;

    /// The ACK of a responder without end-to-end flow control.
    pub const ACK: Syndrome = Syndrome::Ack { credits: Self::CREDITS_UNLIMITED };

    /// Decodes a syndrome; every byte value is valid.
    pub const fn from_byte(byte: u8) -> Self {
        match byte & !VALUE {
            ACK => Syndrome::Ack { credits: byte & VALUE },
            RNR_NAK => Syndrome::RnrNak { timer: byte & VALUE },
            NAK => Syndrome::Nak(NakCode::from_bits(byte & VALUE)),
            _ => Syndrome::Reserved(byte),
        }
    }

    /// Encodes the syndrome. Only the low five bits of `credits`, of `timer` and of a reserved NAK code are used.
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => ACK | (credits & VALUE),
            Syndrome::RnrNak { timer } => RNR_NAK | (timer & VALUE),
            Syndrome::Nak(code) => NAK | code.bits(),
            Syndrome::Reserved(byte) => byte,
        }
    }
}

/// Acknowledge extended transport header (IBA 9.3.5), 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// ACK with credit code, RNR NAK with RNR timer code, or NAK with NAK code.
    pub syndrome: Syndrome,
    /// Message sequence number (MSN): number of requests that the responder has completed, modulo 2^24.
    pub msn: Msn,
}

impl Aeth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Decodes the header; every bit pattern is valid.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [syndrome, m0, m1, m2] = *bytes;
        Aeth { syndrome: Syndrome::from_byte(syndrome), msn: Msn::new(u32::from_be_bytes([0, m0, m1, m2])) }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        let [_, m0, m1, m2] = self.msn.value().to_be_bytes();
        *bytes = [self.syndrome.byte(), m0, m1, m2];
    }
}

/// Returns the minimum RNR wait for the RNR timer code `code`, in nanoseconds (IBA table 45): 10 us for code 1,
/// up to 491.52 ms for code 31; 655.36 ms for code 0. Only the low five bits of `code` are used.
pub const fn rnr_timer_nanos(code: u8) -> u64 {
    // RNR wait in units of 10 us. Code 0: 2^16; code 1: 1; even code 2n above 0: 2^n; odd code 2n + 1 above 1:
    // 3 * 2^(n - 1).
    let units: u64 = match code & VALUE {
        0 => 65_536,
        even if even % 2 == 0 => 1 << (even / 2),
        odd => (3 << (odd / 2)) / 2,
    };
    units * 10_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_syndrome_byte_comes_back_the_same() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
        assert_eq!(Syndrome::from_byte(0x1F), Syndrome::Ack { credits: Syndrome::CREDITS_UNLIMITED });
        assert_eq!(Syndrome::from_byte(0x2E), Syndrome::RnrNak { timer: 14 });
        assert_eq!(Syndrome::from_byte(0x60), Syndrome::Nak(NakCode::PsnSequenceError));
        assert_eq!(Syndrome::from_byte(0x62), Syndrome::Nak(NakCode::RemoteAccessError));
        assert_eq!(Syndrome::from_byte(0x65), Syndrome::Nak(NakCode::Reserved(5)));
        assert_eq!(Syndrome::from_byte(0xFF), Syndrome::Reserved(0xFF));
    }

    /// RNR wait for each RNR timer code, in units of 10 us (IBA table 45).
    const RNR_TIMER_10_MICROS: [u64; 32] = [
        65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
    ];

    #[test]
    fn rnr_timers_grow_with_their_codes_except_0() {
        assert_eq!(rnr_timer_nanos(0), 655_360_000);
        assert_eq!(rnr_timer_nanos(1), 10_000);
        assert_eq!(rnr_timer_nanos(12), 640_000);
        assert_eq!(rnr_timer_nanos(31), 491_520_000);
        for (code, units) in (0..).zip(RNR_TIMER_10_MICROS) {
            assert_eq!(rnr_timer_nanos(code), units * 10_000, "code {code}");
            assert_eq!(rnr_timer_nanos(0xE0 | code), units * 10_000, "of the byte only five bits count");
        }
    }
}
