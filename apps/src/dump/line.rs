//! A packet in one line, as tcpdump would print it.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use roce::wire::bitmap_words;
use roce::wire::{Operation, Packet};

use super::sections::syndrome_text;

/// Describes a frame that is no RoCE packet.
pub(super) fn describe_other(frame: &[u8]) -> String {
    let byte_pair = |at: usize| match frame.get(at..at + 2) {
        Some([high, low]) => Some(u16::from_be_bytes([*high, *low])),
        _ => None,
    };
    let (mut at, mut ethertype) = (14, byte_pair(12));
    if ethertype == Some(0x8100) {
        (at, ethertype) = (18, byte_pair(16));
    }
    let what = match ethertype {
        None => "a frame without a whole Ethernet header".into(),
        Some(0x0800) => format!("IPv4 {}", protocol_name(frame.get(at + 9).copied())),
        Some(0x86DD) => format!("IPv6 {}", protocol_name(frame.get(at + 6).copied())),
        Some(0x0806) => "ARP".into(),
        Some(0x8808) => "Ethernet flow control".into(),
        Some(0x8915) => "RoCE v1".into(),
        Some(0x88CC) => "LLDP".into(),
        Some(length) if length < 0x0600 => "IEEE 802.3".into(),
        Some(ethertype) => format!("EtherType 0x{ethertype:04x}"),
    };
    format!("not RoCE v2: {what}")
}

fn protocol_name(protocol: Option<u8>) -> String {
    match protocol {
        None => "without a whole header".into(),
        Some(0) => "hop-by-hop options".into(),
        Some(1) => "ICMP".into(),
        Some(2) => "IGMP".into(),
        Some(6) => "TCP".into(),
        Some(17) => "UDP".into(),
        Some(58) => "ICMPv6".into(),
        Some(other) => format!("protocol {other}"),
    }
}

/// Describes a RoCE packet.
pub(super) fn describe(packet: &Packet<'_>) -> String {
    let (src, dst): (IpAddr, IpAddr) = (packet.src_gid().ip(), packet.dst_gid().ip());
    let from = SocketAddr::new(src, packet.udp_source_port);
    let bth = packet.bth;
    let mut line =
        format!("{from} > {dst} {} qp 0x{:06x} psn {}", packet.info.name, bth.dest_qp.value(), bth.psn);
    add_extensions(&mut line, packet);
    if packet.info.has_payload {
        let _ = write!(line, " len {}", packet.payload.len());
    }
    if packet.preceding_reads().pkts() > 0 {
        let _ = write!(line, " preceding reads {}", packet.preceding_reads().pkts());
    }
    for (is_set, mark) in [
        (bth.solicited, " SE"),
        (bth.ack_req, " AckReq"),
        (packet.congestion_experienced(), " CE"),
        (bth.fecn, " FECN"),
        (bth.becn, " BECN"),
    ] {
        if is_set {
            line.push_str(mark);
        }
    }
    if let Some(tci) = packet.vlan {
        let _ = write!(line, " vlan {}", tci & 0xFFF);
    }
    line.push_str(if packet.icrc_ok() { " icrc ok" } else { " ICRC WRONG" });
    line
}

/// Appends the extension headers. Results are dropped, because writing into a string cannot fail.
fn add_extensions(line: &mut String, packet: &Packet<'_>) {
    if let Some(deth) = packet.deth() {
        let _ = write!(line, " qkey 0x{:08x} from qp 0x{:06x}", deth.qkey.0, deth.src_qp.value());
    }
    if let Some(xrceth) = packet.xrceth() {
        let _ = write!(line, " srq 0x{:06x}", xrceth.srqn);
    }
    if let Some(feth) = packet.feth() {
        let _ = write!(line, " placement {} selectivity {}", feth.placement, feth.selectivity);
    }
    if let Some(reth) = packet.reth() {
        let _ = write!(line, " va 0x{:x} rkey 0x{:08x} for {} bytes", reth.va, reth.rkey.0, reth.len_bytes);
    }
    if let Some(atomic) = packet.atomiceth() {
        let _ = write!(line, " va 0x{:x} rkey 0x{:08x}", atomic.va, atomic.rkey.0);
        let _ = if packet.info.operation == Operation::FetchAdd {
            write!(line, " add {}", atomic.swap_or_add)
        } else {
            write!(line, " compare {} swap {}", atomic.compare, atomic.swap_or_add)
        };
    }
    if let Some(aeth) = packet.aeth() {
        let _ = write!(line, " {} msn {}", syndrome_text(aeth.syndrome), aeth.msn.value());
    }
    if let Some(sacketh) = packet.sacketh() {
        let mark = if sacketh.duplicate { "duplicate" } else { "trigger" };
        let arrived: u32 = bitmap_words(packet.payload).map(u64::count_ones).sum();
        let room = if sacketh.no_room { " no room" } else { "" };
        let _ = write!(line, " {mark} {} out of order {arrived}{room}", sacketh.trigger);
    }
    if let Some(recveth) = packet.recveth() {
        let _ = write!(line, " receive {} packet {}", recveth.recv_seq, recveth.packet);
    }
    if let Some(atomic) = packet.atomicacketh() {
        let _ = write!(line, " original {}", atomic.original);
    }
    if let Some(ieth) = packet.ieth() {
        let _ = write!(line, " invalidate rkey 0x{:08x}", ieth.rkey.0);
    }
    if let Some(imm) = packet.immdt() {
        let _ = write!(line, " imm 0x{imm:08x}");
    }
}
