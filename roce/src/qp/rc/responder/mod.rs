//! The responder: receives and executes requests, and sends ACKs, NAKs and READ responses (IBA 9.7.4, 9.7.5).
//!
//! ```text
//!   module `order`         modules `inbound`, `read`      module `ack`    module `transmit`
//!   Packet --on_packet--> checked and executed --> response due --> ACK, NAK, SACK, responses
//!             |               |
//!             |               '- refused: NAK invalid request, remote access, RNR ..
//!             '- duplicate: ACK, or retransmit READ responses
//!             '- out of order: buffered or placed; NAK PSN sequence error, or SACK
//! ```

mod ack;
mod config;
mod order;
mod read;
mod transmit;

#[cfg(test)]
mod ack_tests;
#[cfg(test)]
mod checks_tests;
#[cfg(test)]
mod history_tests;

use super::placing::SlotState;
use super::read_queue::{NotQueued, ReadQueue, ReadRequest};
use super::reorder_buffer::ReorderStore;
use crate::congestion::Congestion;
use crate::id::Msn;
use crate::mem::Access;
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::context::{RxContext, TxContext, TxOutcome};
use crate::qp::inbound::{INVALID, Inbound, Partial, Refusal, sequence};
use crate::qp::request::{Buffered, Request, RequestHeader};
use crate::queue::{WcOpcode, WcStatus};
use crate::recovery::Verdict;
use crate::recovery::out_of_order_set::PsnState;
use crate::recovery::responder::{OutOfOrderRequest, ResponderRecovery};
use crate::start;
use crate::wire::{NakCode, Operation, Packet};
use std::iter;

pub(crate) use config::{ResponderAction, ResponderConfig};

use ack::AckPolicy;
use order::{Disposition, Order};
use transmit::Transmitter;

#[derive(Debug)]
#[repr(C)] // fixes the order of the fields: cache lines that each message needs are adjacent
pub(crate) struct Responder {
    acks: AckPolicy,
    order: Order,
    recovery: ResponderRecovery,
    msn: Msn,
    /// True after the first READ was executed. While false, queue and responder resources of `reads` are empty.
    has_reads: bool,
    inbound: Inbound,
    /// Boxed, because before the first READ the responder needs only the flag `has_reads`, which is then false.
    reads: Box<ReadQueue>,
}

impl Responder {
    pub(crate) fn new(config: ResponderConfig) -> Self {
        let recovery = ResponderRecovery::new(config.recovery);
        let selective = recovery.selective_reads();
        Responder {
            acks: AckPolicy::new(config.first_psn),
            order: Order::new(&config),
            recovery,
            msn: start::msn(),
            has_reads: false,
            inbound: Inbound::new(config.mtu_bytes, recovery.accepts_numbered_sends()),
            reads: Box::new(ReadQueue::new(config.max_dest_rd_atomic, selective, config.mtu_bytes)),
        }
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.order.expected()
    }

    /// Returns whether the packet with the expected PSN is buffered or placed.
    #[inline]
    pub(crate) fn has_buffered_next(&self) -> bool {
        self.order.has_next()
    }

    /// Processes a request whose addresses, P_Key and ICRC were checked.
    #[inline(always)]
    pub(crate) fn on_request(
        &mut self,
        packet: &Packet<'_>,
        rx: &mut RxContext<'_>,
        store: &mut ReorderStore,
    ) -> ResponderAction {
        match self.order.on_packet(packet.bth.psn) {
            Verdict::InOrder => self.on_expected(packet, rx, store),
            Verdict::Duplicate => self.on_duplicate(packet, rx),
            Verdict::OutOfOrder { first } => self.on_out_of_order(packet, first, rx, store),
        }
    }

    #[inline]
    fn on_expected<R: Request>(
        &mut self,
        request: &R,
        rx: &mut RxContext<'_>,
        store: &mut ReorderStore,
    ) -> ResponderAction {
        let executed = self.execute(request, rx);
        self.finish(request.header(), executed, rx, store)
    }

    /// Checks and executes the request of the expected PSN. Returns the number of PSNs that the request takes.
    #[inline]
    fn execute<R: Request>(&mut self, request: &R, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
        if request.info().operation == Operation::ReadRequest {
            return self.execute_read(request, rx);
        }
        let memory = rx.memory;
        let authorized = self.inbound.check(request, rx, memory);
        // `authorized` is not moved, because wide loads of its fields after narrow stores would stall the processor.
        match &authorized {
            Ok(authorized) => self.inbound.execute(request, authorized, rx)?,
            Err(refusal) => return Err(*refusal),
        }
        if request.info().ends_message() {
            self.msn = self.msn.next();
        }
        Ok(1)
    }

