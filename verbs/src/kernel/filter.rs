//! The packet filter of a shared port, a classic BPF program.

use libc::sock_filter;

use super::guard::ROCE_UDP_PORT;

// Opcodes of classic BPF (linux/bpf_common.h).
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF: u16 = 0x28;
const LOAD_HALF_INDEXED: u16 = 0x48;
const LOAD_IP_HEADER_LEN: u16 = 0xB1;
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
const PACKET_HOST: u32 = 0;
const VLAN_ID_MASK: u32 = 0xFFF;
const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_IPV6: u32 = 0x86DD;
const UDP: u32 = 17;
const FRAGMENT_OFFSET_MASK: u32 = 0x1FFF;
const ROCE: u32 = ROCE_UDP_PORT as u32;

const ETHERNET_BYTES: u32 = 14;
const IPV6_BYTES: u32 = 40;
/// Offset of the destination port in a UDP header, in bytes.
const UDP_DESTINATION: u32 = 2;

/// Indices in `ROCE_FILTER` of the instructions that accept and that drop a frame.
const ACCEPT: u8 = 21;
const DROP: u8 = 22;

const fn instruction(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

/// Returns the instruction of index `at`. If the comparison of the accumulator with `k` is true, the instruction jumps
/// to index `yes`, otherwise to index `no`.
const fn jump(at: u8, code: u16, k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter { code, jt: yes - at - 1, jf: no - at - 1, k }
}

/// A classic BPF program that accepts UDP datagrams to port 4791, over IPv4 and IPv6, in frames to the interface's own
/// MAC and without a VLAN. The socket of the driver receives only accepted frames; the kernel receives all frames.
///
/// Without the program, the socket would receive a copy of every frame that the interface receives or sends.
pub const ROCE_FILTER: [sock_filter; 23] = [
    instruction(LOAD_BYTE, PACKET_TYPE),
    jump(1, JUMP_EQUAL, PACKET_HOST, 2, DROP),
    // Accepts frames without a VLAN tag, or with VLAN ID 0 (priority tag). The kernel moves the tag to the metadata.
    instruction(LOAD_BYTE, VLAN_TAG_PRESENT),
    jump(3, JUMP_EQUAL, 0, 7, 4),
    instruction(LOAD_HALF, VLAN_TAG),
    instruction(AND, VLAN_ID_MASK),
    jump(6, JUMP_EQUAL, 0, 7, DROP),
    instruction(LOAD_HALF, ETHERNET_BYTES - 2),
    jump(8, JUMP_EQUAL, ETHERTYPE_IPV6, 17, 9),
    jump(9, JUMP_EQUAL, ETHERTYPE_IPV4, 10, DROP),
    // IPv4: accepts protocol UDP and fragment offset 0. The UDP header follows the IPv4 options.
    instruction(LOAD_BYTE, ETHERNET_BYTES + 9),
    jump(11, JUMP_EQUAL, UDP, 12, DROP),
    instruction(LOAD_HALF, ETHERNET_BYTES + 6),
    jump(13, JUMP_ANY_BIT, FRAGMENT_OFFSET_MASK, DROP, 14),
    instruction(LOAD_IP_HEADER_LEN, ETHERNET_BYTES),
    instruction(LOAD_HALF_INDEXED, ETHERNET_BYTES + UDP_DESTINATION),
    instruction(JUMP_ALWAYS, 20 - 16 - 1),
    // IPv6: accepts next header UDP.
    instruction(LOAD_BYTE, ETHERNET_BYTES + 6),
    jump(18, JUMP_EQUAL, UDP, 19, DROP),
    instruction(LOAD_HALF, ETHERNET_BYTES + IPV6_BYTES + UDP_DESTINATION),
    jump(20, JUMP_EQUAL, ROCE, ACCEPT, DROP),
    instruction(RETURN, u32::MAX),
    instruction(RETURN, 0),
];
