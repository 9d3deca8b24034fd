//! Shared receive queues (IBA 10.2.9): order of receives, limit, and the receive that a queue pair has taken.

use crate::common::{self, End, conn, connect_qp, pair, settle};
use proptest::prelude::*;
use roce::engine::{CreateError, DestroyError, Event};
use roce::id::Qpn;
use roce::mem::Access;
use roce::qp::{AddressVector, PathMtu, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{PostError, RecvPoster, RecvRequest, SendOp, SendPoster, Sge, SrqAttr, SrqId, WcStatus};

const SGES: u32 = 3;

/// Connections from `a` to `b` with receives from one SRQ of `b`.
struct Shared {
    a: End,
    b: End,
    srq: SrqId,
    recv: RecvPoster,
    sends: Vec<SendPoster>,
    /// QPNs of `b`.
    qpns: Vec<Qpn>,
}

fn shared(service: ServiceType, count: usize, attr: impl Fn(SrqAttr) -> SrqAttr) -> Shared {
    let (mut a, mut b) = pair(PathMtu::Mtu256, 1 << 16, true);
    let attr = attr(SrqAttr { pd: b.pd, max_wr: 64, max_sge: SGES, limit: 0 });
    let (srq, recv) = b.engine.create_srq(&attr).unwrap();
    let (mut sends, mut qpns) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let init = QpInit { service, max_send_wr: 64, signal_all: true, ..a.small_qp() };
        let handles = a.engine.create_qp(&init).unwrap();
        let init = QpInit { srq: Some(srq), max_recv_wr: 0, ..QpInit { service, ..b.small_qp() } };
        let peer = b.engine.create_qp(&init).unwrap();
        assert!(peer.recv.is_none());
        let conn = conn(PathMtu::Mtu256);
        connect_qp(&mut a.engine, handles.qpn, peer.qpn, AddressVector::new(b.gid, 1), &conn);
        connect_qp(&mut b.engine, peer.qpn, handles.qpn, AddressVector::new(a.gid, 1), &conn);
        sends.push(handles.send);
        qpns.push(peer.qpn);
    }
    Shared { a, b, srq, recv, sends, qpns }
}

impl Shared {
    fn post(&mut self, wr_id: u64, len_bytes: u32) {
        let sge = self.b.sge(1024 * wr_id as usize, len_bytes);
        self.recv.post(&RecvRequest { wr_id, sges: &[sge] }).unwrap();
    }

    fn send(&mut self, index: usize, wr_id: u64, len_bytes: u32) {
        let sge = self.a.sge(0, len_bytes);
        common::post_send(&mut self.sends[index], wr_id, SendOp::Send, sge);
    }

    fn settle(&mut self) {
        settle(&mut self.a, &mut self.b);
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.b.engine.poll_event()).collect()
    }

    fn received(&mut self) -> Vec<(u64, WcStatus, Qpn)> {
        self.b.completions().iter().map(|cqe| (cqe.wr_id, cqe.status, cqe.qpn)).collect()
    }
}

#[test]
fn queue_pairs_take_receives_in_the_order_of_posting() {
    let mut s = shared(ServiceType::Rc, 2, |attr| attr);
    (0..4).for_each(|wr_id| s.post(wr_id, 300));
    for (wr_id, index) in [(0, 1), (1, 0), (2, 0), (3, 1)] {
        s.send(index, wr_id, 300);
        s.settle();
    }
    let (first, second) = (s.qpns[0], s.qpns[1]);
    let wanted = [(0, second), (1, first), (2, first), (3, second)];
    assert_eq!(s.received(), wanted.map(|(wr_id, qpn)| (wr_id, WcStatus::Success, qpn)));
    assert_eq!(s.a.completions().len(), 4);
}

#[test]
fn an_empty_queue_is_receiver_not_ready() {
    let mut s = shared(ServiceType::Rc, 1, |attr| attr);
    s.send(0, 1, 300);
    for _ in 0..3 {
        s.a.poll(0);
        s.b.poll(0);
    }
    assert_eq!((s.received(), s.b.engine.counters().out_of_buffer > 0), (vec![], true));
    s.post(7, 300);
    s.a.poll(1_000_000_000);
    s.settle();
    assert_eq!(s.received(), [(7, WcStatus::Success, s.qpns[0])]);
}

