//! The list of what goes wrong.

use crate::frame::{Ip, find_ip};
use crate::network::LinkId;

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It takes its time on the wire and never arrives.
    Drop,
    /// It arrives twice.
    Duplicate,
    /// It arrives so much later, and others may pass it.
    Delay {
        /// How much later.
        nanos: u64,
    },
    /// It arrives right after the next `behind` frames of the link, or after
    /// [`Tape::HOLD_NANOS_MAX`] where fewer come.
    Reorder {
        /// Frames that pass it.
        behind: u32,
    },
    /// One bit is flipped, and the frame is marked as corrupted.
    Corrupt {
        /// Which bit of the frame, modulo its length in bits; it may be a phantom one.
        bit: u32,
    },
    /// Its IP header is marked "congestion experienced", as a switch with a long queue does.
    MarkCe,
}

/// One thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// On which link.
    pub link: LinkId,
    /// To which frame: the number of frames that left on the link before it since the tape was
    /// put in.
    pub frame: u64,
    /// What happens to it.
    pub action: Action,
}

/// All that goes wrong in a run, in any order. Faults of the same frame add up, in the order listed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tape(pub Vec<Fault>);

impl Tape {
    /// A frame that waits for others to pass it waits no longer than this.
    pub const HOLD_NANOS_MAX: u64 = 50_000;

    /// The faults of one link, by frame.
    pub(crate) fn of_link(&self, link: LinkId) -> Vec<Fault> {
        let mut faults: Vec<Fault> = self.0.iter().copied().filter(|fault| fault.link == link).collect();
        faults.sort_by_key(|fault| fault.frame);
        faults
    }
}

const IPV4_HEADER_BYTES: usize = 20;

/// Sets both ECN bits (RFC 3168) of an IPv4 or IPv6 packet and mends the IPv4 header checksum;
/// leaves other frames alone.
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

/// The ECN bits of an IP packet (RFC 3168): 0 where its sender does not allow marks, or there is no IP; 3
/// where it is marked.
pub(crate) fn ecn_bits(frame: &[u8]) -> u8 {
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    match find_ip(frame) {
        Ip::V4(at) => byte(at + 1) & 3,
        Ip::V6(at) => byte(at + 1) >> 4 & 3,
        Ip::Other => 0,
    }
}

/// The Internet checksum's sum (RFC 1071) of an even number of bytes.
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
