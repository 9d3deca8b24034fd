//! The responder: receives and executes requests, and sends ACKs, NAKs and READ responses (IBA 9.7.4, 9.7.5).
//!
//! Each stage of a request consumes a value that only the stage before it can make:
//!
//! ```text
//!   Packet --sequence--> Sequenced --authorize--> Authorized --execute--> response due
//!             |               |
//!             |               '- refused: NAK invalid request, remote access, RNR ..
//!             '- duplicate: ACK, or retransmit READ responses
//!             '- out of order: NAK PSN sequence error, once per gap
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
use crate::qp::{ConnAttr, Placement};
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::queue::{CqId, CqTable, Cqe, RecvQueue, WcOpcode, WcStatus};
use crate::recovery::out_of_order_set::OutOfOrderSet;
use crate::recovery::{ExpectedPsn, RecoveryScheme, Verdict};
use crate::start;
use crate::time::Instant;
use crate::wire::{Aeth, NakCode, Opcode, Operation, Packet, RecvEth, Reth, SackEth, Syndrome};

/// Parameters of a responder, known at the transition to RTR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderConfig {
    /// Expected PSN of the first request.
    pub first_psn: Psn,
    /// Path MTU, in bytes.
    pub mtu_bytes: u32,
    /// Responder resources: READs served at once, and remembered to recognise duplicates.
    pub max_dest_rd_atomic: u8,
    /// Recovery scheme.
    pub recovery: RecoveryScheme,
    /// Order in which the peer's payloads are placed.
    pub placement: Placement,
}

impl ResponderConfig {
    /// Returns the parameters for a connection with `conn`.
    pub(crate) fn new(conn: &ConnAttr, first_psn: Psn) -> Self {
        ResponderConfig {
            first_psn,
            mtu_bytes: conn.path_mtu.bytes(),
            max_dest_rd_atomic: conn.max_dest_rd_atomic,
            recovery: conn.recovery,
            placement: conn.placement,
        }
    }
}

/// An ACK of this number of PSNs or more is sent without delay.
const ACK_DELAY_PKTS_MAX: u32 = 16;

/// Maximum number of duplicate READs, or of parts of READs, queued under selective repeat.
pub(crate) const DUPLICATE_READS_MAX: usize = 512;

/// State of queue pair and device that the responder needs to process a request.
pub(crate) struct RxContext<'a> {
    /// Memory regions of the device.
    pub memory: &'a MemoryTable,
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Access that the queue pair grants to the peer's requests.
    pub access: Access,
    /// Timer code of the RNR NAKs sent, 5 bits.
    pub min_rnr_timer: u8,
    /// Receive queue.
    pub rq: &'a mut RecvQueue,
    /// Completion queues of the device.
    pub cqs: &'a mut CqTable,
    /// Completion queue of the receive queue.
    pub cq: CqId,
    /// Number of the local queue pair.
    pub qpn: Qpn,
    /// Counters of the queue pair.
    pub counters: &'a mut QpCounters,
    /// Current time.
    pub now: Instant,
}

/// Action that the engine takes for the queue pair after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponderAction {
    /// No action: the request makes no response due.
    Nothing,
    /// A response may be due: the queue pair is scheduled to transmit.
    Answer,
    /// The packet is out of order: [`Responder::on_out_of_order`] is to be called.
    OutOfOrder {
        /// True for the first out-of-order packet at this expected PSN, unless an RNR NAK was sent for it.
        first: bool,
    },
    /// A response may be due, and the frame is to be put into the reorder buffer.
    Buffer,
    /// A NAK is due, and the queue pair changes to ERR.
    Fatal(NakCode),
}

/// The message in progress, of which a FIRST was executed and the LAST was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Partial {
    /// No message is in progress: the next request must begin one.
    None,
    /// A SEND, of which `received_bytes` are in the oldest receive.
    Send { received_bytes: u32 },
    /// An RDMA WRITE: address, R_Key and length of the part still to be written, and length of the message.
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// Response to be sent besides READ responses. A SACK is sent before the READ responses in the queue, an ACK or NAK
/// after them, because the READ responses have lower PSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    Nothing,
    Ack,
    Refusal(Syndrome),
    /// SACK: PSN of the request that triggered the SACK, and whether that request was a duplicate.
    Sack {
        trigger: Psn,
        duplicate: bool,
    },
}