    #[inline(never)]
    fn execute_read<R: Request>(&mut self, request: &R, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
        let read = self.check_read(request, self.msn.next(), rx)?;
        self.msn = read.msn;
        self.forget_early_below(read.end());
        self.queue_read(read);
        Ok(read.packets)
    }

    /// Checks and counts the READ `request`. `msn`: MSN in the AETHs of its responses.
    #[inline]
    fn check_read<R: Request>(
        &self,
        request: &R,
        msn: Msn,
        rx: &mut RxContext<'_>,
    ) -> Result<ReadRequest, Refusal> {
        sequence(request, self.inbound.message())?;
        let reth = read::authorize(request, &self.reads, rx)?;
        rx.counters.rx_read_requests += 1;
        Ok(ReadRequest::new(request.psn(), reth, msn, self.inbound.mtu_bytes()))
    }

    fn queue_read(&mut self, read: ReadRequest) {
        self.has_reads = true;
        self.reads.push(read);
    }

    #[inline(always)]
    fn finish(
        &mut self,
        request: RequestHeader,
        executed: Result<u32, Refusal>,
        rx: &mut RxContext<'_>,
        store: &mut ReorderStore,
    ) -> ResponderAction {
        match executed {
            Ok(span) => {
                self.accept(span, store);
                self.acks.on_executed(request, &self.order, &self.recovery)
            }
            Err(refusal) => self.refuse(refusal, rx, store),
        }
    }

    /// Executes each buffered or placed request, from the expected PSN up to the next gap: at most one window of PSNs.
    #[inline(never)]
    pub(crate) fn replay(&mut self, rx: &mut RxContext<'_>, store: &mut ReorderStore) -> ResponderAction {
        while self.order.has_next() {
            if self.has_reads && self.pass_early_reads(store) {
                continue;
            }
            let action = if self.order.placed(self.order.expected()) != SlotState::Empty {
                self.on_placed(rx, store)
            } else {
                self.on_buffered(rx, store)
            };
            if let fatal @ ResponderAction::Fatal(_) = action {
                return fatal;
            }
        }
        ResponderAction::Answer
    }

    /// If an early READ begins at the expected PSN, advances the expected PSN over it and over the early READs that
    /// follow without a gap, and returns true.
    #[cold]
    #[inline(never)]
    fn pass_early_reads(&mut self, store: &mut ReorderStore) -> bool {
        let psn = self.order.expected();
        self.forget_early_below(psn);
        let Some(run) = self.reads.take_early_run(psn) else { return false };
        self.msn = self.msn.plus(run.reads);
        self.accept(run.packets, store);
        self.order.on_early_reads(iter::empty(), self.reads.early());
        self.forget_early_below(self.order.expected());
        self.acks.on_early_reads_executed(run.last, &self.order, &self.recovery);
        true
    }

    /// Executes the placed requests from the expected PSN up to the next PSN that is not placed, or up to the first that
    /// is refused. The expected PSN advances once, after the last of them. The loop ends, because of the PSNs of a
    /// window at least one is not placed: the PSN that was missing before.
    fn on_placed(&mut self, rx: &mut RxContext<'_>, store: &mut ReorderStore) -> ResponderAction {
        let first = self.order.expected();
        let mut packets = 0;
        let refused = loop {
            let psn = first.plus(packets);
            let executed = match self.order.placed(psn) {
                SlotState::Empty => break None,
                SlotState::SendMiddle | SlotState::WriteMiddle => self.execute_middles(psn, rx),
                SlotState::SendOnly => self.execute_send_only(psn, rx),
                SlotState::WriteOnly => self.execute_write_onlys(psn, rx),
                SlotState::Recorded => self.execute_placed(psn, rx),
            };
            match executed {
                Ok(span) => packets += span,
                Err(refusal) => break Some(refusal),
            }
        };
        if packets > 0 {
            self.accept(packets, store);
            self.acks.on_placed_executed(first.plus(packets - 1), &self.order, &self.recovery);
        }
        refused.map_or(ResponderAction::Answer, |refusal| self.refuse(refusal, rx, store))
    }

