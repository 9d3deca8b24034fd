//! Impairments of a frame, at a port ([`Events`](super::events::Events)) or on a link of a simulated network.

use std::fmt;
use std::str::FromStr;

use crate::wire::eth::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::{EthHeader, VlanTag};

pub(crate) const DELAY_NANOS_MAX: u64 = 10_000_000_000;
/// Largest `behind_pkts` of [`Impairment::Reorder`].
pub(crate) const BEHIND_PKTS_MAX: u32 = 1024;

/// An impairment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impairment {
    /// The frame is dropped; a simulated link drops the frame after its serialization time.
    Drop,
    /// A copy of the frame is sent before the frame.
    Duplicate,
    /// The frame is delayed; later frames may overtake this frame.
    Delay {
        /// The delay in nanoseconds.
        nanos: u64,
    },
    /// The frame is sent after `behind_pkts` later frames or after a time limit, whichever is first. A port counts only
    /// packets of the same PSN space, and its time limit is 1 ms. A simulated link counts all its frames, and its time
    /// limit is 50 us.
    Reorder {
        /// Number of later frames that are sent before this frame.
        behind_pkts: u32,
    },
    /// One bit of the frame is flipped.
    Corrupt {
        /// Number of the flipped bit, modulo the frame's length in bits: 0 is the most significant bit of the first
        /// byte, -1 the least significant bit of the last byte. -32 to -1 are the bits of a RoCE packet's ICRC.
        bit: i64,
    },
    /// The ECN field of the frame's IP header is set to CE, even if the field was not ECT.
    MarkCe,
}

impl Impairment {
    /// Flips a bit of the ICRC, so that all headers stay readable in a capture.
    pub const CORRUPT_ICRC: Impairment = Impairment::Corrupt { bit: -25 };

    /// Checks that the delay of `Delay` is 1 ns to 10 s, and that `behind_pkts` of `Reorder` is 1 to 1024.
    ///
    /// # Errors
    /// The violated limit, as a message.
    pub fn check(self) -> Result<(), &'static str> {
        match self {
            Impairment::Delay { nanos: 0 } => Err("a delay needs some time"),
            Impairment::Delay { nanos } if nanos > DELAY_NANOS_MAX => Err("a delay is at most 10 seconds"),
            Impairment::Reorder { behind_pkts } if !(1..=BEHIND_PKTS_MAX).contains(&behind_pkts) => {
                Err("a packet goes behind 1 to 1024 others")
            }
            _ => Ok(()),
        }
    }
}

/// Kind of an [`Impairment`]. Files with packet events or fault tapes contain the name of the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// [`Impairment::Drop`].
    Drop,
    /// [`Impairment::CORRUPT_ICRC`].
    Corrupt,
    /// [`Impairment::MarkCe`].
    MarkCe,
    /// [`Impairment::Duplicate`].
    Duplicate,
    /// [`Impairment::Delay`].
    Delay,
    /// [`Impairment::Reorder`].
    Reorder,
}

/// Actions by name. If an action has two names, `Display` of [`Action`] writes the first name.
const ACTIONS: [(&str, Action); 7] = [
    ("drop", Action::Drop),
    ("corrupt", Action::Corrupt),
    ("ecn", Action::MarkCe),
    ("mark-ce", Action::MarkCe),
    ("duplicate", Action::Duplicate),
    ("delay", Action::Delay),
    ("reorder", Action::Reorder),
];

/// Error of parsing an [`Action`]: an unknown name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown variant `{name}`, expected one of {}", ACTIONS.map(|(name, _)| format!("`{name}`")).join(", "))]
pub struct UnknownAction {
    name: String,
}

impl FromStr for Action {
    type Err = UnknownAction;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let known = ACTIONS.iter().find(|(known, _)| *known == name);
        known.map(|(_, action)| *action).ok_or_else(|| UnknownAction { name: name.to_owned() })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = ACTIONS.iter().find(|(_, action)| action == self);
        f.write_str(named.map_or("", |(name, _)| name))
    }
}

