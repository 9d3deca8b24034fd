//! Parts shared by the table tests of this directory: packets built as frames, a port that records the frames sent, and
//! a responder with its memory, its receive queue and its reorder buffer.

use super::reorder_buffer::{CELL_BYTES, ReorderStore};
use super::responder::{Responder, ResponderAction, ResponderConfig};
use crate::congestion::{Congestion, CongestionScheme};
use crate::counters::QpCounters;
use crate::id::{Gid, LKey, Mac, PKey, Qpn, RKey};
use crate::mem::{Access, Memory, MemoryTable, MemoryView, PdId};
use crate::port::{Payload, Port, PortCaps};
use crate::psn::Psn;
use crate::qp::context::{RxContext, TxContext, TxOutcome};
use crate::qp::emit::{PacketBuilder, QpHeaders};
use crate::qp::receives::Receives;
use crate::qp::{ConnAttr, PathMtu, Placement};
use crate::queue::{
    CqId, CqPoller, CqSlot, CqTable, Cqe, Doorbells, Posting, RecvPoster, RecvQueueSize, RecvRequest, Sge,
    SharedCq, SrqTable, recv_queue,
};
use crate::random::Random;
use crate::recovery::RecoveryScheme;
use crate::start;
use crate::time::Instant;
use crate::wire::sacketh::bitmap_words;
use crate::wire::{
    AddressSpec, AddressTemplate, Aeth, NakCode, Opcode, Operation, Packet, PacketSpec, Position,
    PrecedingReads, QpFields, RecvEth, Reth, SackEth, Syndrome,
};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// PSN of index 0: the tables of the tests have indices instead of PSNs. The PSNs wrap: index 3 has PSN 0.
pub(super) const FIRST_PSN: Psn = Psn::new(Psn::COUNT - 3);
pub(super) const PATH_MTU: PathMtu = PathMtu::Mtu256;
pub(super) const MTU_BYTES: u32 = PATH_MTU.bytes();

pub(super) const GBN: RecoveryScheme = RecoveryScheme::GoBackN;
pub(super) const IMPROVED: RecoveryScheme = RecoveryScheme::ImprovedGoBackN;
pub(super) const SELECTIVE: RecoveryScheme = RecoveryScheme::SelectiveRepeat { window_pkts: 64 };

/// Virtual address of the first byte of each memory region of a [`Bench`].
pub(super) const VA: u64 = 0x1000;
/// Index of the queue pair of a [`Bench`] in the table of its device.
const SLOT: usize = 0;
/// Length in bytes of each memory region of a [`Bench`].
pub(super) const REGION_BYTES: u32 = 1 << 16;

/// Memory regions of a [`Bench`]: in a [`Pkt`], `RKey(i)` stands for the R_Key of region `i`.
pub(super) const ALL: RKey = RKey(0);
pub(super) const READABLE: RKey = RKey(1);
pub(super) const WRITABLE: RKey = RKey(2);
pub(super) const OTHER_PD: RKey = RKey(3);
pub(super) const LOCAL_READ: RKey = RKey(4);
/// R_Key that belongs to no memory region.
pub(super) const UNKNOWN: RKey = RKey(5);

pub(super) const fn psn(index: i32) -> Psn {
    if index < 0 { FIRST_PSN.minus(index.unsigned_abs()) } else { FIRST_PSN.plus(index.unsigned_abs()) }
}

pub(super) fn index_of(psn: Psn) -> i32 {
    psn.offset_from(FIRST_PSN).expect("tables stay within half the circle")
}

/// A packet in the tables of the tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pkt {
    pub(super) opcode: Opcode,
    /// PSN, as its distance from [`FIRST_PSN`].
    pub(super) at: i32,
    pub(super) len_bytes: u32,
    /// Value of each payload byte.
    pub(super) fill: u8,
    pub(super) ack_req: bool,
    pub(super) preceding_reads: PrecedingReads,
    pub(super) solicited: bool,
    pub(super) ip_id: u16,
    pub(super) reth: Reth,
    /// The recv WQE sequence number counts from that of the first receive of the connection.
    pub(super) recveth: RecvEth,
    pub(super) imm: u32,
    pub(super) syndrome: Syndrome,
    pub(super) sacketh: SackEth,
}