    /// Executes the placed MIDDLEs from `psn` on, of which there is at least one. Returns their number.
    fn execute_middles(&mut self, psn: Psn, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
        let packets = self.order.middles(psn, self.inbound.partial());
        if packets == 0 {
            // No message is in progress, or the message in progress has the other operation (SEND or WRITE).
            return Err(INVALID);
        }
        self.inbound.execute_middles(packets, rx)?;
        Ok(packets)
    }

    /// Checks and executes the placed request of `psn`, which is not a MIDDLE.
    fn execute_placed(&mut self, psn: Psn, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
        let placed = self.order.record(psn).copied().ok_or(INVALID)?;
        self.execute(&placed, rx)
    }

    /// Executes the placed SEND ONLY of `psn`. If its payload is in the current receive, no other check is needed.
    #[inline]
    fn execute_send_only(&mut self, psn: Psn, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
        let placed = self.order.record(psn).ok_or(INVALID)?;
        if !self.inbound.execute_send_only(placed, rx) {
            return self.execute_placed(psn, rx);
        }
        self.msn = self.msn.next();
        Ok(1)
    }

    /// Executes the placed WRITE ONLYs from `psn` on, of which there is at least one: those whose access was not revoked
    /// since their placement together, or else the first, which is checked again. Returns their number.
    #[inline]
    fn execute_write_onlys(&mut self, psn: Psn, rx: &mut RxContext<'_>) -> Result<u32, Refusal> {
        let (packets, bytes) = self.order.write_onlys(psn, rx.memory);
        let is_granted = packets > 0 && rx.access.contains(Access::REMOTE_WRITE);
        if !is_granted || self.inbound.partial() != Partial::None {
            return self.execute_placed(psn, rx);
        }
        Inbound::execute_write_onlys(packets, bytes, rx);
        self.msn = self.msn.plus(packets);
        Ok(packets)
    }

    /// Executes the buffered request of the expected PSN.
    #[inline]
    fn on_buffered(&mut self, rx: &mut RxContext<'_>, store: &mut ReorderStore) -> ResponderAction {
        let Some((header, body)) = self.order.buffered(store) else {
            // If the store has no copy of the request, the request is treated as lost: the peer retransmits the
            // request.
            self.order.pass(1, store);
            return ResponderAction::Nothing;
        };
        let executed = self.execute(&Buffered::new(header, body), rx);
        self.finish(header, executed, rx, store)
    }

    /// Advances the expected PSN by `span`: 1 for each packet executed; for a READ, the number of its responses.
    #[inline]
    fn accept(&mut self, span: u32, store: &mut ReorderStore) {
        if self.order.accept(span, store) {
            self.acks.on_missing_executed();
        }
    }

    /// Removes the PSNs below `psn` from the early READs: requests with these PSNs were executed.
    #[inline]
    fn forget_early_below(&mut self, psn: Psn) {
        if self.reads.forget_early_below(psn) {
            // The lowest early READ may have been shortened: its first PSN is now `psn`.
            self.order.on_early_reads(self.reads.early_psns().take(1), self.reads.early());
        }
    }

    fn refuse(
        &mut self,
        refusal: Refusal,
        rx: &mut RxContext<'_>,
        store: &mut ReorderStore,
    ) -> ResponderAction {
        self.order.pass(1, store);
        let code = match refusal {
            Refusal::Deferred => return ResponderAction::Nothing,
            Refusal::NotReady => {
                rx.counters.out_of_buffer += 1;
                self.order.on_not_ready();
                self.recovery.on_not_ready();
                self.acks.on_not_ready(rx.min_rnr_timer);
                return ResponderAction::Answer;
            }
            Refusal::Invalid(code) => code,
            Refusal::TooLong => {
                rx.complete_receive(WcStatus::LocLenErr, WcOpcode::Recv, 0, None, false);
                NakCode::InvalidRequest
            }
            Refusal::BadReceive => {
                rx.fail_receive();
                NakCode::RemoteOperationalError
            }
        };
        match code {
            NakCode::RemoteAccessError => rx.counters.resp_remote_access_errors += 1,
            NakCode::RemoteOperationalError => rx.counters.resp_remote_operation_errors += 1,
            _ => rx.counters.resp_invalid_request += 1,
        }
        self.acks.on_refused(code);
        ResponderAction::Fatal(code)
    }

