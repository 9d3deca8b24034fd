//! Two engines in one thread over loopback ports: all operations, and their completions.

use crate::common::{DEPTH, pair, settle};
use roce::engine::Event;
use roce::id::Qpn;
use roce::qp::{AddressVector, ConnAttr, ModifyError, PathMtu, Placement, QpAttr, QpState};
use roce::queue::{SendData, SendFlags, SendOp, SendRequest, WcOpcode, WcStatus};
use roce::recovery::RecoveryScheme;
use roce::start;

const LENGTHS: [u32; 10] = [0, 1, 3, 4, 255, 256, 257, 1024, 5000, 100_000];

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn inline_requests_in_flight_keep_their_own_bytes() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 1 << 16, true);
    for n in 0..u64::from(DEPTH) {
        let op = SendOp::Write { remote_addr: b.memory.addr() + 8 * n, rkey: b.rkey };
        let data = SendData::Inline(&n.to_be_bytes());
        a.send.post(&SendRequest { wr_id: n, op, flags: SendFlags::default(), data }).unwrap();
    }
    settle(&mut a, &mut b);
    assert!(a.completions().iter().all(|cqe| cqe.status == WcStatus::Success));
    let written: Vec<u64> = (0..u64::from(DEPTH))
        .map(|n| {
            let mut bytes = [0; 8];
            b.memory.read(8 * n as usize, &mut bytes).unwrap();
            u64::from_be_bytes(bytes)
        })
        .collect();
    assert_eq!(written, Vec::from_iter(0..u64::from(DEPTH)));
}

#[test]
fn every_operation_moves_its_bytes_at_every_length_and_mtu() {
    for mtu in PathMtu::ALL {
        let (mut a, mut b) = pair(mtu, 1 << 20, true);
        for (n, len) in LENGTHS.into_iter().enumerate() {
            let data = pattern(len as usize, n as u8);
            a.memory.write(0, &data).unwrap();
            let remote_addr = b.memory.addr() + 300_000;
            let rkey = b.rkey;
            b.post_recv(70, b.sge(100_000, 100_000));
            b.post_recv(71, b.sge(0, 0));
            a.post(1, SendOp::SendWithImm { imm: 9 }, a.sge(0, len));
            a.post(2, SendOp::Write { remote_addr, rkey }, a.sge(0, len));
            a.post(
                3,
                SendOp::WriteWithImm { remote_addr: remote_addr + 200_000, rkey, imm: 8 },
                a.sge(0, len),
            );
            a.post(4, SendOp::Read { remote_addr, rkey }, a.sge(500_000, len));
            settle(&mut a, &mut b);
            let got: Vec<_> = a.completions().iter().map(|c| (c.wr_id, c.status, c.opcode)).collect();
            let ok = WcStatus::Success;
            assert_eq!(
                got,
                [
                    (1, ok, WcOpcode::Send),
                    (2, ok, WcOpcode::RdmaWrite),
                    (3, ok, WcOpcode::RdmaWrite),
                    (4, ok, WcOpcode::RdmaRead)
                ]
            );
            let got: Vec<_> =
                b.completions().iter().map(|c| (c.wr_id, c.opcode, c.len_bytes, c.imm)).collect();
            assert_eq!(
                got,
                [(70, WcOpcode::Recv, len, Some(9)), (71, WcOpcode::RecvRdmaWithImm, len, Some(8))]
            );
            for (memory, offset) in
                [(&b.memory, 100_000), (&b.memory, 300_000), (&b.memory, 500_000), (&a.memory, 500_000)]
            {
                let mut bytes = vec![0; len as usize];
                memory.read(offset, &mut bytes).unwrap();
                assert!(bytes == data, "{len} bytes at {offset}, path MTU {}", mtu.bytes());
            }
        }
        for end in [&a, &b] {
            let counters = end.engine.counters();
            assert_eq!(counters.retransmitted_pkts, 0);
            assert_eq!(counters.duplicate_request + counters.out_of_seq_request, 0);
            assert_eq!(end.engine.drop_counters().total(), 0);
        }
    }
}

