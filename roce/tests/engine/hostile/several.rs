//! Several queue pairs of one engine. Each queue pair has its own peer; all peers have the same address.

use super::memory::{Arena, REGION_BYTES};
use super::peer::{ETH_LEN, Peer, reseal};
use super::tape::{self, Kind, RethPlan, Setup, Target};
use super::{DEPTH, connect, engine, gid, qp_init};
use crate::wire_port::WirePort;
use roce::engine::Engine;
use roce::id::{Gid, Qpn};
use roce::mem::PdId;
use roce::qp::{ConnAttr, Placement, QpAttr, QpState, ServiceType};
use roce::queue::{CqId, CqPoller, RecvPoster, RecvRequest, Sge};
use roce::recovery::RecoveryScheme;
use roce::start;
use roce::time::Instant;
use roce::wire::{Operation, Packet, Reth};
use std::rc::Rc;

/// Largest number of polls until the engine is idle.
const POLLS_MAX: usize = 10_000;
/// Bytes of a cell of the reorder buffer: a packet with a RETH and at most 256 payload bytes takes one cell.
const CELL_BYTES: usize = 272;

pub(crate) struct End {
    pub(crate) qpn: Qpn,
    pub(crate) peer: Peer,
    recv: RecvPoster,
}

pub(crate) struct Several {
    pub(crate) engine: Engine<WirePort>,
    pub(crate) setup: Setup,
    pub(crate) arena: Arena,
    pub(crate) ends: Vec<End>,
    pub(crate) now: Instant,
    pd: PdId,
    cq: CqId,
    poller: CqPoller,
    /// Frames sent to the engine. A check removes the frames that the engine has returned.
    frames: Vec<Rc<[u8]>>,
    /// Number of PSNs acknowledged by the last SACK's bitmap.
    pub(crate) told: u32,
}

/// Returns the parameters of a connection under `recovery` with path MTU 256.
pub(crate) fn setup(recovery: RecoveryScheme, placement: Placement) -> Setup {
    let conn = ConnAttr { recovery, placement, max_rd_atomic: 4, max_dest_rd_atomic: 4, ..tape::conn() };
    let (service, first_psn) = (ServiceType::Rc, 0xFF_FF00);
    Setup { is_ipv6: false, tiny_cq: false, service, has_srq: false, first_psn, conn }
}

/// Returns a retransmission of an IPv4 frame: with another IP identification, and with AckReq set.
pub(crate) fn retransmitted(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    let ip = ETH_LEN;
    frame[ip + 5] ^= 0x5A;
    let udp = ip + 20;
    frame[ip + 10..][..2].fill(0);
    let sum: u32 = frame[ip..udp].chunks_exact(2).map(|b| u32::from(u16::from_be_bytes([b[0], b[1]]))).sum();
    let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
    frame[ip + 10..][..2].copy_from_slice(&sum.to_be_bytes());
    frame[udp + 8 + 8] |= 0x80;
    reseal(&mut frame);
    frame
}

impl Several {
    pub(crate) fn new(setup: Setup, count: usize) -> Self {
        let mut engine = engine(setup, 2 * count);
        let [pd, other_pd] = [(); 2].map(|()| engine.objects().alloc_pd().unwrap());
        let arena = Arena::new(&mut engine, pd, other_pd);
        let (cq, poller) = engine.objects().create_cq(4 * DEPTH * count as u32).unwrap();
        let (ends, frames) = (Vec::new(), Vec::new());
        let mut several =
            Several { engine, setup, arena, ends, now: start::instant(), pd, cq, poller, frames, told: 0 };
        (0..count).for_each(|_| several.create());
        several
    }

    /// Creates and connects a further queue pair.
    pub(crate) fn create(&mut self) {
        let handles = self.engine.create_qp(&qp_init(self.pd, self.cq)).unwrap();
        let [engine_gid, peer_gid, stranger] = [1, 2, 3].map(|last| Gid::from(gid(self.setup, last)));
        let mut peer = Peer::new(peer_gid, engine_gid, stranger, self.setup.conn.path_mtu.bytes());
        peer.qpn = handles.qpn;
        self.ends.push(End { qpn: handles.qpn, peer, recv: handles.recv.expect("no SRQ") });
        self.connect(self.ends.len() - 1);
    }

    /// Connects a queue pair that is in RESET.
    pub(crate) fn connect(&mut self, index: usize) {
        let (setup, end) = (self.setup, &mut self.ends[index]);
        connect(&mut self.engine, setup, end.qpn, end.peer.own, QpState::Rts);
        let is_selective = matches!(setup.conn.recovery, RecoveryScheme::SelectiveRepeat { .. });
        end.peer.restart(start::psn(setup.first_psn), is_selective);
    }

    /// Destroys queue pair `index`; the last queue pair gets this index.
    pub(crate) fn destroy(&mut self, index: usize) {
        let end = self.ends.swap_remove(index);
        self.engine.destroy_qp(end.qpn).unwrap();
    }

    pub(crate) fn state(&self, index: usize) -> QpState {
        self.engine.query_qp(self.ends[index].qpn).unwrap().0
    }

