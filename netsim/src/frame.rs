//! Frames, and the slab that stores all frames in the network.
//!
//! ```text
//!   | bytes: headers, and all of a short frame | phantom_bytes: a length without contents |
//!   '------------------------- length on the wire, without FCS ---------------------------'
//! ```

use roce::port::impairment::{Disposition, Impairment};

use crate::rng::mix;

/// Largest number of unused buffers stored for reuse.
const SPARE_BUFFERS_MAX: usize = 4096;

/// A frame without FCS, from the destination address on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The bytes that have contents: headers, and the payload of a short frame.
    pub bytes: Vec<u8>,
    /// Number of further bytes, which occupy wire and queues, but have no contents.
    pub phantom_bytes: u32,
    /// Whether a bit was flipped, in `bytes` or in the phantom bytes, so that a CRC of the whole frame does not match.
    pub corrupted: bool,
}

impl Frame {
    /// Length in bytes without FCS, phantom bytes included.
    pub fn len_bytes(&self) -> usize {
        self.bytes.len() + self.phantom_bytes as usize
    }

    pub(crate) fn impair(&mut self, impairment: Impairment, disposition: &mut Disposition) {
        let len_bytes = self.len_bytes();
        disposition.add(impairment, &mut self.bytes, len_bytes);
        self.corrupted |= disposition.is_corrupted;
    }

    /// The Ethernet address at offset `at`: 0 destination, 6 source.
    pub(crate) fn address(&self, at: usize) -> Option<[u8; 6]> {
        self.bytes.get(at..)?.first_chunk().copied()
    }
}

impl From<Vec<u8>> for Frame {
    fn from(bytes: Vec<u8>) -> Self {
        Frame { bytes, phantom_bytes: 0, corrupted: false }
    }
}

/// Index of a frame in [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameId(u32);

/// Number that stands for no host, or for no link.
pub(crate) const NONE: u32 = u32::MAX;

/// A frame in the network and its forwarding data: one cache line, because each switch reads it.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct InTransit {
    pub(crate) frame: Frame,
    /// Number of the destination host; [`NONE`] if no host has the destination address.
    pub(crate) to: u32,
    /// Hash for equal-cost multipath, the same for all frames of a flow.
    pub(crate) flow_hash: u64,
}

/// All frames in the network. Queues and events refer to a frame by its [`FrameId`].
#[derive(Debug, Default)]
pub(crate) struct Frames {
    slots: Vec<InTransit>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
}

impl Frames {
    pub(crate) fn insert(&mut self, in_transit: InTransit) -> FrameId {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = in_transit;
            return FrameId(slot);
        }
        self.slots.push(in_transit);
        FrameId((self.slots.len() - 1) as u32)
    }

    #[inline]
    pub(crate) fn get(&self, id: FrameId) -> &InTransit {
        &self.slots[id.0 as usize]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: FrameId) -> &mut InTransit {
        &mut self.slots[id.0 as usize]
    }

    pub(crate) fn duplicate(&mut self, id: FrameId) -> FrameId {
        let mut bytes = self.spare.pop().unwrap_or_default();
        let original = &self.slots[id.0 as usize];
        bytes.clear();
        bytes.extend_from_slice(&original.frame.bytes);
        let frame = Frame { bytes, ..Frame { bytes: Vec::new(), ..original.frame } };
        let (to, flow_hash) = (original.to, original.flow_hash);
        self.insert(InTransit { frame, to, flow_hash })
    }

    pub(crate) fn remove(&mut self, id: FrameId) -> Frame {
        self.free.push(id.0);
        std::mem::take(&mut self.slots[id.0 as usize].frame)
    }

    pub(crate) fn discard(&mut self, id: FrameId) {
        let frame = self.remove(id);
        self.recycle(frame.bytes);
    }

    pub(crate) fn buffer(&mut self, len_bytes: usize) -> Vec<u8> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len_bytes, 0);
        buffer
    }

    pub(crate) fn recycle(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < SPARE_BUFFERS_MAX {
            self.spare.push(buffer);
        }
    }
}

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xDD];
const ETHERTYPE_VLAN: [u8; 2] = [0x81, 0x00];

/// IP version by EtherType, with the offset of the IP header.
pub(crate) enum Ip {
    V4(usize),
    V6(usize),
    Other,
}

/// Finds a frame's IP header, after an Ethernet header and at most one VLAN tag.
pub(crate) fn find_ip(frame: &[u8]) -> Ip {
    let ethertype = |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<2>());
    let at = if ethertype(12) == Some(&ETHERTYPE_VLAN) { 16 } else { 12 };
    match ethertype(at) {
        Some(&ETHERTYPE_IPV4) => Ip::V4(at + 2),
        Some(&ETHERTYPE_IPV6) => Ip::V6(at + 2),
        _ => Ip::Other,
    }
}

