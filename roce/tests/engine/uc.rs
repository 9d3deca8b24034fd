//! Unreliable connections (IBA 9.8): completely received messages are executed, all other messages are dropped.

use crate::common::{
    self, End, conn, connect_qp, pair, ports, put, settle, state_of, statuses, take, uc_pair_over,
};
use proptest::prelude::*;
use roce::engine::Event;
use roce::id::LKey;
use roce::qp::{AddressVector, PathMtu, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{Cqe, SendOp, Sge, WcOpcode, WcStatus};
use roce::start;
use roce::wire::{Packet, Position};

/// Path MTU of the connections, in bytes.
const MTU_BYTES: u32 = 256;

fn uc_pair() -> (End, End) {
    let (port_a, port_b) = ports();
    uc_pair_over(port_a, port_b, 1 << 16)
}

#[test]
fn sends_and_writes_arrive_and_complete_when_sent() {
    let (mut a, mut b) = uc_pair();
    let (remote_addr, rkey) = (b.memory.addr() + 8192, b.rkey);
    a.memory.write(0, &[7; 2000]).unwrap();
    b.post_recv(10, b.sge(0, 2000));
    b.post_recv(11, b.sge(4096, 0));
    a.post(1, SendOp::SendWithImm { imm: 5 }, a.sge(0, 2000));
    a.post(2, SendOp::Write { remote_addr, rkey }, a.sge(0, 2000));
    a.post(3, SendOp::WriteWithImm { remote_addr, rkey, imm: 6 }, a.sge(0, 0));
    a.poll(0);
    assert_eq!(statuses(&mut a), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::Success)), "without any ACK");
    settle(&mut a, &mut b);
    let received: Vec<_> =
        b.completions().iter().map(|cqe| (cqe.wr_id, cqe.opcode, cqe.len_bytes, cqe.imm)).collect();
    assert_eq!(received, [(10, WcOpcode::Recv, 2000, Some(5)), (11, WcOpcode::RecvRdmaWithImm, 0, Some(6))]);
    for offset in [0, 8192] {
        let mut bytes = [0; 2001];
        b.memory.read(offset, &mut bytes).unwrap();
        assert_eq!((&bytes[..2000], bytes[2000]), (&[7; 2000][..], 0));
    }
    assert_eq!((a.engine.counters().sent_pkts, b.engine.counters().sent_pkts), (17, 0), "no response");
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    Delivered,
    Lost,
    Doubled,
    /// The frame is delivered after the next frame.
    Swapped,
}

fn fates() -> impl Strategy<Value = Fate> {
    let rare = [Fate::Lost, Fate::Doubled, Fate::Swapped];
    prop_oneof![8 => Just(Fate::Delivered), 3 => prop::sample::select(rare.to_vec())]
}

fn fated(frames: &[Vec<u8>], fates: &[Fate]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    let mut late = None;
    for (frame, fate) in frames.iter().zip(fates.iter().cycle()) {
        match fate {
            Fate::Delivered => out.push(frame.clone()),
            Fate::Lost => {}
            Fate::Doubled => out.extend([frame.clone(), frame.clone()]),
            Fate::Swapped if late.is_none() => {
                late = Some(frame.clone());
                continue;
            }
            Fate::Swapped => out.push(frame.clone()),
        }
        out.extend(late.take());
    }
    out.extend(late);
    out
}

