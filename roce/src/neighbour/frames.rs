//! Frames of ARP, neighbour discovery and ICMP echo. A builder returns `None` if the VLAN identifier has more than 12
//! bits, or if the payload is too long for the length field of the IP header.

use std::net::{Ipv4Addr, Ipv6Addr};

use etherparse::icmpv6::{NdpOptionType, NeighborAdvertisementHeader};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, IcmpEchoHeader, Icmpv4Type, Icmpv6Type, PacketBuilder, VlanId,
};

use crate::id::Mac;

/// Length of the shortest Ethernet frame in bytes, without FCS; shorter frames are padded with zeroes.
const FRAME_BYTES_MIN: usize = 60;
/// Hop limit of neighbour discovery: 255 on arrival proves that no router forwarded the packet (RFC 4861 7.1).
pub(super) const ND_HOP_LIMIT: u8 = 255;
const ECHO_HOP_LIMIT: u8 = 64;
pub(super) const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);

#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) source: Mac,
    pub(super) destination: Mac,
    pub(super) vlan: Option<u16>,
}

/// Starts a frame: Ethernet header, VLAN tag if any, and IP or ARP header. A macro, because the type that has the
/// method `$next` depends on the VLAN tag.
macro_rules! start {
    ($link:expr, $next:ident ( $($argument:expr),* )) => {{
        let link = $link;
        let frame = PacketBuilder::ethernet2(link.source.0, link.destination.0);
        match link.vlan {
            None => frame.$next($($argument),*),
            Some(vlan) => frame.single_vlan(VlanId::try_new(vlan).ok()?).$next($($argument),*),
        }
    }};
}

fn finish<T>(size_bytes: usize, write: impl FnOnce(&mut Vec<u8>) -> Result<(), T>) -> Option<Vec<u8>> {
    let mut frame = Vec::with_capacity(size_bytes.max(FRAME_BYTES_MIN));
    write(&mut frame).ok()?;
    if frame.len() < FRAME_BYTES_MIN {
        frame.resize(FRAME_BYTES_MIN, 0);
    }
    Some(frame)
}

/// Builds an ARP packet for Ethernet and IPv4 (RFC 826). The sender hardware address is the source MAC of the frame.
pub(super) fn arp(
    link: Link,
    operation: ArpOperation,
    sender: Ipv4Addr,
    target_mac: Mac,
    target: Ipv4Addr,
) -> Option<Vec<u8>> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: link.source.0,
        sender_ipv4: sender.octets(),
        target_mac: target_mac.0,
        target_ipv4: target.octets(),
    };
    let frame = start!(link, arp(packet.into()));
    finish(frame.size(), |out| frame.write_to_vec(out))
}

/// Builds a neighbour solicitation from `sender` for `target` (RFC 4861, 4.3). The IP destination is the solicited-node
/// group of `target` if the Ethernet destination is a group, else `target`.
pub(super) fn solicitation(link: Link, sender: Ipv6Addr, target: Ipv6Addr) -> Option<Vec<u8>> {
    let destination = if link.destination.is_group() { solicited_node(target) } else { target };
    let payload = discovery_payload(target, NdpOptionType::SOURCE_LINK_LAYER_ADDRESS, link.source);
    let frame = start!(link, ipv6(sender.octets(), destination.octets(), ND_HOP_LIMIT))
        .icmpv6(Icmpv6Type::NeighborSolicitation);
    finish(frame.size(payload.len()), |out| frame.write_to_vec(out, &payload))
}

/// Builds a neighbour advertisement of `target`, an address of this port, with the override flag (RFC 4861, 4.4).
pub(super) fn advertisement(
    link: Link,
    target: Ipv6Addr,
    destination: Ipv6Addr,
    solicited: bool,
) -> Option<Vec<u8>> {
    let header = NeighborAdvertisementHeader { router: false, solicited, r#override: true };
    let payload = discovery_payload(target, NdpOptionType::TARGET_LINK_LAYER_ADDRESS, link.source);
    let frame = start!(link, ipv6(target.octets(), destination.octets(), ND_HOP_LIMIT))
        .icmpv6(Icmpv6Type::NeighborAdvertisement(header));
    finish(frame.size(payload.len()), |out| frame.write_to_vec(out, &payload))
}

fn discovery_payload(target: Ipv6Addr, option: NdpOptionType, mac: Mac) -> Vec<u8> {
    [&target.octets()[..], &[option.0, 1], &mac.0].concat()
}

pub(super) fn echo_reply_v4(
    link: Link,
    source: Ipv4Addr,
    destination: Ipv4Addr,
    echo: IcmpEchoHeader,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let frame = start!(link, ipv4(source.octets(), destination.octets(), ECHO_HOP_LIMIT))
        .icmpv4(Icmpv4Type::EchoReply(echo));
    finish(frame.size(payload.len()), |out| frame.write_to_vec(out, payload))
}

pub(super) fn echo_reply_v6(
    link: Link,
    source: Ipv6Addr,
    destination: Ipv6Addr,
    echo: IcmpEchoHeader,
    payload: &[u8],
) -> Option<Vec<u8>> {
    let frame = start!(link, ipv6(source.octets(), destination.octets(), ECHO_HOP_LIMIT))
        .icmpv6(Icmpv6Type::EchoReply(echo));
    finish(frame.size(payload.len()), |out| frame.write_to_vec(out, payload))
}

/// Returns the solicited-node group of `target` (RFC 4291, 2.7.1): ff02::1:ff00:0/104 and the low 24 bits of `target`.
pub(super) fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = target.octets();
    Ipv6Addr::from([0xFF, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xFF, a, b, c])
}

pub(super) fn solicited_node_mac(target: Ipv6Addr) -> Mac {
    group_mac_v6(solicited_node(target))
}

/// Returns the Ethernet group address of the IPv6 multicast address `group` (RFC 2464).
pub(super) fn group_mac_v6(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}