impl Pkt {
    /// Returns a packet. If the opcode has a RETH, the RETH has the address [`VA`], region [`ALL`] and `len_bytes`.
    pub(super) const fn new(opcode: Opcode, at: i32, len_bytes: u32) -> Self {
        Pkt {
            opcode,
            at,
            len_bytes,
            fill: 0xA5,
            ack_req: false,
            preceding_reads: PrecedingReads::NONE,
            solicited: false,
            ip_id: 0,
            reth: Reth { va: VA, rkey: ALL, len_bytes },
            recveth: RecvEth { recv_seq: 0, packet: 0 },
            imm: 0,
            syndrome: Syndrome::ACK,
            sacketh: SackEth {
                version: SackEth::VERSION,
                duplicate: false,
                no_room: false,
                trigger: psn(at),
            },
        }
    }

    pub(super) const fn remote(self, rkey: RKey, va: u64, len_bytes: u32) -> Self {
        Pkt { reth: Reth { va, rkey, len_bytes }, ..self }
    }

    /// Returns the packet with another RecvETH: receive `number` of the connection, packet `packet` of the message.
    pub(super) const fn numbered(self, number: u32, packet: u32) -> Self {
        Pkt { recveth: RecvEth { recv_seq: number, packet }, ..self }
    }

    /// Returns the frame. `keys`: the R_Keys of the memory regions.
    pub(super) fn frame(&self, keys: &[RKey]) -> Vec<u8> {
        let (template, fields) = headers();
        let ext_len = self.opcode.info().expect("an opcode of the table").ext_len_bytes;
        let mut frame = vec![0; template.frame_len(ext_len, self.len_bytes as usize)];
        let spec = PacketSpec {
            opcode: self.opcode,
            solicited: self.solicited,
            ack_req: self.ack_req,
            preceding_reads: self.preceding_reads,
            fecn: false,
            becn: false,
            psn: psn(self.at),
            ip_id: self.ip_id,
            payload_len: self.len_bytes as usize,
        };
        let mut parts = template.write(&mut frame, &fields, &spec).expect("the frame has this length");
        let rkey = keys.get(self.reth.rkey.0 as usize).copied().unwrap_or(self.reth.rkey);
        // If the opcode lacks a header, the setter of this header writes nothing.
        let _ = parts.set_reth(Reth { rkey, ..self.reth });
        let recv_seq = start::receive().wrapping_add(self.recveth.recv_seq);
        let _ = parts.set_recveth(RecvEth { recv_seq, ..self.recveth });
        let _ = parts.set_immdt(self.imm);
        let _ = parts.set_aeth(Aeth { syndrome: self.syndrome, msn: start::msn() });
        let _ = parts.set_sacketh(self.sacketh);
        parts.payload.fill(self.fill);
        template.seal(&mut frame, &fields).expect("the frame was just written");
        frame
    }
}

