//! The packet filter of a shared port, a classic BPF program.

use libc::sock_filter;
use roce::engine::QpnPrefix;
use roce::id::Mac;
use roce::wire::eth::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, VLAN_ID_MASK};
use roce::wire::ipv4::{FRAGMENT_BITS, PROTOCOL_UDP};
use roce::wire::udp::ROCE_PORT;
use roce::wire::{EthHeader, Ipv6Header, UdpHeader};

// Opcodes of classic BPF (linux/bpf_common.h).
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_INDEXED: u16 = 0x48;
const LOAD_BYTE_INDEXED: u16 = 0x50;
const SET_INDEX: u16 = 0x01;
const SET_INDEX_TO_IP_HEADER_LEN: u16 = 0xB1;
const AND: u16 = 0x54;
const JUMP_ALWAYS: u16 = 0x05;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_ANY_BIT: u16 = 0x45;
const RETURN: u16 = 0x06;

// Offsets from which a BPF program loads metadata of a frame instead of bytes of the frame (linux/filter.h).
const ANCILLARY: u32 = 0xFFFF_F000;
const PACKET_TYPE: u32 = ANCILLARY + 4;
const VLAN_TAG: u32 = ANCILLARY + 44;
const VLAN_TAG_PRESENT: u32 = ANCILLARY + 48;

/// Value of `PACKET_TYPE` for received frames to the interface's own MAC (linux/if_packet.h).
pub(super) const PACKET_HOST: u32 = 0;
/// Value of `PACKET_TYPE` for frames that the interface sends.
const PACKET_OUTGOING: u32 = 4;

const ETHERNET_BYTES: u32 = EthHeader::LEN as u32;
/// Offset of the source MAC in an Ethernet header, in bytes.
const SOURCE_MAC: u32 = 6;
const IPV6_BYTES: u32 = Ipv6Header::LEN as u32;
/// Offset of the destination port in a UDP header, in bytes.
pub(super) const UDP_DESTINATION: u32 = 2;
/// Offset, in bytes and counted from the first byte of the UDP header, of the high byte of the destination QPN.
const DEST_QP: u32 = UdpHeader::LEN as u32 + 5;

/// Indices of instructions in the program: the first instruction of the VLAN check; the first instruction of the checks
/// of UDP port and QPN; the instruction that accepts a frame; the instruction that drops a frame.
const VLAN: u8 = 11;
const UDP_HEADER: u8 = 27;
const ACCEPT: u8 = 32;
const DROP: u8 = 33;

const fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Returns the instruction of index `at`. If the comparison of the accumulator with `k` is true, the instruction jumps
/// to index `yes`, otherwise to index `no`.
const fn jump(at: u8, code: u16, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes - at - 1, jf: no - at - 1, k }
}