#[test]
fn the_limit_is_reached_once() {
    let mut s = shared(ServiceType::Rc, 1, |attr| SrqAttr { limit: 3, ..attr });
    (0..5).for_each(|wr_id| s.post(wr_id, 8));
    for wr_id in 0..2 {
        s.send(0, wr_id, 8);
    }
    s.settle();
    let limit = |s: &Shared| s.b.engine.query_srq(s.srq).unwrap().limit;
    let others = |event: &Event| !matches!(event, Event::CommunicationEstablished(_));
    assert_eq!((s.events().iter().filter(|e| others(e)).count(), limit(&s)), (0, 3), "three are left");
    (2..4).for_each(|wr_id| s.send(0, wr_id, 8));
    s.settle();
    assert_eq!((s.events(), limit(&s)), (vec![Event::SrqLimitReached(s.srq)], 0), "one is left");
    s.b.engine.set_srq_limit(s.srq, 1).unwrap();
    assert_eq!((s.events(), limit(&s)), (vec![], 1));
    s.b.engine.set_srq_limit(s.srq, 2).unwrap();
    assert_eq!((s.events(), limit(&s)), (vec![Event::SrqLimitReached(s.srq)], 0), "at once");
}

#[test]
fn a_queue_pair_in_error_flushes_the_receive_it_holds_and_no_other() {
    for service in [ServiceType::Rc, ServiceType::Uc] {
        let mut s = shared(service, 2, |attr| attr);
        (0..3).for_each(|wr_id| s.post(wr_id, 40_000));
        // The message of 40,000 bytes is so long that at the transition to ERR only a part of it is received.
        s.send(0, 1, 40_000);
        s.a.poll(0);
        s.b.poll(0);
        let err = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        s.events();
        s.b.engine.modify_qp(s.qpns[0], &err).unwrap();
        assert_eq!(s.received(), [(0, WcStatus::WrFlushErr, s.qpns[0])]);
        assert_eq!(s.events(), [Event::LastWqeReached(s.qpns[0])]);
        s.b.engine.modify_qp(s.qpns[1], &err).unwrap();
        s.b.poll(1);
        assert_eq!((s.received(), s.events()), (vec![], vec![Event::LastWqeReached(s.qpns[1])]));
        assert_eq!(s.b.engine.query_srq(s.srq).unwrap().max_wr, 64);
    }
}

#[test]
fn a_gap_leaves_the_receive_to_the_next_message() {
    let mut s = shared(ServiceType::Uc, 1, |attr| attr);
    (0..2).for_each(|wr_id| s.post(wr_id, 600));
    s.send(0, 1, 600);
    s.a.poll(0);
    let mut frames = Vec::new();
    use roce::port::Port as _;
    s.b.engine.port_mut().rx_burst(&mut frames, 3);
    // The port of `a` sends a copy of the FIRST packet of the message; the MIDDLE and the LAST packet are lost.
    let first = frames[0].as_ref().to_vec();
    s.a.engine.port_mut().tx_reserve(first.len()).unwrap().copy_from_slice(&first);
    s.a.engine.port_mut().tx_flush();
    s.b.poll(0);
    s.send(0, 2, 300);
    s.settle();
    assert_eq!(s.received(), [(0, WcStatus::Success, s.qpns[0])], "not the second receive");
}

#[test]
fn nothing_is_allocated_per_packet() {
    let mut s = shared(ServiceType::Rc, 2, |attr| SrqAttr { limit: 40, ..attr });
    for round in 0..60 {
        let allocations = allocation_counter::measure(|| {
            s.post(0, 2000);
            s.send(round % 2, 1, 2000);
            s.settle();
        });
        assert_eq!((s.received().len(), s.a.completions().len()), (1, 1));
        assert!(round < 20 || allocations.count_total == 0, "{allocations:?}");
    }
}

#[test]
fn receives_belong_to_the_protection_domain_of_the_srq() {
    let (mut a, mut b) = pair(PathMtu::Mtu256, 4096, true);
    let pd = b.engine.objects().alloc_pd().unwrap();
    let memory = b.memory.clone();
    let (lkey, _) =
        b.engine.objects().register(pd, memory.clone(), memory.addr(), Access::LOCAL_WRITE).unwrap();
    let (srq, mut recv) = b.engine.create_srq(&SrqAttr { pd, max_wr: 4, max_sge: 1, limit: 0 }).unwrap();
    let init = QpInit { srq: Some(srq), ..b.small_qp() };
    let qpn = b.engine.create_qp(&init).unwrap().qpn;
    let sender = a.engine.create_qp(&a.small_qp()).unwrap();
    connect_qp(&mut a.engine, sender.qpn, qpn, AddressVector::new(b.gid, 1), &conn(PathMtu::Mtu256));
    connect_qp(&mut b.engine, qpn, sender.qpn, AddressVector::new(a.gid, 1), &conn(PathMtu::Mtu256));
    let mut send = sender.send;
    for (wr_id, lkey, status) in [(1, lkey, WcStatus::Success), (2, b.lkey, WcStatus::LocProtErr)] {
        recv.post(&RecvRequest { wr_id, sges: &[Sge { lkey, ..b.sge(0, 8) }] }).unwrap();
        common::post_send(&mut send, wr_id, SendOp::Send, a.sge(0, 8));
        settle(&mut a, &mut b);
        assert_eq!(
            b.completions().iter().map(|cqe| (cqe.wr_id, cqe.status)).collect::<Vec<_>>(),
            [(wr_id, status)]
        );
    }
}