fn headers() -> (AddressTemplate, QpFields) {
    let template = AddressTemplate::new(&AddressSpec {
        src_mac: Mac([2, 0, 0, 0, 0, 1]),
        dst_mac: Mac([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        tclass: 0,
        ttl: 64,
        flow_label: 0,
        pkey: PKey::DEFAULT,
    })
    .expect("addresses of one family");
    (template, template.qp_fields(Qpn::new(0x11), 0xC000))
}

/// A port that records the frames sent, and has transmit buffers for `room` frames.
pub(super) struct Recorder {
    frames: Vec<Vec<u8>>,
    room: usize,
}

impl Port for Recorder {
    type Frame = Vec<u8>;

    fn caps(&self) -> PortCaps {
        PortCaps { mac: Mac([2, 0, 0, 0, 0, 2]), mtu_bytes: 1500 }
    }

    fn rx_burst(&mut self, _frames: &mut Vec<Vec<u8>>, _max: usize) -> usize {
        0
    }

    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if self.frames.len() >= self.room {
            return None;
        }
        self.frames.push(vec![0; len_bytes]);
        self.frames.last_mut().map(Vec::as_mut_slice)
    }

    fn tx_cancel(&mut self) {
        self.frames.pop();
    }

    fn tx_flush(&mut self) {}
}

/// Returns a response as text: its kind and the index of its PSN (PSN - [`FIRST_PSN`]).
///
/// ```text
///   A3 ACK    N3 NAK PSN sequence error    I3 NAK invalid request    X3 NAK remote access error
///   R3 RNR NAK    O3 NAK remote operational error    D3f D3m D3l D3o  READ response FIRST, MIDDLE, LAST, ONLY
///   S1<4[3,4]  SACK: expected PSN of index 1, PSNs of indices 3 and 4 buffered, triggered by the packet of index 4
///   S1<0=[]    SACK triggered by a duplicate    S1<4![3]  SACK: the reorder buffer had no room for a packet
/// ```
fn text_of(frame: &[u8]) -> String {
    let packet = Packet::parse(frame).expect("a response is well-formed");
    assert!(packet.icrc_ok());
    let at = index_of(packet.bth.psn);
    match (packet.info.operation, packet.aeth().map(|aeth| aeth.syndrome), packet.sacketh()) {
        (Operation::ReadResponse, _, _) => {
            let position = match packet.info.position {
                Position::First => 'f',
                Position::Middle => 'm',
                Position::Last => 'l',
                Position::Only => 'o',
            };
            format!("D{at}{position}")
        }
        (_, _, Some(SackEth { duplicate, no_room, trigger, .. })) => {
            let words = bitmap_words(packet.payload).enumerate();
            let bits = words
                .flat_map(|(w, word)| (0..64).filter(move |i| word >> i & 1 == 1).map(move |i| 64 * w + i));
            let above: Vec<_> = bits.map(|bit| (at + 1 + bit as i32).to_string()).collect();
            let duplicate = if duplicate { "=" } else { "" };
            let no_room = if no_room { "!" } else { "" };
            format!("S{at}<{}{duplicate}{no_room}[{}]", index_of(trigger), above.join(","))
        }
        (_, Some(Syndrome::Ack { .. }), _) => format!("A{at}"),
        (_, Some(Syndrome::RnrNak { .. }), _) => format!("R{at}"),
        (_, Some(Syndrome::Nak(code)), _) => format!("{}{at}", letter(code)),
        _ => format!("? {}", packet.info.name),
    }
}

fn letter(code: NakCode) -> char {
    match code {
        NakCode::PsnSequenceError => 'N',
        NakCode::InvalidRequest => 'I',
        NakCode::RemoteAccessError => 'X',
        NakCode::RemoteOperationalError => 'O',
        _ => '?',
    }
}

fn store_of(bytes_max: usize) -> ReorderStore {
    let mut store = ReorderStore::new(bytes_max, Payload::Carried);
    store.open(SLOT);
    store
}

/// A responder with its own memory, queues and reorder buffer, without an engine.
pub(super) struct Bench {
    pub(super) responder: Responder,
    pub(super) counters: QpCounters,
    pub(super) memory: MemoryView,
    pub(super) bytes: Memory,
    keys: Vec<RKey>,
    /// Access that the queue pair grants to the peer's requests.
    pub(super) access: Access,
    poster: RecvPoster,
    receives: Receives,
    srqs: SrqTable,
    cqs: CqTable,
    cq: CqSlot,
    poller: CqPoller,
    congestion: Congestion,
    template: AddressTemplate,
    headers: QpHeaders,
    pub(super) now: Instant,
    /// Memory of the reorder buffer. If `has_room` is false, the responder uses `full`, which has no room, instead.
    pub(super) store: ReorderStore,
    full: ReorderStore,
    pub(super) has_room: bool,
    /// True if the engine would transmit from this queue pair in its next poll.
    is_scheduled: bool,
    /// MSNs in the responses sent, counted from the MSN before the first request.
    pub(super) msns: Vec<u32>,
    /// Payload of the READ responses sent.
    pub(super) read_payload: Vec<u8>,
}

impl Bench {
    const PD: PdId = PdId(1);
    const DEPTH: u32 = 64;

    pub(super) fn new(recovery: RecoveryScheme, placement: Placement, max_dest_rd_atomic: u8) -> Self {
        let mut random = Random::new([7; 32]);
        let (mut memory, bytes) = (MemoryView::alone(8), Memory::alloc(REGION_BYTES as usize));
        let local = Access::LOCAL_WRITE;
        let keys = [
            (Self::PD, local | Access::REMOTE_READ | Access::REMOTE_WRITE),
            (Self::PD, local | Access::REMOTE_READ),
            (Self::PD, local | Access::REMOTE_WRITE),
            (PdId(2), local | Access::REMOTE_READ | Access::REMOTE_WRITE),
            (Self::PD, Access::NONE),
        ]
        .map(|(pd, access)| {
            let register =
                |table: &MemoryTable| table.register(|| random.bits(), pd, bytes.clone(), VA, access);
            memory.with_table(register).expect("there is room").1
        });
        let size = RecvQueueSize { depth: Self::DEPTH, max_sges: 1 };
        let (poster, rq) = recv_queue(size, Arc::new(Doorbells::new(1)), 0);
        rq.set_posting(Posting::Queued);
        let (shared_cq, poller) = SharedCq::new(CqId(1), 2 * Self::DEPTH);
        let mut cqs = CqTable::new();
        let cq = cqs.attach(&shared_cq);
        let conn =
            ConnAttr { path_mtu: PATH_MTU, max_dest_rd_atomic, recovery, placement, ..ConnAttr::default() };
        let (template, fields) = headers();
        Bench {
            responder: Responder::new(ResponderConfig::new(&conn, FIRST_PSN)),
            counters: QpCounters::default(),
            memory,
            bytes,
            keys: keys.to_vec(),
            access: Access::ALL,
            poster,
            receives: Receives::Own(rq),
            srqs: SrqTable::new(1),
            cqs,
            cq,
            poller,
            congestion: Congestion::new(&CongestionScheme::None, 100_000_000_000),
            template,
            headers: QpHeaders { fields, ip_id: 0 },
            now: Instant::ZERO,
            store: store_of(1 << 20),
            full: store_of(0),
            has_room: true,
            is_scheduled: false,
            msns: Vec::new(),
            read_payload: Vec::new(),
        }
    }

    /// Posts a receive of `len_bytes` at byte `offset` of memory region `key`.
    pub(super) fn post(&mut self, key: RKey, offset: u64, len_bytes: u32) {
        let lkey = LKey(self.keys.get(key.0 as usize).unwrap_or(&key).0);
        let sges = &[Sge { addr: VA + offset, len_bytes, lkey }];
        self.poster.post(&RecvRequest { wr_id: offset, sges }).expect("there is room");
    }

    pub(super) fn deregister(&mut self, key: RKey) {
        let key = self.keys[key.0 as usize];
        self.memory.with_table(|table| table.deregister(LKey(key.0))).expect("it is registered");
    }

    pub(super) fn completions(&mut self) -> Vec<Cqe> {
        std::iter::from_fn(|| self.poller.pop()).collect()
    }

    pub(super) fn byte(&self, offset: usize) -> u8 {
        let mut byte = [0];
        self.bytes.read(offset, &mut byte).expect("a byte of the region");
        byte[0]
    }

    fn with(
        &mut self,
        call: impl FnOnce(&mut Responder, &mut RxContext<'_>, &mut ReorderStore) -> ResponderAction,
    ) -> ResponderAction {
        let mut rx = RxContext {
            memory: &self.memory,
            pd: Self::PD,
            access: self.access,
            min_rnr_timer: 1,
            receives: &mut self.receives,
            srqs: &mut self.srqs,
            cqs: &mut self.cqs,
            cq: self.cq,
            qpn: Qpn::new(0x22),
            counters: &mut self.counters,
            slot: SLOT,
            now: self.now,
        };
        let store = if self.has_room { &mut self.store } else { &mut self.full };
        let action = call(&mut self.responder, &mut rx, store);
        self.is_scheduled |= action != ResponderAction::Nothing;
        action
    }

    /// Processes a packet as the engine does. If the packet closes a gap, executes the packets above the gap, too.
    /// Returns the action for the packet itself.
    pub(super) fn receive(&mut self, packet: &Pkt) -> ResponderAction {
        let frame = packet.frame(&self.keys);
        let packet = &Packet::parse(&frame).expect("requests of tables are well-formed");
        let action = self.with(|responder, rx, store| responder.on_request(packet, rx, store));
        if self.responder.has_buffered_next() && !matches!(action, ResponderAction::Fatal(_)) {
            self.with(Responder::replay);
        }
        action
    }

    /// Limits the reorder buffer, which must be empty, to `cells` cells.
    pub(super) fn limit_room(&mut self, cells: usize) {
        assert!(!self.has_buffered());
        self.store = store_of(cells * CELL_BYTES);
    }

    pub(super) fn has_buffered(&self) -> bool {
        self.store.occupied_bytes() > 0
    }

    /// Sends at most `budget` responses in one poll, to a port with `room` transmit buffers. Returns the responses as
    /// text. Checks that the budget and the counters of packets and bytes changed by the packets sent.
    pub(super) fn transmit(&mut self, budget: u32, room: usize) -> Vec<String> {
        let mut port = Recorder { frames: Vec::new(), room };
        let (mut left, sent_pkts, sent_bytes) = (budget, self.counters.sent_pkts, self.counters.sent_bytes);
        if self.is_scheduled {
            let mut tx = TxContext {
                now: self.now,
                port: &mut port,
                budget: &mut left,
                memory: &self.memory,
                pd: Self::PD,
                builder: PacketBuilder { template: &self.template, headers: &mut self.headers },
                counters: &mut self.counters,
            };
            let outcome = self.responder.transmit(&mut self.congestion, &mut tx);
            self.is_scheduled = !matches!(outcome, TxOutcome::Done | TxOutcome::Refused(_));
        }
        let packets =
            port.frames.iter().map(|frame| Packet::parse(frame).expect("a response is well-formed"));
        let mut payload_bytes = 0;
        for packet in packets {
            let msn =
                packet.aeth().map(|aeth| aeth.msn.value().wrapping_sub(start::msn().value()) % Psn::COUNT);
            self.msns.extend(msn);
            if packet.info.operation == Operation::ReadResponse {
                self.read_payload.extend(packet.payload);
                payload_bytes += packet.payload.len() as u64;
            }
        }
        let frames = port.frames.len();
        assert_eq!(left as usize, budget as usize - frames);
        assert_eq!(self.counters.sent_pkts, sent_pkts + frames as u64);
        assert_eq!(self.counters.sent_bytes, sent_bytes + payload_bytes);
        port.frames.iter().map(|frame| text_of(frame)).collect()
    }

    /// Polls until no response is due. Returns the responses sent, as text.
    pub(super) fn transmit_all(&mut self) -> Vec<String> {
        let mut sent = Vec::new();
        while self.is_scheduled {
            sent.extend(self.transmit(64, 64));
        }
        sent
    }
}

/// Returns names and values of the counters that are not 0, except the counters of packets and bytes.
pub(super) fn counted(counters: &QpCounters) -> String {
    let common = ["sent_pkts", "sent_bytes", "rcvd_bytes"];
    let counts = counters.iter().filter(|(name, count)| *count > 0 && !common.contains(name));
    let texts =
        counts.map(|(name, count)| if count == 1 { name.to_owned() } else { format!("{name} {count}") });
    texts.collect::<Vec<_>>().join(", ")
}