impl From<Impairment> for Action {
    fn from(impairment: Impairment) -> Self {
        match impairment {
            Impairment::Drop => Action::Drop,
            Impairment::Corrupt { .. } => Action::Corrupt,
            Impairment::MarkCe => Action::MarkCe,
            Impairment::Duplicate => Action::Duplicate,
            Impairment::Delay { .. } => Action::Delay,
            Impairment::Reorder { .. } => Action::Reorder,
        }
    }
}

impl Action {
    /// Returns the impairment of this kind: `micros` is the time of a delay in microseconds, `behind` the number of
    /// later frames that overtake a reordered frame.
    ///
    /// # Errors
    /// A number that this action needs is missing or out of its range, or a number is given that this action does not
    /// have.
    pub fn impairment(self, micros: Option<u64>, behind: Option<u32>) -> Result<Impairment, &'static str> {
        if micros.is_some() && self != Action::Delay {
            return Err("micros goes with action = \"delay\" alone");
        }
        if behind.is_some() && self != Action::Reorder {
            return Err("behind goes with action = \"reorder\" alone");
        }
        let impairment = match self {
            Action::Drop => Impairment::Drop,
            Action::Corrupt => Impairment::CORRUPT_ICRC,
            Action::MarkCe => Impairment::MarkCe,
            Action::Duplicate => Impairment::Duplicate,
            Action::Delay => {
                let micros = micros.ok_or("action = \"delay\" needs micros, as micros = 50")?;
                Impairment::Delay { nanos: micros.saturating_mul(1000) }
            }
            Action::Reorder => {
                let behind_pkts = behind.ok_or("action = \"reorder\" needs behind, as behind = 3")?;
                Impairment::Reorder { behind_pkts }
            }
        };
        impairment.check()?;
        Ok(impairment)
    }
}

// The messages of `Impairment::check` contain the numbers 1024 and 10 (seconds).
const _: () = assert!(BEHIND_PKTS_MAX == 1024 && DELAY_NANOS_MAX == 10_000_000_000);

/// Effect of all impairments of one frame. `Drop` overrides all other impairments, and `Reorder` overrides `Delay`.
/// Copies made by `Duplicate` are neither reordered nor delayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Disposition {
    /// Whether the frame is dropped.
    pub is_dropped: bool,
    /// Whether a bit was flipped.
    pub is_corrupted: bool,
    /// Number of copies made by [`Impairment::Duplicate`], which are sent before the frame.
    pub copies: u32,
    /// Sum of the delays of all [`Impairment::Delay`] of the frame, in nanoseconds.
    pub delay_nanos: u64,
    /// Number of later frames that are sent before this frame; 0 if this frame is not reordered.
    pub behind_pkts: u32,
}

impl Disposition {
    /// Adds `impairment` to the disposition; `Corrupt` and `MarkCe` also change bytes of `frame`. `len_bytes` is the
    /// length of the frame including its phantom payload, which has no bytes in `frame`.
    pub fn add(&mut self, impairment: Impairment, frame: &mut [u8], len_bytes: usize) {
        match impairment {
            Impairment::Drop => self.is_dropped = true,
            Impairment::Duplicate => self.copies = self.copies.saturating_add(1),
            Impairment::Delay { nanos } => self.delay_nanos = self.delay_nanos.saturating_add(nanos),
            Impairment::Reorder { behind_pkts } => self.behind_pkts = self.behind_pkts.max(behind_pkts),
            Impairment::Corrupt { bit } => {
                self.is_corrupted = true;
                flip_bit(frame, len_bytes, bit);
            }
            Impairment::MarkCe => mark_ce(frame),
        }
    }
}

