//! Forged packets: a packet that the peer did not send is dropped, counted by the reason, and changes no state.
//!
//! ```text
//!   a <---- connected ----> b      a stranger sends to b from the port of a, and to a from the port of b
//! ```

use crate::common::forge::Forged;
use crate::common::{End, first_psn, pair, pair_of, settle};
use roce::engine::SourceChecks;
use roce::engine::limits::{RETRANSMIT_BURST_PKTS, RETRANSMIT_PKTS_MIN, RETRANSMITS_PER_READ, STALE_PSNS};
use roce::id::{Gid, Mac, PKey, Qpn};
use roce::psn::Psn;
use roce::qp::{PathMtu, QpState};
use roce::queue::SendOp;
use roce::wire::{NakCode, Opcode, Syndrome};
use std::net::Ipv4Addr;

const MTU: PathMtu = PathMtu::Mtu1024;

fn dropped(end: &End, name: &str) -> u64 {
    end.engine.drop_counters().iter().filter(|(counter, _)| *counter == name).map(|(_, count)| count).sum()
}

fn first_byte(end: &End) -> u8 {
    let mut byte = [0];
    end.memory.read(0, &mut byte).unwrap();
    byte[0]
}

/// Runs one SEND from `a` to `b`, with its ACK, so that each end has received one packet in order.
fn exchange(a: &mut End, b: &mut End) {
    b.post_recv(1, b.sge(1024, 64));
    a.post(1, SendOp::Send, a.sge(0, 64));
    settle(a, b);
    assert_eq!((a.completions().len(), b.completions().len()), (1, 1));
}

fn connected() -> (End, End) {
    let (mut a, mut b) = pair(MTU, 1 << 16, true);
    exchange(&mut a, &mut b);
    (a, b)
}

#[test]
fn a_request_from_another_udp_source_port_changes_nothing() {
    let (mut a, mut b) = connected();
    let right = Forged::to(&b, &a, Opcode::RC_RDMA_WRITE_ONLY, first_psn().plus(1));
    let wrong = Forged { udp_source_port: right.udp_source_port ^ 1, ..right };
    wrong.send_from(&mut a);
    b.poll(1000);
    assert_eq!((first_byte(&b), dropped(&b, "wrong_source_port")), (0, 1), "memory, and drops");
    right.send_from(&mut a);
    b.poll(1001);
    assert_eq!((first_byte(&b), dropped(&b, "wrong_source_port")), (0xEE, 1), "memory, and drops");
}

#[test]
fn a_response_from_another_udp_source_port_changes_nothing() {
    let (mut a, mut b) = connected();
    a.post(2, SendOp::Send, a.sge(0, 64));
    a.poll(1000);
    let syndrome = Syndrome::Nak(NakCode::RemoteAccessError);
    let nak = Forged { syndrome, ..Forged::to(&a, &b, Opcode::RC_ACKNOWLEDGE, first_psn().plus(1)) };
    Forged { udp_source_port: 0xC000, ..nak }.send_from(&mut b);
    a.poll(1001);
    let state = a.engine.query_qp(a.qpn).unwrap().0;
    assert_eq!((state, dropped(&a, "wrong_source_port")), (QpState::Rts, 1), "state, and drops");
}

#[test]
fn the_first_packet_in_order_names_the_port_of_its_direction() {
    let (mut a, mut b) = pair(MTU, 1 << 16, true);
    let write = Forged::to(&b, &a, Opcode::RC_RDMA_WRITE_ONLY, first_psn());
    // A packet that is out of order, or damaged, does not bind the UDP source port.
    Forged { psn: first_psn().plus(9), udp_source_port: 7, ..write }.send_from(&mut a);
    Forged { sound: false, udp_source_port: 8, ..write }.send_from(&mut a);
    b.poll(1);
    assert_eq!((dropped(&b, "wrong_source_port"), dropped(&b, "rx_icrc_errors")), (0, 1));
    exchange(&mut a, &mut b);
    Forged { psn: first_psn().plus(1), udp_source_port: 7, ..write }.send_from(&mut a);
    b.poll(100_000);
    assert_eq!(dropped(&b, "wrong_source_port"), 1);
    // Requests and responses are bound to separate UDP source ports; the first response that `b` receives binds the UDP
    // source port of responses. CNPs may have any UDP source port.
    b.post(2, SendOp::Send, b.sge(0, 64));
    b.poll(100_001);
    let ack = Forged::to(&b, &a, Opcode::RC_ACKNOWLEDGE, first_psn());
    Forged { udp_source_port: 9, ..ack }.send_from(&mut a);
    Forged { udp_source_port: 0, ..Forged::to(&b, &a, Opcode::CNP, Psn::new(0)) }.send_from(&mut a);
    b.poll(100_002);
    assert_eq!((b.completions().len(), b.engine.counters().rp_cnp_ignored), (1, 1));
    b.post(3, SendOp::Send, b.sge(0, 64));
    b.poll(100_003);
    Forged { psn: first_psn().plus(1), ..ack }.send_from(&mut a);
    b.poll(100_004);
    assert_eq!((b.completions().len(), dropped(&b, "wrong_source_port")), (0, 2));
}

