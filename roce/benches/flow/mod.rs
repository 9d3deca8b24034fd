//! Two engines on one core over a loopback. Each batch of messages runs in phases, so that requester and responder are
//! measured separately.
//!
//! ```text
//!   a: post_to_wire ---- requests ---> b: wire_to_completion
//!   a: completion   <--- responses ---'
//! ```
#![allow(dead_code)] // each bench uses a part

pub(crate) mod flood;
pub(crate) mod lossy;
pub(crate) mod many;

#[path = "../../tests/engine/common/mod.rs"]
mod common;

pub(crate) use common::conn;
use common::forge::Forged;
use common::{End, pair_over, ports_of};
use roce::id::{Gid, Mac, PKey, Qpn};
use roce::port::Port;
use roce::psn::Psn;
use roce::qp::{ConnAttr, PathMtu, Placement, QpAttr, QpState};
use roce::queue::{SendOp, WcStatus};
use roce::recovery::RecoveryScheme;
use roce::start;
use roce::wire::{HeaderSpec, HeaderTemplate, Opcode, Packet, PacketSpec, PrecedingReads, Reth, icrc};

/// Data packets of a batch: one receive burst.
pub(crate) const BATCH_PKTS: u32 = 32;
/// Window under selective repeat.
const WINDOW_PKTS: u32 = 256;
/// READs outstanding under selective repeat.
const READS_MAX: u8 = 2 * BATCH_PKTS as u8;
/// Number of frame buffers of each port, so small that the buffers stay in the cache.
const PORT_FRAMES: usize = 2 * BATCH_PKTS as usize;
const MTU: PathMtu = PathMtu::Mtu4096;
/// Advance of the engine's clock per poll, in nanoseconds.
const POLL_NANOS: u64 = 100;
/// Queue pairs in error beside the measured queue pair.
const QPS_IN_ERROR: usize = 1000;
const MEMORY_BYTES: usize = 64 << 10;
/// Offset of the IP header in a frame, in bytes.
const L3: usize = 14;

/// Operation and message size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Send64,
    Send4K,
    Write64,
    Write64K,
    Read64,
    Read64K,
}

impl Case {
    pub(crate) const ALL: [Case; 4] = [Case::Send64, Case::Send4K, Case::Write64K, Case::Read64K];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Case::Send64 => "send_64",
            Case::Send4K => "send_4k",
            Case::Write64 => "write_64",
            Case::Write64K => "write_64k",
            Case::Read64 => "read_64",
            Case::Read64K => "read_64k",
        }
    }

    pub(crate) fn is_read(self) -> bool {
        matches!(self, Case::Read64 | Case::Read64K)
    }

    fn len_bytes(self) -> u32 {
        match self {
            Case::Send64 | Case::Write64 | Case::Read64 => 64,
            Case::Send4K => 4096,
            Case::Write64K | Case::Read64K => 64 << 10,
        }
    }

    fn packets(self) -> u32 {
        self.len_bytes().div_ceil(MTU.bytes())
    }

    /// Returns the operation, whose remote memory, if any, is that of `peer`.
    fn op(self, peer: &End) -> SendOp {
        let (remote_addr, rkey) = (peer.memory.addr(), peer.rkey);
        match self {
            Case::Send64 | Case::Send4K => SendOp::Send,
            Case::Write64 | Case::Write64K => SendOp::Write { remote_addr, rkey },
            Case::Read64 | Case::Read64K => SendOp::Read { remote_addr, rkey },
        }
    }

    /// Payload bytes of each data packet.
    pub(crate) fn payload_bytes(self) -> usize {
        self.len_bytes().min(MTU.bytes()) as usize
    }
}

/// A connection in steady state, between two batches.
pub(crate) struct Flow {
    a: End,
    b: End,
    case: Case,
    messages: u64,
    nanos: u64,
}

impl Flow {
    /// Returns a connection after a warm-up of 20 batches.
    pub(crate) fn new(case: Case) -> Box<Self> {
        Flow::with(case, &conn(MTU))
    }

    /// Like [`Flow::new`], under selective repeat with relaxed placement.
    pub(crate) fn selective(case: Case) -> Box<Self> {
        Flow::selective_with(case, Placement::Relaxed)
    }

