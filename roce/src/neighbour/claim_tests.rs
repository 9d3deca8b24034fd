//! Tests of claims: another station claims the IP address of a neighbour, or a neighbour moves to another MAC.

use etherparse::icmpv6::NeighborAdvertisementHeader;
use etherparse::{ArpEthIpv4Packet, ArpOperation, ArpPacket, Icmpv6Type, PacketBuilder, VlanId};

use super::tests::{
    A_MAC, B_MAC, START, STRANGER, arp, destination_of, discovery, icmpv6, ip, node, node_a, sent, settle, v4,
};
use super::*;

const SECOND_NANOS: u64 = 1_000_000_000;
const GROUP: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);

/// Returns nodes A and B. A has resolved the IPv4 address and the IPv6 address of B.
fn a_and_b() -> (Neighbour, Neighbour) {
    let (mut a, mut b) = (node_a(), node(B_MAC, &[("10.0.0.2", 24), ("2001:db8::2", 64)]));
    for address in ["10.0.0.2", "2001:db8::2"] {
        a.resolve(ip(address), START);
        settle(&mut a, &mut b, START);
        assert_eq!(a.resolve(ip(address), START), Resolution::Known(B_MAC));
    }
    (a, b)
}

fn advertisement(from: Mac, to: &str, solicited: bool, mac: Mac) -> Vec<u8> {
    let flags = NeighborAdvertisementHeader { router: false, solicited, r#override: true };
    let payload = discovery("2001:db8::2", 2, mac);
    icmpv6(from, "2001:db8::2", to, 255, Icmpv6Type::NeighborAdvertisement(flags), &payload)
}

/// Returns frames of all kinds in which the station `STRANGER` claims the MAC `mac` for an IP address of B.
fn claims(mac: Mac) -> Vec<Vec<u8>> {
    let own = (A_MAC, "10.0.0.1");
    let claimed = (mac, "10.0.0.2");
    let solicitation = Icmpv6Type::NeighborSolicitation;
    vec![
        arp(STRANGER, A_MAC, ArpOperation::REPLY, claimed, own),
        arp(STRANGER, Mac::BROADCAST, ArpOperation::REPLY, claimed, claimed),
        arp(STRANGER, Mac::BROADCAST, ArpOperation::REQUEST, claimed, (Mac::default(), "10.0.0.2")),
        arp(STRANGER, A_MAC, ArpOperation::REQUEST, claimed, own),
        advertisement(STRANGER, "2001:db8::1", true, mac),
        advertisement(STRANGER, "ff02::1", false, mac),
        icmpv6(
            STRANGER,
            "2001:db8::2",
            "ff02::1:ff00:1",
            255,
            solicitation,
            &discovery("2001:db8::1", 1, mac),
        ),
    ]
}

#[test]
fn no_claim_redirects_while_the_old_address_answers() {
    let (mut a, mut b) = a_and_b();
    let generation = a.generation();
    for millis in (0..5000).step_by(10) {
        let now = START.plus_nanos(millis * 1_000_000);
        for mac in [STRANGER, A_MAC, GROUP, Mac::BROADCAST, Mac::default()] {
            claims(mac).iter().for_each(|claim| a.handle_frame(claim, now));
        }
        settle(&mut a, &mut b, now);
        for address in ["10.0.0.2", "2001:db8::2"] {
            assert_eq!(a.resolve(ip(address), now), Resolution::Known(B_MAC), "{address} at {millis} ms");
        }
    }
    assert_eq!(a.generation(), generation);
    let counters = a.counters();
    assert_eq!((counters.moves_refuted, counters.moves_followed), (8, 0), "once a second for each address");
    assert!(counters.moves_claimed > 3000 && counters.address_conflicts > 3000, "{counters:?}");
    // ARP requests of A: announcement, resolution, 4 verifications. Neighbour solicitations of A: resolution, 4
    // verifications.
    assert_eq!((counters.arp_requests_tx, counters.nd_solicitations_tx), (1 + 1 + 4, 1 + 4));
}

#[test]
fn claims_from_another_vlan_are_counted_and_nothing_else() {
    let (mut a, mut b) = a_and_b();
    let packet = ArpEthIpv4Packet {
        operation: ArpOperation::REPLY,
        sender_mac: STRANGER.0,
        sender_ipv4: v4("10.0.0.2").octets(),
        target_mac: A_MAC.0,
        target_ipv4: v4("10.0.0.1").octets(),
    };
    let mut claim = Vec::new();
    PacketBuilder::ethernet2(STRANGER.0, A_MAC.0)
        .single_vlan(VlanId::try_new(7).unwrap())
        .arp(ArpPacket::from(packet))
        .write_to_vec(&mut claim)
        .unwrap();
    let now = START.plus_nanos(2 * SECOND_NANOS);
    a.handle_frame(&claim, now);
    assert_eq!((a.counters().wrong_vlan, a.counters().moves_claimed), (1, 0));
    // The claim has VLAN 7, but frames of the claimed neighbour are untagged. Therefore the claim is dropped, even if
    // this port has an address on VLAN 7.
    a.gids_mut().add(ip("10.7.0.1"), 24, Some(7)).unwrap();
    a.handle_frame(&claim, now);
    assert_eq!((a.counters().wrong_vlan, a.counters().moves_claimed), (2, 0));
    settle(&mut a, &mut b, now);
    assert_eq!(a.resolve(ip("10.0.0.2"), now), Resolution::Known(B_MAC));
}

#[test]
fn only_what_answers_our_question_is_an_answer() {
    let mut a = node_a();
    a.resolve(ip("10.0.0.2"), START);
    a.resolve(ip("2001:db8::2"), START);
    sent(&mut a, START);
    let claimed = (STRANGER, "10.0.0.2");
    let no_answers = [
        arp(STRANGER, Mac::BROADCAST, ArpOperation::REPLY, claimed, (A_MAC, "10.0.0.1")),
        arp(STRANGER, A_MAC, ArpOperation::REPLY, claimed, (B_MAC, "10.0.0.1")),
        arp(STRANGER, A_MAC, ArpOperation::REPLY, claimed, (A_MAC, "10.0.0.7")),
        arp(STRANGER, A_MAC, ArpOperation::REQUEST, claimed, (A_MAC, "10.0.0.1")),
        advertisement(STRANGER, "2001:db8::7", true, STRANGER),
        advertisement(STRANGER, "2001:db8::1", false, STRANGER),
    ];
    no_answers.iter().for_each(|frame| a.handle_frame(frame, START));
    assert_eq!(a.resolve(ip("10.0.0.2"), START), Resolution::Pending);
    assert_eq!(a.resolve(ip("2001:db8::2"), START), Resolution::Pending);
}

#[test]
fn a_neighbour_that_announces_its_move_is_followed_within_a_bounded_time() {
    for after_millis in [1, 500, 999, 1001, 20_000] {
        let (mut a, _gone) = a_and_b();
        let mut moved = node(STRANGER, &[("10.0.0.2", 24)]);
        let announced = START.plus_nanos(after_millis * 1_000_000);
        a.handle_frame(&claims(STRANGER)[2], announced);
        let mut followed_millis = None;
        for millis in 0..3000 {
            let now = announced.plus_nanos(millis * 1_000_000);
            settle(&mut a, &mut moved, now);
            if a.resolve(ip("10.0.0.2"), now) == Resolution::Known(STRANGER) {
                followed_millis = Some(millis);
                break;
            }
        }
        let rest_millis = 1000u64.saturating_sub(after_millis);
        assert_eq!(followed_millis, Some(rest_millis + 350), "announced after {after_millis} ms");
        assert_eq!(a.counters().moves_followed, 1);
    }
}

#[test]
fn the_old_address_is_asked_and_then_all_are() {
    let (mut a, _gone) = a_and_b();
    let start = START.plus_nanos(2 * SECOND_NANOS);
    a.handle_frame(&claims(STRANGER)[0], start);
    let mut asked = Vec::new();
    for millis in 0..400 {
        let frames = sent(&mut a, start.plus_nanos(millis * 1_000_000));
        asked.extend(frames.iter().map(|frame| (millis, destination_of(frame))));
    }
    assert_eq!(asked, [(0, B_MAC), (50, B_MAC), (150, B_MAC), (350, Mac::BROADCAST)]);
}

#[test]
fn our_ethernet_address_in_other_hands_is_a_conflict() {
    let (mut a, _b) = a_and_b();
    a.handle_frame(&claims(A_MAC)[0], START);
    assert_eq!(a.take_conflict(), Some(Conflict { ip: ip("10.0.0.2"), mac: A_MAC }));
    let now = START.plus_nanos(SECOND_NANOS - 1);
    a.handle_frame(&claims(A_MAC)[0], now);
    assert_eq!((a.take_conflict(), a.counters().address_conflicts), (None, 2), "once a second");
    a.handle_frame(&claims(A_MAC)[0], now.plus_nanos(1));
    assert!(a.take_conflict().is_some());
}