/// Disposition of an out-of-order packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Disposition {
    Dropped,
    /// Dropped, because the PSN is buffered or placed already.
    Duplicate,
    /// To be put into the reorder buffer as a frame.
    Buffered,
    /// The payload is placed.
    Placed,
}

/// Input of [`Responder::on_out_of_order`], as determined by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfOrder {
    /// True for the first out-of-order packet at this expected PSN, unless an RNR NAK was sent for it.
    pub first: bool,
    /// The reorder buffer has room for the frame.
    pub has_room: bool,
}

/// A request with the expected PSN whose opcode and length fit the message in progress.
struct Sequenced<'p, R> {
    request: &'p R,
}

/// A request that passed the checks of access rights, memory and receives.
enum Authorized<'m> {
    /// Payload for the oldest receive, from byte `at` on.
    Send { at: u32 },
    /// Payload for local memory `span`; address, R_Key and length of the rest of the message; length of the message.
    Write { span: Span<'m>, va: u64, rkey: RKey, left: u32, total: u32 },
    /// Local memory that the peer reads.
    Read { reth: Reth },
}

/// Reason for not executing a request.
#[derive(Clone, Copy)]
enum Refusal {
    /// A NAK is sent, and the queue pair changes to ERR.
    Nak(NakCode),
    /// A NAK is sent, the oldest receive completes in error, and the queue pair changes to ERR.
    NakAndFailReceive(NakCode, WcStatus),
    /// An RNR NAK is sent, because no receive is posted.
    NotReady,
    /// The request is dropped without a response, as if it were lost.
    Drop,
}

#[derive(Debug)]
pub(crate) struct Responder {
    mtu_bytes: u32,
    recovery: ExpectedPsn,
    /// Out-of-order PSNs that are buffered or placed; `None` under go-back-N.
    out_of_order: Option<Box<OutOfOrderSet>>,
    /// Out-of-order PSNs whose payload was placed on arrival; `None` unless placement is relaxed.
    placing: Option<Box<Placing>>,
    /// Under selective repeat: SACKs may be sent.
    selective: bool,
    /// Under go-back-N: PSN of the last out-of-order packet; `None` before the first, and after an RNR NAK.
    last_out_of_order_psn: Option<Psn>,
    /// Expected PSN when the last ACK or NAK was sent.
    last_acked_psn: Psn,
    msn: Msn,
    partial: Partial,
    /// Recv WQE sequence number of the oldest receive: +1 for each completed, modulo 2^32.
    recv_seq: u32,
    reads: ReadQueue,
    due: Due,
    /// Since the last SACK, an out-of-order packet was dropped because the reorder buffer had no room.
    no_room: bool,
    /// The ACK became due since the last transmit, and is delayed by one poll, so that a reply of the application is
    /// sent before it, and one ACK acknowledges two bursts. An ACK of [`ACK_DELAY_PKTS_MAX`] PSNs or more is not
    /// delayed, because a peer with a small window waits for it.
    ack_may_wait: bool,
}