#[test]
fn a_frame_with_the_peers_address_and_anothers_mac_changes_nothing() {
    let (mut a, mut b) = connected();
    let right = Forged::to(&b, &a, Opcode::RC_RDMA_WRITE_ONLY, first_psn().plus(1));
    let stranger = Mac([2, 0, 0, 0, 0, 0x66]);
    Forged { src_mac: stranger, ..right }.send_from(&mut a);
    b.poll(1000);
    assert_eq!((first_byte(&b), dropped(&b, "wrong_source_mac")), (0, 1), "memory, and drops");
    // After the peer changes its MAC, source MACs are compared with the new MAC in the neighbour cache.
    b.engine.neighbour_mut().set_neighbour(a.gid.ip(), stranger);
    b.poll(1001);
    right.send_from(&mut a);
    b.poll(1002);
    assert_eq!((first_byte(&b), dropped(&b, "wrong_source_mac")), (0, 2), "memory, and drops");
    Forged { src_mac: stranger, ..right }.send_from(&mut a);
    b.poll(1003);
    assert_eq!((first_byte(&b), dropped(&b, "wrong_source_mac")), (0xEE, 2), "memory, and drops");
}

#[test]
fn what_is_not_to_be_compared_is_not() {
    let taken = |checks: SourceChecks, on_link: bool| {
        let (mut a, mut b) = pair_of(MTU, 1 << 16, |config| {
            config.source_checks = checks;
            if !on_link {
                // With an IP prefix of 32 bits, the peer is not on the link. Each end has its peer as the gateway.
                config.neighbour.gids[0].1 = 32;
                let last = 3 - config.neighbour.mac.0[5];
                config.neighbour.gateway_v4 = Some(Ipv4Addr::new(10, 0, 0, last));
            }
        });
        exchange(&mut a, &mut b);
        let right = Forged::to(&b, &a, Opcode::RC_RDMA_WRITE_ONLY, first_psn().plus(1));
        let wrong_mac = Forged { src_mac: Mac([2, 0, 0, 0, 0, 0x66]), ..right };
        let wrong_port = Forged { udp_source_port: 1, psn: right.psn, ..right };
        [wrong_mac, wrong_port].map(|forged| {
            let before = b.engine.counters().rcvd_pkts;
            forged.send_from(&mut a);
            b.poll(1000);
            b.engine.counters().rcvd_pkts - before
        })
    };
    for (mac, udp_port) in [(false, false), (false, true), (true, false), (true, true)] {
        let checks = SourceChecks { mac, udp_port };
        assert_eq!(taken(checks, true), [!mac, !udp_port].map(u64::from), "{checks:?}");
        assert_eq!(taken(checks, false), [1, u64::from(!udp_port)], "{checks:?}, routed");
    }
}

#[test]
fn a_mark_far_from_the_psn_expected_notifies_nobody() {
    let (mut a, mut b) = connected();
    let marked = Forged { traffic_class: 3, ..Forged::to(&b, &a, Opcode::RC_SEND_ONLY, first_psn().plus(1)) };
    for psn in [first_psn().plus(5000), first_psn().minus(5000), first_psn().plus(1 << 23)] {
        Forged { psn, ..marked }.send_from(&mut a);
        b.poll(1000);
    }
    let counters = b.engine.counters();
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (0, 0), "marks, notifications");
    for (psn, nanos) in
        [(first_psn(), 10_000), (first_psn().plus(1), 20_000), (first_psn().plus(100), 30_000)]
    {
        Forged { psn, ..marked }.send_from(&mut a);
        b.poll(nanos);
    }
    let counters = b.engine.counters();
    assert_eq!((counters.np_ecn_marked_roce_packets, counters.np_cnp_sent), (3, 3), "marks, notifications");
}

