//! One engine and a hostile peer. `run` executes a script and checks the invariants below after every poll. The fuzz
//! target, the replay of its corpus and a property test call `run`.
//!
//! ```text
//!   bytes --tape--> steps --peer--> frames --> Engine::poll --> frames, completions, memory --> checks
//! ```
//!
//! * Memory changes only by a receive, a READ of the application or a permitted WRITE.
//! * The engine sends only bytes that the peer may read.
//! * Each work request completes once, in order; a completion queue of four entries may lose CQEs.
//! * Every frame is dropped for a counted reason or reaches a queue pair.
//! * ACKs, READ responses and retransmissions are bounded by the packets and timeouts that cause them.
//! * The memory that the engine allocates is bounded. After an idle poll, the next deadline is in the future.
//! * After the peer stops sending, all work requests complete.

#![allow(dead_code)] // each test and fuzz target uses its part

pub(crate) mod crowd;
mod memory;
mod peer;
pub(crate) mod several;
pub(crate) mod tape;

use crate::wire_port::{STALE, WirePort};
use memory::{Arena, FOREIGN, GUARD, PRIVATE, REGION_BYTES};
use peer::Peer;
use roce::engine::limits::{DEFAULT_WINDOW_PKTS, DeviceLimits};
use roce::engine::{Engine, EngineConfig, Event, Progress};
use roce::id::{Gid, LKey, Mac, Qpn};
use roce::mem::PdId;
use roce::neighbour::{Mode, NeighbourConfig};
use roce::qp::{AddressVector, QpAttr, QpInit, QpState, ServiceType};
use roce::queue::{
    CqId, CqPoller, Cqe, RecvPoster, RecvRequest, SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge,
    SrqAttr, WcStatus,
};
use roce::recovery::RecoveryScheme;
use roce::start;
use roce::time::Instant;
use roce::wire::{Operation, Packet, Reth};
use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::rc::Rc;
use tape::{Kind, RethPlan, Setup, Step, Target};

const DEPTH: u32 = 64;
const INLINE_BYTES: u32 = 64;
/// Value of all payload bytes of inline messages.
const INLINE: u8 = 0x55;
/// Bit of `wr_id`, set for receives only.
const RECV_BIT: u64 = 1;
/// Memory of the reorder buffers, in bytes.
pub(crate) const REORDER_BYTES: usize = 1 << 20;
/// Largest net allocation of the engine in a run, in bytes: growing event queues, and the reorder buffer with its
/// lists.
const ALLOCATED_MAX_BYTES: i64 = (16 << 10) + (REORDER_BYTES + REORDER_BYTES / 3) as i64;
/// Advance of the clock per poll after the script, in nanoseconds.
const POLL_NANOS: u64 = 100;
/// The lowest rate, in bits per second, to which a congestion control scheme of a script may reduce a queue pair.
const RATE_MIN_BITS_PER_SEC: u64 = 1_000_000_000;
/// Largest number of polls after the script until all work requests have completed.
const LAST_POLLS_MAX: usize = 5000;

/// Counts of a run. Tests assert minimum counts, to ensure that scripts reach rare states.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Frames that the engine received.
    pub(crate) frames: u64,
    /// Frames that reached a queue pair.
    pub(crate) received: u64,
    pub(crate) successes: u64,
    /// Successful completions on an unreliable connection; `srq_successes`: successful completions of receives of an
    /// SRQ.
    pub(crate) uc_successes: u64,
    pub(crate) srq_successes: u64,
    pub(crate) failures: u64,
    pub(crate) connections: u64,
}

/// Bytes of a script; the `Debug` output also lists the decoded steps.
pub(crate) struct Script(pub(crate) Vec<u8>);

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (setup, steps) = tape::script(&self.0);
        writeln!(f, "{:?}\n{setup:?}", self.0)?;
        steps.iter().try_for_each(|step| writeln!(f, "{step:?}"))
    }
}

/// A work request that has not completed, and the memory ranges that it may write.
struct Posted {
    wr_id: u64,
    len_bytes: u32,
    fills: Vec<Range<usize>>,
}

