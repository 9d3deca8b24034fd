//! Selective acknowledge extended transport header: not of the standard (docs/WIRE.md), sent only by queue pairs that
//! use selective repeat.
//!
//! ```text
//!   byte 0                                bytes 1..3
//!   | version 1 (4 bits) | flags (4 bits) | PSN of the packet that triggered the SACK |
//! ```
//! The header follows an AETH. The PSN of the base transport header is the expected PSN, as in a NAK: the responder has
//! executed all requests below this PSN. The payload is a bitmap of 32-bit big-endian words. If the packet with PSN
//! (expected PSN + 1 + 32 `w` + `i`) was received, bit `i` of word `w` is 1; bit 0 is the least significant bit.

use crate::psn::Psn;

/// Flag bit 0: the packet that triggered the SACK is a duplicate.
const DUPLICATE: u8 = 1;

/// Flag bit 1: since the previous SACK, an out-of-order packet was dropped because the reorder buffer was full.
const NO_ROOM: u8 = 2;

/// Selective acknowledge extended transport header, 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SackEth {
    /// Version of the format of header and bitmap, 4 bits: [`SackEth::VERSION`].
    pub version: u8,
    /// True if the packet that triggered the SACK is a duplicate.
    pub duplicate: bool,
    /// True if, since the previous SACK, an out-of-order packet was dropped because the reorder buffer was full.
    pub no_room: bool,
    /// PSN of the request packet that triggered the SACK.
    pub trigger: Psn,
}

impl SackEth {
    /// Length of the header in bytes.
    pub const LEN: usize = 4;

    /// Version of the SACK format; 1 is the only version.
    pub const VERSION: u8 = 1;

    /// Number of 32-bit words of the longest bitmap, which covers 4,096 PSNs.
    pub(crate) const BITMAP_WORDS_MAX: usize = 128;

    /// Decodes the header; every bit pattern is valid, and unknown flags are ignored.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let [first, p0, p1, p2] = *bytes;
        let trigger = Psn::new(u32::from_be_bytes([0, p0, p1, p2]));
        SackEth {
            version: first >> 4,
            duplicate: first & DUPLICATE != 0,
            no_room: first & NO_ROOM != 0,
            trigger,
        }
    }

    /// Encodes the header.
    pub fn write(&self, bytes: &mut [u8; Self::LEN]) {
        let [_, p0, p1, p2] = self.trigger.value().to_be_bytes();
        let flags = u8::from(self.duplicate) * DUPLICATE + u8::from(self.no_room) * NO_ROOM;
        *bytes = [(self.version << 4) | flags, p0, p1, p2];
    }
}

/// Iterates over the bitmap in `payload`, 64 bits at a time: bit `i` of item `n` is PSN (expected PSN + 1 + 64 `n` + `i`).
/// Ignores bytes after the last whole word, and bytes after `SackEth::BITMAP_WORDS_MAX` words.
pub fn bitmap_words(payload: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = payload.as_chunks::<4>();
    let words = words.get(..SackEth::BITMAP_WORDS_MAX).unwrap_or(words);
    words.chunks(2).map(|pair| {
        let word = |at: usize| pair.get(at).map_or(0, |bytes| u64::from(u32::from_be_bytes(*bytes)));
        word(1) << 32 | word(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_back() {
        let header = SackEth {
            version: SackEth::VERSION,
            duplicate: true,
            no_room: false,
            trigger: Psn::new(0x12_3456),
        };
        let mut bytes = [0; 4];
        header.write(&mut bytes);
        assert_eq!(bytes, [0x11, 0x12, 0x34, 0x56]);
        assert_eq!(SackEth::parse(&bytes), header);
        assert_eq!(
            SackEth::parse(&[0x2E, 0, 0, 1]),
            SackEth { version: 2, duplicate: false, no_room: true, trigger: Psn::new(1) }
        );
    }

    #[test]
    fn a_bitmap_is_bounded_and_whole() {
        assert_eq!(bitmap_words(&[0, 0, 1, 2, 9, 9]).collect::<Vec<_>>(), [0x102]);
        let three = bitmap_words(&[0, 0, 1, 2, 9, 8, 7, 6, 0x80, 0, 0, 0]);
        assert_eq!(three.collect::<Vec<_>>(), [0x0908_0706_0000_0102, 0x8000_0000]);
        assert_eq!(bitmap_words(&[0xFF; 600]).map(u64::count_ones).sum::<u32>(), 128 * 32);
    }
}
