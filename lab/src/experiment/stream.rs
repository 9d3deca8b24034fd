//! A stream: one queue pair between two hosts, whose send queue is kept full.

use netsim::{LinkId, Network};
use roce::counters::QpCounters;
use roce::engine::limits::{DeviceLimits, REORDER_BYTES};
use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory};
use roce::port::Payload;
use roce::queue::{RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus};

use super::fabric::{POLL_GAP_NANOS, first_psns};
use super::plan::Point;
use super::results::{self, PointResult};
use super::spec::{Op, PORT_MTU_BYTES, Setup, Workload};
use crate::world::{EndAttr, HostConfig, Neighbours, QpEnds, QpSizes, Step, World};

/// Address of the first byte of either end's memory.
const BASE: u64 = 0x1_0000_0000;
/// Limits of a host.
const LIMITS: DeviceLimits = DeviceLimits {
    max_pds: 1,
    max_mrs: 1,
    max_cqs: 2,
    max_srqs: 0,
    max_qps: 1,
    max_ahs: 0,
    reorder_bytes: REORDER_BYTES,
};
/// Largest number of READs outstanding at either end.
const MAX_RD_ATOMIC: u8 = 16;

struct End {
    qp: QpEnds,
    lkey: LKey,
    rkey: RKey,
}

/// Two hosts on a cable with one connection. Link 0 is from requester to responder.
pub(super) struct Pair {
    pub(super) world: World,
    ends: [End; 2],
    message_bytes: u32,
    op: Op,
}

impl Pair {
    /// Creates a connected pair without impairments.
    pub(super) fn new(setup: &Setup, op: Op, message_bytes: u32, depth: u32, seed: u64) -> Pair {
        let transport = &setup.transport;
        let mut network = Network::seeded(seed);
        let ids = [network.add_host(), network.add_host()];
        network.connect(ids[0], ids[1], setup.link.config());
        let mut world = World::on(
            network,
            &ids,
            &HostConfig {
                mtu_bytes: PORT_MTU_BYTES,
                poll_gap_nanos: POLL_GAP_NANOS,
                congestion: transport.congestion(),
                seed,
                limits: LIMITS,
                neighbours: Neighbours::Static,
                payload: Payload::Carried,
            },
        );
        let sizes = QpSizes { sends: depth, recvs: depth, cqes: [depth; 2], sges: 1, inline_bytes: 0 };
        let ends = [0, 1].map(|host| {
            let memory = Memory::alloc(message_bytes as usize);
            let host: &mut crate::world::Host = &mut world.hosts[host];
            let (lkey, rkey) = host.register(&memory, BASE, Access::ALL);
            End { qp: host.create_qp(&sizes), lkey, rkey }
        });
        let attr = |host: usize| EndAttr {
            host,
            qpn: ends[host].qp.qpn,
            first_psn: first_psns()[host],
            conn: transport.conn(host, MAX_RD_ATOMIC),
        };
        world.connect(false, [attr(0), attr(1)]);
        world.settle();
        Pair { world, ends, message_bytes, op }
    }

    /// Posts a message, and for a SEND its receive.
    pub(super) fn post(&mut self, number: u32) {
        let [requester, responder] = &mut self.ends;
        let wr_id = u64::from(number);
        if self.op == Op::Send {
            let sge = Sge { addr: BASE, len_bytes: self.message_bytes, lkey: responder.lkey };
            responder
                .qp
                .recv
                .post(&RecvRequest { wr_id, sges: &[sge] })
                .expect("there is room for a receive");
            self.world.hosts[1].kick();
        }
        let (remote_addr, rkey) = (BASE, responder.rkey);
        let op = match self.op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::Read => SendOp::Read { remote_addr, rkey },
        };
        let sges = [Sge { addr: BASE, len_bytes: self.message_bytes, lkey: requester.lkey }];
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        let request = SendRequest { wr_id, op, flags, data: SendData::Sges(&sges) };
        requester.qp.send.post(&request).expect("there is room for a send");
        self.world.hosts[0].kick();
    }

    /// Returns the number of messages completed since the last call, or the status of the first completion in error.
    pub(super) fn completed(&mut self) -> Result<u32, WcStatus> {
        let [requester, responder] = &mut self.ends;
        while responder.qp.recv_cq.pop().is_some() {}
        let mut count = 0;
        while let Some(cqe) = requester.qp.send_cq.pop() {
            if cqe.status != WcStatus::Success {
                return Err(cqe.status);
            }
            count += 1;
        }
        Ok(count)
    }

    fn counters(&self) -> [QpCounters; 2] {
        [0, 1].map(|host| self.world.hosts[host].engine.counters())
    }

    /// Sets the figures of loss and recovery.
    pub(super) fn recovery_figures(&self, result: &mut PointResult) {
        let [requester, responder] = self.counters();
        let lost_on = |link| {
            let counters = self.world.network.borrow().counters(LinkId(link));
            counters.dropped + counters.corrupted + counters.overrun
        };
        let is_read = self.op == Op::Read;
        let lost = if is_read { lost_on(0) + lost_on(1) } else { lost_on(0) };
        let retransmitted =
            requester.retransmitted_pkts + if is_read { responder.retransmitted_pkts } else { 0 };
        let reports = requester.packet_seq_err + requester.implied_nak_seq_err + requester.sacks_received;
        let timeouts = requester.local_ack_timeout_err + requester.roce_adp_retrans_to;
        for (figure, count) in [
            (results::SENT, requester.sent_pkts),
            (results::LOST, lost),
            (results::RETRANSMITTED, retransmitted),
            (results::NEEDLESS, retransmitted.saturating_sub(lost)),
            (results::NAKS, reports),
            (results::TIMEOUTS, timeouts),
            (results::PROBES, requester.tail_probes),
        ] {
            result.set(figure, count as f64);
        }
    }
}

pub(super) fn run(point: &Point) -> Result<PointResult, String> {
    let setup = &point.setup;
    let Workload::Stream { op, message_bytes, messages, depth, limit_ms } = setup.workload else {
        return Err("a stream was expected".to_owned());
    };
    let mut pair = Pair::new(setup, op, message_bytes, depth, point.seed);
    for link in [LinkId(0), LinkId(1)] {
        pair.world.network.borrow_mut().set_loss(link, setup.loss.chance.value());
    }
    let mut result = PointResult::of(point);
    let start_nanos = pair.world.now_nanos();
    let limit_nanos = start_nanos + limit_ms * 1_000_000;
    let (mut posted, mut completed, mut last_nanos) = (0, 0, start_nanos);
    while completed < messages {
        while posted < messages && posted - completed < depth {
            pair.post(posted);
            posted += 1;
        }
        let step = pair.world.step(Some(limit_nanos));
        match pair.completed() {
            Ok(0) => {}
            Ok(count) => {
                completed += count;
                last_nanos = pair.world.now_nanos();
            }
            Err(status) => {
                result.ended_early = Some(format!("the queue pair failed: {status:?}"));
                break;
            }
        }
        if completed < messages && step != Step::Polled {
            result.ended_early = Some(format!("{completed} of {messages} messages in {limit_ms} ms"));
            last_nanos = limit_nanos;
            break;
        }
    }
    let bits = u64::from(completed) * u64::from(message_bytes) * 8;
    let nanos = last_nanos - start_nanos;
    result.set(results::GOODPUT, if nanos > 0 { bits as f64 / nanos as f64 } else { 0.0 });
    result.set(results::COMPLETED, completed.into());
    pair.recovery_figures(&mut result);
    Ok(result)
}