struct Hostile {
    engine: Engine<WirePort>,
    setup: Setup,
    arena: Arena,
    peer: Peer,
    pd: PdId,
    cq: CqId,
    poller: CqPoller,
    qpn: Qpn,
    send: SendPoster,
    recv: RecvPoster,
    sends: VecDeque<Posted>,
    recvs: VecDeque<Posted>,
    next_wr_id: u64,
    now: Instant,
    frames: Vec<Rc<[u8]>>,
    allocated_bytes: i64,
    bounds: Bounds,
    tally: Tally,
}

/// Packets that the engine receives and sends. The counts `*_in` and `posted_pkts` bound the counts `*_out`.
#[derive(Default)]
struct Bounds {
    requests_in: u64,
    marked_in: u64,
    reads_in: u64,
    posted_pkts: u64,
    answers_out: u64,
    responses_out: u64,
    requests_out: u64,
    notifications_out: u64,
}

/// Runs the script that `bytes` encode; panics if an invariant does not hold.
pub(crate) fn run(bytes: &[u8]) -> Tally {
    let (setup, steps) = tape::script(bytes);
    let mut hostile = Hostile::new(setup);
    for step in steps {
        hostile.step(step);
    }
    hostile.finish();
    hostile.tally
}

fn gid(setup: Setup, last: u8) -> IpAddr {
    if setup.is_ipv6 {
        IpAddr::V6(Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, u16::from(last)))
    } else {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
    }
}

/// Creates an engine for `max_qps` queue pairs; the peer and a stranger are its neighbours.
fn engine(setup: Setup, max_qps: usize) -> Engine<WirePort> {
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    let gids = vec![(gid(setup, 1), if setup.is_ipv6 { 64 } else { 24 })];
    let neighbour =
        NeighbourConfig { mac, mode: Mode::Shared, gids, gateway_v4: None, gateway_v6: None, vlan: None };
    let mut config = EngineConfig::new([7; 32], neighbour);
    config.limits = DeviceLimits {
        max_pds: 4,
        max_mrs: 16,
        max_cqs: 4,
        max_srqs: 4,
        max_qps,
        max_ahs: 4,
        reorder_bytes: REORDER_BYTES,
    };
    let mut engine = Engine::new(WirePort::new(mac), config).unwrap();
    for last in [2, 3] {
        engine.neighbour_mut().set_neighbour(gid(setup, last), Mac([2, 0, 0, 0, 0, last]));
    }
    engine
}

fn qp_init(pd: PdId, cq: CqId) -> QpInit {
    QpInit {
        service: ServiceType::Rc,
        srq: None,
        pd,
        send_cq: cq,
        recv_cq: cq,
        max_send_wr: DEPTH,
        max_recv_wr: DEPTH,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_bytes: INLINE_BYTES,
        signal_all: true,
    }
}

/// Connects queue pair `qpn` to `peer`: moves the queue pair from RESET to state `until` (INIT, RTR or RTS).
fn connect(engine: &mut Engine<WirePort>, setup: Setup, qpn: Qpn, peer: Gid, until: QpState) {
    let service = engine.query_qp(qpn).unwrap().2.service;
    let (conn, path, first_psn) = (setup.conn, AddressVector::new(peer, 1), start::psn(setup.first_psn));
    for attr in [conn.to_init(), conn.to_rtr(path, Qpn::new(0x1234), first_psn), conn.to_rts(first_psn)] {
        engine.modify_qp(qpn, &attr.of_service(service)).unwrap();
        if attr.state == Some(until) {
            return;
        }
    }
}

