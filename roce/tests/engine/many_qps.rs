//! Many queue pairs of one device: objects in use, queue pairs in error, a neighbour that moves, memory, QPN prefixes.

use crate::common::{self, DEPTH, End, connect_qp, pair, pair_of, pair_over, ports_of, settle, take};
use roce::engine::limits::CACHED_QPS;
use roce::engine::{DestroyError, EngineConfig, QpHandles, QpnPrefix};
use roce::id::{Mac, Qpn};
use roce::mem::{Access, Memory};
use roce::port::Port;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{RecvRequest, SendOp, WcStatus};
use roce::start;
use std::net::{IpAddr, Ipv4Addr};

/// More queue pairs than one poll flushes.
const QPS: usize = 100;

/// More address handles than one poll updates from the neighbour cache.
const CLASSES: u8 = 63;

fn state(state: QpState) -> QpAttr {
    QpAttr { state: Some(state), ..QpAttr::default() }
}

#[test]
fn an_object_in_use_is_not_destroyed() {
    let (mut a, _b) = pair(PathMtu::Mtu1024, 4096, true);
    let (pd, (cq, _poller)) =
        (a.engine.objects().alloc_pd().unwrap(), a.engine.objects().create_cq(8).unwrap());
    let busy = |a: &mut End| {
        let is_busy = |result| match result {
            Err(DestroyError::Busy(_)) => true,
            other => panic!("not an object in use: {other:?}"),
        };
        (is_busy(a.engine.objects().dealloc_pd(pd)), is_busy(a.engine.objects().destroy_cq(cq)))
    };
    let memory = Memory::alloc(64);
    let refused = a.engine.objects().register(pd, memory.clone(), 0, Access::REMOTE_WRITE);
    assert!(refused.is_err(), "a refused region does not use the protection domain");
    let (lkey, _) = a.engine.objects().register(pd, memory, 0, Access::NONE).unwrap();
    assert!(matches!(a.engine.objects().dealloc_pd(pd), Err(DestroyError::Busy(_))));
    let init = QpInit { pd, recv_cq: cq, ..a.small_qp() };
    let qps = [(); 2].map(|()| a.engine.create_qp(&init).unwrap().qpn);
    a.engine.objects().deregister(lkey).unwrap();
    for qpn in qps {
        assert_eq!(busy(&mut a), (true, true));
        a.engine.destroy_qp(qpn).unwrap();
    }
    assert_eq!((a.engine.objects().dealloc_pd(pd), a.engine.objects().destroy_cq(cq)), (Ok(()), Ok(())));
    assert!(matches!(a.engine.objects().dealloc_pd(pd), Err(DestroyError::Unknown(_))));
    assert!(matches!(a.engine.objects().destroy_cq(cq), Err(DestroyError::Unknown(_))));
}

#[test]
fn queue_pairs_in_error_flush_all_posts_and_leave_the_device_idle() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    settle(&mut a, &mut b);
    for _ in 0..QPS {
        let qpn = a.create_idle_qp();
        a.engine.modify_qp(qpn, &state(QpState::Err)).unwrap();
    }
    (0..u64::from(DEPTH)).for_each(|wr_id| a.post_recv(wr_id, a.sge(0, 64)));
    a.engine.modify_qp(a.qpn, &state(QpState::Err)).unwrap();
    let mut nanos = 200_000;
    while let Some(deadline) = a.engine.next_deadline() {
        nanos = nanos.max(deadline.nanos_since(start::instant())) + 1;
        a.poll(nanos);
        assert!(nanos < 1_000_000_000, "a queue pair in error is due for ever");
    }
    let flushed = a.completions();
    assert!(flushed.iter().all(|cqe| cqe.status == WcStatus::WrFlushErr));
    assert_eq!(flushed.len(), DEPTH as usize);
    // A receive posted to a queue pair in error makes a poll due. This poll flushes the receive.
    let sge = a.sge(0, 64);
    a.recv.post(&RecvRequest { wr_id: 7, sges: &[sge] }).unwrap();
    assert!(a.engine.next_deadline().is_some());
    a.poll(nanos);
    assert_eq!(a.completions().len(), 1);
    assert_eq!(a.engine.next_deadline(), None);
}

