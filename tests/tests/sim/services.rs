//! Unreliable connections and shared receive queues over links that lose, reorder and mark packets.

use lab::rng::SplitMix;
use lab::world::{EndAttr, Step, World, WorldConfig};
use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::engine::limits::REORDER_BYTES;
use roce::id::{LKey, Qpn};
use roce::mem::{Access, Memory};
use roce::qp::{ConnAttr, PathMtu, Placement, QpInit, ServiceType};
use roce::queue::{
    CqPoller, RecvPoster, RecvRequest, SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge, SrqAttr,
    WcStatus,
};
use roce::recovery::RecoveryScheme;
use roce::start;
use tests::pair::conn;

const LINK: LinkConfig =
    LinkConfig { rate_bits_per_sec: 40_000_000_000, propagation_nanos: 4_000, queue_bytes_max: 1 << 24 };
const MTU_BYTES: u32 = 1024;
/// Bytes of a slot of memory: one message.
const SLOT_BYTES: usize = 16 << 10;
const SLOTS: usize = 64;

/// A sender with `sends` and a receiver whose queue pairs share the receives of one queue.
struct Shared {
    world: World,
    sends: Vec<SendPoster>,
    send_cq: CqPoller,
    recv: RecvPoster,
    recv_cq: CqPoller,
    /// QPNs of the receiver.
    qpns: Vec<Qpn>,
    /// QPN of the sender's first queue pair.
    sender: Qpn,
    memory: [Memory; 2],
    lkeys: [LKey; 2],
}

impl Shared {
    fn new(service: ServiceType, qps: usize, conn: ConnAttr) -> Shared {
        let mut world = World::new(&WorldConfig {
            hosts: 2,
            link: LINK,
            mtu_bytes: 1500,
            poll_gap_nanos: 200,
            congestion: CongestionScheme::default(),
            seed: 1,
            reorder_bytes: REORDER_BYTES,
        });
        let memory = [(); 2].map(|()| Memory::alloc(SLOTS * SLOT_BYTES));
        let lkeys = [0, 1].map(|host| world.hosts[host].register(&memory[host], 0, Access::ALL).0);
        let [(send_id, send_cq), (recv_id, recv_cq)] =
            [0, 1].map(|host| world.hosts[host].engine.objects().create_cq(1 << 12).expect("there is room"));
        let attr = SrqAttr { pd: world.hosts[1].pd, max_wr: SLOTS as u32, max_sge: 1, limit: 0 };
        let (srq, recv) = world.hosts[1].engine.create_srq(&attr).expect("there is room");
        let (mut sends, mut qpns, mut sender) = (Vec::new(), Vec::new(), None);
        for _ in 0..qps {
            let handles = [(0, send_id, None), (1, recv_id, Some(srq))].map(|(host, cq, srq)| {
                let init = QpInit {
                    service,
                    pd: world.hosts[host].pd,
                    send_cq: cq,
                    recv_cq: cq,
                    srq,
                    max_send_wr: SLOTS as u32,
                    max_recv_wr: 1,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline_bytes: 0,
                    signal_all: true,
                };
                world.hosts[host].engine.create_qp(&init).expect("there is room")
            });
            let end = |host: usize| EndAttr {
                host,
                qpn: handles[host].qpn,
                first_psn: start::psn(0xFF_FFF0),
                conn,
            };
            world.connect(false, [end(0), end(1)]);
            let [own, peer] = handles;
            sender.get_or_insert(own.qpn);
            sends.push(own.send);
            qpns.push(peer.qpn);
        }
        world.settle();
        let sender = sender.expect("there is a queue pair");
        Shared { world, sends, send_cq, recv, recv_cq, qpns, sender, memory, lkeys }
    }

    /// Draws impairments for frames of both links, each of 100 with the same probability.
    fn impair(&mut self, choices: &[(usize, Impairment)], frames: u64) {
        let mut rng = SplitMix::new(7);
        let mut entries = Vec::new();
        for link in [0, 1].map(LinkId) {
            for frame in 0..frames {
                let mut draw = rng.up_to(99);
                for (percent, impairment) in choices {
                    if draw < *percent {
                        entries.push(TapeEntry { link, frame, impairment: *impairment });
                        break;
                    }
                    draw -= percent;
                }
            }
        }
        self.world.network.borrow_mut().set_tape(&Tape(entries));
    }

    fn post_recv(&mut self, slot: usize) {
        let sge = Sge { addr: (slot * SLOT_BYTES) as u64, len_bytes: SLOT_BYTES as u32, lkey: self.lkeys[1] };
        self.recv.post(&RecvRequest { wr_id: slot as u64, sges: &[sge] }).expect("there is room");
    }

    fn post_send(&mut self, qp: usize, slot: usize, len_bytes: u32) {
        let sge = Sge { addr: (slot * SLOT_BYTES) as u64, len_bytes, lkey: self.lkeys[0] };
        let (op, flags) = (SendOp::Send, SendFlags::default());
        let request = SendRequest { wr_id: slot as u64, op, flags, data: SendData::Sges(&[sge]) };
        self.sends[qp].post(&request).expect("there is room");
        self.world.hosts[0].kick();
    }
}

fn attr(recovery: RecoveryScheme, placement: Placement) -> ConnAttr {
    ConnAttr { path_mtu: PathMtu::Mtu1024, recovery, placement, timeout: 14, ..conn() }
}

