//! Early drop of received RoCE packets, by an eBPF program at the ingress hook of a shared port's interface.
//!
//! ```text
//!   frame received -> packet sockets (a copy to each port) -> this program -> IP, UDP -> socket of `PortGuard`: dropped
//! ```
//!
//! The kernel has no use for a RoCE packet that the packet socket has received, but would still look up its route and its
//! UDP socket before the packet is dropped.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use roce::wire::eth::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, VLAN_ID_MASK};
use roce::wire::ipv4::{FRAGMENT_BITS, PROTOCOL_UDP, VERSION_IHL};
use roce::wire::udp::ROCE_PORT;
use roce::wire::{EthHeader, Ipv4Header, Ipv6Header, UdpHeader};

use super::Interface;
use super::bpf::{self, Instruction};
use super::filter::{PACKET_HOST, UDP_DESTINATION};

/// Largest number of addresses of a program, so that each jump fits into 16 bits. Packets to further addresses are
/// dropped by the guard's socket.
const ADDRESSES_MAX: usize = 64;

/// Name of the program in the output of `bpftool`.
const NAME: &str = "roce_early_drop";

// Opcodes (RFC 9669).
const LOAD_BYTE: u8 = 0x71;
const LOAD_HALF: u8 = 0x69;
const LOAD_WORD: u8 = 0x61;
const LOAD_DOUBLE: u8 = 0x79;
const LOAD_IMMEDIATE_DOUBLE: u8 = 0x18;
const MOVE: u8 = 0xB7;
const MOVE_REGISTER: u8 = 0xBF;
const ADD: u8 = 0x07;
const AND: u8 = 0x57;
const JUMP_ALWAYS: u8 = 0x05;
const JUMP_NOT_EQUAL: u8 = 0x55;
const JUMP_NOT_EQUAL_REGISTER: u8 = 0x5D;
const JUMP_ANY_BIT: u8 = 0x45;
const JUMP_ABOVE_REGISTER: u8 = 0x2D;
/// Compares the low 32 bits.
const JUMP_EQUAL_WORD: u8 = 0x16;
const JUMP_EQUAL_HALVES: u8 = 0x1D;
const EXIT: u8 = 0x95;

// Registers: the returned value, the context, the first byte of the frame, the byte after the last, and two for values.
const RESULT: u8 = 0;
const CONTEXT: u8 = 1;
const FRAME: u8 = 2;
const FRAME_END: u8 = 3;
const VALUE: u8 = 4;
const LOW_VALUE: u8 = 5;

// Offsets in the context (`struct __sk_buff` of linux/bpf.h), in bytes.
const PACKET_TYPE: i16 = 4;
const VLAN_TAG: i16 = 24;
const DATA: i16 = 76;
const DATA_END: i16 = 80;

// Offsets in a frame, in bytes.
const IP: i16 = EthHeader::LEN as i16;
const ETHERTYPE: i16 = IP - 2;
const UDP_OVER_IPV4: i16 = IP + Ipv4Header::LEN as i16;
const UDP_OVER_IPV6: i16 = IP + Ipv6Header::LEN as i16;

// Values that a program returns (linux/bpf.h): the next program decides; the packet is dropped.
const TCX_NEXT: i32 = -1;
const TCX_DROP: i32 = 2;

/// A program at the ingress hook of an interface that drops RoCE packets to the addresses of the interface. Needs Linux
/// 6.6 or later (tcx), CAP_BPF and CAP_NET_ADMIN.
#[derive(Debug)]
pub(crate) struct EarlyDrop {
    link: OwnedFd,
}

impl EarlyDrop {
    /// Attaches the program to `interface`, behind the programs that are attached already, until the value is dropped or
    /// the process ends.
    ///
    /// # Errors
    /// The error of bpf(2): EPERM without the capabilities, EINVAL without tcx.
    pub(crate) fn attach(interface: &Interface) -> io::Result<Self> {
        let program = load(interface)?;
        Ok(EarlyDrop { link: bpf::attach(program.as_fd(), interface.index)? })
    }

