//! Two hosts on a cable with one connection, for tests that say step by step what happens.

use netsim::{Impairment, LinkConfig, LinkId, Tape, TapeEntry};
use roce::congestion::CongestionScheme;
use roce::counters::QpCounters;
use roce::engine::Event;
use roce::engine::limits::REORDER_BYTES;
use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory};
use roce::psn::Psn;
use roce::qp::{ConnAttr, QpAttr, QpState};
use roce::queue::{Cqe, PostError, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge};
use roce::recovery::RecoveryScheme;
use roce::start;

use lab::rng::SplitMix;
use lab::world::{EndAttr, QpEnds, QpSizes, Step, World, WorldConfig};

/// What a pair is like.
#[derive(Clone, Copy, Debug)]
pub struct PairConfig {
    /// The cable.
    pub link: LinkConfig,
    /// Attributes of the connection, at both ends.
    pub conn: ConnAttr,
    /// Recovery scheme of end 1, if it differs from that in `conn`: improved go-back-N with a peer of go-back-N.
    pub peer_recovery: Option<RecoveryScheme>,
    /// Rights of both memories.
    pub memory_access: Access,
    /// Bytes of each host's memory.
    pub memory_bytes: usize,
    /// Depth of all work queues.
    pub depth: u32,
    /// Depth of all completion queues.
    pub cq_depth: u32,
}

impl Default for PairConfig {
    fn default() -> Self {
        PairConfig::of(conn())
    }
}

impl PairConfig {
    /// The defaults, with a connection of the attributes `conn`.
    pub fn of(conn: ConnAttr) -> Self {
        PairConfig {
            link: LinkConfig {
                rate_bits_per_sec: 100_000_000_000,
                propagation_nanos: 1_000,
                queue_bytes_max: 1 << 20,
            },
            conn,
            peer_recovery: None,
            memory_access: Access::ALL,
            memory_bytes: 1 << 16,
            depth: 64,
            cq_depth: 64,
        }
    }
}

/// Attributes of a pair's connection by default.
pub fn conn() -> ConnAttr {
    ConnAttr {
        access: Access::ALL,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        timeout: 8,
        min_rnr_timer: 1,
        recovery: RecoveryScheme::GoBackN,
        congestion: Some(CongestionScheme::Window { window_pkts: 128 }),
        initial_rtt_nanos: 0,
        ..ConnAttr::default()
    }
}

/// Operations without their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// SEND.
    Send,
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

/// One end: its memory is one region, registered at [`BASE`].
pub struct End {
    /// The queue pair.
    pub qp: QpEnds,
    /// Its memory.
    pub memory: Memory,
    /// The key for its own use.
    pub lkey: LKey,
    /// The key for the peer.
    pub rkey: RKey,
    /// Completions of sends so far.
    pub sent: Vec<Cqe>,
    /// Completions of receives so far.
    pub received: Vec<Cqe>,
}

/// Address of the first byte of either memory: ranges cross a multiple of 2^32.
pub const BASE: u64 = 0xFFFF_FF00;

/// The longest time that anything takes here, in nanoseconds of virtual time.
const LIMIT_NANOS: u64 = 60_000_000_000;

/// Frames that a cut link loses: more than any test sends.
const FRAMES_CUT: u64 = 100_000;

/// First PSNs: a few packets before the wrap.
fn first_psns() -> [Psn; 2] {
    [start::psn(0xFF_FFFA), start::psn(0x7F_FFFD)]
}

/// Two connected queue pairs. Link 0 leads from end 0 to end 1, link 1 back.
pub struct Pair {
    /// The hosts and their network.
    pub world: World,
    /// The ends, by host.
    pub ends: [End; 2],
    conns: [ConnAttr; 2],
    left_before: [u64; 2],
}

impl Pair {
    /// A connected pair with nothing posted, whose neighbours know one another.
    pub fn new(config: &PairConfig) -> Pair {
        let mut world = World::new(&WorldConfig {
            hosts: 2,
            link: config.link,
            mtu_bytes: 4200,
            poll_gap_nanos: 100,
            congestion: CongestionScheme::default(),
            seed: 1,
            reorder_bytes: REORDER_BYTES,
        });
        let sizes = QpSizes {
            sends: config.depth,
            recvs: config.depth,
            cqes: [config.cq_depth; 2],
            sges: 4,
            inline_bytes: 64,
        };
        let ends = [0, 1].map(|host| {
            let memory = Memory::alloc(config.memory_bytes);
            let content = SplitMix::new(host).bytes(config.memory_bytes);
            memory.write(0, &content).expect("it fits");
            let host = &mut world.hosts[host as usize];
            let (lkey, rkey) = host.register(&memory, BASE, config.memory_access);
            let qp = host.create_qp(&sizes);
            End { qp, memory, lkey, rkey, sent: Vec::new(), received: Vec::new() }
        });
        let recovery = config.peer_recovery.unwrap_or(config.conn.recovery);
        let conns = [config.conn, ConnAttr { recovery, ..config.conn }];
        let mut pair = Pair { world, ends, conns, left_before: [0; 2] };
        pair.connect();
        pair
    }

