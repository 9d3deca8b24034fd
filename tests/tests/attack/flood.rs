//! Junk in quantity.

use roce::id::Mac;

use super::frames::{Forged, arp};
use super::network::{Ports, Stage};
use crate::live::turn;

/// Frames of a flood.
const FRAMES: usize = 5000;

#[test]
fn frames_of_other_protocols_never_reach_a_kernel_port() {
    let _turn = turn();
    let mut stage = Stage::new(Ports::Kernel);
    let mut other_port = Forged::write(&stage, 1).frame();
    // UDP port 9 instead of 4791, and a protocol for experiments instead of IP.
    other_port[36..38].copy_from_slice(&[0, 9]);
    let mut other_protocol = other_port.clone();
    other_protocol[12..14].copy_from_slice(&[0x88, 0xB5]);
    let before = stage.ends[1].peer.counter("not_roce");
    stage.attacker.send(FRAMES, &[other_port, other_protocol]);
    stage.honest_write(0);
    let after = stage.ends[1].peer.counter("not_roce");
    // A few of the kernel's own are let pass: it looks for its neighbours meanwhile.
    assert!(after - before < 100, "{} frames of other protocols reached the engine", after - before);
}

#[test]
fn a_flood_of_arp_requests_stops_no_connection() {
    let _turn = turn();
    let mut stage = Stage::new(Ports::Dedicated);
    let target = (Mac([0; 6]), stage.gid(1));
    let frames: Vec<_> = (0..FRAMES as u32)
        .map(|number| {
            let [_, b, c, d] = number.to_be_bytes();
            let mut gid = stage.gid(0);
            gid.0[13..].copy_from_slice(&[1 + b, c, d]);
            arp(false, Mac([0xFF; 6]), (Mac([2, 1, 1, b, c, d]), gid), target, None)
        })
        .collect();
    stage.attacker.send(1, &frames);
    for _ in 0..3 {
        stage.honest_write(0);
        stage.honest_write(1);
    }
}

#[test]
fn a_duplicate_read_request_replayed_is_not_answered_each_time() {
    const READ_BYTES: u32 = 1 << 20;
    const REPLAYS: usize = 1000;
    for ports in Ports::ALL {
        let _turn = turn();
        let mut stage = Stage::new(ports);
        let psn = stage.honest_read(0, READ_BYTES);
        let request = Forged::read(&stage, 1, psn, READ_BYTES);
        let before = stage.ends[1].peer.counter("sent_bytes");
        stage.attacker.send(REPLAYS, &[request.frame()]);
        stage.honest_write(0);
        stage.honest_write(1);
        stage.attacker.seen();
        let reads = (stage.ends[1].peer.counter("sent_bytes") - before) / u64::from(READ_BYTES);
        assert!(reads < REPLAYS as u64 / 4, "{ports:?}: {reads} of {REPLAYS} replays were answered in full");
    }
}
