//! Forged packets of a connection: right in everything but what off-path attackers cannot know, or in what a
//! packet on this link could not have.

use std::time::Instant;

use super::frames::{FORGED, FORGED_OFFSET, Forged};
use super::network::{ATTACKER_MAC, MESSAGE_BYTES, Ports, Stage};
use crate::live::{TIMEOUT, turn};

/// Sends host b the next packet of host a, but for one `change`; it must change nothing.
pub(super) fn is_refused(ports: Ports, change: impl Fn(&mut Forged)) {
    let _turn = turn();
    let mut stage = Stage::new(ports);
    let mut forged = Forged::write(&stage, 1);
    change(&mut forged);
    stage.attacker.send(1, &[forged.frame()]);
    // Has the same PSN: where the forged one was executed, this is dropped as its duplicate.
    stage.honest_write(0);
    stage.honest_write(1);
    let bytes = stage.ends[1].read(FORGED_OFFSET, MESSAGE_BYTES);
    assert!(!bytes.contains(&FORGED), "{ports:?}: a forged WRITE was executed");
}

#[test]
fn the_same_packet_unchanged_is_executed() {
    // So that what is refused in the other tests is refused for its one fault.
    for ports in Ports::ALL {
        let _turn = turn();
        let mut stage = Stage::new(ports);
        let forged = Forged::write(&stage, 1);
        stage.attacker.send(1, &[forged.frame()]);
        let end = Instant::now() + TIMEOUT;
        while stage.ends[1].read(FORGED_OFFSET, MESSAGE_BYTES) != [FORGED; MESSAGE_BYTES] {
            assert!(
                Instant::now() < end,
                "{ports:?}: not executed within {TIMEOUT:?}: the harness forges badly"
            );
        }
    }
}

#[test]
fn another_udp_source_port_is_refused() {
    for ports in Ports::ALL {
        is_refused(ports, |forged| forged.header.udp_source_port ^= 1);
    }
}

#[test]
fn another_source_mac_is_refused() {
    for ports in Ports::ALL {
        is_refused(ports, |forged| forged.header.src_mac = ATTACKER_MAC);
    }
}

#[test]
fn congestion_notifications_from_elsewhere_are_ignored() {
    for ports in Ports::ALL {
        let _turn = turn();
        let mut stage = Stage::new(ports);
        let before = ["rp_cnp_handled", "rp_cnp_ignored"].map(|name| stage.ends[0].peer.counter(name));
        let mut forged = Forged::cnp(&stage, 0);
        forged.header.src_mac = ATTACKER_MAC;
        stage.attacker.send(1000, &[forged.frame()]);
        stage.honest_write(0);
        stage.honest_write(1);
        let after = ["rp_cnp_handled", "rp_cnp_ignored"].map(|name| stage.ends[0].peer.counter(name));
        assert_eq!(after, before, "{ports:?}: congestion notifications that were acted on");
    }
}

#[test]
fn marks_on_packets_out_of_the_window_send_no_notifications() {
    const FAR_PKTS: u32 = 1 << 20;
    for ports in Ports::ALL {
        let _turn = turn();
        let mut stage = Stage::new(ports);
        let mut forged = Forged::write(&stage, 1).marked();
        forged.psn = (forged.psn + FAR_PKTS) & 0xFF_FFFF;
        stage.attacker.send(1000, &[forged.frame()]);
        stage.honest_write(0);
        stage.honest_write(1);
        let sent = stage.ends[1].peer.counter("np_cnp_sent");
        assert_eq!(sent, 0, "{ports:?}: congestion notifications sent for forged packets");
    }
}