/// Flips bit `bit`, numbered as in [`Impairment::Corrupt`], of a frame of `len_bytes` bytes. No effect if the bit is in
/// a phantom payload, which has no bytes in `frame`.
pub(crate) fn flip_bit(frame: &mut [u8], len_bytes: usize, bit: i64) {
    let bits = i64::try_from(len_bytes.saturating_mul(8)).unwrap_or(i64::MAX).max(1);
    let bit = bit.rem_euclid(bits);
    if let Some(byte) = usize::try_from(bit / 8).ok().and_then(|at| frame.get_mut(at)) {
        *byte ^= 0x80 >> (bit % 8);
    }
}

/// Sets the CE mark (RFC 3168 section 5) of an IPv4 or IPv6 packet, as a router does, and recomputes the IPv4 header
/// checksum. The ICRC covers neither the ECN field nor this checksum. Frames of other protocols are unchanged.
pub fn mark_ce(frame: &mut [u8]) {
    let Some((bytes, mut l3)) = frame.split_first_chunk_mut() else { return };
    let mut ethertype = EthHeader::parse(bytes).ethertype;
    if ethertype == ETHERTYPE_VLAN {
        let Some((bytes, rest)) = l3.split_first_chunk_mut() else { return };
        (ethertype, l3) = (VlanTag::parse(bytes).ethertype, rest);
    }
    match ethertype {
        ETHERTYPE_IPV4 => {
            let Some(bytes) = l3.first_chunk_mut() else { return };
            let mut header = Ipv4Header::parse(bytes);
            header.tos |= 3;
            header.checksum = 0;
            header.write(bytes);
            header.checksum = !ipv4::fold(ipv4::word_sum(bytes));
            header.write(bytes);
        }
        ETHERTYPE_IPV6 => {
            if let Some(byte) = l3.get_mut(1) {
                *byte |= 0x30;
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an Ethernet frame with an IPv4 header of known checksum (0xB861).
    fn ipv4_frame() -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        frame.extend([
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xB8, 0x61, 0xC0, 0xA8, 0, 1, 0xC0, 0xA8, 0, 0xC7,
        ]);
        frame
    }

    #[test]
    fn a_mark_keeps_the_ipv4_checksum_right() {
        let checksum_ok = |frame: &[u8]| ipv4::checksum_ok(frame[14..].try_into().unwrap());
        let mut frame = ipv4_frame();
        assert!(checksum_ok(&frame), "the example itself");
        mark_ce(&mut frame);
        assert_eq!(frame[15], 3);
        assert!(checksum_ok(&frame));
        let mut tagged = ipv4_frame();
        tagged.splice(12..12, [0x81, 0x00, 0x00, 0x05]);
        mark_ce(&mut tagged);
        assert_eq!(tagged[18..], frame[14..]);
    }

    #[test]
    fn a_mark_sets_the_two_low_bits_of_an_ipv6_traffic_class_and_leaves_other_frames_alone() {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xDD]);
        frame.extend([0x6A, 0x80, 0, 0]);
        mark_ce(&mut frame);
        assert_eq!(frame[14..], [0x6A, 0xB0, 0, 0]);
        for mut other in [vec![], vec![7; 13], vec![7; 60], ipv4_frame()[..33].to_vec()] {
            let before = other.clone();
            mark_ce(&mut other);
            assert_eq!(other, before);
        }
    }

    #[test]
    fn any_bit_number_flips_exactly_one_bit_or_one_of_a_byte_that_does_not_exist() {
        for (bit, expected) in [
            (0, [0x80, 0, 0, 0]),
            (7, [1, 0, 0, 0]),
            (8, [0, 0x80, 0, 0]),
            (31, [0, 0, 0, 1]),
            (32, [0x80, 0, 0, 0]),
            (-1, [0, 0, 0, 1]),
            (-25, [1, 0, 0, 0]),
            (-33, [0, 0, 0, 1]),
            (i64::from(u32::MAX), [0, 0, 0, 1]),
            (i64::MIN, [0x80, 0, 0, 0]),
        ] {
            let mut frame = [0; 4];
            flip_bit(&mut frame, 4, bit);
            assert_eq!(frame, expected, "bit {bit}");
            let mut first = [0];
            flip_bit(&mut first, 4, bit);
            assert_eq!(first, expected[..1], "bit {bit}");
        }
        flip_bit(&mut [], 0, 3);
    }

    #[test]
    fn impairments_of_a_frame_combine() {
        let mut frame = ipv4_frame();
        let len_bytes = frame.len();
        let mut disposition = Disposition::default();
        for impairment in [
            Impairment::Duplicate,
            Impairment::Delay { nanos: 5 },
            Impairment::Reorder { behind_pkts: 3 },
            Impairment::Corrupt { bit: -1 },
            Impairment::Reorder { behind_pkts: 2 },
            Impairment::Delay { nanos: 7 },
            Impairment::MarkCe,
            Impairment::Duplicate,
        ] {
            disposition.add(impairment, &mut frame, len_bytes);
        }
        let expected =
            Disposition { is_dropped: false, is_corrupted: true, copies: 2, delay_nanos: 12, behind_pkts: 3 };
        assert_eq!(disposition, expected);
        assert_eq!((frame[15], frame[33]), (3, 0xC6));
        disposition.add(Impairment::Drop, &mut frame, len_bytes);
        assert_eq!(disposition, Disposition { is_dropped: true, ..expected });
    }

    /// Returns the impairment for the action `name` with the numbers `micros` and `behind`.
    fn read(name: &str, micros: Option<u64>, behind: Option<u32>) -> Result<Impairment, String> {
        let action: Action = name.parse().map_err(|error: UnknownAction| error.to_string())?;
        assert_eq!(action.to_string().parse(), Ok(action));
        Ok(action.impairment(micros, behind)?)
    }

    #[test]
    fn each_action_is_an_impairment() {
        for (name, micros, behind, impairment) in [
            ("drop", None, None, Impairment::Drop),
            ("corrupt", None, None, Impairment::Corrupt { bit: -25 }),
            ("mark-ce", None, None, Impairment::MarkCe),
            ("ecn", None, None, Impairment::MarkCe),
            ("duplicate", None, None, Impairment::Duplicate),
            ("delay", Some(50), None, Impairment::Delay { nanos: 50_000 }),
            ("delay", Some(10_000_000), None, Impairment::Delay { nanos: 10_000_000_000 }),
            ("reorder", None, Some(3), Impairment::Reorder { behind_pkts: 3 }),
        ] {
            assert_eq!(read(name, micros, behind), Ok(impairment), "{name}");
            assert_eq!(Action::from(impairment), name.parse().unwrap());
        }
    }

    #[test]
    fn a_wrong_action_or_number_is_told_what_is_needed() {
        for (name, micros, behind, said) in [
            ("explode", None, None, "unknown variant `explode`, expected one of `drop`, `corrupt`, "),
            ("explode", None, None, "`ecn`"),
            ("explode", None, None, "`mark-ce`"),
            ("drop", Some(1), None, "micros goes with action = \"delay\" alone"),
            ("delay", Some(1), Some(1), "behind goes with action = \"reorder\" alone"),
            ("delay", None, None, "needs micros, as micros = 50"),
            ("reorder", None, None, "needs behind, as behind = 3"),
            ("delay", Some(0), None, "needs some time"),
            ("delay", Some(10_000_001), None, "at most 10 seconds"),
            ("delay", Some(9_000_000_000_000_000_000), None, "at most 10 seconds"),
            ("reorder", None, Some(0), "1 to 1024"),
            ("reorder", None, Some(1025), "1 to 1024"),
        ] {
            let error = read(name, micros, behind).unwrap_err();
            assert!(error.contains(said), "{name}: {error}");
        }
    }
}
