//! The responder: receives requests, executes them and answers (IBA 9.7.4, 9.7.5).
//!
//! A request passes four stages, each of which hands the next a value that only it can make:
//!
//! ```text
//!   Packet --sequence--> Sequenced --authorize--> Authorized --execute--> answer due
//!             |               |
//!             |               '- refused: NAK invalid request, remote access, RNR ..
//!             '- duplicate: acknowledge again, or send a READ's responses again
//!             '- ahead: NAK sequence error, once
//! ```

use super::emit::{PacketBuilder, PortFull};
use super::placing::{Placed, Placing, Request, RqOffset};
use super::read_queue::{NotQueued, ReadQueue, ReadRequest};
use super::requester::{TxContext, TxOutcome};
use super::segment::response_segment;
use crate::congestion::Congestion;
use crate::counters::QpCounters;
use crate::id::{Msn, Qpn, RKey};
use crate::mem::{Access, MemoryTable, PdId, Span};
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::Placement;
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::queue::{CqId, CqTable, Cqe, RecvQueue, WcOpcode, WcStatus};
use crate::recovery::selective_repeat::OutOfOrderSet;
use crate::recovery::{ExpectedPsn, RecoveryScheme, Verdict};
use crate::start;
use crate::time::Instant;
use crate::wire::{Aeth, NakCode, Opcode, Operation, Packet, RecvEth, Reth, SackEth, Syndrome};

/// What a responder is told when its queue pair becomes ready to receive.
#[derive(Clone, Copy, Debug)]
pub struct ResponderConfig {
    /// First PSN expected.
    pub first_psn: Psn,
    /// Path MTU.
    pub mtu_bytes: u32,
    /// READs served at once.
    pub max_dest_rd_atomic: u8,
    /// Recovery.
    pub recovery: RecoveryScheme,
    /// The order in which what the peer writes reaches memory.
    pub placement: Placement,
}

/// An acknowledgement of so many packets does not wait for what the application sends.
const ACK_DELAY_PKTS_MAX: u32 = 16;

/// Repetitions of READs, or of parts of them, that wait at once under selective repeat.
const DUPLICATE_READS_MAX: usize = 512;

/// What a request meets besides the responder itself.
pub struct RxContext<'a> {
    /// Registered memory.
    pub memory: &'a MemoryTable,
    /// The queue pair's protection domain.
    pub pd: PdId,
    /// What the queue pair lets a peer do.
    pub access: Access,
    /// RNR timer code for a peer that finds no receive.
    pub min_rnr_timer: u8,
    /// Receives.
    pub rq: &'a mut RecvQueue,
    /// All completion queues.
    pub cqs: &'a mut CqTable,
    /// The one for receives.
    pub cq: CqId,
    /// This side's queue pair.
    pub qpn: Qpn,
    /// The queue pair's counters.
    pub counters: &'a mut QpCounters,
    /// Now.
    pub now: Instant,
}

/// What the queue pair does after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponderAction {
    /// Nothing.
    Nothing,
    /// An answer is due.
    Answer,
    /// Nothing yet: the packet is ahead of the one expected, and must be given to [`Responder::on_out_of_order`].
    OutOfOrder {
        /// The first sign of a gap.
        first: bool,
    },
    /// An answer is due, and the frame is to be kept until the packets before it have come.
    Buffer,
    /// An answer is due, and it is the last: the connection is in error.
    Fatal(NakCode),
}

/// The message being received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Partial {
    /// None: the next packet must begin one.
    None,
    /// A SEND, with so many bytes in the oldest receive.
    Send { received_bytes: u32 },
    /// An RDMA WRITE: what is left of it.
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// An acknowledgement that waits to be sent. It goes after all READ responses, which precede it, but for
/// a selective one, which goes at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Ack,
    Refusal(Syndrome),
    /// What arrived out of order, and which packet makes us tell.
    Sack {
        trigger: Psn,
        duplicate: bool,
    },
}

/// What becomes of a packet that is ahead of the one expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    Dropped,
    /// It was there already.
    Duplicate,
    /// As a frame.
    Buffered,
    /// Its payload is in its place.
    Placed,
}

/// What the device knows of a packet that is ahead of the one expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder {
    /// It is the first sign of a gap.
    pub first: bool,
    /// There is room to keep its frame.
    pub has_room: bool,
}

/// A request in its place in the sequence of PSNs and of its message.
struct Sequenced<'p, R> {
    request: &'p R,
}

/// A request whose effects are allowed.
enum Authorized<'m> {
    /// Bytes for the oldest receive, from `at` on.
    Send { at: u32 },
    /// Bytes for memory; what is left of the message after them.
    Write { span: Span<'m>, va: u64, rkey: RKey, left: u32, total: u32 },
    /// Memory to send.
    Read { reth: Reth },
}