#[test]
fn opcodes_of_manufacturers_are_dropped_without_an_agreement() {
    let (mut a, mut b) = connected();
    let numbered = Opcode::known().map(|info| info.opcode).filter(|opcode| opcode.value() >= 0xC0);
    let opcodes: Vec<Opcode> = numbered.collect();
    assert_eq!(opcodes.len(), 7);
    for opcode in &opcodes {
        Forged::to(&b, &a, *opcode, first_psn().plus(1)).send_from(&mut a);
        b.poll(1000);
    }
    assert_eq!(dropped(&b, "wrong_transport"), opcodes.len() as u64);
    Forged::to(&b, &a, Opcode::RC_SEND_ONLY, first_psn().plus(1)).send_from(&mut a);
    b.poll(1000);
    assert!(
        b.engine.query_qp(b.qpn).is_some_and(|(state, ..)| state == QpState::Rts),
        "the connection lives"
    );
}

#[test]
fn junk_is_dropped_by_its_headers_before_its_icrc_is_computed() {
    let (mut a, mut b) = connected();
    let right = Forged { sound: false, ..Forged::to(&b, &a, Opcode::RC_SEND_ONLY, first_psn().plus(1)) };
    let stranger = Gid::from(Ipv4Addr::new(10, 0, 0, 77));
    let wrong = [
        ("unknown_qp", Forged { qpn: Qpn::new(right.qpn.value() ^ 1), ..right }),
        ("wrong_transport", Forged { opcode: Opcode::new(0x24), ..right }),
        ("wrong_pkey", Forged { pkey: PKey(0x1234), ..right }),
        ("wrong_source", Forged { src: stranger, ..right }),
        ("wrong_destination", Forged { dst: stranger, ..right }),
        ("wrong_source_mac", Forged { src_mac: Mac([2; 6]), ..right }),
        ("wrong_source_port", Forged { udp_source_port: 1, ..right }),
        ("rx_icrc_errors", right),
    ];
    for (name, forged) in wrong {
        forged.send_from(&mut a);
        b.poll(1000);
        assert_eq!(dropped(&b, name), 1, "{name}: {:?}", b.engine.drop_counters());
    }
    assert_eq!(b.engine.drop_counters().total(), wrong.len() as u64);
}

/// `b` has sent nothing: una and max_sent are `first_psn`.
#[test]
fn responses_far_below_una_are_dropped_before_their_icrc_is_computed() {
    let (mut a, mut b) = connected();
    let ack =
        Forged { sound: false, payload_len: 0, ..Forged::to(&b, &a, Opcode::RC_ACKNOWLEDGE, first_psn()) };
    for (psn, is_stale) in [
        (first_psn().minus(STALE_PSNS + 1), true),
        (first_psn().minus(STALE_PSNS), false),
        (first_psn(), false),
        (first_psn().plus(1), true),
    ] {
        let before = [b.engine.counters().stale_responses, dropped(&b, "rx_icrc_errors")];
        Forged { psn, ..ack }.send_from(&mut a);
        b.poll(1000);
        let after = [b.engine.counters().stale_responses, dropped(&b, "rx_icrc_errors")];
        let expected = [before[0] + u64::from(is_stale), before[1] + u64::from(!is_stale)];
        assert_eq!(after, expected, "{psn}");
    }
}

#[test]
fn duplicates_of_a_read_cost_a_bounded_number_of_responses() {
    const READ_BYTES: u32 = 64 << 10;
    let (mut a, mut b) = pair(MTU, READ_BYTES as usize, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    a.post(1, SendOp::Read { remote_addr, rkey }, a.sge(0, READ_BYTES));
    settle(&mut a, &mut b);
    let before = b.engine.counters().sent_pkts;
    let mut request = Forged::to(&b, &a, Opcode::RC_RDMA_READ_REQUEST, first_psn());
    request.reth.len_bytes = READ_BYTES;
    for n in 0..2000 {
        request.send_from(&mut a);
        // `b` sends all responses to a duplicate READ request before `b` receives the next duplicate, 1 ns later. On a
        // real link, the interval is longer.
        while b.poll(100_000 + n).more {}
        while a.poll(100_000 + n).rx_frames > 0 {}
    }
    let sent = b.engine.counters().sent_pkts - before;
    let read_pkts = u64::from(READ_BYTES / 1024);
    assert!(sent >= read_pkts, "the first duplicate is served: {sent}");
    // Near the wraps of all counters, the clock does not begin at 0, and the token bucket is full at the first duplicate.
    // The bound therefore includes `RETRANSMIT_BURST_PKTS`. In the 2 us of this test, no further token accrues.
    let most =
        u64::from(RETRANSMITS_PER_READ) * read_pkts + u64::from(RETRANSMIT_PKTS_MIN) + RETRANSMIT_BURST_PKTS;
    assert!(sent <= most, "2,000 duplicates of a READ of {read_pkts} packets had {sent} sent");
}