#[test]
fn an_srq_in_use_is_not_destroyed_and_bounds_are_stated() {
    let mut s = shared(ServiceType::Rc, 1, |attr| SrqAttr { max_wr: 2, ..attr });
    assert!(matches!(s.b.engine.destroy_srq(s.srq), Err(DestroyError::Busy(_))));
    (0..2).for_each(|wr_id| s.post(wr_id, 8));
    let sges = [s.b.sge(0, 8); SGES as usize + 1];
    let post = |recv: &mut RecvPoster, count| recv.post(&RecvRequest { wr_id: 9, sges: &sges[..count] });
    assert_eq!(post(&mut s.recv, 1), Err(PostError::QueueFull { depth: 2 }));
    s.send(0, 1, 8);
    s.settle();
    assert_eq!(post(&mut s.recv, 4), Err(PostError::TooManySges { count: 4, max: SGES }));
    assert_eq!(post(&mut s.recv, 1), Ok(()), "a receive that was taken makes room");
    s.b.engine.destroy_qp(s.qpns[0]).unwrap();
    assert_eq!(s.b.engine.destroy_srq(s.srq), Ok(()));
    assert!(matches!(s.b.engine.destroy_srq(s.srq), Err(DestroyError::Unknown(_))));
    let init = QpInit { srq: Some(s.srq), ..s.b.small_qp() };
    assert!(matches!(s.b.engine.create_qp(&init), Err(CreateError::Unknown("shared receive queue"))));
    let attr = |max_wr| SrqAttr { pd: s.b.pd, max_wr, max_sge: 1, limit: 0 };
    let (none, most) = (attr(0), attr(roce::engine::limits::MAX_QP_WR));
    assert!(matches!(s.b.engine.create_srq(&none), Err(CreateError::OutOfRange { .. })));
    assert!(s.b.engine.create_srq(&most).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Interleaved messages of three queue pairs take receives of three scatter/gather entries.
    #[test]
    fn each_message_has_a_receive_of_its_own(
        messages in proptest::collection::vec((0usize..3, 0u32..1000), 1..40),
        is_uc: bool,
    ) {
        let service = if is_uc { ServiceType::Uc } else { ServiceType::Rc };
        let mut s = shared(service, 3, |attr| attr);
        s.a.memory.write(0, &(0..=255u8).cycle().take(1024).collect::<Vec<_>>()).unwrap();
        for wr_id in 0..messages.len() {
            // Entries of 1, 100 and 899 bytes, in descending order of address.
            let at = 1024 * wr_id;
            let sges = [(1000, 1), (900, 100), (0, 899)].map(|(offset, len)| s.b.sge(at + offset, len));
            s.recv.post(&RecvRequest { wr_id: wr_id as u64, sges: &sges }).unwrap();
        }
        for (n, (index, len)) in messages.iter().enumerate() {
            s.send(*index, n as u64, *len);
        }
        s.settle();
        let mut lengths: [Vec<u32>; 3] = Default::default();
        for cqe in s.b.completions() {
            prop_assert_eq!(cqe.status, WcStatus::Success);
            lengths[s.qpns.iter().position(|qpn| *qpn == cqe.qpn).unwrap()].push(cqe.len_bytes);
            let mut cell = [0; 1024];
            s.b.memory.read(1024 * cqe.wr_id as usize, &mut cell).unwrap();
            let placed: Vec<u8> = cell[1000..1001].iter().chain(&cell[900..1000]).chain(&cell[..899]).copied().collect();
            let len = cqe.len_bytes as usize;
            let wanted: Vec<u8> = (0..=255u8).cycle().take(len).collect();
            prop_assert_eq!(&placed[..len], &wanted[..]);
            prop_assert!(placed[len..].iter().all(|byte| *byte == 0));
        }
        for (index, lengths) in lengths.iter().enumerate() {
            let sent = messages.iter().filter(|(qp, _)| *qp == index).map(|(_, len)| *len);
            prop_assert_eq!(lengths, &sent.collect::<Vec<_>>());
        }
    }
}