    /// Like [`Flow::new`], under selective repeat with in-order placement: out-of-order packets are buffered.
    pub(crate) fn buffering(case: Case) -> Box<Self> {
        Flow::selective_with(case, Placement::InOrder)
    }

    fn selective_with(case: Case, placement: Placement) -> Box<Self> {
        let mut flow = Flow::with(case, &selective(placement));
        // The first loss precedes the measurement, because the first loss allocates the memory of the reorder buffer.
        flow.post_behind_a_loss();
        (0..3).for_each(|_| {
            flow.wire_to_completion();
            flow.retransmit();
        });
        while flow.a.poller.pop().is_some() {}
        flow
    }

    fn with(case: Case, conn: &ConnAttr) -> Box<Self> {
        let (port_a, port_b) = ports_of(PORT_FRAMES);
        let (a, mut b) = pair_over(port_a, port_b, MEMORY_BYTES, true, conn);
        let messages = u64::from(BATCH_PKTS / case.packets());
        (0..messages).for_each(|wr_id| b.post_recv(wr_id, b.sge(0, MTU.bytes())));
        let mut flow = Box::new(Flow { a, b, case, messages, nanos: 0 });
        (0..20).for_each(|_| flow.batch());
        flow
    }

    /// Like [`Flow::new`], beside `QPS_IN_ERROR` idle queue pairs in error.
    pub(crate) fn beside_errors() -> Box<Self> {
        let mut flow = Flow::new(Case::Send64);
        for _ in 0..QPS_IN_ERROR {
            let qpn = flow.a.create_idle_qp();
            let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
            flow.a.engine.modify_qp(qpn, &attr).expect("a transition");
        }
        poll_while_busy(&mut flow.a, &mut flow.nanos);
        while let Some(due) = flow.a.engine.next_deadline() {
            flow.nanos = flow.nanos.max(due.nanos_since(start::instant()));
            poll_while_busy(&mut flow.a, &mut flow.nanos);
        }
        flow
    }

    fn batch(&mut self) {
        self.post_to_wire();
        self.wire_to_completion();
        self.completion();
    }

    /// Polls the requester, which has no work.
    pub(crate) fn idle_poll(&mut self) {
        self.a.poll(self.nanos);
    }

    /// Posts a batch and sends all its packets.
    pub(crate) fn post_to_wire(&mut self) {
        let op = self.case.op(&self.b);
        let sge = self.a.sge(0, self.case.len_bytes());
        (0..self.messages).for_each(|wr_id| self.a.post(wr_id, op, sge));
        poll_while_busy(&mut self.a, &mut self.nanos);
    }

    /// Posts a WRITE of one packet, or a READ of one response if `self.case` is a READ, then a batch of messages of
    /// `self.case`. The first packet is lost.
    pub(crate) fn post_behind_a_loss(&mut self) {
        self.post_one_more();
        lose_one(&mut self.b);
    }

    /// Posts a READ of one response, then a batch of READs. The first response is lost.
    pub(crate) fn ask_behind_a_loss(&mut self) {
        self.post_one_more();
        self.wire_to_completion();
        lose_one(&mut self.a);
    }

    /// Posts a WRITE or READ of one packet, then a batch of messages of `self.case`, and sends all their packets.
    fn post_one_more(&mut self) {
        let one = if self.case.is_read() { Case::Read64 } else { Case::Write64 };
        self.a.post(self.messages, one.op(&self.b), self.a.sge(0, one.len_bytes()));
        self.post_to_wire();
    }

    /// The requester receives the SACK, or the READ responses above the gap, and retransmits.
    pub(crate) fn retransmit(&mut self) {
        poll_while_busy(&mut self.a, &mut self.nanos);
    }

    /// The responder executes the batch, completes its receives, posts new receives, and responds.
    pub(crate) fn wire_to_completion(&mut self) {
        poll_while_busy(&mut self.b, &mut self.nanos);
        while let Some(cqe) = self.b.poller.pop() {
            assert_eq!(cqe.status, WcStatus::Success);
            self.b.post_recv(cqe.wr_id, self.b.sge(0, MTU.bytes()));
        }
    }