/// Returns a classic BPF program that accepts RoCE v2 packets to QPNs with the prefix `prefix`: UDP port 4791, over
/// IPv4 or IPv6, no fragments, no VLAN ID except 0. The program accepts such a packet if the interface, whose MAC is
/// `mac`, receives the packet for `mac`, or if another process sends the packet to `mac`. The socket of the shared port
/// receives only accepted frames; the kernel also processes every frame that the interface receives.
///
/// The program drops received frames from `mac`: these are reflections of sent frames, and the program has accepted the
/// sent frames already.
///
/// Without the program, the socket would receive a copy of every frame that the interface receives or sends.
pub fn roce_filter(mac: Mac, prefix: QpnPrefix) -> [sock_filter; DROP as usize + 1] {
    let [a, b, c, d, e, f] = mac.0;
    let (mac_high, mac_low) = (u32::from_be_bytes([a, b, c, d]), u32::from(u16::from_be_bytes([e, f])));
    // The QPN prefix is in the high bits of the high byte of the destination QPN (offset `DEST_QP`).
    let shift = 8 - u32::from(prefix.bits());
    let (prefix, prefix_mask) = (u32::from(prefix.value()) << shift, 0xFF << shift & 0xFF);
    [
        instruction(LOAD_BYTE, PACKET_TYPE),
        jump(1, JUMP_EQUAL, PACKET_HOST, 2, 6),
        // Received frames: drops those from `mac`.
        instruction(LOAD_WORD, SOURCE_MAC),
        jump(3, JUMP_EQUAL, mac_high, 4, VLAN),
        instruction(LOAD_HALF, SOURCE_MAC + 4),
        jump(5, JUMP_EQUAL, mac_low, DROP, VLAN),
        // Sent frames: the destination MAC must be `mac`.
        jump(6, JUMP_EQUAL, PACKET_OUTGOING, 7, DROP),
        instruction(LOAD_WORD, 0),
        jump(8, JUMP_EQUAL, mac_high, 9, DROP),
        instruction(LOAD_HALF, 4),
        jump(10, JUMP_EQUAL, mac_low, VLAN, DROP),
        // A frame must have no VLAN tag, or VLAN ID 0 (priority tag). The kernel moves the VLAN tag to the metadata.
        instruction(LOAD_BYTE, VLAN_TAG_PRESENT),
        jump(12, JUMP_EQUAL, 0, 16, 13),
        instruction(LOAD_HALF, VLAN_TAG),
        instruction(AND, VLAN_ID_MASK.into()),
        jump(15, JUMP_EQUAL, 0, 16, DROP),
        instruction(LOAD_HALF, ETHERNET_BYTES - 2),
        jump(17, JUMP_EQUAL, ETHERTYPE_IPV6.into(), 24, 18),
        jump(18, JUMP_EQUAL, ETHERTYPE_IPV4.into(), 19, DROP),
        // IPv4: the protocol must be UDP, and the packet no fragment. The UDP header follows the IPv4 options.
        instruction(LOAD_HALF, ETHERNET_BYTES + 6),
        jump(20, JUMP_ANY_BIT, FRAGMENT_BITS.into(), DROP, 21),
        instruction(SET_INDEX_TO_IP_HEADER_LEN, ETHERNET_BYTES),
        instruction(LOAD_BYTE, ETHERNET_BYTES + 9),
        instruction(JUMP_ALWAYS, 26 - 23 - 1),
        // IPv6: the next header must be UDP.
        instruction(SET_INDEX, IPV6_BYTES),
        instruction(LOAD_BYTE, ETHERNET_BYTES + 6),
        jump(26, JUMP_EQUAL, PROTOCOL_UDP.into(), UDP_HEADER, DROP),
        instruction(LOAD_HALF_INDEXED, ETHERNET_BYTES + UDP_DESTINATION),
        jump(28, JUMP_EQUAL, ROCE_PORT.into(), 29, DROP),
        instruction(LOAD_BYTE_INDEXED, ETHERNET_BYTES + DEST_QP),
        instruction(AND, prefix_mask),
        jump(31, JUMP_EQUAL, prefix, ACCEPT, DROP),
        instruction(RETURN, u32::MAX),
        instruction(RETURN, 0),
    ]
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use socket2::{SockFilter, SockRef};

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xA]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 0xB]);
    /// Differs from `OWN`, the MAC of the interface, in the first four bytes only.
    const HIGH: Mac = Mac([2, 0, 0, 1, 0, 0xA]);
    const PACKET_OTHERHOST: u32 = 3;
    /// BPF instruction that loads a constant.
    const LOAD_CONSTANT: u16 = 0x00;

    /// Metadata of a frame: packet type (for example `PACKET_HOST`); VLAN tag, `None` if the frame has no VLAN tag.
    #[derive(Clone, Copy)]
    struct Metadata(u32, Option<u16>);

    const RECEIVED: Metadata = Metadata(PACKET_HOST, None);
    const SENT: Metadata = Metadata(PACKET_OUTGOING, None);

    /// Returns whether `program` accepts `frame` when the kernel runs `program` on a datagram of a Unix socket. The
    /// metadata of such a datagram cannot be chosen, so this function first replaces each load of metadata in `program`
    /// by the load of a constant.
    fn accepts(mut program: Vec<sock_filter>, Metadata(kind, vlan): Metadata, frame: &[u8]) -> bool {
        for instruction in &mut program {
            let value = match instruction.k {
                PACKET_TYPE => kind,
                VLAN_TAG_PRESENT => u32::from(vlan.is_some()),
                VLAN_TAG => u32::from(vlan.unwrap_or_default()),
                _ => continue,
            };
            *instruction = super::instruction(LOAD_CONSTANT, value);
        }
        let filter: Vec<SockFilter> =
            program.iter().map(|it| SockFilter::new(it.code, it.jt, it.jf, it.k)).collect();
        let (near, far) = UnixDatagram::pair().unwrap();
        SockRef::from(&far).attach_filter(&filter).unwrap();
        far.set_nonblocking(true).unwrap();
        // On some kernels, `send` fails if the filter drops `frame`.
        let _ = near.send(frame);
        far.recv(&mut [0; 256]).is_ok()
    }

    fn ethernet(from: Mac, to: Mac, ethertype: u16) -> Vec<u8> {
        [&to.0[..], &from.0, &ethertype.to_be_bytes()].concat()
    }

    fn udp(port: u16, dest_qp: u32) -> Vec<u8> {
        let mut bytes = vec![0xC0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0xFF, 0xFF];
        bytes[2..4].copy_from_slice(&port.to_be_bytes());
        bytes.extend(dest_qp.to_be_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    fn ipv4(header_words: u8, protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0; usize::from(header_words) * 4];
        (header[0], header[9]) = (0x40 | header_words, protocol);
        header[6..8].copy_from_slice(&fragment.to_be_bytes());
        [&header, payload].concat()
    }

    fn ipv6(next_header: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0; 40];
        (header[0], header[6]) = (0x60, next_header);
        [&header, payload].concat()
    }

    fn v4(from: Mac, to: Mac, ip: &[u8]) -> Vec<u8> {
        [&ethernet(from, to, ETHERTYPE_IPV4), ip].concat()
    }

    fn v6(from: Mac, to: Mac, ip: &[u8]) -> Vec<u8> {
        [&ethernet(from, to, ETHERTYPE_IPV6), ip].concat()
    }

    #[test]
    fn the_kernel_accepts_packets_to_the_own_queue_pairs_only() {
        const DONT_FRAGMENT: u16 = 0x4000;
        let (qpn, foreign) = (0x94_0001, 0x98_0001);
        let roce = udp(ROCE_PORT, qpn);
        let plain = ipv4(5, 17, DONT_FRAGMENT, &roce);
        let cut = ipv4(5, 17, 0, &roce[..13]);
        let cases: &[(&str, bool, Metadata, Vec<u8>)] = &[
            ("IPv4", true, RECEIVED, v4(PEER, OWN, &plain)),
            ("IPv4 with options", true, RECEIVED, v4(PEER, OWN, &ipv4(7, 17, DONT_FRAGMENT, &roce))),
            ("IPv4 with 40 bytes of options", true, RECEIVED, v4(PEER, OWN, &ipv4(15, 17, 0, &roce))),
            ("IPv6", true, RECEIVED, v6(PEER, OWN, &ipv6(17, &roce))),
            ("the last QPN", true, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 0, &udp(4791, 0x97_FFFF)))),
            ("a QPN above", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 0, &udp(4791, foreign)))),
            ("a QPN below", false, RECEIVED, v6(PEER, OWN, &ipv6(17, &udp(4791, 0x93_FFFF)))),
            ("QP 0", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 0, &udp(4791, 0)))),
            ("QP 1", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 0, &udp(4791, 1)))),
            ("the QPN after options", false, RECEIVED, v4(PEER, OWN, &ipv4(6, 17, 0, &udp(4791, foreign)))),
            ("another UDP port", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 0, &udp(4792, qpn)))),
            ("TCP", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 6, 0, &roce))),
            ("TCP over IPv6", false, RECEIVED, v6(PEER, OWN, &ipv6(6, &roce))),
            ("ARP", false, RECEIVED, [&ethernet(PEER, OWN, 0x0806), &plain[..]].concat()),
            ("a first fragment", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 0x2000, &roce))),
            ("a later fragment", false, RECEIVED, v4(PEER, OWN, &ipv4(5, 17, 1, &roce))),
            ("a datagram without a QPN", false, RECEIVED, v4(PEER, OWN, &cut)),
            ("a short frame", false, RECEIVED, v4(PEER, OWN, &plain)[..30].to_vec()),
            ("to another host", false, Metadata(PACKET_OTHERHOST, None), v4(PEER, PEER, &plain)),
            ("a priority tag", true, Metadata(PACKET_HOST, Some(0xE000)), v4(PEER, OWN, &plain)),
            ("a VLAN", false, Metadata(PACKET_HOST, Some(7)), v4(PEER, OWN, &plain)),
            ("a reflection", false, RECEIVED, v4(OWN, OWN, &plain)),
            ("from a MAC like the own", true, RECEIVED, v4(HIGH, OWN, &plain)),
            ("sent by another process", true, SENT, v4(OWN, OWN, &plain)),
            ("sent over IPv6", true, SENT, v6(OWN, OWN, &ipv6(17, &roce))),
            ("sent to a peer", false, SENT, v4(OWN, PEER, &plain)),
            ("sent to a MAC like the own", false, SENT, v4(OWN, HIGH, &plain)),
            ("sent to a QPN above", false, SENT, v4(OWN, OWN, &ipv4(5, 17, 0, &udp(4791, foreign)))),
            ("sent in a VLAN", false, Metadata(PACKET_OUTGOING, Some(7)), v4(OWN, OWN, &plain)),
        ];
        let prefix = QpnPrefix::new(0x94 >> 2, 6).unwrap();
        for (what, accepted, metadata, frame) in cases {
            assert_eq!(accepts(roce_filter(OWN, prefix).to_vec(), *metadata, frame), *accepted, "{what}");
        }
    }

    #[test]
    fn a_prefix_of_any_length_is_compared_by_its_bits() {
        for (value, bits) in [(0, 0), (1, 1), (0, 1), (2, 2), (0x25, 6), (0, 6), (63, 6)] {
            let prefix = QpnPrefix::new(value, bits).unwrap();
            for qpn in (0..0x100).map(|high| high << 16 | 0x1234) {
                let frame = v4(PEER, OWN, &ipv4(5, 17, 0, &udp(4791, qpn)));
                let expected = prefix.contains(roce::id::Qpn::new(qpn));
                assert_eq!(
                    accepts(roce_filter(OWN, prefix).to_vec(), RECEIVED, &frame),
                    expected,
                    "{qpn:#x}"
                );
            }
        }
    }
}
