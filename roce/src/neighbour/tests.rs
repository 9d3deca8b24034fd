use etherparse::{
    ArpEthIpv4Packet, ArpPacket, IcmpEchoHeader, Icmpv4Type, Icmpv6Type, NetSlice, PacketBuilder,
    SlicedPacket, TransportSlice, VlanId, icmpv6::NeighborAdvertisementHeader,
};
use proptest::prelude::*;

use super::budget::SOURCE_ANSWERS_BURST;
use super::cache::NEIGHBOURS_MAX;
use super::*;

pub(super) const A_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xA]);
pub(super) const B_MAC: Mac = Mac([2, 0, 0, 0, 0, 0xB]);
pub(super) const STRANGER: Mac = Mac([2, 0, 0, 0, 0, 0xC]);
pub(super) const START: Instant = Instant::ZERO;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn v4(text: &str) -> Ipv4Addr {
    text.parse().unwrap()
}

fn v6(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

fn config(mac: Mac, mode: Mode, gids: &[(&str, u8)]) -> NeighbourConfig {
    let gids = gids.iter().map(|&(address, prefix_bits)| (ip(address), prefix_bits)).collect();
    NeighbourConfig { mac, mode, gids, gateway_v4: None, gateway_v6: None, vlan: None }
}

pub(super) fn sent(node: &mut Neighbour, now: Instant) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while let Some(frame) = node.poll_transmit(now) {
        frames.push(frame.to_vec());
    }
    frames
}

/// Returns a node with a dedicated port. The node has sent its announcements.
pub(super) fn node(mac: Mac, gids: &[(&str, u8)]) -> Neighbour {
    let mut node = Neighbour::new(config(mac, Mode::Dedicated, gids)).unwrap();
    assert_eq!(sent(&mut node, START).len(), 1 + gids.len());
    node
}

pub(super) fn node_a() -> Neighbour {
    let gids = [("10.0.0.1", 24), ("2001:db8::1", 64)];
    let mut config = config(A_MAC, Mode::Dedicated, &gids);
    config.gateway_v4 = Some(v4("10.0.0.254"));
    config.gateway_v6 = Some(v6("fe80::fe"));
    let mut node = Neighbour::new(config).unwrap();
    sent(&mut node, START);
    node
}

pub(super) fn settle(a: &mut Neighbour, b: &mut Neighbour, now: Instant) {
    loop {
        let (from_a, from_b) = (sent(a, now), sent(b, now));
        if from_a.is_empty() && from_b.is_empty() {
            return;
        }
        from_a.iter().for_each(|frame| b.handle_frame(frame, now));
        from_b.iter().for_each(|frame| a.handle_frame(frame, now));
    }
}

pub(super) fn arp(
    source: Mac,
    destination: Mac,
    operation: ArpOperation,
    sender: (Mac, &str),
    target: (Mac, &str),
) -> Vec<u8> {
    let packet = ArpEthIpv4Packet {
        operation,
        sender_mac: sender.0.0,
        sender_ipv4: v4(sender.1).octets(),
        target_mac: target.0.0,
        target_ipv4: v4(target.1).octets(),
    };
    let mut frame = Vec::new();
    let builder = PacketBuilder::ethernet2(source.0, destination.0).arp(ArpPacket::from(packet));
    builder.write_to_vec(&mut frame).unwrap();
    frame
}

fn arp_of(frame: &[u8]) -> ArpEthIpv4Packet {
    match SlicedPacket::from_ethernet(frame).unwrap().net {
        Some(NetSlice::Arp(arp)) => arp.to_packet().try_eth_ipv4().unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn destination_of(frame: &[u8]) -> Mac {
    Mac(frame[..6].try_into().unwrap())
}

/// Returns the ICMPv6 packet in `frame`; asserts its checksum and hop limit.
fn icmpv6_of(frame: &[u8], hop_limit: u8) -> (Ipv6Addr, Ipv6Addr, Icmpv6Type, Vec<u8>) {
    let packet = SlicedPacket::from_ethernet(frame).unwrap();
    let (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(icmp))) = (packet.net, packet.transport)
    else {
        panic!("not ICMPv6")
    };
    let header = ip.header();
    assert!(icmp.is_checksum_valid(header.source(), header.destination()));
    assert_eq!(header.hop_limit(), hop_limit);
    (header.source_addr(), header.destination_addr(), icmp.icmp_type(), icmp.payload().to_vec())
}

pub(super) fn icmpv6(
    source: Mac,
    from: &str,
    to: &str,
    hop_limit: u8,
    kind: Icmpv6Type,
    payload: &[u8],
) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(source.0, A_MAC.0)
        .ipv6(v6(from).octets(), v6(to).octets(), hop_limit)
        .icmpv6(kind)
        .write_to_vec(&mut frame, payload)
        .unwrap();
    frame
}