/// Returns first payload byte and length of each message that a receiver executes (IBA 9.8.2.2): an ONLY packet, or
/// packets with consecutive PSNs from FIRST to LAST.
fn executed(frames: &[Vec<u8>]) -> Vec<(u8, usize)> {
    let mut messages = Vec::new();
    let mut partial: Option<(u8, usize)> = None;
    let mut next = None;
    for frame in frames {
        let packet = Packet::parse(frame).unwrap();
        let is_next = next.replace(packet.bth.psn.plus(1)) == Some(packet.bth.psn);
        let starts = matches!(packet.info.position, Position::First | Position::Only);
        partial = match partial {
            _ if starts => Some((packet.payload[0], 0)),
            partial => partial.filter(|_| is_next),
        };
        let Some((fill, len)) = &mut partial else { continue };
        *len += packet.payload.len();
        if matches!(packet.info.position, Position::Last | Position::Only) {
            messages.push((*fill, *len));
            partial = None;
        }
    }
    messages
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn only_messages_that_arrive_whole_are_executed(
        lengths in proptest::collection::vec(1u32..4 * MTU_BYTES, 1..30),
        fates in proptest::collection::vec(fates(), 1..60),
    ) {
        let (port_a, mut from_a) = ports();
        let (mut to_b, port_b) = ports();
        let (mut a, mut b) = uc_pair_over(port_a, port_b, 1 << 16);
        for (n, len) in lengths.iter().enumerate() {
            a.memory.write(1024 * n, &vec![1 + n as u8; *len as usize]).unwrap();
            a.post(n as u64, SendOp::Send, a.sge(1024 * n, *len));
        }
        for poll in 0..4 {
            a.poll(poll);
        }
        let frames = fated(&take(&mut from_a), &fates);
        let wanted = executed(&frames);
        for n in 0..wanted.len() {
            b.post_recv(n as u64, b.sge(1024 * n, 4 * MTU_BYTES));
        }
        for frame in &frames {
            put(&mut to_b, frame);
            b.poll(5);
        }
        let received: Vec<Cqe> = b.completions();
        let contents: Vec<_> = received.iter().map(|cqe| {
            let mut bytes = vec![0; cqe.len_bytes as usize];
            b.memory.read(1024 * cqe.wr_id as usize, &mut bytes).unwrap();
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one message");
            (bytes[0], bytes.len())
        }).collect();
        prop_assert_eq!(contents, wanted);
        prop_assert!(received.iter().all(|cqe| cqe.status == WcStatus::Success));
        prop_assert_eq!((state_of(&b), b.engine.counters().sent_pkts), (QpState::Rts, 0));
    }
}

#[test]
fn a_work_request_that_cannot_be_sent_stops_the_send_queue_only() {
    let (mut a, mut b) = uc_pair();
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let bad = Sge { lkey: LKey(1), ..a.sge(0, 8) };
    // UC has no READ (IBA 9.8).
    let faults = [
        (SendOp::Write { remote_addr, rkey }, bad, WcStatus::LocProtErr),
        (SendOp::Read { remote_addr, rkey }, a.sge(0, 8), WcStatus::LocQpOpErr),
    ];
    for (op, sge, status) in faults {
        a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, 600));
        a.post(2, op, sge);
        a.post(3, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
        settle(&mut a, &mut b);
        let wanted = [(1, WcStatus::Success), (2, status), (3, WcStatus::WrFlushErr)];
        assert_eq!((statuses(&mut a), state_of(&a)), (wanted.to_vec(), QpState::Sqe));
        a.post(4, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
        a.post_recv(5, a.sge(100, 4));
        b.post(6, SendOp::Send, b.sge(0, 4));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), [(4, WcStatus::WrFlushErr), (5, WcStatus::Success)]);
        assert_eq!(statuses(&mut b), [(6, WcStatus::Success)]);
        a.post(7, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
        let rts = QpAttr { state: Some(QpState::Rts), ..QpAttr::default() };
        a.engine.modify_qp(a.qpn, &rts).unwrap();
        b.post_recv(9, b.sge(0, 8));
        a.post(8, SendOp::Send, a.sge(0, 8));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), [(7, WcStatus::WrFlushErr), (8, WcStatus::Success)]);
        assert_eq!(statuses(&mut b), [(9, WcStatus::Success)], "the PSNs continue");
        assert_eq!(b.engine.counters().out_of_seq_request, 0);
    }
    assert_eq!((a.engine.qp_errors(), a.engine.poll_event(), state_of(&b)), (0, None, QpState::Rts));
}

#[test]
fn work_requests_posted_after_the_return_from_sqe_are_not_flushed() {
    let (mut a, mut b) = uc_pair();
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let write = SendOp::Write { remote_addr, rkey };
    a.post(1, write, Sge { lkey: LKey(1), ..a.sge(0, 8) });
    a.poll(0);
    assert_eq!((statuses(&mut a), state_of(&a)), (vec![(1, WcStatus::LocProtErr)], QpState::Sqe));
    a.engine.modify_qp(a.qpn, &QpAttr { state: Some(QpState::Rts), ..QpAttr::default() }).unwrap();
    // 98 work requests of three packets each: more packets than one poll sends.
    (2..100).for_each(|wr_id| a.post(wr_id, write, a.sge(0, 600)));
    settle(&mut a, &mut b);
    let wanted: Vec<_> = (2..100).map(|wr_id| (wr_id, WcStatus::Success)).collect();
    assert_eq!(statuses(&mut a), wanted);
}