/// Creates a queue pair of `a`, connected with the address vector `path`.
fn connected(a: &mut End, path: AddressVector) -> QpHandles {
    let handles = a.engine.create_qp(&a.small_qp()).unwrap();
    connect_qp(&mut a.engine, handles.qpn, Qpn::new(0x1234), path, &common::conn(PathMtu::Mtu1024));
    handles
}

/// Posts a WRITE to queue pair `handles` of `a`. Returns the destination MAC of the packet, which is then dropped.
fn destination_of_a_write(a: &mut End, b: &mut End, handles: QpHandles) -> Mac {
    a.send = handles.send;
    a.post(1, SendOp::Write { remote_addr: b.memory.addr(), rkey: b.rkey }, a.sge(0, 64));
    a.poll(300_000);
    let mut frames = Vec::new();
    b.engine.port_mut().rx_burst(&mut frames, 8);
    assert_eq!(frames.len(), 1);
    let mac = Mac(*frames[0].as_ref().first_chunk().unwrap());
    b.engine.port_mut().free_frames(&mut frames);
    mac
}

const MOVED: Mac = Mac([2, 0, 0, 0, 0, 77]);

#[test]
fn the_queue_pairs_of_an_address_handle_follow_a_neighbour_that_moves_in_one_poll() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    let (other, other_mac) = (IpAddr::from(Ipv4Addr::new(10, 0, 0, 3)), Mac([2, 0, 0, 0, 0, 3]));
    a.engine.neighbour_mut().set_neighbour(other, other_mac);
    let path = AddressVector::new(b.gid, 1);
    let to_b: Vec<QpHandles> = (0..QPS).map(|_| connected(&mut a, path)).collect();
    let to_other = connected(&mut a, AddressVector::new(other.into(), 1));
    settle(&mut a, &mut b);
    a.engine.neighbour_mut().set_neighbour(b.gid.ip(), MOVED);
    assert!(!a.poll(200_000).more, "two address handles are updated in one poll");
    for handles in to_b {
        assert_eq!(destination_of_a_write(&mut a, &mut b, handles), MOVED);
    }
    assert_eq!(destination_of_a_write(&mut a, &mut b, to_other), other_mac);
}

#[test]
fn a_poll_updates_a_bounded_number_of_address_handles() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    // Each queue pair has a traffic class, and therefore an address handle, of its own.
    let path = |tclass| AddressVector { traffic_class: 4 * tclass, ..AddressVector::new(b.gid, 1) };
    let classes: Vec<AddressVector> = (0..CLASSES).map(path).collect();
    let all: Vec<QpHandles> = classes.into_iter().map(|path| connected(&mut a, path)).collect();
    settle(&mut a, &mut b);
    a.engine.neighbour_mut().set_neighbour(b.gid.ip(), MOVED);
    let polls = (1..u64::from(CLASSES)).find(|nanos| !a.poll(200_000 + nanos).more);
    assert!(polls.expect("all are updated") > 1, "one poll updates a bounded number");
    for handles in all {
        assert_eq!(destination_of_a_write(&mut a, &mut b, handles), MOVED);
    }
}

/// Upper bound in bytes on the heap memory of a connected queue pair, including its share of the device's tables. The
/// queues have room for 128 work requests of one scatter/gather entry.
const QP_BYTES: i64 = 6_700;

#[test]
fn an_idle_queue_pair_takes_little_memory() {
    const IDLE_QPS: i64 = 1_024;
    let of_device = |max_qps: i64| {
        let limits = |config: &mut EngineConfig| config.limits.max_qps = max_qps as usize;
        let mut pair = None;
        let taken = allocation_counter::measure(|| pair = Some(pair_of(PathMtu::Mtu1024, 4096, limits)));
        (taken.bytes_current, pair.unwrap())
    };
    // The tables of a device are allocated for its largest number of queue pairs.
    let (bytes_of_one, _) = of_device(1);
    let (bytes_of_all, (mut a, b)) = of_device(1 + IDLE_QPS);
    let tables = (bytes_of_all - bytes_of_one) / 2;
    let init = QpInit { max_send_wr: 128, max_recv_wr: 128, ..a.small_qp() };
    let mut handles = Vec::with_capacity(IDLE_QPS as usize);
    let queue_pairs = allocation_counter::measure(|| {
        for _ in 0..IDLE_QPS {
            let qp = a.engine.create_qp(&init).unwrap();
            let path = AddressVector::new(b.gid, 1);
            connect_qp(&mut a.engine, qp.qpn, Qpn::new(0x1234), path, &ConnAttr::default());
            handles.push(qp);
        }
    });
    let each = (tables + queue_pairs.bytes_current) / IDLE_QPS;
    assert!(each <= QP_BYTES, "{each} B");
    assert!(each > QP_BYTES - 500, "{each} B: lower the bound");
}