impl Responder {
    /// Creates a responder that has received nothing.
    pub(crate) fn new(config: ResponderConfig) -> Self {
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
            no_room: false,
            ack_may_wait: false,
        }
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.recovery.expected()
    }

    /// Returns whether an ACK, NAK, SACK or READ response is to be sent.
    pub(crate) fn has_answers(&self) -> bool {
        self.due != Due::Nothing || !self.reads.is_empty()
    }

    /// Processes a request whose addresses, P_Key and ICRC were checked.
    #[inline(always)]
    pub(crate) fn on_request(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> ResponderAction {
        match self.recovery.on_packet(packet.bth.psn) {
            Verdict::InOrder => self.on_expected(packet, rx),
            Verdict::Duplicate => self.on_duplicate(packet, rx),
            Verdict::OutOfOrder { first } => ResponderAction::OutOfOrder { first },
        }
    }

    /// Executes the placed requests from the expected PSN up to the next PSN that is not placed.
    pub(crate) fn on_placed(&mut self, rx: &mut RxContext<'_>) -> ResponderAction {
        while self.has_placed() {
            let action = match (self.middles(), self.placed()) {
                (0, Some(placed)) => self.on_expected(&placed, rx),
                // A placed MIDDLE without a message in progress, or of a SEND in a WRITE, or of a WRITE in a SEND.
                (0, None) => self.refuse(Refusal::Nak(NakCode::InvalidRequest), rx),
                (packets, _) => self.on_middles(packets, rx),
            };
            if let fatal @ ResponderAction::Fatal(_) = action {
                return fatal;
            }
        }
        ResponderAction::Answer
    }

    /// Returns the record of the expected PSN; `None` if it is not placed, or is a MIDDLE.
    #[inline]
    fn placed(&self) -> Option<Placed> {
        self.placing.as_ref()?.get(self.recovery.expected())
    }

    /// Returns the number of placed MIDDLEs of the message in progress, from the expected PSN on.
    #[inline]
    fn middles(&self) -> u32 {
        let is_write = match self.partial {
            Partial::None => return 0,
            Partial::Send { .. } => false,
            Partial::Write { .. } => true,
        };
        self.placing.as_ref().map_or(0, |placing| placing.middles(self.recovery.expected(), is_write))
    }

    /// Executes `packets` placed MIDDLEs of the message in progress, each with a payload of the path MTU.
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
            // The MIDDLEs that were placed out of order do not fit into the message in progress or its receive: they were
            // placed as parts of another message.
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

    /// Returns whether the payload of the expected PSN is placed.
    pub(crate) fn has_placed(&self) -> bool {
        self.placing.as_ref().is_some_and(|placing| placing.contains(self.recovery.expected()))
    }

    #[inline]
    fn on_expected<R: Request>(&mut self, request: &R, rx: &mut RxContext<'_>) -> ResponderAction {
        let memory = rx.memory;
        let authorized = self.sequence(request).and_then(|request| self.authorize(request, rx, memory));
        // `authorized` is passed by reference, because a move would load at once fields stored one by one, and stall.
        let done = match &authorized {
            Ok(authorized) => self.execute(request, authorized, rx),
            Err(refusal) => Err(*refusal),
        };
        match done {
            Ok(()) => self.accepted(request),
            Err(refusal) => self.refuse(refusal, rx),
        }
    }

    /// Returns whether the out-of-order `packet` has the content placed at its PSN; `None` if none is placed there.
    pub(crate) fn is_same_as_placed(&self, packet: &Packet<'_>) -> Option<bool> {
        let psn = packet.bth.psn;
        let placing = self.placing.as_ref().filter(|placing| placing.contains(psn))?;
        let is_buffered = self
            .out_of_order
            .as_ref()
            .is_some_and(|out_of_order| out_of_order.is_buffered(self.expected_psn(), psn));
        is_buffered.then(|| placing.is_same(packet))
    }

    /// Records that the frame of `psn` was dropped from the reorder buffer, because the buffer had no room for another.
    pub(crate) fn discard_for_room(&mut self, psn: Psn) {
        self.no_room = true;
        self.discard(psn);
    }

    /// Records that the frame of `psn` was dropped from the reorder buffer.
    pub(crate) fn discard(&mut self, psn: Psn) {
        let expected = self.expected_psn();
        let is_placed = self.placing.as_ref().is_some_and(|placing| placing.contains(psn));
        if let Some(out_of_order) = self.out_of_order.as_mut().filter(|_| !is_placed) {
            out_of_order.remove(expected, psn);
        }
    }

    /// If placement is relaxed, drops all out-of-order packets. Returns whether placement is relaxed.
    pub(crate) fn discard_out_of_order(&mut self) -> bool {
        let (Some(placing), Some(out_of_order)) = (&mut self.placing, &mut self.out_of_order) else {
            return false;
        };
        placing.clear();
        out_of_order.clear();
        true
    }

    /// Places an out-of-order packet, or has its frame buffered if there is room. Go-back-N: makes a NAK due for the
    /// first packet above a gap; improved go-back-N also if the retransmission into the gap was lost. Selective repeat:
    /// makes a SACK due when a gap opens or closes, and for a packet that is a duplicate, is dropped, or has AckReq.
    #[cold]
    pub(crate) fn on_out_of_order(
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
            // A packet that neither opens nor closes a gap elicits no SACK without AckReq.
            if self.extends_run(psn)
                && !packet.bth.ack_req
                && matches!(disposition, Disposition::Buffered | Disposition::Placed)
            {
                return if disposition == Disposition::Buffered {
                    ResponderAction::Buffer
                } else {
                    ResponderAction::Nothing
                };
            }
            // A SACK does not replace a NAK or RNR NAK that is due.
            if !matches!(self.due, Due::Refusal(_)) {
                self.due = Due::Sack { trigger: psn, duplicate: disposition == Disposition::Duplicate };
            }
            return action;
        }
        // A PSN at or below the last out-of-order one shows that the peer went back: its last retransmission was lost.
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

    /// Whether the packet below `psn` is buffered or placed, and the one above is not.
    fn extends_run(&self, psn: Psn) -> bool {
        let expected = self.recovery.expected();
        self.out_of_order.as_ref().is_some_and(|out_of_order| {
            out_of_order.is_buffered(expected, psn.minus(1))
                && !out_of_order.is_buffered(expected, psn.plus(1))
        })
    }

    fn buffer(&mut self, packet: &Packet<'_>, has_room: bool, rx: &mut RxContext<'_>) -> Disposition {
        let (psn, expected) = (packet.bth.psn, self.recovery.expected());
        // Under go-back-N a READ request is not buffered, because the peer retransmits it in any case, and would
        // receive all responses twice.
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
                self.no_room = true;
                return Disposition::Dropped;
            }
        };
        if let Some(out_of_order) = &mut self.out_of_order {
            out_of_order.insert(psn);
        }
        disposition
    }

    /// If placement is relaxed and the address is known, places the payload of an out-of-order packet that is neither
    /// buffered nor placed. Otherwise returns `None`.
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

    /// Returns whether the packet with the expected PSN is buffered or placed.
    #[inline]
    pub(crate) fn has_buffered_next(&self) -> bool {
        let expected = self.recovery.expected();
        self.out_of_order
            .as_ref()
            .is_some_and(|out_of_order| !out_of_order.is_empty() && out_of_order.contains(expected))
    }

    /// Returns whether any out-of-order packet is buffered or placed.
    #[inline]
    fn buffers_any(&self) -> bool {
        self.out_of_order.as_ref().is_some_and(|out_of_order| !out_of_order.is_empty())
    }

    /// Checks that opcode (IBA 9.7.4.1.2) and length (9.7.4.1.6) of a request fit the message in progress.
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

    /// Checks a request against access rights, receives and memory (IBA 9.7.4.1.3 to 9.7.4.1.5).
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
        // SEND with invalidate is refused, because memory windows are not supported; so is a RecvETH under go-back-N.
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
        // LAST and ONLY must have all bytes that are left of the message, FIRST and MIDDLE fewer.
        let left = wanted.checked_sub(len).filter(|left| (*left == 0) == request.info().ends_message());
        let Some(left) = left.filter(|_| total <= MAX_MESSAGE_BYTES) else { return Err(invalid) };
        // At its first packet the whole message is checked, so that a message beyond the region writes nothing. Then
        // each packet is checked, because the region may be deregistered between two packets.
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

    /// Advances the expected PSN by `span`: by 1 for each packet executed, for a READ by its number of responses.
    #[inline]
    fn accept(&mut self, span: u32) {
        if self.buffers_any() {
            self.pass(span);
            // The executed packet was missing below buffered packets: its ACK is due even without AckReq.
            self.due = Due::Ack;
        }
        self.recovery.accept(span);
    }

    /// Removes the expected PSN and the `span - 1` PSNs after it from the sets of buffered and placed PSNs.
    fn pass(&mut self, span: u32) {
        let expected = self.recovery.expected();
        if let Some(out_of_order) = &mut self.out_of_order {
            out_of_order.advance(expected, span);
        }
        if let Some(placing) = &mut self.placing {
            placing.pass(expected, span);
        }
    }

    /// Checks that a SEND payload placed out of order lies where execution in order would place it. If not, its RecvETH
    /// was wrong, and the request is invalid.
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
            // The responses of a READ acknowledge all requests before the READ, so no ACK is due for those.
            self.due = Due::Nothing;
            return ResponderAction::Answer;
        }
        if request.ack_req() {
            self.ack_may_wait |= self.due != Due::Ack;
            self.due = Due::Ack;
            return ResponderAction::Answer;
        }
        // The NAK or SACK that is due reports a packet missing that has been executed now, so an ACK replaces it.
        if matches!(self.due, Due::Refusal(_) | Due::Sack { .. }) {
            self.due = Due::Ack;
        }
        // With a reorder buffer, an ACK that is due may be for a gap that this packet closed: schedules the queue pair.
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

    /// Processes a duplicate request (IBA 9.7.5.1.3): makes an ACK or SACK due, or queues READ responses to retransmit.
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

    /// Sends, in this order, the SACK that is due, READ responses as `congestion` permits, and the ACK or NAK that is
    /// due, until the budget is used up or the port is full.
    pub(crate) fn transmit<P: Port>(
        &mut self,
        congestion: &mut Congestion,
        tx: &mut TxContext<'_, P>,
    ) -> TxOutcome {
        if let Due::Sack { trigger, duplicate } = self.due
            && *tx.budget > 0
        {
            // A SACK precedes READ responses, because the peer retransmits a lost request only after the SACK.
            let header = SackEth { version: SackEth::VERSION, duplicate, no_room: self.no_room, trigger };
            if self.send_sack(header, tx).is_err() {
                return TxOutcome::TxRingFull;
            }
            (self.due, self.no_room) = (Due::Nothing, false);
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
                    // The memory region was deregistered since the READ, so the remaining responses cannot be sent.
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
            Due::Sack { .. } => return TxOutcome::MoreToSend, // the SACK was not sent for lack of budget
        };
        // Linux's rxe ignores a second PSN sequence error until an ACK has advanced its window: sends that ACK first.
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

    /// Returns the PSN of an ACK: the last one below the expected PSN that belongs to no READ, because a READ is
    /// acknowledged by its responses. Linux's rxe ends a connection if an ACK has a PSN of a READ.
    #[inline]
    fn last_acknowledged(&mut self) -> Psn {
        let last = self.recovery.expected().minus(1);
        // Called at least once in each half of the PSN circle: no message is longer, and each ends with an ACK.
        self.reads.forget_stale(last);
        self.reads.last_before(last)
    }

    /// Returns the number of PSNs executed since the last ACK or NAK was sent.
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

    /// Sends a SACK: the expected PSN, and a bitmap of the out-of-order PSNs above it.
    #[cold]
    fn send_sack<P: Port>(&self, header: SackEth, tx: &mut TxContext<'_, P>) -> Result<(), PortFull> {
        let Some(out_of_order) = &self.out_of_order else { return Ok(()) };
        let expected = self.recovery.expected();
        let words = out_of_order.words(expected);
        let mut spec = tx.builder.packet(Opcode::RC_SELECTIVE_ACKNOWLEDGE, expected, 0);
        spec.payload_len = 4 * words.len();
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        tx.builder.emit(tx.port, &spec, |parts| {
            // The opcode has an AETH and a SackETH, so both are written.
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

    /// Sends response `index` of `read`. Returns `Ok(false)` if the memory region may no longer be read.
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
            // MIDDLE responses have no AETH, so for them none is written.
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

/// Places the payload of a SEND in the receive `index` positions after the oldest, from byte `at` on. Returns `None` if
/// that receive is not posted, too short or not writable, or if a FIRST or MIDDLE is shorter than the path MTU.
fn place_in_receive(
    packet: &Packet<'_>,
    index: u32,
    at: u32,
    mtu_bytes: u32,
    rx: &mut RxContext<'_>,
) -> Option<()> {
    let len = packet.len_bytes();
    if len != mtu_bytes && !packet.info.ends_message() {
        return None;
    }
    let list = rx.rq.nth(index)?.list;
    at.checked_add(len).filter(|end| *end <= list.len_bytes)?;
    rx.rq.lists(rx.memory, rx.pd).scatter(&list, at, packet.payload).ok()
}

/// Places the payload of a WRITE `offset` bytes after the address of `reth`. Returns `None` if access is denied.
fn place_in_memory(packet: &Packet<'_>, reth: Reth, offset: u32, rx: &mut RxContext<'_>) -> Option<()> {
    let Reth { va, rkey, len_bytes } = reth;
    if !rx.access.contains(Access::REMOTE_WRITE) || len_bytes > MAX_MESSAGE_BYTES {
        return None;
    }
    let open = |va, len| rx.memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE).ok();
    // As in `authorize_write`, the whole message is checked first, so that a message beyond the region writes nothing.
    if packet.info.starts_message() {
        open(va, len_bytes)?;
    }
    open(va.wrapping_add(u64::from(offset)), packet.len_bytes())?.copy_from(packet.payload);
    Some(())
}

#[cfg(test)]
#[path = "responder_history_tests.rs"]
mod tests;