/// Returns the ECN field of an IP packet (RFC 3168): 0 for not ECT, 1 or 2 for ECT, 3 for CE; 0 for a frame without IP.
pub(crate) fn ecn_bits(frame: &[u8]) -> u8 {
    let byte = |at: usize| frame.get(at).copied().unwrap_or(0);
    match find_ip(frame) {
        Ip::V4(at) => byte(at + 1) & 3,
        Ip::V6(at) => byte(at + 1) >> 4 & 3,
        Ip::Other => 0,
    }
}

/// Returns a hash of IP addresses, protocol and ports (without IP options); without IP, of the Ethernet addresses.
pub(crate) fn flow_hash(frame: &[u8]) -> u64 {
    let fold = |hash: u64, bytes: &[u8]| {
        bytes.chunks(8).fold(hash, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            mix(hash ^ u64::from_le_bytes(word))
        })
    };
    let tuple = match find_ip(frame) {
        Ip::V4(at) => frame.get(at + 12..at + 24).map(|rest| (rest, frame[at + 9])),
        Ip::V6(at) => frame.get(at + 8..at + 44).map(|rest| (rest, frame[at + 6])),
        Ip::Other => None,
    };
    match tuple {
        Some((addresses_and_ports, protocol)) => fold(u64::from(protocol), addresses_and_ports),
        None => fold(0, frame.get(..12).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use roce::port::impairment::mark_ce;

    use super::*;

    #[test]
    fn any_bit_number_flips_exactly_one_bit_or_a_phantom_one() {
        let corrupt = |frame: &mut Frame, bit| {
            frame.impair(Impairment::Corrupt { bit }, &mut Disposition::default());
        };
        for bit in [0, 7, 8, 31, 32, -1, i64::from(u32::MAX)] {
            let mut frame = Frame::from(vec![0u8; 4]);
            corrupt(&mut frame, bit);
            assert_eq!(frame.bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
            assert!(frame.corrupted);
            let mut phantom = Frame { bytes: vec![0; 1], phantom_bytes: 3, corrupted: false };
            corrupt(&mut phantom, bit);
            assert_eq!(phantom.bytes[0] != 0, bit.rem_euclid(32) < 8);
            assert!(phantom.corrupted);
        }
        corrupt(&mut Frame::default(), 3);
        let mut frame = Frame::from(vec![0u8; 4]);
        frame.impair(Impairment::Drop, &mut Disposition::default());
        assert_eq!(frame, Frame::from(vec![0u8; 4]));
    }

    #[test]
    fn the_ecn_field_is_read_as_it_is_marked() {
        let mut v4 = vec![0u8; 34];
        v4[12..14].copy_from_slice(&ETHERTYPE_IPV4);
        let mut v6 = v4.clone();
        v6[12..14].copy_from_slice(&ETHERTYPE_IPV6);
        let mut tagged = v4.clone();
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        for (mut frame, at, ect) in [(v4, 15, 2), (tagged, 19, 1), (v6, 15, 0x20)] {
            assert_eq!(ecn_bits(&frame), 0);
            frame[at] |= ect;
            assert!(matches!(ecn_bits(&frame), 1 | 2));
            mark_ce(&mut frame);
            assert_eq!(ecn_bits(&frame), 3);
        }
        for other in [vec![], vec![7; 13], vec![7; 60]] {
            assert_eq!(ecn_bits(&other), 0);
        }
    }

    #[test]
    fn a_flow_is_its_addresses_protocol_and_ports() {
        let mut v4 = vec![0u8; 60];
        v4[12..14].copy_from_slice(&ETHERTYPE_IPV4);
        let mut v6 = v4.clone();
        v6[12..14].copy_from_slice(&ETHERTYPE_IPV6);
        let mut tagged = v4.clone();
        tagged.splice(12..12, [0x81, 0, 0, 5]);
        assert_eq!(flow_hash(&tagged), flow_hash(&v4));
        for (frame, inside) in [(&v4, (23..24).chain(26..38)), (&v6, (20..21).chain(22..58))] {
            let inside: Vec<usize> = inside.collect();
            for at in 14..60 {
                let mut other = frame.clone();
                other[at] ^= 0x10;
                assert_eq!(flow_hash(&other) != flow_hash(frame), inside.contains(&at), "byte {at}");
            }
        }
        let _ = (flow_hash(&[]), flow_hash(&v4[..37]), flow_hash(&v4[..13]));
        assert_ne!(flow_hash(&[1; 12]), flow_hash(&[2; 12]));
    }
}