    /// The requester receives the responses and completes the batch.
    pub(crate) fn completion(&mut self) {
        poll_while_busy(&mut self.a, &mut self.nanos);
        for _ in 0..self.messages {
            let cqe = self.a.poller.pop().expect("one round trip completes a batch");
            assert_eq!(cqe.status, WcStatus::Success);
        }
    }
}

fn selective(placement: Placement) -> ConnAttr {
    let recovery = RecoveryScheme::SelectiveRepeat { window_pkts: WINDOW_PKTS };
    // A batch of READs of one response is outstanding as a whole.
    let (max_rd_atomic, max_dest_rd_atomic) = (READS_MAX, READS_MAX);
    ConnAttr { recovery, placement, max_rd_atomic, max_dest_rd_atomic, ..conn(MTU) }
}

/// Kind of a forged packet. SENDs and READ responses have a payload of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Junk {
    NotRoce,
    UnknownQp,
    QpState,
    PKey,
    Source,
    SourceMac,
    SourcePort,
    StaleResponse,
    BadIcrc,
    OutOfOrder,
    Duplicate,
    /// Duplicates of a READ of 64 KiB in one burst.
    DuplicateRead,
    /// Like `DuplicateRead`, after the responder has reached its limit of retransmissions.
    DuplicateReadLimited,
    Cnp,
}

/// Number of packets of the warm-up in [`Flow::new`].
const WARM_UP_PKTS: u32 = 20 * BATCH_PKTS;

impl Flow {
    /// Returns a connection with a burst of forged packets in flight to the responder.
    pub(crate) fn under(junk: Junk) -> Box<Self> {
        let mut flow = Flow::new(Case::Read64K);
        if junk == Junk::DuplicateReadLimited {
            for _ in 0..100 {
                flow.forge(Junk::DuplicateRead);
                flow.wire_to_completion();
                while flow.a.poll(flow.nanos).rx_frames > 0 {}
            }
        }
        flow.forge(junk);
        flow
    }

    fn forge(&mut self, junk: Junk) {
        let expected = Psn::new(0xFF_FF00).plus(WARM_UP_PKTS);
        let send =
            Forged { payload_len: 4096, ..Forged::to(&self.b, &self.a, Opcode::RC_SEND_ONLY, expected) };
        let read =
            Forged { opcode: Opcode::RC_RDMA_READ_REQUEST, payload_len: 0, psn: expected.minus(16), ..send };
        let forged = match junk {
            Junk::NotRoce => Forged { payload_len: 4096, ..send },
            Junk::UnknownQp => Forged { qpn: Qpn::new(send.qpn.value() ^ 1), ..send },
            Junk::QpState => Forged { qpn: self.b.create_idle_qp(), ..send },
            Junk::PKey => Forged { pkey: PKey(1), ..send },
            Junk::Source => Forged { src: Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 9)), ..send },
            Junk::SourceMac => Forged { src_mac: Mac([2; 6]), ..send },
            Junk::SourcePort => Forged { udp_source_port: 1, ..send },
            Junk::StaleResponse => Forged { opcode: Opcode::new(0x0E), psn: expected.plus(5), ..send },
            Junk::BadIcrc => Forged { sound: false, ..send },
            Junk::OutOfOrder => Forged { psn: expected.plus(1 << 20), ..send },
            Junk::Duplicate => Forged { psn: expected.minus(40), ..send },
            Junk::DuplicateRead | Junk::DuplicateReadLimited => {
                Forged { reth: Reth { len_bytes: 64 << 10, ..send.reth }, ..read }
            }
            Junk::Cnp => Forged { opcode: Opcode::CNP, becn: true, payload_len: 0, psn: Psn::new(0), ..send },
        };
        let mut frame = forged.frame();
        if junk == Junk::NotRoce {
            frame[12..14].copy_from_slice(&[0x88, 0xCC]); // LLDP
        }
        for _ in 0..BATCH_PKTS {
            let port = self.a.engine.port_mut();
            port.tx_reserve(frame.len()).expect("the port has room").copy_from_slice(&frame);
            port.tx_flush();
        }
    }
}