/// Why a request is not executed.
#[derive(Clone, Copy)]
enum Refusal {
    /// Refused for good.
    Nak(NakCode),
    /// Refused for good, and the oldest receive ends with it.
    NakAndFailReceive(NakCode, WcStatus),
    /// Refused until a receive is posted.
    NotReady,
    /// Dropped, as if it had been lost.
    Drop,
}

/// The receiving half of a reliable connection.
#[derive(Debug)]
pub struct Responder {
    mtu_bytes: u32,
    recovery: ExpectedPsn,
    /// What is kept out of order, where any is.
    out_of_order: Option<Box<OutOfOrderSet>>,
    /// What of that is in its place already, where that may be.
    placing: Option<Box<Placing>>,
    /// The peer agreed to hear of it.
    selective: bool,
    /// The last packet that came too early, since its gap was told of.
    last_out_of_order_psn: Option<Psn>,
    /// Everything before it was acknowledged.
    last_acked_psn: Psn,
    msn: Msn,
    partial: Partial,
    /// The number of the oldest receive: one more for each completed, modulo 2^32.
    recv_seq: u32,
    reads: ReadQueue,
    due: Due,
    /// The acknowledgement became due since the last turn. It waits for one poll: what the application
    /// sends in answer to the request goes before it, and one acknowledgement stands for two bursts, unless
    /// they are long: a peer with a small window waits for it.
    ack_may_wait: bool,
}

impl Responder {
    /// A responder that has received nothing.
    pub fn new(config: ResponderConfig) -> Self {
        let buffered_pkts_max = config.recovery.buffered_pkts_max();
        let placed_pkts_max = buffered_pkts_max.filter(|_| config.placement == Placement::Relaxed);
        let selective = matches!(config.recovery, RecoveryScheme::SelectiveRepeat { .. });
        let duplicates_max = selective.then_some(DUPLICATE_READS_MAX);
        Responder {
            mtu_bytes: config.mtu_bytes,
            recovery: ExpectedPsn::new(config.first_psn),
            out_of_order: buffered_pkts_max
                .map(|buffered_pkts_max| Box::new(OutOfOrderSet::new(buffered_pkts_max))),
            placing: placed_pkts_max.map(|placed_pkts_max| Box::new(Placing::new(placed_pkts_max))),
            selective,
            last_out_of_order_psn: None,
            last_acked_psn: config.first_psn,
            msn: start::MSN,
            partial: Partial::None,
            recv_seq: start::RECEIVE,
            reads: ReadQueue::new(config.max_dest_rd_atomic, duplicates_max, config.mtu_bytes),
            due: Due::Nothing,
            ack_may_wait: false,
        }
    }

    /// The PSN expected next.
    pub fn expected_psn(&self) -> Psn {
        self.recovery.expected()
    }

    /// Whether there is anything to send.
    pub fn has_answers(&self) -> bool {
        self.due != Due::Nothing || !self.reads.is_empty()
    }

    /// Whether a receive is filled in part: an error completes it.
    pub fn is_filling_receive(&self) -> bool {
        matches!(self.partial, Partial::Send { .. })
    }

