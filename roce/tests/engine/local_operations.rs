//! Local operations of a send queue: local invalidate (IBA 10.6.5) is executed and completes in the order of the send
//! queue, without a packet.

use crate::common::{End, conn, pair, pair_over, ports, settle, statuses, uc_pair_over};
use proptest::prelude::*;
use roce::engine::Event;
use roce::engine::limits::TX_BUDGET_PKTS;
use roce::id::RKey;
use roce::mem::{Access, Memory};
use roce::port::Port;
use roce::qp::{ConnAttr, PathMtu, QpAttr, QpState};
use roce::queue::{PostError, SendData, SendFlags, SendOp, SendRequest, Sge, WcOpcode, WcStatus};
use roce::recovery::RecoveryScheme;
use roce::start;

const OK: WcStatus = WcStatus::Success;

/// Drops all frames in flight to `end`, and returns their number.
fn lose(end: &mut End) -> usize {
    end.engine.port_mut().rx_burst(&mut Vec::new(), usize::MAX)
}

fn post_local(end: &mut End, wr_id: u64, rkey: RKey, fence: bool) {
    let flags = SendFlags { fence, ..SendFlags::default() };
    let (op, data) = (SendOp::LocalInvalidate { rkey }, SendData::Sges(&[]));
    end.send.post(&SendRequest { wr_id, op, flags, data }).unwrap();
}

/// Registers 64 bytes that the peer may write.
fn register(end: &mut End) -> (Sge, RKey) {
    let memory = Memory::alloc(64);
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let (lkey, rkey) = end.engine.objects().register(end.pd, memory.clone(), memory.addr(), access).unwrap();
    (Sge { addr: memory.addr(), len_bytes: 64, lkey }, rkey)
}

fn set_state(end: &mut End, state: QpState) {
    end.engine.modify_qp(end.qpn, &QpAttr { state: Some(state), ..QpAttr::default() }).unwrap();
}

#[test]
fn a_local_invalidate_alone_completes_without_a_packet() {
    let (port_a, port_b) = ports();
    let uc = uc_pair_over(port_a, port_b, 8192);
    for (mut a, mut b) in [pair(PathMtu::Mtu1024, 8192, true), uc] {
        let (sge, rkey) = register(&mut a);
        b.post(1, SendOp::Write { remote_addr: sge.addr, rkey }, b.sge(0, 8));
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut b), [(1, OK)]);
        let sent_pkts = a.engine.counters().sent_pkts;
        for wr_id in [2, 3] {
            post_local(&mut a, wr_id, rkey, wr_id == 3);
        }
        let progress = a.poll(0);
        let completed: Vec<_> =
            a.completions().iter().map(|cqe| (cqe.wr_id, cqe.status, cqe.opcode)).collect();
        assert_eq!(completed, [2, 3].map(|wr_id| (wr_id, OK, WcOpcode::LocalInvalidate)));
        assert!(!progress.is_idle(), "the poll did work");
        settle(&mut a, &mut b);
        assert_eq!((a.engine.counters().sent_pkts, a.engine.next_deadline()), (sent_pkts, None));
        assert_eq!(
            a.engine.objects().deregister(sge.lkey),
            Ok(()),
            "an invalidated region can be deregistered"
        );
    }
}

#[test]
fn an_invalidated_region_refuses_access() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (sge, rkey) = register(&mut a);
    post_local(&mut a, 1, rkey, false);
    settle(&mut a, &mut b);
    b.post(2, SendOp::Write { remote_addr: sge.addr, rkey }, b.sge(0, 8));
    settle(&mut a, &mut b);
    assert_eq!((statuses(&mut a), statuses(&mut b)), (vec![(1, OK)], vec![(2, WcStatus::RemAccessErr)]));
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (sge, rkey) = register(&mut a);
    post_local(&mut a, 1, rkey, false);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    a.post(2, SendOp::Write { remote_addr, rkey }, sge);
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [(1, OK), (2, WcStatus::LocProtErr)]);
}

#[test]
fn local_operations_complete_after_earlier_and_before_later_work_requests() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let local = register(&mut a).1;
    let write = SendOp::Write { remote_addr, rkey };
    a.post(1, write, a.sge(0, 3000));
    post_local(&mut a, 2, local, false);
    post_local(&mut a, 3, local, false);
    a.post(4, write, a.sge(0, 8));
    post_local(&mut a, 5, local, false);
    a.poll(0);
    assert_eq!((lose(&mut b), statuses(&mut a)), (4, vec![]), "all wait for the ACK of the lost WRITE");
    a.engine.settle_timers();
    let timeout_nanos = a.engine.next_deadline().unwrap().nanos_since(start::instant());
    a.poll(timeout_nanos);
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [1, 2, 3, 4, 5].map(|wr_id| (wr_id, OK)));
    assert_eq!(a.engine.counters().rdma_sends, 2);
}