#[test]
fn messages_of_lost_packets_are_lost_whole_and_nothing_is_repaired() {
    const MESSAGES: u64 = 4000;
    const PKTS: u32 = 16;
    let mut shared =
        Shared::new(ServiceType::Uc, 1, attr(RecoveryScheme::ImprovedGoBackN, Placement::InOrder));
    shared.impair(&[(1, Impairment::Drop)], MESSAGES * u64::from(PKTS));
    (0..SLOTS).for_each(|slot| shared.post_recv(slot));
    let (mut sent, mut posted, mut received) = (0, 0, 0);
    while shared.world.step(None) != Step::Idle || posted < MESSAGES {
        while posted < MESSAGES && posted - sent < 32 {
            shared.post_send(0, posted as usize % SLOTS, PKTS * MTU_BYTES);
            posted += 1;
        }
        while let Some(done) = shared.send_cq.pop() {
            assert_eq!(done.status, WcStatus::Success);
            sent += 1;
        }
        while let Some(done) = shared.recv_cq.pop() {
            assert_eq!((done.status, done.len_bytes), (WcStatus::Success, PKTS * MTU_BYTES));
            received += 1;
            shared.post_recv(done.wr_id as usize);
        }
    }
    // 0.99^16 of the messages have lost no packet: 0.851, with a standard deviation of 0.006.
    assert!((3308..3508).contains(&received), "{received} of {MESSAGES}");
    let [near, far] = [0, 1].map(|host| shared.world.hosts[host].engine.counters());
    assert_eq!((near.sent_pkts, near.rdma_sends, far.sent_pkts), (MESSAGES * u64::from(PKTS), MESSAGES, 0));
    assert_eq!((far.rdma_recvs, far.out_of_buffer), (received, 0));
}

#[test]
fn marks_slow_an_unreliable_sender() {
    let congestion: CongestionScheme = "dcqcn:nvidia".parse().expect("it is a scheme");
    let conn = attr(RecoveryScheme::ImprovedGoBackN, Placement::InOrder);
    let mut shared = Shared::new(ServiceType::Uc, 1, ConnAttr { congestion: Some(congestion), ..conn });
    shared.impair(&[(100, Impairment::MarkCe)], 2000);
    (0..SLOTS).for_each(|slot| shared.post_recv(slot));
    for slot in 0..SLOTS {
        shared.post_send(0, slot, SLOT_BYTES as u32);
    }
    let rate = |shared: &Shared| {
        let congestion = shared.world.hosts[0].engine.qp_congestion(shared.sender);
        congestion.expect("it is connected").rate_bits_per_sec()
    };
    let mut slowest = None;
    while shared.world.step(None) != Step::Idle {
        slowest = slowest.into_iter().chain(rate(&shared)).min();
    }
    assert!(slowest.is_some_and(|rate| rate < 8_000_000_000), "{slowest:?}");
    let [near, far] = [0, 1].map(|host| shared.world.hosts[host].engine.counters());
    assert!(far.np_cnp_sent > 0 && near.rp_cnp_handled == far.np_cnp_sent, "{}", far.np_cnp_sent);
    assert_eq!(far.rdma_recvs, SLOTS as u64);
}

#[test]
fn shared_receives_survive_loss_and_reordering() {
    const QPS: usize = 5;
    const ROUNDS: usize = 30;
    let impairments =
        [(3, Impairment::Drop), (3, Impairment::Duplicate), (5, Impairment::Delay { nanos: 9_000 })];
    for recovery in [
        RecoveryScheme::GoBackN,
        RecoveryScheme::ImprovedGoBackN,
        RecoveryScheme::SelectiveRepeat { window_pkts: 256 },
    ] {
        for placement in [Placement::InOrder, Placement::Relaxed] {
            let mut shared = Shared::new(ServiceType::Rc, QPS, attr(recovery, placement));
            shared.impair(&impairments, 40_000);
            let mut rng = SplitMix::new(3);
            for round in 0..ROUNDS {
                (0..SLOTS).for_each(|slot| shared.post_recv(slot));
                let mut wanted: Vec<Vec<Vec<u8>>> = vec![Vec::new(); QPS];
                for slot in 0..SLOTS {
                    let (qp, len) = (rng.up_to(QPS - 1), rng.up_to(SLOT_BYTES));
                    let bytes: Vec<u8> = (0..len).map(|at| (at / 256 + slot + round) as u8).collect();
                    shared.memory[0].write(slot * SLOT_BYTES, &bytes).expect("a slot");
                    shared.post_send(qp, slot, len as u32);
                    wanted[qp].push(bytes);
                }
                shared.world.settle();
                let mut got: Vec<Vec<Vec<u8>>> = vec![Vec::new(); QPS];
                while let Some(done) = shared.recv_cq.pop() {
                    assert_eq!(done.status, WcStatus::Success);
                    let mut bytes = vec![0; done.len_bytes as usize];
                    shared.memory[1].read(done.wr_id as usize * SLOT_BYTES, &mut bytes).expect("a slot");
                    let qp = shared.qpns.iter().position(|qpn| *qpn == done.qpn).expect("a queue pair");
                    got[qp].push(bytes);
                }
                assert!(got == wanted, "{recovery}, {placement:?}, round {round}");
            }
            let counters = shared.world.hosts[0].engine.counters();
            assert!(counters.retransmitted_pkts > 100, "{recovery}: {}", counters.retransmitted_pkts);
        }
    }
}
