//! Frames that are not for this host, and claims of who is where.

use roce::id::Mac;

use super::forged::is_refused;
use super::frames::arp;
use super::network::{ATTACKER_MAC, Ports, Stage};
use crate::live::turn;

/// An address that no host has: the switch floods what goes there.
const NOBODY: Mac = Mac([2, 0, 0, 0, 0, 0x99]);
const BROADCAST: Mac = Mac([0xFF; 6]);
/// VLAN 5.
const VLAN_TCI: u16 = 5;

#[test]
fn a_frame_to_another_host_is_not_executed() {
    for ports in Ports::ALL {
        for mac in [NOBODY, BROADCAST] {
            is_refused(ports, |forged| forged.header.dst_mac = mac);
        }
    }
}

#[test]
fn a_frame_of_another_vlan_is_not_executed() {
    for ports in Ports::ALL {
        is_refused(ports, |forged| forged.header.vlan = Some(VLAN_TCI));
    }
}

#[test]
fn an_unasked_arp_reply_redirects_no_connection() {
    for (claimed, vlan) in [(ATTACKER_MAC, None), (ATTACKER_MAC, Some(VLAN_TCI)), (NOBODY, None)] {
        let _turn = turn();
        let mut stage = Stage::new(Ports::Dedicated);
        let target = (stage.macs[1], stage.gid(1));
        for is_reply in [true, false] {
            let frame = arp(is_reply, stage.macs[1], (claimed, stage.gid(0)), target, vlan);
            stage.attacker.send(3, &[frame]);
        }
        stage.attacker.seen();
        for _ in 0..3 {
            stage.honest_write(1);
            stage.honest_write(0);
        }
        let stolen = stage.attacker.seen().into_iter().filter(|frame| {
            let [d0, d1, d2, d3, d4, d5, ..] = frame[..] else { return false };
            Mac([d0, d1, d2, d3, d4, d5]) == claimed && frame.get(12..14) == Some(&[0x08, 0x00])
        });
        assert_eq!(stolen.count(), 0, "packets of the connection went to {claimed}, vlan {vlan:?}");
    }
}

#[test]
fn a_claim_to_the_victims_own_address_stops_nothing() {
    let _turn = turn();
    let mut stage = Stage::new(Ports::Dedicated);
    let (own, target) = (stage.macs[1], (stage.macs[1], stage.gid(1)));
    // Host a's IP address at host b's own Ethernet address, and b's IP address at the attacker's.
    let claims = [
        arp(true, own, (own, stage.gid(0)), target, None),
        arp(true, own, (ATTACKER_MAC, stage.gid(1)), target, None),
    ];
    stage.attacker.send(3, &claims);
    for _ in 0..3 {
        stage.honest_write(1);
        stage.honest_write(0);
    }
}

#[test]
fn a_host_that_comes_back_with_another_address_is_followed() {
    for ports in Ports::ALL {
        let _turn = turn();
        let mut stage = Stage::new(ports);
        stage.move_host(ports, 0);
        stage.honest_write(0);
        stage.honest_write(1);
    }
}