impl Hostile {
    fn new(setup: Setup) -> Self {
        let mut engine = engine(setup, 8);
        let [pd, other_pd] = [(); 2].map(|()| engine.objects().alloc_pd().unwrap());
        let arena = Arena::new(&mut engine, pd, other_pd);
        let (cq, poller) = engine.objects().create_cq(if setup.tiny_cq { 4 } else { 4 * DEPTH }).unwrap();
        let (other_cq, _) = engine.objects().create_cq(16).unwrap();
        let attr = SrqAttr { pd, max_wr: DEPTH, max_sge: 4, limit: 1 };
        let (srq, shared_recv) = engine.create_srq(&attr).unwrap();
        let srq = setup.has_srq.then_some(srq);
        let main = engine.create_qp(&QpInit { service: setup.service, srq, ..qp_init(pd, cq) }).unwrap();
        let [other_qpn, idle_qpn] =
            [(); 2].map(|()| engine.create_qp(&qp_init(other_pd, other_cq)).unwrap().qpn);
        let [engine_gid, peer_gid, stranger] = [1, 2, 3].map(|last| Gid::from(gid(setup, last)));
        let mut peer = Peer::new(peer_gid, engine_gid, stranger, setup.conn.path_mtu.bytes());
        (peer.qpn, peer.other_qpn, peer.idle_qpn) = (main.qpn, other_qpn, idle_qpn);
        peer.is_uc = setup.service == ServiceType::Uc;
        let mut hostile = Hostile {
            engine,
            setup,
            arena,
            peer,
            pd,
            cq,
            poller,
            qpn: main.qpn,
            send: main.send,
            recv: main.recv.unwrap_or(shared_recv),
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            next_wr_id: 0,
            now: start::instant(),
            frames: Vec::new(),
            allocated_bytes: 0,
            bounds: Bounds::default(),
            tally: Tally::default(),
        };
        hostile.connect(other_qpn, stranger, QpState::Rts);
        hostile.connect(idle_qpn, stranger, QpState::Init);
        hostile.connect_main();
        hostile
    }

    fn connect_main(&mut self) {
        self.connect(self.qpn, self.peer.own, QpState::Rts);
        let is_selective = matches!(self.setup.conn.recovery, RecoveryScheme::SelectiveRepeat { .. });
        self.peer.restart(start::psn(self.setup.first_psn), is_selective);
        self.tally.connections += 1;
    }