    /// Changes the state of a queue pair. Returns false for a transition that is not permitted.
    pub(crate) fn modify(&mut self, index: usize, to: QpState) -> bool {
        let attr = QpAttr { state: Some(to), ..QpAttr::default() };
        self.engine.modify_qp(self.ends[index].qpn, &attr).is_ok()
    }

    pub(crate) fn shared(&self, offset: usize, len_bytes: usize) -> Reth {
        let (offset, len_bytes) = (offset as i64, len_bytes as u32);
        self.arena.reth(RethPlan { target: Target::Shared, offset, from_end: false, len_bytes })
    }

    pub(crate) fn message(&mut self, index: usize, kind: Kind, reth: Reth) -> Vec<Vec<u8>> {
        self.ends[index].peer.message(kind, reth)
    }

    /// Returns `count` WRITEs of one packet each, to consecutive parts of the shared region.
    pub(crate) fn writes(&mut self, index: usize, count: usize, len_bytes: usize) -> Vec<Vec<u8>> {
        let reth = |number| self.shared(number * len_bytes % REGION_BYTES, len_bytes);
        let reths: Vec<Reth> = (0..count).map(reth).collect();
        reths.into_iter().flat_map(|reth| self.message(index, Kind::Write, reth)).collect()
    }

    /// Posts a receive at the start of the private region. Returns false on failure.
    pub(crate) fn post_recv(&mut self, index: usize, len_bytes: u32) -> bool {
        let (addr, lkey) = (self.arena.addr(Target::Private), self.arena.lkey(Target::Private));
        let sges = [Sge { addr, len_bytes, lkey }];
        self.ends[index].recv.post(&RecvRequest { wr_id: 1, sges: &sges }).is_ok()
    }

    pub(crate) fn put(&mut self, frame: Vec<u8>) {
        if let Ok(packet) = Packet::parse(&frame) {
            self.arena.expect(&packet);
        }
        let frame: Rc<[u8]> = frame.into();
        self.frames.push(frame.clone());
        self.engine.port_mut().incoming.push_back(frame);
    }

    pub(crate) fn put_all(&mut self, frames: impl IntoIterator<Item = Vec<u8>>) {
        frames.into_iter().for_each(|frame| self.put(frame));
    }

    /// Polls until no frame is in flight and the engine is idle, then checks memory.
    pub(crate) fn run(&mut self) {
        for _ in 0..POLLS_MAX {
            if self.poll() && self.engine.port().incoming.is_empty() {
                return self.check();
            }
        }
        panic!("it never comes to rest");
    }

    /// Polls once and parses the frames sent. Returns whether the engine was idle.
    pub(crate) fn poll(&mut self) -> bool {
        self.engine.port_mut().room = usize::MAX;
        let progress = self.engine.poll(self.now);
        let is_latest = self.engine.port().incoming.is_empty();
        for frame in self.engine.port_mut().take_sent() {
            let packet = Packet::parse(&frame).expect("the engine sends packets that can be read");
            assert!(packet.icrc_ok());
            if packet.info.operation == Operation::SelectiveAcknowledge {
                self.told = packet.payload.iter().map(|byte| byte.count_ones()).sum();
            }
            // All simulated peers have the same address and QPN, so with several queue pairs under test the destination
            // of a sent packet does not identify the peer.
            if let [end] = &mut self.ends[..] {
                end.peer.observe(&packet, is_latest);
            }
        }
        while self.poller.pop().is_some() {}
        while self.engine.poll_event().is_some() {}
        if progress.is_idle() {
            let due = self.engine.next_deadline();
            assert!(due.is_none_or(|due| due > self.now), "idle, but due: it would spin");
        }
        progress.is_idle()
    }

    /// Checks that only permitted bytes have changed, and that the engine has returned all received frames to the port.
    pub(crate) fn check(&mut self) {
        let fills = self.arena.private(self.arena.addr(Target::Private), REGION_BYTES as u32);
        self.arena.check([fills].iter());
        let held = self.frames.iter().filter(|frame| Rc::strong_count(frame) > 1).count();
        assert_eq!(held, self.engine.port().incoming.len(), "the engine returns every frame to the port");
        self.frames.retain(|frame| Rc::strong_count(frame) > 1);
    }

    /// Advances the clock by `nanos`, with a poll at every deadline.
    pub(crate) fn wait(&mut self, nanos: u64) {
        let end = self.now.plus_nanos(nanos);
        while let Some(due) = self.engine.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.run();
        }
        self.now = end;
        self.run();
    }

    /// Returns the number of buffered packets, if each takes one cell ([`CELL_BYTES`]) of the reorder buffer.
    pub(crate) fn buffered(&self) -> usize {
        self.engine.buffered_bytes() / CELL_BYTES
    }

    pub(crate) fn counter(&self, index: usize, name: &str) -> u64 {
        let counters = self.engine.qp_counters(self.ends[index].qpn).unwrap();
        counters.iter().find(|(other, _)| *other == name).map_or(0, |(_, count)| count)
    }
}