/// After the ACK, the engine still has the entry of the deadline. This entry must not wake a thread that sleeps.
#[test]
fn an_acknowledged_message_leaves_no_deadline() {
    let (mut a, mut b) = pair(PathMtu::Mtu1024, 4096, true);
    a.post(1, SendOp::Write { remote_addr: b.memory.addr(), rkey: b.rkey }, a.sge(0, 64));
    a.poll(0);
    a.engine.settle_timers();
    assert!(a.engine.next_deadline().is_some());
    settle(&mut a, &mut b);
    assert_eq!(a.completions().len(), 1);
    a.engine.settle_timers();
    assert_eq!(a.engine.next_deadline(), None);
}

/// With more than `CACHED_QPS` queue pairs, the engine prefetches the state of a queue pair before it uses the state.
#[test]
fn messages_are_carried_beside_many_queue_pairs() {
    const IDLE_QPS: usize = CACHED_QPS + 100;
    let (mut a, mut b) = pair_of(PathMtu::Mtu1024, 4096, |config| config.limits.max_qps = IDLE_QPS + 1);
    for _ in 0..IDLE_QPS {
        a.create_idle_qp();
        b.create_idle_qp();
    }
    let op = SendOp::Write { remote_addr: b.memory.addr(), rkey: b.rkey };
    (0..8).for_each(|wr_id| a.post(wr_id, op, a.sge(0, 2048)));
    settle(&mut a, &mut b);
    let done: Vec<(u64, WcStatus)> = a.completions().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect();
    assert_eq!(done, (0..8).map(|wr_id| (wr_id, WcStatus::Success)).collect::<Vec<_>>());
}

/// A port that takes one frame per poll, as a port at its line rate takes fewer frames than the queue pairs have.
#[test]
fn queue_pairs_share_a_port_that_is_full() {
    let (port_a, port_b) = ports_of(1);
    let (mut a, mut b) = pair_over(port_a, port_b, 1 << 16, true, &common::conn(PathMtu::Mtu1024));
    let first = a.qpn;
    let op = SendOp::Write { remote_addr: b.memory.addr(), rkey: b.rkey };
    a.post(1, op, a.sge(0, 1 << 16));
    let others = [(); 2].map(|()| {
        let other = connected(&mut a, AddressVector::new(b.gid, 1));
        a.send = other.send;
        a.post(1, op, a.sge(0, 1 << 16));
        other.qpn
    });
    for nanos in 0..30 {
        a.poll(nanos);
        assert_eq!(take(b.engine.port_mut()).len(), 1);
    }
    let sent_pkts = [first, others[0], others[1]].map(|qpn| a.engine.qp_counters(qpn).unwrap().sent_pkts);
    assert_eq!(sent_pkts, [10; 3]);
}

#[test]
fn packets_to_another_prefix_are_foreign() {
    let prefix = QpnPrefix::new(5, 4).unwrap();
    let (mut a, mut b) = pair_of(PathMtu::Mtu1024, 4096, |config| config.qpn_prefix = prefix);
    assert!([a.qpn, b.qpn].iter().all(|qpn| prefix.contains(*qpn)));
    for (flipped, counted) in [(1 << 23, (1, 0)), (1, (1, 1))] {
        let init = QpInit { service: ServiceType::Uc, ..a.small_qp() };
        let mut qp = a.engine.create_qp(&init).unwrap();
        let peer = Qpn::new(b.qpn.value() ^ flipped);
        connect_qp(
            &mut a.engine,
            qp.qpn,
            peer,
            AddressVector::new(b.gid, 1),
            &common::conn(PathMtu::Mtu1024),
        );
        common::post_send(&mut qp.send, 1, SendOp::Send, a.sge(0, 8));
        settle(&mut a, &mut b);
        let drops = b.engine.drop_counters();
        assert_eq!((drops.foreign_qp, drops.unknown_qp), counted);
    }
}