#[test]
fn inline_data_needs_no_memory_and_may_be_reused_at_once() {
    let (mut a, mut b) = pair(PathMtu::Mtu256, 4096, false);
    let mut bytes = *b"first";
    for wr_id in 0..2 {
        b.post_recv(wr_id, b.sge(wr_id as usize * 8, 8));
        let flags = SendFlags { signaled: wr_id == 1, ..SendFlags::default() };
        let request = SendRequest { wr_id, op: SendOp::Send, flags, data: SendData::Inline(&bytes) };
        a.send.post(&request).unwrap();
        bytes = *b"later";
    }
    settle(&mut a, &mut b);
    let mut got = [0; 16];
    b.memory.read(0, &mut got).unwrap();
    assert_eq!(&got, b"first\0\0\0later\0\0\0");
    assert_eq!(a.completions().iter().map(|c| c.wr_id).collect::<Vec<_>>(), [1], "only the signaled one");
}

#[test]
fn a_wrong_key_fails_the_request_and_flushes_what_follows_in_order() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let remote_addr = b.memory.addr();
    let wrong = roce::id::RKey(b.rkey.0 ^ 0x100);
    a.post(1, SendOp::Write { remote_addr, rkey: b.rkey }, a.sge(0, 8));
    a.post(2, SendOp::Write { remote_addr, rkey: wrong }, a.sge(0, 5000));
    a.post(3, SendOp::Write { remote_addr, rkey: b.rkey }, a.sge(0, 8));
    a.post_recv(4, a.sge(0, 8));
    settle(&mut a, &mut b);
    let got: Vec<_> = a.completions().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(
        got,
        [
            (1, WcStatus::Success),
            (2, WcStatus::RemAccessErr),
            (3, WcStatus::WrFlushErr),
            (4, WcStatus::WrFlushErr)
        ]
    );
    assert_eq!(b.engine.query_qp(b.qpn).unwrap().0, QpState::Err);
    assert_eq!(b.engine.poll_event(), Some(Event::QpAccessError(b.qpn)));
    assert_eq!(b.engine.counters().resp_remote_access_errors, 1);
    // A work request that is posted after the transition to ERR is flushed.
    a.post(5, SendOp::Send, a.sge(0, 8));
    settle(&mut a, &mut b);
    a.poll(1);
    assert_eq!(
        a.completions().iter().map(|c| (c.wr_id, c.status)).collect::<Vec<_>>(),
        [(5, WcStatus::WrFlushErr)]
    );
}

#[test]
fn a_bad_local_key_fails_after_its_predecessors_complete() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    a.post(1, SendOp::Read { remote_addr, rkey }, a.sge(0, 4000));
    let bad = roce::queue::Sge { lkey: roce::id::LKey(1), ..a.sge(0, 8) };
    a.post(2, SendOp::Write { remote_addr, rkey }, bad);
    a.post(3, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
    settle(&mut a, &mut b);
    let got: Vec<_> = a.completions().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(got, [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)]);
}

#[test]
fn a_message_longer_than_its_receive_fails_both_ends() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    b.post_recv(9, b.sge(0, 3000));
    a.post(1, SendOp::Send, a.sge(0, 3001));
    settle(&mut a, &mut b);
    assert_eq!(a.completions()[0].status, WcStatus::RemInvReqErr);
    assert_eq!(b.completions()[0].status, WcStatus::LocLenErr);
    assert_eq!(b.engine.poll_event(), Some(Event::QpRequestError(b.qpn)));
}

#[test]
fn recovery_and_placement_are_fixed_from_rtr_on() {
    let (mut a, b) = pair(PathMtu::Mtu1024, 4096, true);
    let conn = ConnAttr { path_mtu: PathMtu::Mtu1024, ..ConnAttr::default() };
    let others = [
        ("recovery", QpAttr { recovery: Some(RecoveryScheme::GoBackN), ..conn.to_rts(start::psn(7)) }),
        ("placement", QpAttr { placement: Some(Placement::Relaxed), ..conn.to_rts(start::psn(7)) }),
    ];
    for (name, other) in others {
        let qpn = a.create_idle_qp();
        let path = AddressVector::new(b.gid, 1);
        a.engine.modify_qp(qpn, &conn.to_init()).unwrap();
        a.engine.modify_qp(qpn, &conn.to_rtr(path, Qpn::new(0x1234), start::psn(7))).unwrap();
        match a.engine.modify_qp(qpn, &other) {
            Err(ModifyError::Fixed { attribute, state: QpState::Rtr }) => assert_eq!(attribute, name),
            accepted => panic!("{name}: {accepted:?}"),
        }
        let same = QpAttr {
            recovery: Some(conn.recovery),
            placement: Some(conn.placement),
            ..conn.to_rts(start::psn(7))
        };
        a.engine.modify_qp(qpn, &same).unwrap();
    }
}
