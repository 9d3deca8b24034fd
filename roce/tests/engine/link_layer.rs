//! Layer 2: frames that a device accepts or drops by Ethernet destination and VLAN.

use crate::common::{End, conn, connect, pair, settle};
use roce::id::{Gid, Mac};
use roce::port::{Port, loopback::LoopbackPort};
use roce::qp::{AddressVector, PathMtu, QpAttr, QpState};
use roce::queue::{SendOp, WcStatus};
use std::net::{IpAddr, Ipv4Addr};

const LEN_BYTES: u32 = 64;
const OTHER_HOST: Mac = Mac([2, 0, 0, 0, 0, 9]);

fn dropped(end: &End, name: &str) -> u64 {
    end.engine.drop_counters().iter().find(|(n, _)| *n == name).map_or(0, |(_, count)| count)
}

/// Posts a WRITE at `a`, and removes its frame from the wire to `b`.
fn stolen_write(a: &mut End, b: &mut End) -> Vec<u8> {
    a.memory.write(0, &[0x5A; LEN_BYTES as usize]).unwrap();
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, LEN_BYTES));
    a.poll(1);
    take(b.engine.port_mut())
}

/// Removes and returns the only frame in flight to `port`.
fn take(port: &mut LoopbackPort) -> Vec<u8> {
    let mut frames = Vec::new();
    port.rx_burst(&mut frames, 2);
    assert_eq!(frames.len(), 1);
    frames[0].as_ref().to_vec()
}

/// Sends `frame` from the port of `a`, and polls `b`. Returns the number of frames that `b` sends.
fn inject(a: &mut End, b: &mut End, frame: &[u8]) -> usize {
    let port = a.engine.port_mut();
    port.tx_reserve(frame.len()).unwrap().copy_from_slice(frame);
    port.tx_flush();
    // `b` is polled several times, because it may delay an ACK by one poll.
    for _ in 0..3 {
        b.poll(2);
    }
    let mut answers = Vec::new();
    a.engine.port_mut().rx_burst(&mut answers, 32)
}

fn is_written(end: &End) -> bool {
    let mut bytes = [0; LEN_BYTES as usize];
    end.memory.read(0, &mut bytes).unwrap();
    bytes == [0x5A; LEN_BYTES as usize]
}

fn with_destination(frame: &[u8], mac: Mac) -> Vec<u8> {
    [&mac.0, &frame[6..]].concat()
}

fn with_tag(frame: &[u8], tci: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0x00], &tci.to_be_bytes(), &frame[12..]].concat()
}

#[test]
fn frames_to_other_stations_and_to_groups_are_dropped() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    let frame = stolen_write(&mut a, &mut b);
    let groups = [Mac::BROADCAST, Mac([1, 0, 0x5E, 0, 0, 1]), Mac([0x33, 0x33, 0, 0, 0, 1])];
    for (n, mac) in [OTHER_HOST].into_iter().chain(groups).enumerate() {
        assert_eq!(inject(&mut a, &mut b, &with_destination(&frame, mac)), 0, "{mac} is answered");
        assert!(!is_written(&b), "{mac} is executed");
        assert_eq!(dropped(&b, "wrong_mac"), n as u64 + 1, "{mac}");
    }
    assert_eq!(inject(&mut a, &mut b, &frame), 1);
    assert!(is_written(&b));
    assert_eq!(b.engine.drop_counters().total(), 4);
}

#[test]
fn frames_of_another_vlan_are_dropped_and_a_priority_tag_is_none() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    let frame = stolen_write(&mut a, &mut b);
    for (n, tci) in [7, 0xE007, 0xFFF, 1].into_iter().enumerate() {
        assert_eq!(inject(&mut a, &mut b, &with_tag(&frame, tci)), 0, "tag {tci:#x} is answered");
        assert!(!is_written(&b), "tag {tci:#x} is executed");
        assert_eq!(dropped(&b, "wrong_vlan"), n as u64 + 1, "tag {tci:#x}");
    }
    assert_eq!(inject(&mut a, &mut b, &with_tag(&frame, 0x6000)), 1, "priority 3, no VLAN");
    assert!(is_written(&b));
}

#[test]
fn an_address_on_a_vlan_sends_and_receives_frames_with_its_tag() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    let tagged = |index| IpAddr::from(Ipv4Addr::new(10, 7, 0, index));
    let ids = [a.qpn, b.qpn];
    for (index, end) in [(1, &mut a), (2, &mut b)] {
        let (other, peer) = (3 - index, ids[2 - usize::from(index)]);
        assert_eq!(end.engine.neighbour_mut().gids_mut().add(tagged(index), 24, Some(7)), Ok(2));
        end.engine.neighbour_mut().set_neighbour(tagged(other), Mac([2, 0, 0, 0, 0, other]));
        let to_reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        end.engine.modify_qp(end.qpn, &to_reset).unwrap();
        let path = AddressVector::new(Gid::from(tagged(other)), 2);
        connect(end, peer, path, &conn(PathMtu::Mtu1024));
    }
    let frame = stolen_write(&mut a, &mut b);
    assert_eq!(frame[12..16], [0x81, 0x00, 0, 7]);
    let untagged = [&frame[..12], &frame[16..]].concat();
    assert_eq!(inject(&mut a, &mut b, &untagged), 0);
    assert!(!is_written(&b) && dropped(&b, "wrong_vlan") == 1);
    // The priority bits are not part of the VLAN identifier.
    let mut prior = frame;
    prior[14] = 0xA0;
    assert_eq!(inject(&mut a, &mut b, &prior), 1);
    assert!(is_written(&b));
    // A READ has tagged frames in both directions.
    a.post(2, SendOp::Read { remote_addr: b.memory.addr(), rkey: b.rkey }, a.sge(1024, LEN_BYTES));
    settle(&mut a, &mut b);
    assert!(a.completions().iter().any(|c| c.wr_id == 2 && c.status == WcStatus::Success));
}