    /// Drops packets to the present addresses of `interface` from now on.
    ///
    /// # Errors
    /// The error of bpf(2); then the program still has the previous addresses.
    pub(crate) fn set_addresses(&self, interface: &Interface) -> io::Result<()> {
        bpf::replace(self.link.as_fd(), load(interface)?.as_fd())
    }
}

/// Loads the program for the addresses of `interface`.
fn load(interface: &Interface) -> io::Result<OwnedFd> {
    let addresses: Vec<IpAddr> = interface.addresses.iter().map(|(address, _)| *address).collect();
    bpf::load(NAME, &program(&addresses))
}

/// Places of a program to which an instruction jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Label {
    Ipv6,
    Pass,
    Drop,
}

/// A program in construction.
#[derive(Default)]
struct Builder {
    program: Vec<Instruction>,
    /// Jumps to labels, by index.
    jumps: Vec<(usize, Label)>,
    /// Indices of the instructions at labels.
    labels: Vec<(Label, usize)>,
}

impl Builder {
    fn push(&mut self, opcode: u8, destination: u8, source: u8, offset: i16, immediate: i32) {
        self.program.push(Instruction { opcode, registers: destination | source << 4, offset, immediate });
    }

    /// Loads from `offset` behind the address in a register into `VALUE`.
    fn load(&mut self, opcode: u8, base: u8, offset: i16) {
        self.push(opcode, VALUE, base, offset, 0);
    }

    /// Jumps if a comparison of two registers, or of a register with `immediate`, is true.
    fn jump_if(&mut self, opcode: u8, registers: (u8, u8), immediate: i32, to: Label) {
        self.jumps.push((self.program.len(), to));
        self.push(opcode, registers.0, registers.1, 0, immediate);
    }

    /// Jumps if a comparison of `VALUE` with `immediate` is true.
    fn jump(&mut self, opcode: u8, immediate: i32, to: Label) {
        self.jump_if(opcode, (VALUE, 0), immediate, to);
    }

    fn jump_always(&mut self, to: Label) {
        self.jump_if(JUMP_ALWAYS, (0, 0), 0, to);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.program.len()));
    }

    /// Jumps to `Label::Pass` if the frame ends before the end of the UDP header at `udp`.
    fn require_udp_header(&mut self, udp: i16) {
        self.push(MOVE_REGISTER, VALUE, FRAME, 0, 0);
        self.push(ADD, VALUE, 0, 0, i32::from(udp) + UdpHeader::LEN as i32);
        self.jump_if(JUMP_ABOVE_REGISTER, (VALUE, FRAME_END), 0, Label::Pass);
    }

    /// Jumps to `Label::Pass` unless the protocol at `protocol` is UDP and the UDP header at `udp` has the port of RoCE.
    fn require_roce(&mut self, protocol: i16, udp: i16) {
        self.load(LOAD_BYTE, FRAME, protocol);
        self.jump(JUMP_NOT_EQUAL, PROTOCOL_UDP.into(), Label::Pass);
        self.load(LOAD_HALF, FRAME, udp + UDP_DESTINATION as i16);
        self.jump(JUMP_NOT_EQUAL, wire_order(ROCE_PORT), Label::Pass);
    }

    fn exit(&mut self, result: i32) {
        self.push(MOVE, RESULT, 0, 0, result);
        self.push(EXIT, 0, 0, 0, 0);
    }

    fn finish(mut self) -> Vec<Instruction> {
        for (at, to) in self.jumps {
            let target = self.labels.iter().find(|(label, _)| *label == to).map_or(at, |(_, target)| *target);
            if let Some(jump) = self.program.get_mut(at) {
                jump.offset = i16::try_from(target - at - 1).unwrap_or_default();
            }
        }
        self.program
    }
}

