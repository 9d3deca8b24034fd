//! The fault tape: impairments of simulated links by frame number.

use crate::frame::{Ip, find_ip};
use crate::id::LinkId;

/// An impairment of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The frame occupies the wire, but is not delivered.
    Drop,
    /// The frame is delivered twice.
    Duplicate,
    /// The frame is delivered later; others may overtake it.
    Delay {
        /// Additional delay in nanoseconds.
        nanos: u64,
    },
    /// The frame is delivered right after the next `behind` frames of the link, or after
    /// [`Tape::HOLD_NANOS_MAX`] if fewer are sent.
    Reorder {
        /// Number of frames that overtake it.
        behind: u32,
    },
    /// One bit is flipped, and [`crate::Frame::corrupted`] set.
    Corrupt {
        /// The bit, modulo the frame's length in bits, phantom bytes included.
        bit: u32,
    },
    /// The frame gets a CE mark, even if it is not ECT.
    MarkCe,
}

/// An entry of the tape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The link.
    pub link: LinkId,
    /// The frame's number: frames that left on the link before it, since the tape was set.
    pub frame: u64,
    /// The impairment.
    pub action: Action,
}

/// The entries of a run, in any order. Several of one frame are combined: `Drop` overrides all others, and
/// `Reorder` overrides `Delay`; duplicates are neither reordered nor delayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape(pub Vec<Fault>);

impl Tape {
    /// Longest time in nanoseconds that a reordered frame is held for others to overtake it.
    pub const HOLD_NANOS_MAX: u64 = 50_000;

    /// The entries of one link, sorted by frame.
    pub(crate) fn of_link(&self, link: LinkId) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.0.iter().copied().filter(|fault| fault.link == link).collect();
        faults.sort_by_key(|fault| fault.frame);
        faults
    }
}

const IPV4_HEADER_BYTES: usize = 20;

/// Sets the CE mark (RFC 3168) of an IPv4 or IPv6 packet and recomputes the IPv4 header checksum. Other frames
/// are unchanged.
pub(crate) fn mark_ce(frame: &mut [u8]) {
    match find_ip(frame) {
        Ip::V4(at) => {
            let Some(l3) = frame.get_mut(at..at + IPV4_HEADER_BYTES) else { return };
            l3[1] |= 3;
            l3[10..12].fill(0);
            let sum = ones_complement_sum(l3);
            l3[10..12].copy_from_slice(&(!sum).to_be_bytes());
        }
        Ip::V6(at) => {
            if let Some(byte) = frame.get_mut(at + 1) {
                *byte |= 0x30;
            }
        }
        Ip::Other => {}
    }
}

/// The ECN field of an IP packet (RFC 3168): 0 not ECT, 1 or 2 ECT, 3 CE. 0 for other frames.
pub(crate) fn ecn_bits(frame: &[u8]) -> u8 {
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    match find_ip(frame) {
        Ip::V4(at) => byte(at + 1) & 3,
        Ip::V6(at) => byte(at + 1) >> 4 & 3,
        Ip::Other => 0,
    }
}

/// The ones' complement sum (RFC 1071) of an even number of bytes.
fn ones_complement_sum(bytes: &[u8]) -> u16 {
    let mut sum: u32 =
        bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xFFFF {
        sum = (sum >> 16) + (sum & 0xFFFF);
    }
    sum as u16 // folded above
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The worked example of the IPv4 checksum (0xB861), in an Ethernet frame.
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
        let mut frame = ipv4_frame();
        assert_eq!(ones_complement_sum(&frame[14..]), 0xFFFF, "the example itself");
        mark_ce(&mut frame);
        assert_eq!(frame[15], 3);
        assert_eq!(ones_complement_sum(&frame[14..]), 0xFFFF);
        assert_eq!([ecn_bits(&frame), ecn_bits(&ipv4_frame())], [3, 0]);
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
        assert_eq!(ecn_bits(&frame), 0);
        frame[15] |= 0x20;
        assert_eq!(ecn_bits(&frame), 2);
        mark_ce(&mut frame);
        assert_eq!(frame[14..], [0x6A, 0xB0, 0, 0]);
        for mut other in [vec![], vec![7; 13], vec![7; 60]] {
            let before = other.clone();
            mark_ce(&mut other);
            assert_eq!(other, before);
            assert_eq!(ecn_bits(&other), 0);
        }
    }
}