    /// Connects the queue pairs, which are in RESET.
    pub fn connect(&mut self) {
        let attr = |host: usize| EndAttr {
            host,
            qpn: self.ends[host].qp.qpn,
            first_psn: first_psns()[host],
            conn: self.conns[host],
        };
        self.world.connect(false, [attr(0), attr(1)]);
        self.settle();
    }

    /// Moves an end's queue pair to a state that needs no attributes.
    pub fn set_state(&mut self, end: usize, state: QpState) {
        let attr = QpAttr { state: Some(state), ..QpAttr::default() };
        self.world.modify_qp(end, self.ends[end].qp.qpn, &attr);
    }

    /// The state of an end's queue pair.
    pub fn state(&self, end: usize) -> Option<QpState> {
        self.world.hosts[end].engine.query_qp(self.ends[end].qp.qpn).map(|(state, ..)| state)
    }

    /// The events of an end's host since the last call.
    pub fn events(&mut self, end: usize) -> Vec<Event> {
        let engine = &mut self.world.hosts[end].engine;
        std::iter::from_fn(|| engine.poll_event()).collect()
    }

    /// Loses everything that leaves on a link from now on.
    pub fn cut(&mut self, link: usize) {
        let drop = |frame| TapeEntry { link: LinkId(link), frame, impairment: Impairment::Drop };
        self.set_tape(&Tape((0..FRAMES_CUT).map(drop).collect()));
    }

    /// The bytes of an end's memory.
    pub fn bytes(&self, end: usize) -> Vec<u8> {
        let mut bytes = vec![0; self.ends[end].memory.len_bytes()];
        self.ends[end].memory.read(0, &mut bytes).expect("all of it");
        bytes
    }

    /// Puts in a tape; frames are counted from now on.
    pub fn set_tape(&mut self, tape: &Tape) {
        self.left_before = [0, 1].map(|link| self.left_in_all(link));
        self.world.network.borrow_mut().set_tape(tape);
    }

    fn left_in_all(&self, link: usize) -> u64 {
        self.world.network.borrow().counters(LinkId(link)).left
    }

    /// Frames that left on a link since the tape was put in.
    pub fn left(&self, link: usize) -> u64 {
        self.left_in_all(link) - self.left_before[link]
    }

    /// Posts a receive of the first `len_bytes` of `end`'s memory.
    pub fn post_recv(&mut self, end: usize, wr_id: u64, len_bytes: u32) {
        let sge = Sge { addr: BASE, len_bytes, lkey: self.ends[end].lkey };
        self.ends[end]
            .qp
            .recv
            .post(&RecvRequest { wr_id, sges: &[sge] })
            .expect("there is room for a receive");
        self.world.hosts[end].kick();
    }

    /// Posts a signaled send of the first `len_bytes` of `end`'s memory to or from the peer's.
    pub fn post_send(&mut self, end: usize, wr_id: u64, op: Op, len_bytes: u32) {
        let (remote_addr, rkey) = (BASE, self.ends[1 - end].rkey);
        let op = match op {
            Op::Send => SendOp::Send,
            Op::Write => SendOp::Write { remote_addr, rkey },
            Op::Read => SendOp::Read { remote_addr, rkey },
        };
        self.post(end, wr_id, op, len_bytes).expect("there is room for a send");
    }

    /// Posts a signaled send of any kind.
    pub fn post(&mut self, end: usize, wr_id: u64, op: SendOp, len_bytes: u32) -> Result<(), PostError> {
        let sges = [Sge { addr: BASE, len_bytes, lkey: self.ends[end].lkey }];
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        self.world.hosts[end].kick();
        self.ends[end].qp.send.post(&SendRequest { wr_id, op, flags, data: SendData::Sges(&sges) })
    }

    /// Polls the completion queues of both ends.
    pub fn take_completions(&mut self) {
        for end in &mut self.ends {
            end.received.extend(std::iter::from_fn(|| end.qp.recv_cq.pop()));
            end.sent.extend(std::iter::from_fn(|| end.qp.send_cq.pop()));
        }
    }

    /// Runs until `count` sends of `end` have completed in all.
    ///
    /// # Panics
    /// Where they never do.
    pub fn run_until_completions(&mut self, end: usize, count: usize) {
        while self.ends[end].sent.len() < count {
            assert!(
                self.world.now_nanos() < LIMIT_NANOS,
                "{} of {count} complete",
                self.ends[end].sent.len()
            );
            let step = self.world.step(None);
            self.take_completions();
            let done = self.ends[end].sent.len();
            assert!(step != Step::Idle || done >= count, "idle with {done} of {count} complete");
        }
    }

    /// Runs until nothing is left to happen.
    pub fn settle(&mut self) {
        while self.world.step(None) != Step::Idle {
            assert!(self.world.now_nanos() < LIMIT_NANOS, "never idle");
            self.take_completions();
        }
        self.take_completions();
    }

    /// The counters of an end's host.
    pub fn counters(&self, end: usize) -> QpCounters {
        self.world.hosts[end].engine.counters()
    }
}