/// Returns a value as a load of 16 bits from a frame returns it.
fn wire_order(value: u16) -> i32 {
    i32::from(value.to_be())
}

/// Returns the program that drops received RoCE packets to `addresses`, as far as they are to the MAC of the interface,
/// in no VLAN but 0, no fragments and without IPv4 options. All other packets pass.
fn program(addresses: &[IpAddr]) -> Vec<Instruction> {
    let addresses = &addresses[..addresses.len().min(ADDRESSES_MAX)];
    let mut code = Builder::default();
    code.push(LOAD_WORD, FRAME, CONTEXT, DATA, 0);
    code.push(LOAD_WORD, FRAME_END, CONTEXT, DATA_END, 0);
    code.load(LOAD_WORD, CONTEXT, PACKET_TYPE);
    code.jump(JUMP_NOT_EQUAL, PACKET_HOST.cast_signed(), Label::Pass);
    // The kernel has moved the tag from the frame into the metadata.
    code.load(LOAD_WORD, CONTEXT, VLAN_TAG);
    code.push(AND, VALUE, 0, 0, VLAN_ID_MASK.into());
    code.jump(JUMP_NOT_EQUAL, 0, Label::Pass);
    code.require_udp_header(UDP_OVER_IPV4);
    code.load(LOAD_HALF, FRAME, ETHERTYPE);
    code.jump(JUMP_EQUAL_WORD, wire_order(ETHERTYPE_IPV6), Label::Ipv6);
    code.jump(JUMP_NOT_EQUAL, wire_order(ETHERTYPE_IPV4), Label::Pass);
    code.load(LOAD_BYTE, FRAME, IP);
    code.jump(JUMP_NOT_EQUAL, VERSION_IHL.into(), Label::Pass);
    code.load(LOAD_HALF, FRAME, IP + 6);
    code.jump(JUMP_ANY_BIT, wire_order(FRAGMENT_BITS), Label::Pass);
    code.require_roce(IP + 9, UDP_OVER_IPV4);
    code.load(LOAD_WORD, FRAME, IP + 16);
    for address in addresses.iter().filter_map(|address| match address {
        IpAddr::V4(address) => Some(address.octets()),
        IpAddr::V6(_) => None,
    }) {
        code.jump(JUMP_EQUAL_WORD, i32::from_ne_bytes(address), Label::Drop);
    }
    code.jump_always(Label::Pass);
    code.label(Label::Ipv6);
    code.require_udp_header(UDP_OVER_IPV6);
    code.require_roce(IP + 6, UDP_OVER_IPV6);
    code.load(LOAD_DOUBLE, FRAME, IP + 24);
    code.push(LOAD_DOUBLE, LOW_VALUE, FRAME, IP + 32, 0);
    for address in addresses.iter().filter_map(|address| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address.octets()),
    }) {
        compare_ipv6(&mut code, address);
    }
    code.label(Label::Pass);
    code.exit(TCX_NEXT);
    code.label(Label::Drop);
    code.exit(TCX_DROP);
    code.finish()
}

/// Jumps to `Label::Drop` if `VALUE` and `LOW_VALUE` are the two halves of `address`.
fn compare_ipv6(code: &mut Builder, address: [u8; 16]) {
    let [a, b, c, d] = [0, 4, 8, 12].map(|at| {
        let word = address[at..].first_chunk().copied().unwrap_or_default();
        i32::from_ne_bytes(word)
    });
    // An immediate of 64 bits takes two instructions.
    code.push(LOAD_IMMEDIATE_DOUBLE, RESULT, 0, 0, a);
    code.push(0, 0, 0, 0, b);
    code.push(JUMP_NOT_EQUAL_REGISTER, VALUE, RESULT, 3, 0);
    code.push(LOAD_IMMEDIATE_DOUBLE, RESULT, 0, 0, c);
    code.push(0, 0, 0, 0, d);
    code.jump_if(JUMP_EQUAL_HALVES, (LOW_VALUE, RESULT), 0, Label::Drop);
}