#[test]
fn a_message_that_cannot_be_executed_is_dropped_without_a_response() {
    let (mut a, mut b) = uc_pair();
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let write = |remote_addr, rkey| SendOp::Write { remote_addr, rkey };
    a.post(1, SendOp::Send, a.sge(0, 600)); // no receive: three packets
    settle(&mut a, &mut b);
    assert_eq!(b.engine.counters().out_of_buffer, 1);
    b.post_recv(10, b.sge(0, 300));
    a.post(2, SendOp::Send, a.sge(0, 600)); // longer than the receive: the last two packets
    a.post(3, write(remote_addr, roce::id::RKey(1)), a.sge(0, 300)); // no such region: two packets
    a.post(4, write(remote_addr + (1 << 16) - 200, rkey), a.sge(0, 300)); // past its end: two packets
    settle(&mut a, &mut b);
    assert_eq!((b.completions(), b.engine.counters().uc_requests_dropped), (vec![], 3 + 2 + 2 + 2));
    a.post(5, SendOp::Send, a.sge(0, 300));
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut b), [(10, WcStatus::Success)], "the receive was still there");
    let of_a = [1, 2, 3, 4, 5].map(|wr_id| (wr_id, WcStatus::Success));
    assert_eq!((statuses(&mut a), b.engine.counters().sent_pkts), (of_a.to_vec(), 0));
}

#[test]
fn nothing_is_allocated_per_packet() {
    let (mut a, mut b) = uc_pair();
    for round in 0..40 {
        let allocations = allocation_counter::measure(|| {
            b.post_recv(1, b.sge(0, 2000));
            a.post(2, SendOp::Send, a.sge(0, 2000));
            settle(&mut a, &mut b);
        });
        assert_eq!((a.poller.pop().is_some(), b.poller.pop().is_some()), (true, true));
        assert!(round < 20 || allocations.count_total == 0, "{allocations:?}");
    }
}

#[test]
fn a_receive_that_cannot_be_written_fails_the_queue_pair() {
    let (mut a, mut b) = uc_pair();
    b.post_recv(10, Sge { lkey: LKey(1), ..b.sge(0, 8) });
    b.post_recv(11, b.sge(0, 8));
    a.post(1, SendOp::Send, a.sge(0, 8));
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut b), [(10, WcStatus::LocProtErr), (11, WcStatus::WrFlushErr)]);
    assert_eq!((state_of(&b), statuses(&mut a)), (QpState::Err, vec![(1, WcStatus::Success)]));
    let events: Vec<_> = std::iter::from_fn(|| b.engine.poll_event()).collect();
    assert_eq!(events, [Event::QpFatal(b.qpn)]);
}

#[test]
fn a_drained_send_queue_is_reported_once_and_starts_again() {
    let (mut a, mut b) = uc_pair();
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let to = |state| QpAttr { state: Some(state), ..QpAttr::default() };
    // `push` sends at most 64 of the 100 packets: at the transition to SQD, the message is partly sent.
    a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, 100 * MTU_BYTES));
    a.post(2, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
    a.engine.push(start::instant());
    a.engine.modify_qp(a.qpn, &to(QpState::Sqd)).unwrap();
    assert_eq!((a.completions(), a.engine.poll_event()), (vec![], None));
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [(1, WcStatus::Success)]);
    let events: Vec<_> = std::iter::from_fn(|| a.engine.poll_event()).collect();
    assert_eq!(events, [Event::SendQueueDrained(a.qpn)]);
    a.engine.modify_qp(a.qpn, &to(QpState::Rts)).unwrap();
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [(2, WcStatus::Success)]);
}

#[test]
fn packets_of_another_transport_service_are_dropped() {
    let (mut a, mut b) = pair(PathMtu::Mtu256, 4096, true);
    let init = QpInit { service: ServiceType::Uc, ..a.small_qp() };
    let uc = a.engine.create_qp(&init).unwrap();
    let (mut send, qpn) = (uc.send, uc.qpn);
    // The peer of the UC queue pair is an RC queue pair.
    connect_qp(&mut a.engine, qpn, b.qpn, AddressVector::new(b.gid, 1), &conn(PathMtu::Mtu256));
    b.post_recv(1, b.sge(0, 8));
    common::post_send(&mut send, 2, SendOp::Send, a.sge(0, 8));
    settle(&mut a, &mut b);
    assert_eq!((b.completions(), b.engine.drop_counters().wrong_transport), (vec![], 1));
}