    fn connect(&mut self, qpn: Qpn, peer: Gid, until: QpState) {
        connect(&mut self.engine, self.setup, qpn, peer, until);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Packet(plan) => {
                let reth = self.reth(plan.reth);
                let frame = self.peer.packet(&plan, reth);
                self.put(frame);
            }
            Step::Message { kind, reth, lost } => {
                let reth = self.reth(reth);
                let frames = self.peer.message(kind, reth);
                self.put_all(frames, lost);
            }
            Step::Answer { lost } => {
                let frames = self.peer.answers();
                self.put_all(frames, lost);
            }
            Step::Raw(bytes) => self.put(bytes),
            Step::Send { kind, len_bytes, sges, inline, fence, bad_key } => {
                self.post_send(kind, len_bytes, sges, inline, fence, bad_key);
            }
            Step::Recv { len_bytes, sges, bad_key } => self.post_recv(len_bytes, sges, bad_key),
            Step::Poll { nanos, room } => {
                self.now = self.now.plus_nanos(nanos);
                self.poll(room);
            }
            Step::Sleep => {
                self.sleep();
            }
            Step::Deregister => self.arena.deregister(&mut self.engine),
            Step::Register => self.arena.register(&mut self.engine, self.pd),
            Step::Modify(state) => self.modify(state),
        }
    }

    fn reth(&self, plan: RethPlan) -> Reth {
        self.arena.reth(plan)
    }

    fn put_all(&mut self, frames: Vec<Vec<u8>>, lost: u32) {
        for (index, frame) in frames.into_iter().enumerate() {
            if lost >> (index % 32) & 1 == 0 {
                self.put(frame);
            }
        }
    }

    /// Sends a frame to the engine, and updates the bounds on packets that the engine may send.
    fn put(&mut self, frame: Vec<u8>) {
        if let Ok(packet) = Packet::parse(&frame)
            && packet.icrc_ok()
        {
            self.bounds.requests_in += u64::from(packet.info.is_request);
            self.bounds.marked_in += u64::from(packet.congestion_experienced());
            self.bounds.reads_in += u64::from(packet.info.operation == Operation::ReadRequest);
            self.arena.expect(&packet);
        }
        let frame: Rc<[u8]> = frame.into();
        self.frames.push(frame.clone());
        self.engine.port_mut().incoming.push_back(frame);
    }

    /// Returns a scatter/gather list of `pieces` entries in the private region, `len_bytes` in total.
    fn sges(&self, len_bytes: u32, pieces: u8, bad_key: bool) -> Vec<Sge> {
        let lkey = self.arena.lkey(Target::Private);
        let lkey = if bad_key { LKey(lkey.0 ^ 1) } else { lkey };
        let addr = self.arena.addr(Target::Private);
        let pieces = u32::from(pieces);
        let (mut offset, mut left) = (u64::from(self.next_wr_id as u32 % 7) * 64, len_bytes);
        let mut sges = Vec::new();
        for index in 0..pieces {
            let len_bytes = if index + 1 == pieces { left } else { left / 2 };
            sges.push(Sge { addr: addr + offset, len_bytes, lkey });
            offset += u64::from(len_bytes) + 5;
            left -= len_bytes;
        }
        sges
    }

    fn fills(&self, sges: &[Sge]) -> Vec<Range<usize>> {
        sges.iter().map(|sge| self.arena.private(sge.addr, sge.len_bytes)).collect()
    }

    fn post_send(&mut self, kind: Kind, len_bytes: u32, sges: u8, inline: bool, fence: bool, bad_key: bool) {
        let sges = self.sges(len_bytes, sges, bad_key);
        let (remote_addr, rkey) = (0x10_0000, roce::id::RKey(0x77));
        let op = match kind {
            Kind::Send => SendOp::Send,
            Kind::SendWithImm => SendOp::SendWithImm { imm: 1 },
            Kind::Write => SendOp::Write { remote_addr, rkey },
            Kind::WriteWithImm => SendOp::WriteWithImm { remote_addr, rkey, imm: 2 },
            Kind::Read => SendOp::Read { remote_addr, rkey },
        };
        let bytes = [INLINE; INLINE_BYTES as usize];
        let inline = inline && kind != Kind::Read;
        let data = if inline {
            SendData::Inline(&bytes[..(len_bytes % (INLINE_BYTES + 1)) as usize])
        } else {
            SendData::Sges(&sges)
        };
        let wr_id = self.next_wr_id << 1;
        let flags = SendFlags { signaled: false, solicited: fence, fence };
        if self.send.post(&SendRequest { wr_id, op, flags, data }).is_ok() {
            self.next_wr_id += 1;
            let total: u32 = sges.iter().map(|sge| sge.len_bytes).sum();
            self.bounds.posted_pkts += u64::from(total.div_ceil(self.setup.conn.path_mtu.bytes()).max(1));
            let fills = if kind == Kind::Read { self.fills(&sges) } else { Vec::new() };
            self.sends.push_back(Posted { wr_id, len_bytes: total, fills });
        }
    }

    fn post_recv(&mut self, len_bytes: u32, sges: u8, bad_key: bool) {
        let sges = self.sges(len_bytes, sges, bad_key);
        let wr_id = self.next_wr_id << 1 | RECV_BIT;
        if self.recv.post(&RecvRequest { wr_id, sges: &sges }).is_ok() {
            self.next_wr_id += 1;
            let total = sges.iter().map(|sge| sge.len_bytes).sum();
            self.recvs.push_back(Posted { wr_id, len_bytes: total, fills: self.fills(&sges) });
        }
    }

    fn state(&self) -> QpState {
        self.engine.query_qp(self.qpn).unwrap().0
    }

    fn modify(&mut self, to: QpState) {
        let attr = QpAttr { state: Some(to), ..QpAttr::default() };
        if self.engine.modify_qp(self.qpn, &attr).is_err() {
            return; // the transition is not permitted
        }
        match to {
            QpState::Reset => self.start_again(),
            QpState::Err => self.flush_and_reconnect(),
            _ => {}
        }
    }

    /// Reconnects the queue pair, which is in RESET. Work requests that the reset dropped never complete.
    fn start_again(&mut self) {
        self.take_completions();
        self.sends.clear();
        if !self.setup.has_srq {
            self.recvs.clear();
        }
        self.connect_main();
    }

    fn flush_and_reconnect(&mut self) {
        for _ in 0..DEPTH {
            self.poll_once(usize::MAX);
        }
        if !self.setup.tiny_cq {
            let left = if self.setup.has_srq { 0 } else { self.recvs.len() };
            assert_eq!((self.sends.len(), left), (0, 0), "work requests stay in an error state");
        }
        self.engine
            .modify_qp(self.qpn, &QpAttr { state: Some(QpState::Reset), ..QpAttr::default() })
            .unwrap();
        self.start_again();
    }

    fn poll(&mut self, room: usize) -> Progress {
        let progress = self.poll_once(room);
        match self.state() {
            QpState::Err => self.flush_and_reconnect(),
            QpState::Sqe => self.modify(QpState::Rts),
            _ => {}
        }
        progress
    }

    /// Polls once, then checks all invariants.
    fn poll_once(&mut self, room: usize) -> Progress {
        self.engine.port_mut().room = room;
        let mut progress = Progress::default();
        let (engine, now) = (&mut self.engine, self.now);
        let allocated = allocation_counter::measure(|| progress = engine.poll(now));
        self.allocated_bytes += allocated.bytes_current;
        assert!(self.allocated_bytes < ALLOCATED_MAX_BYTES, "the engine keeps {} B", self.allocated_bytes);
        let fills = self.sends.iter().chain(&self.recvs).flat_map(|posted| &posted.fills);
        self.arena.check(fills);
        self.take_sent();
        self.take_completions();
        self.check_counts();
        if progress.is_idle() {
            let due = self.engine.next_deadline();
            assert!(due.is_none_or(|due| due > now), "idle at {now:?}, but due at {due:?}: it would spin");
        }
        if self.engine.port().incoming.is_empty() {
            self.frames.clear();
        }
        while let Some(event) = self.engine.poll_event() {
            assert!(self.setup.tiny_cq || event != Event::CqError(self.cq), "the queue has room for all");
        }
        progress
    }

    /// Checks the frames sent: well-formed, addressed to the peer, without secret bytes.
    fn take_sent(&mut self) {
        let is_latest = self.engine.port().incoming.is_empty();
        for frame in self.engine.port_mut().take_sent() {
            let packet = Packet::parse(&frame).expect("the engine sends packets that can be read");
            assert!(packet.icrc_ok());
            assert_eq!((packet.src_gid(), packet.dst_gid()), (self.peer.engine, self.peer.own));
            assert_eq!(packet.bth.dest_qp, Qpn::new(0x1234));
            let bounds = &mut self.bounds;
            let is_response = packet.info.operation == Operation::ReadResponse;
            // Secret values are the fill bytes of memory that the peer may not read, and of new transmit buffers. Only
            // four consecutive bytes of one secret value are an error: a damaged packet of the peer may write single
            // bytes of any value to memory, and the engine may later send these bytes.
            let secrets = [GUARD, FOREIGN, STALE, if is_response { PRIVATE } else { GUARD }];
            let is_secret = |run: &[u8]| secrets.iter().any(|secret| run.iter().all(|byte| byte == secret));
            assert!(!packet.payload.windows(4).any(is_secret), "{} carries secret bytes", packet.info.name);
            match packet.info.operation {
                Operation::ReadResponse => bounds.responses_out += 1,
                Operation::CongestionNotification => bounds.notifications_out += 1,
                Operation::Acknowledge | Operation::SelectiveAcknowledge => bounds.answers_out += 1,
                _ => bounds.requests_out += 1,
            }
            self.peer.observe(&packet, is_latest);
        }
    }

    fn take_completions(&mut self) {
        while let Some(cqe) = self.poller.pop() {
            let is_recv = cqe.wr_id & RECV_BIT != 0;
            let queue = if is_recv { &mut self.recvs } else { &mut self.sends };
            let mut posted = queue.pop_front();
            // A completion queue that overflows loses CQEs. A reset queue pair loses the receive taken from the SRQ.
            // All other work requests complete in order.
            let may_skip = self.setup.tiny_cq || is_recv && self.setup.has_srq;
            while may_skip && posted.as_ref().is_some_and(|posted| posted.wr_id < cqe.wr_id) {
                posted = queue.pop_front();
            }
            let Some(posted) = posted else { panic!("{cqe:?} completes nothing") };
            self.tally.failures += u64::from(cqe.status != WcStatus::Success);
            let success = u64::from(cqe.status == WcStatus::Success);
            self.tally.successes += success;
            self.tally.uc_successes += success * u64::from(self.setup.service == ServiceType::Uc);
            self.tally.srq_successes += success * u64::from(is_recv && self.setup.has_srq);
            check_completion(&cqe, &posted, self.qpn);
        }
    }

    fn check_counts(&mut self) {
        let counters = self.engine.counters();
        let dropped: u64 = self.engine.drop_counters().iter().map(|(_, count)| count).sum();
        let taken = self.engine.port().taken;
        assert_eq!(dropped + counters.rcvd_pkts, taken, "every frame is counted once");
        (self.tally.frames, self.tally.received) = (taken, counters.rcvd_pkts);
        let bounds = &self.bounds;
        // A READ behind a gap elicits a SACK. If the region of the READ is deregistered before the responses are sent,
        // the READ elicits a NAK, too.
        let refused_reads = counters.resp_remote_access_errors.min(bounds.reads_in);
        assert!(bounds.answers_out <= bounds.requests_in + refused_reads, "more answers than requests");
        let longest_read_pkts = (REGION_BYTES as u64).div_ceil(u64::from(self.setup.conn.path_mtu.bytes()));
        let responses = bounds.reads_in * longest_read_pkts;
        assert!(bounds.responses_out <= responses, "more responses than READs ask for");
        let resumptions = counters.local_ack_timeout_err
            + counters.packet_seq_err
            + counters.rcvd_rnr_err
            + counters.implied_nak_seq_err;
        // Under selective repeat each response reports the loss of at most one window of packets.
        let is_selective = matches!(self.setup.conn.recovery, RecoveryScheme::SelectiveRepeat { .. });
        let shown = if is_selective { counters.rcvd_pkts } else { 0 };
        let resumptions = resumptions + counters.tail_probes + counters.roce_adp_retrans_to + shown;
        let requests = bounds.posted_pkts + resumptions * u64::from(DEFAULT_WINDOW_PKTS);
        assert!(
            bounds.requests_out <= requests,
            "{} requests sent, {requests} explained",
            bounds.requests_out
        );
        assert!(bounds.notifications_out <= bounds.marked_in, "more notifications than marks");
        let sent = bounds.requests_out + bounds.responses_out + bounds.answers_out + bounds.notifications_out;
        assert_eq!(counters.sent_pkts, sent);
        let rate = self.engine.qp_congestion(self.qpn).and_then(|congestion| congestion.rate_bits_per_sec());
        assert!(rate.is_none_or(|rate| rate >= RATE_MIN_BITS_PER_SEC), "slowed down to {rate:?}");
    }

    /// Polls at the engine's next deadline. Returns false if there is no deadline.
    fn sleep(&mut self) -> bool {
        let Some(deadline) = self.engine.next_deadline() else { return false };
        if self.now < deadline {
            self.now = deadline;
        }
        self.poll(usize::MAX);
        true
    }

    /// Polls until all work requests have completed; the peer sends nothing more.
    fn finish(&mut self) {
        self.modify(QpState::Rts);
        for _ in 0..LAST_POLLS_MAX {
            let idle = self.poll(usize::MAX).is_idle();
            // The clock advances with each poll, otherwise packets that are paced or delayed would never be sent.
            self.now = self.now.plus_nanos(POLL_NANOS);
            if idle && self.sends.is_empty() {
                break;
            }
            if idle && !self.sleep() {
                break;
            }
        }
        if !self.setup.tiny_cq {
            assert!(self.sends.is_empty(), "a silent peer is never given up: {:?}", self.engine.counters());
        }
        self.modify(QpState::Err);
    }
}

fn check_completion(cqe: &Cqe, posted: &Posted, qpn: Qpn) {
    assert_eq!(cqe.wr_id, posted.wr_id, "completions come in the order of the posts");
    assert_eq!(cqe.qpn, qpn);
    if cqe.status == WcStatus::Success && cqe.opcode == roce::queue::WcOpcode::Recv {
        assert!(cqe.len_bytes <= posted.len_bytes);
    }
}