    /// Takes in a request packet whose addresses, keys and ICRC are right.
    #[inline(always)]
    pub fn on_request(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> ResponderAction {
        match self.recovery.on_packet(packet.bth.psn) {
            Verdict::InOrder => self.on_expected(packet, rx),
            Verdict::Duplicate => self.on_duplicate(packet, rx),
            Verdict::OutOfOrder { first } => ResponderAction::OutOfOrder { first },
        }
    }

    /// Takes in the requests that were kept, and whose payload is in its place, from the one expected on.
    pub fn on_placed(&mut self, rx: &mut RxContext<'_>) -> ResponderAction {
        while self.has_placed() {
            let action = match (self.middles(), self.placed()) {
                (0, Some(placed)) => self.on_expected(&placed, rx),
                // Inside of a message that was never begun, or was another.
                (0, None) => self.refuse(Refusal::Nak(NakCode::InvalidRequest), rx),
                (packets, _) => self.on_middles(packets, rx),
            };
            if let fatal @ ResponderAction::Fatal(_) = action {
                return fatal;
            }
        }
        ResponderAction::Answer
    }

    /// What was kept of the packet expected, where its payload is in its place.
    #[inline]
    fn placed(&self) -> Option<Placed> {
        self.placing.as_ref()?.get(self.recovery.expected())
    }

    /// How many packets from the one expected on are in their place and inside of the message begun.
    #[inline]
    fn middles(&self) -> u32 {
        let is_write = match self.partial {
            Partial::None => return 0,
            Partial::Send { .. } => false,
            Partial::Write { .. } => true,
        };
        self.placing.as_ref().map_or(0, |placing| placing.middles(self.recovery.expected(), is_write))
    }

    /// Takes in so many packets of the message begun, each full, whose payload is in its place.
    fn on_middles(&mut self, packets: u32, rx: &mut RxContext<'_>) -> ResponderAction {
        let len = packets.saturating_mul(self.mtu_bytes);
        let last = self.recovery.expected().plus(packets - 1);
        let room_bytes = rx.rq.oldest().map_or(0, |wqe| wqe.list.len_bytes);
        let partial = match self.partial {
            Partial::Send { received_bytes } if received_bytes.saturating_add(len) <= room_bytes => {
                Partial::Send { received_bytes: received_bytes + len }
            }
            Partial::Write { va, rkey, left, total } if left > len => {
                Partial::Write { va: va.wrapping_add(u64::from(len)), rkey, left: left - len, total }
            }
            // Placed as parts of another message.
            _ => return self.refuse(Refusal::Nak(NakCode::InvalidRequest), rx),
        };
        self.partial = partial;
        rx.counters.rcvd_bytes += u64::from(len);
        self.accept(packets);
        if self.selective && self.buffers_any() {
            self.due = Due::Sack { trigger: last, duplicate: false };
        }
        ResponderAction::Answer
    }

    /// Whether the payload of the packet expected is in its place.
    pub fn has_placed(&self) -> bool {
        self.placing.as_ref().is_some_and(|placing| placing.contains(self.recovery.expected()))
    }

    #[inline]
    fn on_expected<R: Request>(&mut self, request: &R, rx: &mut RxContext<'_>) -> ResponderAction {
        let memory = rx.memory;
        let authorized = self.sequence(request).and_then(|request| self.authorize(request, rx, memory));
        // By reference: moving it would read back in one what was just written in pieces.
        let done = match &authorized {
            Ok(authorized) => self.execute(request, authorized, rx),
            Err(refusal) => Err(*refusal),
        };
        match done {
            Ok(()) => self.accepted(request),
            Err(refusal) => self.refuse(refusal, rx),
        }
    }

    /// Whether `packet`, which is ahead of the one expected, is what was put in its place of its PSN; `None` where
    /// nothing was.
    pub fn is_same_as_placed(&self, packet: &Packet<'_>) -> Option<bool> {
        let psn = packet.bth.psn;
        let placing = self.placing.as_ref().filter(|placing| placing.contains(psn))?;
        let is_buffered = self
            .out_of_order
            .as_ref()
            .is_some_and(|out_of_order| out_of_order.is_buffered(self.expected_psn(), psn));
        is_buffered.then(|| placing.is_same(packet))
    }

    /// The packet of `psn` that was kept as a frame was thrown away.
    pub fn discard(&mut self, psn: Psn) {
        let expected = self.expected_psn();
        let is_placed = self.placing.as_ref().is_some_and(|placing| placing.contains(psn));
        if let Some(out_of_order) = self.out_of_order.as_mut().filter(|_| !is_placed) {
            out_of_order.remove(expected, psn);
        }
    }

    /// Forgets all that is ahead, where payload may be in its place before its turn. Returns whether it may.
    pub fn discard_out_of_order(&mut self) -> bool {
        let (Some(placing), Some(out_of_order)) = (&mut self.placing, &mut self.out_of_order) else {
            return false;
        };
        placing.clear();
        out_of_order.clear();
        true
    }

    /// Keeps a packet that is ahead, where there is room. A packet that opens a gap is answered; under selective repeat
    /// also a packet that closes one, is a duplicate, or has AckReq set.
    #[cold]
    pub fn on_out_of_order(
        &mut self,
        packet: &Packet<'_>,
        found: OutOfOrder,
        rx: &mut RxContext<'_>,
    ) -> ResponderAction {
        rx.counters.out_of_seq_request += 1;
        let (psn, first) = (packet.bth.psn, found.first);
        let disposition = self.buffer(packet, found.has_room, rx);
        let action = if disposition == Disposition::Buffered {
            ResponderAction::Buffer
        } else {
            ResponderAction::Answer
        };
        if self.selective {
            // What follows a packet that was told of opens no gap and closes none: it is told of when the peer asks.
            let follows = self
                .last_out_of_order_psn
                .replace(psn)
                .is_some_and(|last_out_of_order_psn| last_out_of_order_psn.plus(1) == psn);
            if follows
                && !packet.bth.ack_req
                && matches!(disposition, Disposition::Buffered | Disposition::Placed)
            {
                return if disposition == Disposition::Buffered {
                    ResponderAction::Buffer
                } else {
                    ResponderAction::Nothing
                };
            }
            // A refusal that waits says more.
            if !matches!(self.due, Due::Refusal(_)) {
                self.due = Due::Sack { trigger: psn, duplicate: disposition == Disposition::Duplicate };
            }
            return action;
        }
        // Having gone back, the peer began with the packet that is missing: it was lost again.
        let went_back =
            |last_out_of_order_psn| psn.offset_from(last_out_of_order_psn).is_some_and(|offset| offset <= 0);
        let lost_again = self.out_of_order.is_some() && self.last_out_of_order_psn.is_some_and(went_back);
        self.last_out_of_order_psn = (first || self.last_out_of_order_psn.is_some()).then_some(psn);
        if first || lost_again {
            rx.counters.send_seq_err += 1;
            self.due = Due::Refusal(Syndrome::Nak(NakCode::PsnSequenceError));
        } else if matches!(disposition, Disposition::Dropped | Disposition::Duplicate) {
            return ResponderAction::Nothing;
        }
        action
    }

    fn buffer(&mut self, packet: &Packet<'_>, has_room: bool, rx: &mut RxContext<'_>) -> Disposition {
        let (psn, expected) = (packet.bth.psn, self.recovery.expected());
        // A peer that goes back asks for a READ again; kept, it would be answered twice.
        let is_keepable = self.selective || packet.info.operation != Operation::ReadRequest;
        let Some(out_of_order) = self.out_of_order.as_ref().filter(|_| is_keepable) else {
            return Disposition::Dropped;
        };
        if !out_of_order.is_new(expected, psn) {
            return if out_of_order.is_buffered(expected, psn) {
                Disposition::Duplicate
            } else {
                Disposition::Dropped
            };
        }
        let disposition = match self.place(packet, rx) {
            Some(()) => Disposition::Placed,
            None if has_room => Disposition::Buffered,
            None => {
                rx.counters.reorder_no_room += 1;
                return Disposition::Dropped;
            }
        };
        if let Some(out_of_order) = &mut self.out_of_order {
            out_of_order.insert(psn);
        }
        disposition
    }

    /// Puts the payload of a packet that came too early, and is new, in its place, where that is known and it
    /// may go there before its turn.
    fn place(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> Option<()> {
        let (expected, mtu_bytes, received) = (self.recovery.expected(), self.mtu_bytes, self.recv_seq);
        let placing = self.placing.as_mut()?;
        let mut rq_offset = None;
        match packet.info.operation {
            Operation::Send if self.selective => {
                let RecvEth { recv_seq: receive, packet: before } = packet.recveth()?;
                let at = before.checked_mul(mtu_bytes)?;
                rq_offset = Some(RqOffset { recv_seq: receive, offset_bytes: at });
                place_in_receive(packet, receive.wrapping_sub(received), at, mtu_bytes, rx)?;
            }
            Operation::Write => {
                let left = match self.partial {
                    Partial::Write { va, rkey, left, .. } => Some(Reth { va, rkey, len_bytes: left }),
                    _ => None,
                };
                let (reth, index) = placing.remote(packet, expected, left, mtu_bytes)?;
                place_in_memory(packet, reth, index * mtu_bytes, rx)?;
            }
            _ => return None,
        }
        placing.mark_placed(packet, rq_offset);
        rx.counters.placed_out_of_order += 1;
        Some(())
    }

    /// Whether the packet expected is kept.
    #[inline]
    pub fn has_buffered_next(&self) -> bool {
        let expected = self.recovery.expected();
        self.out_of_order
            .as_ref()
            .is_some_and(|out_of_order| !out_of_order.is_empty() && out_of_order.contains(expected))
    }

    /// Whether packets are kept out of order.
    #[inline]
    fn buffers_any(&self) -> bool {
        self.out_of_order.as_ref().is_some_and(|out_of_order| !out_of_order.is_empty())
    }

    /// FIRST, MIDDLE, LAST and ONLY follow one another as they must (IBA 9.7.4.1.2), each as long as
    /// it must be (9.7.4.1.6).
    #[inline]
    fn sequence<'p, R: Request>(&self, request: &'p R) -> Result<Sequenced<'p, R>, Refusal> {
        let info = request.info();
        let in_turn = match self.partial {
            Partial::None => info.starts_message(),
            Partial::Send { .. } => info.operation == Operation::Send && !info.starts_message(),
            Partial::Write { .. } => info.operation == Operation::Write && !info.starts_message(),
        };
        let (len, mtu) = (request.len_bytes(), self.mtu_bytes);
        let fits = if !info.ends_message() { len == mtu } else { len <= mtu };
        let last_is_empty = info.position == crate::wire::Position::Last && len == 0;
        if !in_turn || !fits || last_is_empty {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        Ok(Sequenced { request })
    }

    /// The queue pair, its receives and its memory allow the request (IBA 9.7.4.1.3 to 9.7.4.1.5).
    #[inline]
    fn authorize<'m, R: Request>(
        &self,
        request: Sequenced<'_, R>,
        rx: &mut RxContext<'_>,
        memory: &'m MemoryTable,
    ) -> Result<Authorized<'m>, Refusal> {
        let request = request.request;
        match request.info().operation {
            Operation::Send => self.authorize_send(request, rx),
            Operation::Write => self.authorize_write(request, rx, memory),
            Operation::ReadRequest => self.authorize_read(request, rx),
            _ => Err(Refusal::Nak(NakCode::InvalidRequest)),
        }
    }

    #[inline]
    fn authorize_send<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
    ) -> Result<Authorized<'m>, Refusal> {
        let room_bytes = rx.rq.oldest().ok_or(Refusal::NotReady)?.list.len_bytes;
        // There are no memory windows to invalidate, and numbers take an agreement.
        if request.invalidates() || (request.is_numbered() && !self.selective) {
            return Err(Refusal::Nak(NakCode::InvalidRequest));
        }
        let at = if let Partial::Send { received_bytes } = self.partial { received_bytes } else { 0 };
        if u64::from(request.len_bytes()) + u64::from(at) > u64::from(room_bytes) {
            return Err(Refusal::NakAndFailReceive(NakCode::InvalidRequest, WcStatus::LocLenErr));
        }
        Ok(Authorized::Send { at })
    }

    #[inline]
    fn authorize_write<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
        memory: &'m MemoryTable,
    ) -> Result<Authorized<'m>, Refusal> {
        let invalid = Refusal::Nak(NakCode::InvalidRequest);
        if !rx.access.contains(Access::REMOTE_WRITE) {
            return Err(invalid);
        }
        if request.info().has_immediate && rx.rq.is_empty() {
            return Err(Refusal::NotReady);
        }
        let (va, rkey, wanted, total) = match (request.reth(), self.partial) {
            (Some(reth), _) => (reth.va, reth.rkey, reth.len_bytes, reth.len_bytes),
            (None, Partial::Write { va, rkey, left, total }) => (va, rkey, left, total),
            _ => return Err(invalid),
        };
        let len = request.len_bytes();
        // The last packet brings what is left, and no other does.
        let left = wanted.checked_sub(len).filter(|left| (*left == 0) == request.info().ends_message());
        let Some(left) = left.filter(|_| total <= MAX_MESSAGE_BYTES) else { return Err(invalid) };
        // The whole message at its first packet, so that a bad one writes nothing; then each packet,
        // for a region may go away between two.
        if request.info().starts_message() {
            let whole = memory.open_remote(rx.pd, rkey, va, total, Access::REMOTE_WRITE);
            whole.map_err(|_| Refusal::Nak(NakCode::RemoteAccessError))?;
        }
        let span = match request.payload() {
            Some(_) => memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE),
            None => Ok(Span::EMPTY),
        };
        let span = span.map_err(|_| Refusal::Nak(NakCode::RemoteAccessError))?;
        Ok(Authorized::Write { span, va: va.wrapping_add(u64::from(len)), rkey, left, total })
    }

    fn authorize_read<'m, R: Request>(
        &self,
        request: &R,
        rx: &mut RxContext<'_>,
    ) -> Result<Authorized<'m>, Refusal> {
        let invalid = Refusal::Nak(NakCode::InvalidRequest);
        let Some(reth) = request.reth().filter(|reth| reth.len_bytes <= MAX_MESSAGE_BYTES) else {
            return Err(invalid);
        };
        if !rx.access.contains(Access::REMOTE_READ) {
            return Err(invalid);
        }
        match self.reads.admit() {
            Ok(()) => {}
            Err(NotQueued::OverLimit) => return Err(invalid),
            Err(_) => {
                rx.counters.read_deferred += 1;
                return Err(Refusal::Drop);
            }
        }
        rx.memory
            .open_remote(rx.pd, reth.rkey, reth.va, reth.len_bytes, Access::REMOTE_READ)
            .map_err(|_| Refusal::Nak(NakCode::RemoteAccessError))?;
        Ok(Authorized::Read { reth })
    }

    #[inline]
    fn execute<R: Request>(
        &mut self,
        request: &R,
        authorized: &Authorized<'_>,
        rx: &mut RxContext<'_>,
    ) -> Result<(), Refusal> {
        let ends = request.info().ends_message();
        let len = request.len_bytes();
        rx.counters.rcvd_bytes += u64::from(len);
        match *authorized {
            Authorized::Send { at } => {
                match request.payload() {
                    Some(payload) => self.fill_receive(payload, at, rx)?,
                    None => self.is_in_place(request, at)?,
                }
                self.partial = if ends { Partial::None } else { Partial::Send { received_bytes: at + len } };
                if ends {
                    self.complete_receive(request, WcOpcode::Recv, at + len, rx);
                }
            }
            Authorized::Write { span, va, rkey, left, total } => {
                if let Some(payload) = request.payload() {
                    span.copy_from(payload);
                }
                self.partial = if ends { Partial::None } else { Partial::Write { va, rkey, left, total } };
                rx.counters.rx_write_requests += u64::from(ends);
                if request.info().has_immediate {
                    self.complete_receive(request, WcOpcode::RecvRdmaWithImm, total, rx);
                }
            }
            Authorized::Read { reth } => {
                self.msn = self.msn.next();
                let read = ReadRequest::new(request.psn(), reth, self.msn, self.mtu_bytes);
                self.reads.push(read);
                self.accept(read.packets);
                rx.counters.rx_read_requests += 1;
                return Ok(());
            }
        }
        if ends {
            self.msn = self.msn.next();
        }
        self.accept(1);
        Ok(())
    }

    /// The packet expected was executed; it stands for `span` PSNs.
    #[inline]
    fn accept(&mut self, span: u32) {
        if self.buffers_any() {
            self.pass(span);
            // The peer waits to hear that this one has come.
            self.due = Due::Ack;
        }
        self.recovery.accept(span);
    }

    /// Forgets what was kept of the packet expected and of the `span - 1` after it.
    fn pass(&mut self, span: u32) {
        let expected = self.recovery.expected();
        if let Some(out_of_order) = &mut self.out_of_order {
            out_of_order.advance(expected, span);
        }
        if let Some(placing) = &mut self.placing {
            placing.pass(expected, span);
        }
    }

    /// What was placed before its turn lies where its turn finds that it belongs, unless the peer numbered it
    /// wrongly.
    fn is_in_place<R: Request>(&self, request: &R, at: u32) -> Result<(), Refusal> {
        let rq_offset = RqOffset { recv_seq: self.recv_seq, offset_bytes: at };
        if request.rq_offset() == Some(rq_offset) {
            Ok(())
        } else {
            Err(Refusal::Nak(NakCode::InvalidRequest))
        }
    }

    #[inline]
    fn fill_receive(&mut self, payload: &[u8], at: u32, rx: &mut RxContext<'_>) -> Result<(), Refusal> {
        let list = rx.rq.oldest().ok_or(Refusal::NotReady)?.list;
        let mut lists = rx.rq.lists(rx.memory, rx.pd);
        lists
            .scatter(&list, at, payload)
            .map_err(|_| Refusal::NakAndFailReceive(NakCode::RemoteOperationalError, WcStatus::LocProtErr))
    }

    #[inline]
    fn complete_receive<R: Request>(
        &mut self,
        request: &R,
        opcode: WcOpcode,
        len_bytes: u32,
        rx: &mut RxContext<'_>,
    ) {
        let Some(wqe) = rx.rq.release_oldest() else { return };
        rx.counters.rdma_recvs += 1;
        self.recv_seq = self.recv_seq.wrapping_add(1);
        let imm = request.immdt();
        let (wr_id, status, qpn) = (wqe.wr_id, WcStatus::Success, rx.qpn);
        rx.cqs.write(rx.cq, Cqe { wr_id, status, opcode, len_bytes, imm, qpn }, request.solicited());
    }

    #[inline]
    fn accepted<R: Request>(&mut self, request: &R) -> ResponderAction {
        if self.selective && self.buffers_any() {
            let trigger = request.psn();
            self.due = Due::Sack { trigger, duplicate: false };
            return ResponderAction::Answer;
        }
        if request.info().operation == Operation::ReadRequest {
            // Its responses acknowledge all that came before it.
            self.due = Due::Nothing;
            return ResponderAction::Answer;
        }
        if request.ack_req() {
            self.ack_may_wait |= self.due != Due::Ack;
            self.due = Due::Ack;
            return ResponderAction::Answer;
        }
        // A NAK that waits is stale now that the packet it asks for is here.
        if matches!(self.due, Due::Refusal(_) | Due::Sack { .. }) {
            self.due = Due::Ack;
        }
        // Before, only a packet that closed a gap makes one due that did not ask for it.
        let closed_gap = self.out_of_order.is_some() && self.due == Due::Ack;
        if closed_gap { ResponderAction::Answer } else { ResponderAction::Nothing }
    }

    fn refuse(&mut self, refusal: Refusal, rx: &mut RxContext<'_>) -> ResponderAction {
        self.pass(1);
        let code = match refusal {
            Refusal::Drop => return ResponderAction::Nothing,
            Refusal::NotReady => {
                rx.counters.out_of_buffer += 1;
                self.recovery.refuse();
                self.last_out_of_order_psn = None;
                self.due = Due::Refusal(Syndrome::RnrNak { timer: rx.min_rnr_timer });
                return ResponderAction::Answer;
            }
            Refusal::Nak(code) => code,
            Refusal::NakAndFailReceive(code, status) => {
                rx.counters.local_protection_err += u64::from(status == WcStatus::LocProtErr);
                if let Some(wqe) = rx.rq.release_oldest() {
                    let (wr_id, opcode, qpn) = (wqe.wr_id, WcOpcode::Recv, rx.qpn);
                    rx.cqs.write(rx.cq, Cqe { wr_id, status, opcode, len_bytes: 0, imm: None, qpn }, false);
                }
                code
            }
        };
        match code {
            NakCode::RemoteAccessError => rx.counters.resp_remote_access_errors += 1,
            NakCode::RemoteOperationalError => rx.counters.resp_remote_operation_errors += 1,
            _ => rx.counters.resp_invalid_request += 1,
        }
        self.due = Due::Refusal(Syndrome::Nak(code));
        ResponderAction::Fatal(code)
    }

    /// A request that was received before (IBA 9.7.5.1.3): nothing of it is executed again, except
    /// that a READ's responses are sent again.
    fn on_duplicate(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> ResponderAction {
        rx.counters.duplicate_request += 1;
        if packet.info.operation != Operation::ReadRequest {
            if self.selective && !matches!(self.due, Due::Refusal(_)) {
                self.due = Due::Sack { trigger: packet.bth.psn, duplicate: true };
            } else if self.due == Due::Nothing {
                self.due = Due::Ack;
            }
            return ResponderAction::Answer;
        }
        let asked = packet.reth().ok_or(NotQueued::NotRemembered);
        let refused = match asked.and_then(|reth| self.reads.on_duplicate(packet.bth.psn, &reth, rx.now)) {
            Ok(()) => return ResponderAction::Answer,
            Err(NotQueued::NotRemembered) => &mut rx.counters.duplicate_read_dropped,
            Err(NotQueued::TooOften) => &mut rx.counters.duplicate_read_limited,
            Err(NotQueued::NoRoom | NotQueued::OverLimit) => &mut rx.counters.read_deferred,
        };
        *refused += 1;
        ResponderAction::Nothing
    }

    /// Sends READ responses, at the pace of the queue pair's `congestion` control, and then the
    /// acknowledgement that is due, as far as budget and port go.
    pub fn transmit<P: Port>(&mut self, congestion: &mut Congestion, tx: &mut TxContext<'_, P>) -> TxOutcome {
        if let Due::Sack { trigger, duplicate } = self.due
            && *tx.budget > 0
        {
            // Before all else: the peer can do nothing about a loss that it has not heard of.
            let header = SackEth { version: SackEth::VERSION, duplicate, trigger };
            if self.send_sack(header, tx).is_err() {
                return TxOutcome::TxRingFull;
            }
            self.due = Due::Nothing;
        }
        while let Some(waiting) = self.reads.front() {
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            if !congestion.permit(tx.now, 0) {
                return TxOutcome::Paced;
            }
            let index = waiting.sent;
            match self.send_response(&waiting.request, index, congestion, tx) {
                Ok(true) => self.reads.on_sent(),
                Ok(false) => {
                    // The region went away while it was being read: the rest cannot be sent.
                    let nak = Syndrome::Nak(NakCode::RemoteAccessError);
                    if self.send_acknowledge(waiting.next_psn(), nak, tx).is_err() {
                        return TxOutcome::TxRingFull;
                    }
                    tx.counters.resp_remote_access_errors += 1;
                    self.reads.clear();
                    self.due = Due::Nothing;
                    return TxOutcome::MrInvalidated;
                }
                Err(PortFull) => return TxOutcome::TxRingFull,
            }
        }
        let (psn, syndrome) = match self.due {
            Due::Nothing => return TxOutcome::Done,
            Due::Ack if std::mem::take(&mut self.ack_may_wait) && self.untold_pkts() < ACK_DELAY_PKTS_MAX => {
                return TxOutcome::AckDelayed;
            }
            Due::Ack => (self.last_acknowledged(), Syndrome::ACK),
            Due::Refusal(syndrome) => (self.recovery.expected(), syndrome),
            Due::Sack { .. } => return TxOutcome::MoreToSend, // it was not sent for want of budget
        };
        // Linux's rxe heeds no second sequence error of one recovery, but for an acknowledgement of
        // something new between the two.
        let is_sequence_error = syndrome == Syndrome::Nak(NakCode::PsnSequenceError);
        if is_sequence_error && self.out_of_order.is_some() && self.last_acked_psn != psn {
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            let last = self.last_acknowledged();
            if self.send_acknowledge(last, Syndrome::ACK, tx).is_err() {
                return TxOutcome::TxRingFull;
            }
        }
        if *tx.budget == 0 {
            return TxOutcome::MoreToSend;
        }
        if self.send_acknowledge(psn, syndrome, tx).is_err() {
            return TxOutcome::TxRingFull;
        }
        self.due = Due::Nothing;
        TxOutcome::Done
    }

    /// What an acknowledgement goes up to: everything but the READs at the end, which their responses alone
    /// acknowledge. Linux's rxe ends a connection whose READ is answered by an ACK.
    #[inline]
    fn last_acknowledged(&mut self) -> Psn {
        let last = self.recovery.expected().minus(1);
        // No message is longer than half the circle, and the end of each is acknowledged.
        self.reads.forget_stale(last);
        self.reads.last_before(last)
    }

    /// Packets received since the last acknowledgement.
    #[inline]
    fn untold_pkts(&self) -> u32 {
        self.recovery.expected().distance_from(self.last_acked_psn)
    }

    #[inline]
    fn send_acknowledge<P: Port>(
        &mut self,
        psn: Psn,
        syndrome: Syndrome,
        tx: &mut TxContext<'_, P>,
    ) -> Result<(), PortFull> {
        let spec = tx.builder.packet(Opcode::RC_ACKNOWLEDGE, psn, 0);
        let aeth = Aeth { syndrome, msn: self.msn };
        tx.builder.emit(tx.port, &spec, |parts| {
            let _ = parts.set_aeth(aeth);
        })?;
        self.last_acked_psn = self.recovery.expected();
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        Ok(())
    }

    /// Tells what is missing and what lies behind it.
    #[cold]
    fn send_sack<P: Port>(&self, header: SackEth, tx: &mut TxContext<'_, P>) -> Result<(), PortFull> {
        let Some(out_of_order) = &self.out_of_order else { return Ok(()) };
        let expected = self.recovery.expected();
        let words = out_of_order.words(expected);
        let bitmap_bytes = 4 * words.len() as u32;
        let spec = tx.builder.packet(Opcode::RC_SELECTIVE_ACKNOWLEDGE, expected, bitmap_bytes);
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        tx.builder.emit(tx.port, &spec, |parts| {
            // The opcode has both headers.
            let _ = parts.set_aeth(aeth);
            let _ = parts.set_sacketh(header);
            for (room, word) in parts.payload.chunks_exact_mut(4).zip(words) {
                room.copy_from_slice(&word.to_be_bytes());
            }
        })?;
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sacks_sent += 1;
        Ok(())
    }

    /// Sends response `index` of `read`; `Ok(false)` where its memory may not be read any more.
    #[inline]
    fn send_response<P: Port>(
        &self,
        read: &ReadRequest,
        index: u32,
        congestion: &mut Congestion,
        tx: &mut TxContext<'_, P>,
    ) -> Result<bool, PortFull> {
        let (opcode, len) = response_segment(read.reth.len_bytes, 0, index, self.mtu_bytes);
        let va = read.reth.va.wrapping_add(u64::from(index * self.mtu_bytes));
        let opened = tx.memory.open_remote(tx.pd, read.reth.rkey, va, len, Access::REMOTE_READ);
        let Ok(span) = opened else { return Ok(false) };
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: read.msn };
        let path: &mut PacketBuilder = tx.builder;
        let spec = path.packet(opcode, read.first.plus(index), len);
        path.emit(tx.port, &spec, |parts| {
            // Middle responses have no room for it.
            let _ = parts.set_aeth(aeth);
            span.copy_to(parts.payload);
        })?;
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sent_bytes += u64::from(len);
        if !congestion.is_window() {
            congestion.on_sent(tx.now, tx.builder.frame_bytes(opcode, len));
        }
        Ok(true)
    }
}