pub(super) fn discovery(target: &str, option: u8, mac: Mac) -> Vec<u8> {
    [&v6(target).octets()[..], &[option, 1], &mac.0].concat()
}

#[test]
fn addresses_are_announced_once_and_new_ones_when_added() {
    let mut a =
        Neighbour::new(config(A_MAC, Mode::Dedicated, &[("10.0.0.1", 24), ("2001:db8::1", 64)])).unwrap();
    assert_eq!(a.next_deadline(), Some(Instant::ZERO));
    let frames = sent(&mut a, START);
    let (source, destination, kind, payload) = icmpv6_of(&frames[0], 255);
    assert_eq!((source, destination), (A_MAC.link_local(), v6("ff02::1")));
    assert_eq!(destination_of(&frames[0]), Mac([0x33, 0x33, 0, 0, 0, 1]));
    let flags = NeighborAdvertisementHeader { router: false, solicited: false, r#override: true };
    assert_eq!(kind, Icmpv6Type::NeighborAdvertisement(flags));
    assert_eq!(payload, discovery(&A_MAC.link_local().to_string(), 2, A_MAC));
    let gratuitous = arp_of(&frames[1]);
    assert_eq!(destination_of(&frames[1]), Mac::BROADCAST);
    assert_eq!(
        (gratuitous.sender_ipv4, gratuitous.target_ipv4, gratuitous.sender_mac),
        ([10, 0, 0, 1], [10, 0, 0, 1], A_MAC.0)
    );
    assert_eq!((frames.len(), frames[1].len()), (3, 60), "short frames are filled up");
    assert_eq!((a.next_deadline(), sent(&mut a, START).len()), (None, 0));

    a.gids_mut().add(ip("10.0.1.1"), 24, None).unwrap();
    assert_eq!(a.next_deadline(), Some(Instant::ZERO));
    let frames = sent(&mut a, START);
    assert_eq!((frames.len(), arp_of(&frames[0]).sender_ipv4), (1, [10, 0, 1, 1]));
    assert_eq!((a.counters().arp_requests_tx, a.counters().nd_advertisements_tx), (2, 2));

    a.announce_again();
    assert_eq!(sent(&mut a, START).len(), 4, "all addresses");
    assert_eq!((a.next_deadline(), sent(&mut a, START).len()), (None, 0));
}

#[test]
fn a_gateway_that_changes_is_resolved_anew() {
    let mut a = node_a();
    a.set_neighbour(ip("10.0.0.254"), B_MAC);
    assert_eq!(a.resolve(ip("8.8.8.8"), START), Resolution::Known(B_MAC));
    let generation = a.generation();
    a.set_gateways(Some(v4("10.0.0.254")), Some(v6("fe80::fe")));
    assert_eq!(a.generation(), generation, "no gateway has changed");
    a.set_gateways(Some(v4("10.0.0.253")), None);
    assert_ne!(a.generation(), generation);
    assert_eq!(a.resolve(ip("8.8.8.8"), START), Resolution::Pending);
    assert_eq!(a.wanted().collect::<Vec<_>>(), [ip("10.0.0.253")]);
    assert_eq!(a.resolve(ip("2600::1"), START), Resolution::Unreachable);
}

#[test]
fn two_nodes_find_each_other_by_every_kind_of_address() {
    let mut a = node_a();
    let mut b = node(B_MAC, &[("10.0.0.2", 24), ("2001:db8::2", 64)]);
    let b_link_local = IpAddr::from(B_MAC.link_local());
    for address in [ip("10.0.0.2"), ip("2001:db8::2"), b_link_local] {
        let generation = a.generation();
        assert_eq!(a.resolve(address, START), Resolution::Pending);
        assert_eq!(a.wanted().collect::<Vec<_>>(), [address]);
        settle(&mut a, &mut b, START);
        assert_eq!(a.resolve(address, START), Resolution::Known(B_MAC));
        assert_ne!(a.generation(), generation);
        assert_eq!(a.wanted().count(), 0);
    }
    // The queries of A have created no cache entry in B.
    for address in [ip("10.0.0.1"), ip("2001:db8::1"), IpAddr::from(A_MAC.link_local())] {
        assert_eq!(b.resolve(address, START), Resolution::Pending);
        settle(&mut a, &mut b, START);
        assert_eq!((b.resolve(address, START), b.next_deadline()), (Resolution::Known(A_MAC), None));
    }
    let (a, b) = (a.counters(), b.counters());
    assert_eq!((a.arp_replies_rx, a.nd_advertisements_rx, b.arp_replies_tx, a.arp_replies_tx), (1, 2, 1, 1));
    assert_eq!((a.malformed, a.ignored, b.malformed, b.ignored), (0, 0, 0, 0));
}

#[test]
fn addresses_off_the_link_go_to_the_gateway_and_the_rest_nowhere() {
    for (address, hop) in
        [("8.8.8.8", "10.0.0.254"), ("2600::1", "fe80::fe"), ("::ffff:10.0.0.9", "10.0.0.9")]
    {
        let mut a = node_a();
        assert_eq!(a.resolve(ip(address), START), Resolution::Pending);
        assert_eq!(a.wanted().collect::<Vec<_>>(), [ip(hop)], "{address}");
    }
    let mut a = node_a();
    for address in ["0.0.0.0", "127.0.0.1", "255.255.255.255", "::", "::1"] {
        assert_eq!(a.resolve(ip(address), START), Resolution::Unreachable, "{address}");
    }
    let mut bare = node(B_MAC, &[("10.0.0.2", 24)]);
    for address in ["10.0.1.1", "2001:db8::1"] {
        assert_eq!(bare.resolve(ip(address), START), Resolution::Unreachable, "{address}");
    }
    assert_eq!(bare.wanted().count(), 0);
}

#[test]
fn groups_and_own_addresses_need_no_question() {
    let mut a = node_a();
    for (address, mac) in [
        ("224.129.2.3", Mac([1, 0, 0x5E, 1, 2, 3])),
        ("ff02::1:ff12:3456", Mac([0x33, 0x33, 0xFF, 0x12, 0x34, 0x56])),
        ("10.0.0.1", A_MAC),
        ("2001:db8::1", A_MAC),
    ] {
        assert_eq!(a.resolve(ip(address), START), Resolution::Known(mac));
    }
    assert_eq!(a.next_deadline(), None);
}

#[test]
fn questions_go_to_all_and_verifications_to_the_neighbour() {
    let mut a = node_a();
    a.resolve(ip("10.0.0.2"), START);
    a.resolve(ip("2001:db8::12:3456"), START);
    let frames = sent(&mut a, START);
    let question = arp_of(&frames[0]);
    assert_eq!((question.operation, destination_of(&frames[0])), (ArpOperation::REQUEST, Mac::BROADCAST));
    assert_eq!((question.sender_ipv4, question.target_ipv4), ([10, 0, 0, 1], [10, 0, 0, 2]));
    let (source, destination, kind, payload) = icmpv6_of(&frames[1], 255);
    assert_eq!((source, destination), (v6("2001:db8::1"), v6("ff02::1:ff12:3456")));
    assert_eq!(destination_of(&frames[1]), Mac([0x33, 0x33, 0xFF, 0x12, 0x34, 0x56]));
    assert_eq!(kind, Icmpv6Type::NeighborSolicitation);
    assert_eq!(payload, discovery("2001:db8::12:3456", 1, A_MAC));

    a.handle_frame(&arp(B_MAC, A_MAC, ArpOperation::REPLY, (B_MAC, "10.0.0.2"), (A_MAC, "10.0.0.1")), START);
    assert_eq!(a.resolve(ip("10.0.0.2"), START.plus_nanos(40_000_000_000)), Resolution::Known(B_MAC));
    let frames = sent(&mut a, START.plus_nanos(40_000_000_000));
    assert!(frames.iter().any(|frame| destination_of(frame) == B_MAC));
}

#[test]
fn an_arp_request_is_answered_and_a_probe_too_but_nothing_is_learned() {
    let mut b = node(B_MAC, &[("10.0.0.2", 24)]);
    for sender in ["0.0.0.0", "10.0.1.9", "10.0.0.9"] {
        b.handle_frame(
            &arp(
                STRANGER,
                Mac::BROADCAST,
                ArpOperation::REQUEST,
                (STRANGER, sender),
                (Mac::default(), "10.0.0.2"),
            ),
            START,
        );
        let frames = sent(&mut b, START);
        let reply = arp_of(&frames[0]);
        assert_eq!((frames.len(), destination_of(&frames[0])), (1, STRANGER));
        assert_eq!(
            (reply.operation, reply.sender_ipv4, reply.sender_mac),
            (ArpOperation::REPLY, [10, 0, 0, 2], B_MAC.0)
        );
        assert_eq!((reply.target_ipv4, reply.target_mac), (v4(sender).octets(), STRANGER.0));
        assert_eq!(b.cache.len(), 0, "{sender}");
    }
    b.handle_frame(
        &arp(
            STRANGER,
            Mac::BROADCAST,
            ArpOperation::REQUEST,
            (STRANGER, "10.0.0.9"),
            (Mac::default(), "10.0.0.3"),
        ),
        START,
    );
    assert!(sent(&mut b, START).is_empty(), "not our address");
    assert_eq!((b.counters().arp_requests_rx, b.counters().arp_replies_tx), (4, 3));
}

#[test]
fn senders_that_cannot_be_are_malformed() {
    let mut a = node_a();
    let group = Mac([3, 0, 0, 0, 0, 1]);
    let from =
        |source, mac, ip| arp(source, A_MAC, ArpOperation::REQUEST, (mac, ip), (Mac::default(), "10.0.0.1"));
    let mut echo_of_a_group = echo_v4("10.0.0.1", b"x");
    echo_of_a_group[26..30].copy_from_slice(&[224, 0, 0, 9]);
    let mut echo_of_ourselves = echo_v4("10.0.0.1", b"x");
    echo_of_ourselves[26..30].copy_from_slice(&[10, 0, 0, 1]);
    for frame in [&mut echo_of_a_group, &mut echo_of_ourselves] {
        // Corrects the IPv4 checksum, so that the frame is malformed only because of its source address.
        let header = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0;
        frame[24..26].copy_from_slice(&header.calc_header_checksum().to_be_bytes());
    }
    let frames = [
        from(group, B_MAC, "10.0.0.2"),
        from(Mac::default(), B_MAC, "10.0.0.2"),
        from(B_MAC, group, "10.0.0.2"),
        from(B_MAC, Mac::default(), "10.0.0.2"),
        from(B_MAC, B_MAC, "255.255.255.255"),
        from(B_MAC, B_MAC, "224.0.0.9"),
        arp(B_MAC, A_MAC, ArpOperation::REPLY, (B_MAC, "0.0.0.0"), (A_MAC, "10.0.0.1")),
        echo_of_a_group,
        echo_of_ourselves,
    ];
    for (n, frame) in frames.iter().enumerate() {
        a.handle_frame(frame, START);
        assert_eq!(a.counters().malformed, n as u64 + 1, "frame {n}");
    }
    assert!(sent(&mut a, START).is_empty());
    assert_eq!(a.cache.len(), 0);
}

#[test]
fn a_solicitation_is_answered_to_the_address_that_it_names() {
    let mut a = node_a();
    let question = discovery("2001:db8::1", 1, STRANGER);
    let ns = Icmpv6Type::NeighborSolicitation;
    a.handle_frame(&icmpv6(B_MAC, "2001:db8::2", "ff02::1:ff00:1", 255, ns, &question), START);
    assert_eq!(destination_of(&sent(&mut a, START)[0]), STRANGER);
}

#[test]
fn what_a_kernel_told_gives_way_and_what_a_user_told_stays() {
    for (mode, fits) in [(Mode::Shared, true), (Mode::Dedicated, false)] {
        let mut a = Neighbour::new(config(A_MAC, mode, &[("10.0.0.1", 8)])).unwrap();
        for n in 0..NEIGHBOURS_MAX {
            assert!(a.set_neighbour(Ipv4Addr::from_bits(0x0A01_0000 + n as u32).into(), B_MAC));
        }
        assert_eq!(a.set_neighbour(ip("10.9.9.9"), B_MAC), fits, "{mode:?}");
        assert_eq!(a.cache.len(), NEIGHBOURS_MAX);
    }
}

#[test]
fn nobody_enters_the_cache_unasked() {
    let mut a = node_a();
    let reply = arp(STRANGER, A_MAC, ArpOperation::REPLY, (STRANGER, "10.0.0.2"), (A_MAC, "10.0.0.1"));
    a.handle_frame(&reply, START);
    let gratuitous = arp(
        STRANGER,
        Mac::BROADCAST,
        ArpOperation::REQUEST,
        (STRANGER, "10.0.0.3"),
        (Mac::default(), "10.0.0.3"),
    );
    a.handle_frame(&gratuitous, START);
    let flags = NeighborAdvertisementHeader { router: false, solicited: true, r#override: true };
    let kind = Icmpv6Type::NeighborAdvertisement(flags);
    let payload = discovery("2001:db8::2", 2, STRANGER);
    a.handle_frame(&icmpv6(STRANGER, "2001:db8::2", "2001:db8::1", 255, kind, &payload), START);
    assert_eq!(a.counters().ignored, 3);
    for address in ["10.0.0.2", "10.0.0.3", "2001:db8::2"] {
        assert_eq!(a.resolve(ip(address), START), Resolution::Pending);
    }
    // After the queries were sent, the cache accepts the reply and the advertisement, but not the announcement, which
    // is no reply.
    assert_eq!(sent(&mut a, START).len(), 3);
    a.handle_frame(&reply, START);
    a.handle_frame(&gratuitous, START);
    a.handle_frame(&icmpv6(STRANGER, "2001:db8::2", "2001:db8::1", 255, kind, &payload), START);
    let known = Resolution::Known(STRANGER);
    for (address, found) in [("10.0.0.2", known), ("10.0.0.3", Resolution::Pending), ("2001:db8::2", known)] {
        assert_eq!(a.resolve(ip(address), START), found, "{address}");
    }
}

#[test]
fn a_claim_to_our_own_address_is_counted_and_changes_nothing() {
    let mut a = node_a();
    for operation in [ArpOperation::REQUEST, ArpOperation::REPLY] {
        let claim =
            arp(STRANGER, Mac::BROADCAST, operation, (STRANGER, "10.0.0.1"), (Mac::default(), "10.0.0.1"));
        a.handle_frame(&claim, START);
    }
    let flags = NeighborAdvertisementHeader { router: false, solicited: false, r#override: true };
    let payload = discovery("2001:db8::1", 2, STRANGER);
    a.handle_frame(
        &icmpv6(STRANGER, "2001:db8::1", "ff02::1", 255, Icmpv6Type::NeighborAdvertisement(flags), &payload),
        START,
    );
    assert_eq!(a.counters().address_conflicts, 3);
    // `take_conflict` returns at most one address conflict per second, for any number of claims.
    assert_eq!(a.take_conflict(), Some(Conflict { ip: ip("10.0.0.1"), mac: STRANGER }));
    assert_eq!(a.take_conflict(), None);
    assert_eq!(a.resolve(ip("10.0.0.1"), START), Resolution::Known(A_MAC));
    assert!(sent(&mut a, START).is_empty());
}

#[test]
fn an_advertisement_without_override_does_not_move_a_neighbour() {
    let mut a = node_a();
    a.resolve(ip("2001:db8::2"), START);
    assert_eq!(sent(&mut a, START).len(), 1);
    let advertise = |a: &mut Neighbour, mac: Mac, r#override: bool, option: bool| {
        let flags = NeighborAdvertisementHeader { router: false, solicited: true, r#override };
        let payload =
            if option { discovery("2001:db8::2", 2, mac) } else { v6("2001:db8::2").octets().to_vec() };
        let kind = Icmpv6Type::NeighborAdvertisement(flags);
        a.handle_frame(&icmpv6(mac, "2001:db8::2", "2001:db8::1", 255, kind, &payload), START);
        a.resolve(ip("2001:db8::2"), START)
    };
    assert_eq!(advertise(&mut a, B_MAC, true, false), Resolution::Pending, "no address in it");
    assert_eq!(advertise(&mut a, B_MAC, false, true), Resolution::Known(B_MAC));
    assert_eq!(advertise(&mut a, STRANGER, false, true), Resolution::Known(B_MAC));
    assert_eq!((a.counters().ignored, a.counters().moves_claimed), (2, 0));
    assert_eq!(advertise(&mut a, STRANGER, true, true), Resolution::Known(B_MAC));
    assert_eq!(a.counters().moves_claimed, 1);
}

#[test]
fn improper_discovery_messages_are_malformed() {
    let ns = Icmpv6Type::NeighborSolicitation;
    let both = NeighborAdvertisementHeader { router: false, solicited: true, r#override: true };
    let na = Icmpv6Type::NeighborAdvertisement(both);
    let own = discovery("2001:db8::1", 1, B_MAC);
    let peer = "2001:db8::2";
    let mut wrong_checksum = icmpv6(B_MAC, peer, "2001:db8::1", 255, ns, &own);
    *wrong_checksum.last_mut().unwrap() ^= 1;
    let improper = [
        ("crossed a router", icmpv6(B_MAC, peer, "2001:db8::1", 254, ns, &own)),
        ("wrong checksum", wrong_checksum),
        ("target is a group", icmpv6(B_MAC, peer, "2001:db8::1", 255, ns, &discovery("ff02::1", 1, B_MAC))),
        ("target is cut off", icmpv6(B_MAC, peer, "2001:db8::1", 255, ns, &own[..15])),
        (
            "option of length 0",
            icmpv6(B_MAC, peer, "2001:db8::1", 255, ns, &[&own[..16], &[1, 0, 0, 0, 0, 0, 0, 0]].concat()),
        ),
        ("option cut off", icmpv6(B_MAC, peer, "2001:db8::1", 255, ns, &own[..20])),
        (
            "group as station",
            icmpv6(B_MAC, peer, "2001:db8::1", 255, ns, &discovery("2001:db8::1", 1, Mac::BROADCAST)),
        ),
        ("probe to one station", icmpv6(B_MAC, "::", "2001:db8::1", 255, ns, &own[..16])),
        ("probe with an address", icmpv6(B_MAC, "::", "ff02::1:ff00:1", 255, ns, &own)),
        ("solicited to all", icmpv6(B_MAC, peer, "ff02::1", 255, na, &discovery(peer, 2, B_MAC))),
    ];
    let mut a = node_a();
    for (n, (what, frame)) in improper.iter().enumerate() {
        a.handle_frame(frame, START);
        assert_eq!(a.counters().malformed, n as u64 + 1, "{what}");
        assert!(sent(&mut a, START).is_empty(), "{what}");
    }
}

#[test]
fn a_solicitation_is_answered_and_a_probe_is_answered_to_all() {
    let mut a = node_a();
    let ns = Icmpv6Type::NeighborSolicitation;
    let question = discovery("2001:db8::1", 1, B_MAC);
    a.handle_frame(&icmpv6(B_MAC, "2001:db8::2", "ff02::1:ff00:1", 255, ns, &question), START);
    a.handle_frame(&icmpv6(B_MAC, "::", "ff02::1:ff00:1", 255, ns, &question[..16]), START);
    let frames = sent(&mut a, START);
    for (frame, mac, to, solicited) in [
        (&frames[0], B_MAC, "2001:db8::2", true),
        (&frames[1], Mac([0x33, 0x33, 0, 0, 0, 1]), "ff02::1", false),
    ] {
        let (source, destination, kind, payload) = icmpv6_of(frame, 255);
        assert_eq!((source, destination, destination_of(frame)), (v6("2001:db8::1"), v6(to), mac));
        let flags = NeighborAdvertisementHeader { router: false, solicited, r#override: true };
        assert_eq!(kind, Icmpv6Type::NeighborAdvertisement(flags));
        assert_eq!(payload, discovery("2001:db8::1", 2, A_MAC));
    }
    assert_eq!(a.cache.len(), 0);
}

fn echo_v4(destination: &str, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(B_MAC.0, A_MAC.0)
        .ipv4(v4("10.0.0.2").octets(), v4(destination).octets(), 3)
        .icmpv4_echo_request(77, 5)
        .write_to_vec(&mut frame, payload)
        .unwrap();
    frame
}

#[test]
fn echo_requests_are_answered_with_their_payload() {
    let mut a = node_a();
    for len in [0, 1, 56, 1472, 8972] {
        let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
        a.handle_frame(&echo_v4("10.0.0.1", &payload), START);
        let kind = Icmpv6Type::EchoRequest(IcmpEchoHeader { id: 77, seq: 5 });
        a.handle_frame(&icmpv6(B_MAC, "2001:db8::2", "2001:db8::1", 64, kind, &payload), START);
        let frames = sent(&mut a, START);
        assert_eq!(frames.len(), 2);

        let packet = SlicedPacket::from_ethernet(&frames[0]).unwrap();
        let (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Icmpv4(icmp))) = (packet.net, packet.transport)
        else {
            panic!("not ICMP")
        };
        let header = ip.header().to_header();
        assert_eq!((header.source, header.destination), ([10, 0, 0, 1], [10, 0, 0, 2]));
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        let reply = Icmpv4Type::EchoReply(IcmpEchoHeader { id: 77, seq: 5 });
        assert_eq!((icmp.icmp_type(), icmp.payload()), (reply.clone(), payload.as_slice()));
        assert_eq!(icmp.checksum(), reply.calc_checksum(&payload));

        let (source, destination, kind, echoed) = icmpv6_of(&frames[1], 64);
        assert_eq!((source, destination), (v6("2001:db8::1"), v6("2001:db8::2")));
        assert_eq!(kind, Icmpv6Type::EchoReply(IcmpEchoHeader { id: 77, seq: 5 }));
        assert_eq!(echoed, payload);
        assert!(frames.iter().all(|frame| destination_of(frame) == B_MAC));
    }
    assert_eq!((a.counters().echo_requests_rx, a.counters().echo_replies_tx), (10, 10));
}

#[test]
fn damaged_or_misdirected_echo_requests_are_not_answered() {
    let mut a = node_a();
    let good = echo_v4("10.0.0.1", b"payload");
    for at in [24, good.len() - 1] {
        let mut damaged = good.clone();
        damaged[at] ^= 0x10;
        a.handle_frame(&damaged, START);
    }
    assert_eq!(a.counters().malformed, 2, "header and payload");
    a.handle_frame(&echo_v4("10.0.0.9", b"payload"), START);
    a.handle_frame(&echo_v4("10.0.0.255", b"payload"), START);
    let mut to_another = good.clone();
    to_another[..6].copy_from_slice(&STRANGER.0);
    a.handle_frame(&to_another, START);
    let mut from_ourselves = good;
    from_ourselves[6..12].copy_from_slice(&A_MAC.0);
    a.handle_frame(&from_ourselves, START);
    assert_eq!(a.counters().ignored, 4);
    assert!(sent(&mut a, START).is_empty());
}

#[test]
fn a_tagged_address_answers_on_its_vlan_alone() {
    let mut a = node_a();
    a.gids_mut().add(ip("10.7.0.1"), 24, Some(7)).unwrap();
    let announcement = sent(&mut a, START).remove(0);
    assert_eq!(SlicedPacket::from_ethernet(&announcement).unwrap().vlan_ids()[0].value(), 7);
    let ask = |vlan: u16, target: &str| {
        let packet = ArpEthIpv4Packet {
            operation: ArpOperation::REQUEST,
            sender_mac: B_MAC.0,
            sender_ipv4: v4("10.7.0.2").octets(),
            target_mac: [0; 6],
            target_ipv4: v4(target).octets(),
        };
        let mut frame = Vec::new();
        PacketBuilder::ethernet2(B_MAC.0, Mac::BROADCAST.0)
            .single_vlan(VlanId::try_new(vlan).unwrap())
            .arp(ArpPacket::from(packet))
            .write_to_vec(&mut frame)
            .unwrap();
        frame
    };
    for (vlan, target, answers) in
        [(8, "10.7.0.1", 0), (0, "10.7.0.1", 0), (7, "10.0.0.1", 0), (0, "10.0.0.1", 1), (7, "10.7.0.1", 1)]
    {
        a.handle_frame(&ask(vlan, target), START);
        let frames = sent(&mut a, START);
        assert_eq!(frames.len(), answers, "VLAN {vlan} {target}");
        if vlan == 7 && answers == 1 {
            assert_eq!(SlicedPacket::from_ethernet(&frames[0]).unwrap().vlan_ids()[0].value(), 7);
            assert_eq!(arp_of(&frames[0]).sender_ipv4, [10, 7, 0, 1]);
        }
    }
    a.resolve(ip("10.7.0.3"), START);
    let question = sent(&mut a, START).remove(0);
    assert_eq!(SlicedPacket::from_ethernet(&question).unwrap().vlan_ids()[0].value(), 7);
}

#[test]
fn a_shared_port_is_silent_and_hears_from_the_kernel_alone() {
    let mut config = config(A_MAC, Mode::Shared, &[("10.0.0.1", 24)]);
    config.gateway_v4 = Some(v4("10.0.0.254"));
    let mut a = Neighbour::new(config).unwrap();
    assert_eq!(a.next_deadline(), None);
    assert_eq!(a.resolve(ip("10.0.0.2"), START), Resolution::Pending);
    assert_eq!(a.resolve(ip("8.8.8.8"), START), Resolution::Pending);
    let mut b = node(B_MAC, &[("10.0.0.2", 24)]);
    b.resolve(ip("10.0.0.1"), START);
    settle(&mut a, &mut b, START);
    a.handle_frame(&arp(B_MAC, A_MAC, ArpOperation::REPLY, (B_MAC, "10.0.0.2"), (A_MAC, "10.0.0.1")), START);
    assert_eq!(a.counters().ignored, 2);
    // On a shared port `wanted` returns 8.8.8.8, not the gateway, because the kernel applies its own routes.
    assert_eq!(a.wanted().collect::<Vec<_>>(), [ip("8.8.8.8"), ip("10.0.0.2")]);

    let generation = a.generation();
    assert!(a.set_neighbour(ip("10.0.0.2"), B_MAC));
    assert_ne!(a.generation(), generation);
    assert_eq!(a.wanted().collect::<Vec<_>>(), [ip("8.8.8.8")]);
    // The MAC that `set_neighbour` set stays. The neighbour 8.8.8.8 becomes unreachable, because no MAC was set for it.
    let mut sends = 0;
    while let Some(due) = a.next_deadline() {
        sends += sent(&mut a, due).len();
    }
    let later = START.plus_nanos(2_250_000_000);
    assert_eq!(a.resolve(ip("10.0.0.2"), later), Resolution::Known(B_MAC));
    assert_eq!(a.resolve(ip("8.8.8.8"), later), Resolution::Unreachable);
    assert_eq!((sends, a.counters().unanswered), (0, 1));
}

#[test]
fn one_source_is_answered_a_thousand_times_in_a_second() {
    let mut a = node_a();
    let question =
        arp(B_MAC, A_MAC, ArpOperation::REQUEST, (B_MAC, "10.0.0.2"), (Mac::default(), "10.0.0.1"));
    let echo = echo_v4("10.0.0.1", b"x");
    let mut answers = 0;
    for micros in 0..100_000u64 {
        let now = START.plus_nanos(1000 * micros);
        a.handle_frame(if micros % 2 == 0 { &question } else { &echo }, now);
        answers += sent(&mut a, now).len();
    }
    assert_eq!(answers as u32, SOURCE_ANSWERS_BURST + 99);
    assert_eq!(a.counters().rate_limited, 100_000 - answers as u64);
}

#[test]
fn answers_to_all_sources_are_bounded_and_own_questions_go_first() {
    let mut a = node_a();
    a.resolve(ip("10.0.0.2"), START);
    for n in 0..10_000u32 {
        let [_, _, c, d] = n.to_be_bytes();
        let mac = Mac([2, 0, 0, 1, c, d]);
        a.handle_frame(
            &arp(mac, A_MAC, ArpOperation::REQUEST, (mac, "10.0.0.9"), (Mac::default(), "10.0.0.1")),
            START,
        );
    }
    let frames = sent(&mut a, START);
    assert_eq!(arp_of(&frames[0]).operation, ArpOperation::REQUEST);
    assert_eq!(frames.len(), 1 + ANSWERS_WAITING_MAX);
    assert_eq!(a.counters().rate_limited, 10_000 - ANSWERS_WAITING_MAX as u64);
}

#[test]
fn many_questions_at_once_all_go_out() {
    let mut a = node(A_MAC, &[("10.0.0.1", 8)]);
    for n in 0..500u32 {
        a.resolve(Ipv4Addr::from_bits(0x0A01_0000 + n).into(), START);
    }
    assert_eq!(sent(&mut a, START).len(), 500);
    assert_eq!(a.next_deadline(), Some(START.plus_nanos(50_000_000)));
}

#[test]
fn counters_are_listed_by_name() {
    let mut a = node_a();
    a.handle_frame(&echo_v4("10.0.0.1", b"x"), START);
    let listed: Vec<_> = a.counters().iter().filter(|&(_, value)| value > 0).collect();
    assert_eq!(
        listed,
        [
            ("arp_requests_tx", 1),
            ("nd_advertisements_tx", 2),
            ("echo_requests_rx", 1),
            ("echo_replies_tx", 1)
        ]
    );
}

/// Returns a valid frame of each kind that a node processes.
fn good_frames() -> Vec<Vec<u8>> {
    let ns = Icmpv6Type::NeighborSolicitation;
    let flags = NeighborAdvertisementHeader { router: false, solicited: true, r#override: true };
    let na = Icmpv6Type::NeighborAdvertisement(flags);
    let echo = Icmpv6Type::EchoRequest(IcmpEchoHeader { id: 1, seq: 1 });
    let peer = "2001:db8::2";
    vec![
        arp(B_MAC, Mac::BROADCAST, ArpOperation::REQUEST, (B_MAC, "10.0.0.2"), (Mac::default(), "10.0.0.1")),
        arp(B_MAC, A_MAC, ArpOperation::REPLY, (B_MAC, "10.0.0.2"), (A_MAC, "10.0.0.1")),
        icmpv6(B_MAC, peer, "ff02::1:ff00:1", 255, ns, &discovery("2001:db8::1", 1, B_MAC)),
        icmpv6(B_MAC, peer, "2001:db8::1", 255, na, &discovery(peer, 2, B_MAC)),
        echo_v4("10.0.0.1", b"payload"),
        icmpv6(B_MAC, peer, "2001:db8::1", 64, echo, b"payload"),
    ]
}

/// Processes `frames`; asserts that each frame elicits at most one reply and that no frame creates a cache entry.
fn digest(frames: &[Vec<u8>]) {
    let mut a = node_a();
    a.resolve(ip("10.0.0.2"), START);
    a.resolve(ip("2001:db8::2"), START);
    sent(&mut a, START);
    for frame in frames {
        a.handle_frame(frame, START);
        assert!(sent(&mut a, START).len() <= 1);
        assert!(a.cache.len() <= 2);
    }
}

proptest! {
    #[test]
    fn arbitrary_frames_do_no_harm(frames in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20)) {
        digest(&frames);
    }

    #[test]
    fn damaged_frames_do_no_harm(
        which in 0usize..6,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        keep_whole in any::<bool>(),
    ) {
        let mut frame = good_frames().swap_remove(which);
        for (at, value) in damage {
            let at = at.index(frame.len());
            frame[at] = value;
        }
        if !keep_whole {
            frame.truncate(cut.index(frame.len() + 1));
        }
        digest(&[frame]);
    }
}

#[test]
fn the_good_frames_are_good() {
    let mut a = node_a();
    a.resolve(ip("10.0.0.2"), START);
    a.resolve(ip("2001:db8::2"), START);
    sent(&mut a, START);
    good_frames().iter().for_each(|frame| a.handle_frame(frame, START));
    let counters = a.counters();
    assert_eq!((counters.ignored, counters.malformed), (0, 0));
    assert_eq!(sent(&mut a, START).len(), 4);
}