#[test]
fn a_fenced_local_invalidate_waits_for_earlier_work_requests() {
    for (fence, wanted) in
        [(false, vec![(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)]), (true, vec![(1, OK), (2, OK)])]
    {
        let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
        let (sge, own) = register(&mut a);
        let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
        a.post(1, SendOp::Read { remote_addr, rkey }, sge);
        post_local(&mut a, 2, own, fence);
        settle(&mut a, &mut b);
        assert_eq!(statuses(&mut a), wanted, "fence {fence}");
    }
}

#[test]
fn a_fenced_local_invalidate_on_uc_follows_the_sent_packets() {
    let (port_a, port_b) = ports();
    let (mut a, b) = uc_pair_over(port_a, port_b, 8192);
    let own = register(&mut a).1;
    a.post(1, SendOp::Write { remote_addr: b.memory.addr(), rkey: b.rkey }, a.sge(0, 2000));
    post_local(&mut a, 2, own, true);
    a.post(3, SendOp::Write { remote_addr: b.memory.addr(), rkey: b.rkey }, a.sge(0, 600));
    a.poll(0);
    assert_eq!(statuses(&mut a), [(1, OK), (2, OK), (3, OK)]);
}

#[test]
fn a_local_invalidate_of_a_bad_key_fails_in_order() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let other_pd = a.engine.objects().alloc_pd().unwrap();
    let (_, foreign) = a.engine.objects().register(other_pd, Memory::alloc(8), 0, Access::NONE).unwrap();
    let own = register(&mut a).1;
    a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
    post_local(&mut a, 2, own, false);
    post_local(&mut a, 3, foreign, false);
    post_local(&mut a, 4, own, false);
    settle(&mut a, &mut b);
    let failed = [(3, WcStatus::MwBindErr), (4, WcStatus::WrFlushErr)];
    assert_eq!(statuses(&mut a), [&[(1, OK), (2, OK)], &failed[..]].concat());
    assert_eq!(a.engine.query_qp(a.qpn).unwrap().0, QpState::Err);

    let (port_a, port_b) = ports();
    let (mut a, _) = uc_pair_over(port_a, port_b, 8192);
    let own = register(&mut a).1;
    post_local(&mut a, 2, own, false);
    post_local(&mut a, 3, RKey(own.0 ^ 1), false);
    post_local(&mut a, 4, own, false);
    a.poll(0);
    a.poll(1);
    assert_eq!(statuses(&mut a), [&[(2, OK)], &failed[..]].concat());
    assert_eq!(a.engine.query_qp(a.qpn).unwrap().0, QpState::Sqe);
}

#[test]
fn an_executed_local_operation_behind_a_failed_work_request_is_flushed() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (sge, own) = register(&mut a);
    a.post(1, SendOp::Write { remote_addr: 0, rkey: RKey(b.rkey.0 ^ 1) }, a.sge(0, 8));
    post_local(&mut a, 2, own, false);
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [(1, WcStatus::RemAccessErr), (2, WcStatus::WrFlushErr)]);
    assert_eq!(a.engine.objects().deregister(sge.lkey), Ok(()));
}

#[test]
fn a_drained_send_queue_starts_no_local_operation() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 8192, true);
    let (remote_addr, rkey) = (b.memory.addr(), b.rkey);
    let own = register(&mut a).1;
    a.post(1, SendOp::Write { remote_addr, rkey }, a.sge(0, 8));
    post_local(&mut a, 2, own, false);
    a.poll(0);
    set_state(&mut a, QpState::Sqd);
    post_local(&mut a, 3, own, false);
    a.poll(1);
    assert_eq!((statuses(&mut a), a.engine.poll_event()), (vec![], None), "the WRITE is in flight");
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [(1, OK), (2, OK)]);
    assert_eq!(a.engine.poll_event(), Some(Event::SendQueueDrained(a.qpn)));
    set_state(&mut a, QpState::Rts);
    settle(&mut a, &mut b);
    assert_eq!(statuses(&mut a), [(3, OK)]);
}