/// Puts the payload of a SEND in the receive that is `index` behind the oldest, from byte `at` on, if that is
/// posted.
fn place_in_receive(
    packet: &Packet<'_>,
    index: u32,
    at: u32,
    mtu_bytes: u32,
    rx: &mut RxContext<'_>,
) -> Option<()> {
    let len = packet.payload.len() as u32;
    if len != mtu_bytes && !packet.info.ends_message() {
        return None;
    }
    let list = rx.rq.nth(index)?.list;
    at.checked_add(len).filter(|end| *end <= list.len_bytes)?;
    rx.rq.lists(rx.memory, rx.pd).scatter(&list, at, packet.payload).ok()
}

/// Puts the payload of a WRITE, `offset` bytes into the message of `reth`, in the memory that it names.
fn place_in_memory(packet: &Packet<'_>, reth: Reth, offset: u32, rx: &mut RxContext<'_>) -> Option<()> {
    let Reth { va, rkey, len_bytes } = reth;
    if !rx.access.contains(Access::REMOTE_WRITE) || len_bytes > MAX_MESSAGE_BYTES {
        return None;
    }
    let open = |va, len| rx.memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE).ok();
    // As in its turn: a bad message writes nothing.
    if packet.info.starts_message() {
        open(va, len_bytes)?;
    }
    open(va.wrapping_add(u64::from(offset)), packet.payload.len() as u32)?.copy_from(packet.payload);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Between the two lies no other READ that would take the place of the one remembered.
    #[test]
    fn an_acknowledgement_goes_up_to_a_psn_that_a_read_had_a_round_of_psns_before() {
        let (first, mtu_bytes) = (Psn::new(0xFF_FF00), 256);
        let mut responder = Responder::new(ResponderConfig {
            first_psn: first,
            mtu_bytes,
            max_dest_rd_atomic: 4,
            recovery: RecoveryScheme::GoBackN,
            placement: Placement::InOrder,
        });
        let reth = Reth { va: 0, rkey: RKey(1), len_bytes: mtu_bytes };
        responder.reads.push(ReadRequest::new(first, reth, Msn::new(1), mtu_bytes));
        responder.accept(1);
        assert_eq!(responder.last_acknowledged(), first.minus(1), "its response acknowledges the READ");
        for quarter in 1..=4 {
            responder.accept(Psn::COUNT / 4);
            assert_eq!(responder.last_acknowledged(), first.plus(quarter * (Psn::COUNT / 4)), "{quarter}");
        }
    }
}
