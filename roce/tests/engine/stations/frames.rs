//! Builds frames of neighbours, well-formed or not, and parses queries of the engine.

use super::OWN_MAC;
use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{ArpEthIpv4Packet, ArpOperation, ArpPacket, Icmpv6Type, PacketBuilder};
use roce::id::Mac;
use std::net::{IpAddr, Ipv6Addr};

const TAG: [u8; 2] = [0x81, 0x00];

/// An ARP request or neighbour solicitation of the engine.
pub(crate) struct Question {
    pub(crate) target: IpAddr,
    pub(crate) asker: IpAddr,
    /// Ethernet destination.
    pub(crate) to: Mac,
}

/// Parses a query of the engine; `None` for other frames.
pub(crate) fn question(frame: &[u8]) -> Option<Question> {
    let to = Mac(*frame.first_chunk()?);
    let v6 =
        |at: usize| frame.get(at..).and_then(|bytes| bytes.first_chunk()).map(|ip: &[u8; 16]| (*ip).into());
    let v4 =
        |at: usize| frame.get(at..).and_then(|bytes| bytes.first_chunk()).map(|ip: &[u8; 4]| (*ip).into());
    match (frame.get(12..14)?, frame.get(21)?, frame.get(54)?) {
        ([0x08, 0x06], 1, _) => Some(Question { target: v4(38)?, asker: v4(28)?, to }),
        ([0x86, 0xDD], _, 135) => Some(Question { target: v6(62)?, asker: v6(22)?, to }),
        _ => None,
    }
}

/// Builds the reply to `asker` that gives `mac` for `target`.
pub(crate) fn answer(target: IpAddr, mac: Mac, asker: IpAddr) -> Vec<u8> {
    match (target, asker) {
        (IpAddr::V6(target), IpAddr::V6(asker)) => {
            advertisement(mac, OWN_MAC, asker, 0b011, target, Some(mac))
        }
        (target, asker) => arp(mac, OWN_MAC, 2, (mac, target), (OWN_MAC, asker)),
    }
}

/// Builds the claim of a station whose new MAC is `mac`.
pub(crate) fn announcement(ip: IpAddr, mac: Mac) -> Vec<u8> {
    match ip {
        IpAddr::V4(_) => arp(mac, Mac::BROADCAST, 1, (mac, ip), (Mac::default(), ip)),
        IpAddr::V6(ip) => {
            let all_nodes = Ipv6Addr::new(0xFF02, 0, 0, 0, 0, 0, 0, 1);
            advertisement(mac, Mac([0x33, 0x33, 0, 0, 0, 1]), all_nodes, 0b010, ip, Some(mac))
        }
    }
}

fn octets(ip: IpAddr) -> [u8; 4] {
    match ip {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => [0; 4],
    }
}

pub(crate) fn arp(
    source: Mac,
    destination: Mac,
    operation: u16,
    sender: (Mac, IpAddr),
    target: (Mac, IpAddr),
) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation: ArpOperation(operation),
        sender_mac: sender.0.0,
        sender_ipv4: octets(sender.1),
        target_mac: target.0.0,
        target_ipv4: octets(target.1),
    };
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(source.0, destination.0).arp(ArpPacket::from(packet));
    builder.write_to_vec(&mut frame).unwrap();
    frame
}

fn icmpv6(source: Mac, destination: Mac, ips: [Ipv6Addr; 2], kind: Icmpv6Type, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let hop_limit = if matches!(kind, Icmpv6Type::EchoRequest(_)) { 64 } else { 255 };
    PacketBuilder::ethernet2(source.0, destination.0)
        .ipv6(ips[0].octets(), ips[1].octets(), hop_limit)
        .icmpv6(kind)
        .write_to_vec(&mut frame, payload)
        .unwrap();
    frame
}

fn discovery(target: Ipv6Addr, kind: u8, mac: Option<Mac>) -> Vec<u8> {
    let option = mac.map(|mac| [&[kind, 1], &mac.0[..]].concat()).unwrap_or_default();
    [&target.octets()[..], &option].concat()
}

/// Builds a neighbour advertisement. `flags`: bit 0 solicited, bit 1 override, bit 2 router.
pub(crate) fn advertisement(
    source: Mac,
    destination: Mac,
    to: Ipv6Addr,
    flags: u8,
    target: Ipv6Addr,
    mac: Option<Mac>,
) -> Vec<u8> {
    let header = NeighborAdvertisementHeader {
        router: flags & 4 != 0,
        solicited: flags & 1 != 0,
        r#override: flags & 2 != 0,
    };
    let kind = Icmpv6Type::NeighborAdvertisement(header);
    icmpv6(source, destination, [target, to], kind, &discovery(target, 2, mac))
}

pub(crate) fn solicitation(
    source: Mac,
    destination: Mac,
    ips: [Ipv6Addr; 2],
    target: Ipv6Addr,
    mac: Option<Mac>,
) -> Vec<u8> {
    icmpv6(source, destination, ips, Icmpv6Type::NeighborSolicitation, &discovery(target, 1, mac))
}

pub(crate) fn echo(source: Mac, destination: Mac, ips: [IpAddr; 2], payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    match ips {
        [IpAddr::V6(from), IpAddr::V6(to)] => {
            let header = etherparse::IcmpEchoHeader { id: 1, seq: 2 };
            return icmpv6(source, destination, [from, to], Icmpv6Type::EchoRequest(header), payload);
        }
        [from, to] => PacketBuilder::ethernet2(source.0, destination.0)
            .ipv4(octets(from), octets(to), 64)
            .icmpv4_echo_request(1, 2)
            .write_to_vec(&mut frame, payload)
            .unwrap(),
    }
    frame
}

pub(crate) fn tagged(frame: &[u8], tci: u16) -> Vec<u8> {
    let (addresses, rest) = frame.split_at(12);
    [addresses, &TAG, &tci.to_be_bytes(), rest].concat()
}