/// One poll executes a bounded number of local operations, as it sends a bounded number of packets.
#[test]
fn a_poll_executes_a_bounded_number_of_local_operations() {
    let (mut a, _) = pair(PathMtu::Mtu1024, 8192, true);
    let own = register(&mut a).1;
    let count = 2 * u64::from(TX_BUDGET_PKTS) + 5;
    (0..count).for_each(|wr_id| post_local(&mut a, wr_id, own, false));
    let mut completed = Vec::new();
    for _ in 0..3 {
        assert!(a.poll(0).tx_pkts <= TX_BUDGET_PKTS);
        completed.extend(statuses(&mut a));
    }
    assert_eq!(completed, (0..count).map(|wr_id| (wr_id, OK)).collect::<Vec<_>>());
}

#[test]
fn a_local_invalidate_with_a_payload_is_refused() {
    let (mut a, _) = pair(PathMtu::Mtu1024, 8192, true);
    let (op, flags, sge) = (SendOp::LocalInvalidate { rkey: RKey(1) }, SendFlags::default(), a.sge(0, 0));
    for data in [SendData::Inline(&[]), SendData::Inline(&[1]), SendData::Sges(&[sge])] {
        let refused = a.send.post(&SendRequest { wr_id: 1, op, flags, data });
        assert_eq!(refused, Err(PostError::LocalWithData));
    }
    a.poll(0);
    assert_eq!(statuses(&mut a), []);
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Write { len_bytes: u32 },
    Read { len_bytes: u32 },
    Local { fence: bool },
}

fn kinds() -> impl Strategy<Value = Kind> {
    let lengths = || prop_oneof![Just(0u32), 1u32..3, 1000u32..5000];
    prop_oneof![
        lengths().prop_map(|len_bytes| Kind::Write { len_bytes }),
        lengths().prop_map(|len_bytes| Kind::Read { len_bytes }),
        any::<bool>().prop_map(|fence| Kind::Local { fence }),
        any::<bool>().prop_map(|fence| Kind::Local { fence }),
    ]
}

const SCHEMES: [RecoveryScheme; 3] = [
    RecoveryScheme::GoBackN,
    RecoveryScheme::ImprovedGoBackN,
    RecoveryScheme::SelectiveRepeat { window_pkts: 64 },
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every work request completes once, in order, whichever frames are lost.
    #[test]
    fn all_complete_in_order_behind_losses(
        kinds in proptest::collection::vec((kinds(), any::<bool>()), 1..40),
        lost in proptest::collection::vec((any::<bool>(), any::<bool>()), 0..4),
        recovery in prop::sample::select(SCHEMES.to_vec()),
    ) {
        let (port_a, port_b) = ports();
        let conn = ConnAttr { recovery, ..conn(PathMtu::Mtu1024) };
        let (mut a, mut b) = pair_over(port_a, port_b, 8192, true, &conn);
        let (remote_addr, rkey, own) = (b.memory.addr(), b.rkey, register(&mut a).1);
        let mut nanos = 0;
        let mut lost = lost.into_iter();
        for (wr_id, (kind, is_polled)) in (0..).zip(&kinds) {
            match *kind {
                Kind::Write { len_bytes } => a.post(wr_id, SendOp::Write { remote_addr, rkey }, a.sge(0, len_bytes)),
                Kind::Read { len_bytes } => a.post(wr_id, SendOp::Read { remote_addr, rkey }, a.sge(0, len_bytes)),
                Kind::Local { fence } => post_local(&mut a, wr_id, own, fence),
            }
            if *is_polled {
                nanos += 1;
                a.poll(nanos);
                b.poll(nanos);
            }
        }
        let mut completed = statuses(&mut a);
        while completed.len() < kinds.len() {
            let (to_b, to_a) = lost.next().unwrap_or_default();
            a.poll(nanos);
            if to_b {
                lose(&mut b);
            }
            // `b` is polled twice, because it delays an ACK by one poll.
            b.poll(nanos);
            b.poll(nanos);
            if to_a {
                lose(&mut a);
            }
            a.poll(nanos);
            completed.extend(statuses(&mut a));
            let deadline = a.engine.next_deadline().map_or(0, |at| at.nanos_since(start::instant()));
            prop_assert!(nanos < 60_000_000_000, "{} of {} completed", completed.len(), kinds.len());
            nanos = deadline.max(nanos + 1);
        }
        prop_assert_eq!(completed, (0..kinds.len() as u64).map(|wr_id| (wr_id, OK)).collect::<Vec<_>>());
        let writes = kinds.iter().filter(|(kind, _)| matches!(kind, Kind::Write { .. })).count();
        prop_assert_eq!(a.engine.counters().rdma_sends, writes as u64);
    }
}