/// Drops the first packet in flight to `end`.
fn lose_one(end: &mut End) {
    let port = end.engine.port_mut();
    let mut lost = Vec::new();
    port.rx_burst(&mut lost, 1);
    assert_eq!(lost.len(), 1);
    port.free_frames(&mut lost);
}

/// Polls `end` until no work is left; the clock advances with each poll.
fn poll_while_busy(end: &mut End, nanos: &mut u64) {
    while end.poll(*nanos).more {
        *nanos += POLL_NANOS;
    }
    *nanos += POLL_NANOS;
}

/// Minimum work per packet: payload copy and ICRC. Each packet uses the next of `PORT_FRAMES` frames.
pub(crate) struct Least {
    frames: Vec<Vec<u8>>,
    /// Memory of one message.
    memory: Vec<u8>,
    payload_bytes: usize,
    next: usize,
}

impl Least {
    pub(crate) fn new(case: Case) -> Self {
        let payload_bytes = case.payload_bytes();
        let memory = vec![0x5A; case.len_bytes() as usize];
        Least { frames: vec![frame(payload_bytes); PORT_FRAMES], memory, payload_bytes, next: 0 }
    }

    fn turn(&mut self) -> (&mut Vec<u8>, &mut [u8]) {
        self.next += 1;
        let at = self.next * self.payload_bytes % self.memory.len();
        (&mut self.frames[self.next % PORT_FRAMES], &mut self.memory[at..][..self.payload_bytes])
    }

    /// For each packet of a batch, copies the payload, then computes the ICRC.
    pub(crate) fn send(&mut self) {
        for _ in 0..BATCH_PKTS {
            let (frame, memory) = self.turn();
            let (covered, crc) = frame.split_last_chunk_mut::<4>().expect("a packet");
            let at = covered.len() - memory.len();
            covered[at..].copy_from_slice(memory);
            *crc = icrc::compute(&covered[L3..]).expect("a packet").to_le_bytes();
        }
    }

    /// For each packet of a batch, checks the ICRC, then copies the payload.
    pub(crate) fn receive(&mut self) {
        for _ in 0..BATCH_PKTS {
            let (frame, memory) = self.turn();
            let (covered, crc) = frame.split_last_chunk::<4>().expect("a packet");
            assert_eq!(icrc::compute(&covered[L3..]), Some(u32::from_le_bytes(*crc)));
            let at = covered.len() - memory.len();
            memory.copy_from_slice(&covered[at..]);
        }
    }
}

/// Returns a frame of a SEND ONLY packet between IPv4 addresses.
pub(crate) fn frame(payload_bytes: usize) -> Vec<u8> {
    use std::net::Ipv4Addr;
    frame_between([Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 0, 0, 2).into()], payload_bytes)
}

/// Like [`frame`], between IPv6 addresses.
pub(crate) fn ipv6_frame(payload_bytes: usize) -> Vec<u8> {
    frame_between(
        [Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2])].map(|mac| mac.link_local().into()),
        payload_bytes,
    )
}

fn frame_between([src, dst]: [Gid; 2], payload_bytes: usize) -> Vec<u8> {
    let template = HeaderTemplate::new(&HeaderSpec {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src,
        dst,
        tclass: 0,
        ttl: 64,
        flow_label: 0,
        udp_source_port: 0xC123,
        pkey: PKey::DEFAULT,
        dest_qp: Qpn::new(17),
    })
    .expect("one family");
    let spec = PacketSpec {
        opcode: Opcode::RC_SEND_ONLY,
        solicited: false,
        ack_req: true,
        preceding_reads: PrecedingReads::NONE,
        fecn: false,
        becn: false,
        psn: Psn::new(5),
        ip_id: 7,
        payload_len: payload_bytes,
    };
    let mut frame = vec![0; template.frame_len(0, payload_bytes)];
    template.write(&mut frame, &spec).expect("of the right length").payload.fill(0x5A);
    template.seal(&mut frame).expect("just written");
    debug_assert!(Packet::parse(&frame).is_ok_and(|packet| packet.icrc_ok()));
    frame
}