    /// Processes a duplicate request (IBA 9.7.5.1.3): makes an ACK or SACK due, or queues READ responses to retransmit.
    fn on_duplicate(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> ResponderAction {
        if self.recovery.is_doubled(packet.info, packet.bth.ack_req) {
            return ResponderAction::Nothing;
        }
        rx.counters.duplicate_request += 1;
        if packet.info.operation != Operation::ReadRequest {
            self.acks.on_duplicate(packet.bth.psn, self.recovery.on_duplicate());
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

    /// Places, buffers or drops an out-of-order packet, and makes a NAK or SACK due. `first` is true if, since
    /// the expected PSN last advanced, no other out-of-order packet was received and no RNR NAK was due.
    #[cold]
    #[inline(never)]
    fn on_out_of_order(
        &mut self,
        packet: &Packet<'_>,
        first: bool,
        rx: &mut RxContext<'_>,
        store: &mut ReorderStore,
    ) -> ResponderAction {
        rx.counters.out_of_seq_request += 1;
        let is_early = self.has_reads && self.reads.is_early(packet.bth.psn);
        if packet.info.operation == Operation::ReadRequest {
            if is_early {
                return self.on_duplicate(packet, rx);
            }
            if self.execute_early_read(packet, rx) {
                return ResponderAction::Answer;
            }
        }
        let mut state = self.order.state(packet.bth.psn);
        if state == PsnState::Kept && !is_early {
            if self.order.drop_conflicting(packet, rx.counters, store) {
                // Early READs remain recorded, because a peer that has received all responses of an early READ does not
                // retransmit its READ request.
                self.order.on_early_reads(self.reads.early_psns(), self.reads.early());
            }
            state = self.order.state(packet.bth.psn);
        }
        let disposition = if self.recovery.keeps(packet.info) {
            self.order.on_out_of_order(packet, state, &self.inbound, rx, store)
        } else {
            Disposition::Dropped
        };
        let (psn, ack_req) = (packet.bth.psn, packet.bth.ack_req);
        if disposition == Disposition::Duplicate && self.recovery.is_doubled(packet.info, ack_req) {
            return ResponderAction::Nothing;
        }
        let request = OutOfOrderRequest { psn, ack_req, first, is_kept: disposition.is_kept() };
        let reply = self.recovery.on_out_of_order(request, || self.order.extends_run(psn));
        self.acks.on_out_of_order(psn, disposition, reply, rx.counters)
    }

    /// Executes an out-of-order READ request as an early READ, if all PSNs of the gap below it belong to READ requests.
    /// Returns false if not, or if a check fails.
    fn execute_early_read(&mut self, packet: &Packet<'_>, rx: &mut RxContext<'_>) -> bool {
        let psn = packet.bth.psn;
        let is_permitted = self.recovery.executes_early_reads()
            && self.order.permits_early_read(psn, packet.preceding_reads());
        if !is_permitted {
            return false;
        }
        let Ok(read) = self.check_read(packet, self.msn, rx) else { return false };
        self.has_reads = true;
        self.forget_early_below(self.order.expected());
        self.reads.push_early(read);
        self.order.on_early_reads(iter::once(psn), self.reads.early());
        true
    }

    /// Records that the buffered request of `psn` expired.
    pub(crate) fn on_expired(&mut self, psn: Psn) {
        self.order.on_expired(psn);
    }

    pub(crate) fn clear_out_of_order(&mut self, store: &mut ReorderStore) {
        self.order.clear(store);
    }

    /// Sends the SACK that is due, then READ responses as `congestion` permits, then the ACK or NAK that is due. Stops
    /// when `tx.budget` is 0 or the port has no free transmit buffer.
    pub(crate) fn transmit<P: Port>(
        &mut self,
        congestion: &mut Congestion,
        tx: &mut TxContext<'_, P>,
    ) -> TxOutcome {
        self.transmitter().transmit(congestion, tx)
    }

    /// Sends the due responses as [`Responder::transmit`] does, but does not delay the ACK.
    pub(crate) fn transmit_last<P: Port>(&mut self, congestion: &mut Congestion, tx: &mut TxContext<'_, P>) {
        self.acks.end_delay();
        self.transmit(congestion, tx);
    }

    #[inline]
    fn transmitter(&mut self) -> Transmitter<'_> {
        Transmitter {
            order: &self.order,
            mtu_bytes: self.inbound.mtu_bytes(),
            msn: self.msn,
            reads: &mut self.reads,
            has_reads: self.has_reads,
            acks: &mut self.acks,
        }
    }
}
