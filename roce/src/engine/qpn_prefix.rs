//! Prefix of QPNs. Devices that share an interface have different prefixes, so that the destination QPN of a packet
//! identifies the device.

use crate::id::Qpn;
use crate::table::Table;

const QPN_BITS: u32 = 24;

/// Largest number of bits of a prefix. At least 18 bits of a QPN are random, so that a QPN is hard to guess.
const PREFIX_BITS_MAX: u8 = 6;

/// High bits of all QPNs of a device; `bits` is their number, 0 to 6.
///
/// ```text
///   bit  23 .. (24 - bits)   (23 - bits) .. 0
///        | prefix           | random        |
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpnPrefix {
    value: u8,
    bits: u8,
}

impl QpnPrefix {
    /// Returns the prefix of `bits` bits, 0 to 6, with the value `value`; `None` if either is out of range.
    pub fn new(value: u8, bits: u8) -> Option<Self> {
        (bits <= PREFIX_BITS_MAX && value >> bits == 0).then_some(QpnPrefix { value, bits })
    }

    /// Returns the value of the prefix: the high bits of the QPNs, shifted to the right.
    pub fn value(self) -> u8 {
        self.value
    }

    /// Returns the number of bits of the prefix, 0 to 6.
    pub fn bits(self) -> u8 {
        self.bits
    }

    fn random_bits(self) -> u32 {
        QPN_BITS - u32::from(self.bits)
    }

    /// Returns whether `qpn` has this prefix.
    pub fn contains(self, qpn: Qpn) -> bool {
        qpn.value() >> self.random_bits() == u32::from(self.value)
    }

    pub(super) fn table<T>(self, max_len: usize) -> Table<T> {
        Table::with_prefix(u32::from(self.value) << self.random_bits(), self.random_bits(), max_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn numbers_have_the_prefix_and_no_other_bit_in_common() {
        for (value, bits) in [(0, 0), (1, 1), (0x2A, 6), (0, 6)] {
            let prefix = QpnPrefix::new(value, bits).unwrap();
            let (mut table, mut random) = (prefix.table(1000), Random::new([3; 32]));
            let draw = |_| table.insert_with(&mut random, |_| false, |_, _| ()).unwrap();
            let numbers: Vec<u32> = (0..1000).map(draw).collect();
            assert!(numbers.iter().all(|number| prefix.contains(Qpn::new(*number))));
            let (all, any) = numbers.iter().fold((u32::MAX, 0), |(all, any), n| (all & n, any | n));
            let random_bits = 0xFF_FFFF >> bits;
            assert_eq!((all & random_bits, any & random_bits), (0, random_bits));
            let other = QpnPrefix::new(value ^ 1, bits.max(1)).unwrap();
            assert!(bits == 0 || !numbers.iter().any(|number| other.contains(Qpn::new(*number))));
        }
        assert_eq!([(0, 7), (2, 1), (64, 6)].map(|(value, bits)| QpnPrefix::new(value, bits)), [None; 3]);
    }
}
