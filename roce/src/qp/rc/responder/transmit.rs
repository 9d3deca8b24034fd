//! Transmission of the responses of a responder.

use super::ack::{AckPolicy, Due};
use super::order::Order;
use crate::congestion::Congestion;
use crate::id::Msn;
use crate::mem::Access;
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::context::{TxContext, TxOutcome};
use crate::qp::emit::{NotSent, PortFull};
use crate::qp::rc::read_queue::{ReadQueue, Waiting};
use crate::qp::segment::response_segment;
use crate::wire::{Aeth, NakCode, Opcode, SackEth, Syndrome};

/// Reason for not sending a READ response.
enum NoResponse {
    PortFull,
    /// The R_Key of the READ is not valid any more, or the memory could not be accessed: a NAK with this code is due.
    Refused(NakCode),
}

impl From<NotSent> for NoResponse {
    #[inline]
    fn from(reason: NotSent) -> Self {
        match reason {
            NotSent::PortFull => NoResponse::PortFull,
            NotSent::BadMemory => NoResponse::Refused(NakCode::RemoteOperationalError),
        }
    }
}

pub(super) struct Transmitter<'a> {
    pub order: &'a Order,
    pub mtu_bytes: u32,
    pub msn: Msn,
    pub reads: &'a mut ReadQueue,
    /// If false, the field `reads` contains no READ, and is not accessed.
    pub has_reads: bool,
    pub acks: &'a mut AckPolicy,
}

impl Transmitter<'_> {
    #[inline]
    pub(super) fn transmit<P: Port>(
        &mut self,
        congestion: &mut Congestion,
        tx: &mut TxContext<'_, P>,
    ) -> TxOutcome {
        if let Some((trigger, duplicate, no_room)) = self.acks.sack()
            && *tx.budget > 0
        {
            // The SACK is sent before READ responses, because the SACK makes the peer retransmit lost requests.
            let header = SackEth { version: SackEth::VERSION, duplicate, no_room, trigger };
            if self.send_sack(header, tx).is_err() {
                return TxOutcome::TxRingFull;
            }
            self.acks.on_sack_sent();
            if self.has_reads {
                self.forget_stale_reads();
            }
        }
        if self.acks.due() == Due::Ack && self.reads_acknowledge_all() {
            self.acks.clear();
        }
        while self.has_reads
            && let Some(waiting) = self.reads.front()
        {
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            if !congestion.permit(tx.now, 0) {
                return TxOutcome::Paced;
            }
            match self.send_response(&waiting, congestion, tx) {
                Ok(()) if self.reads.on_sent() => congestion.on_repeated_read(tx.now),
                Ok(()) => {}
                Err(NoResponse::Refused(code)) => {
                    let next = waiting.next_psn();
                    return self.refuse_read(next, code, tx);
                }
                Err(NoResponse::PortFull) => return TxOutcome::TxRingFull,
            }
        }
        self.transmit_due(tx)
    }

    /// Sends a NAK with `code` in place of response `next`, because the memory region was deregistered, invalidated or
    /// unmapped after the READ request. The remaining responses cannot be sent.
    #[cold]
    fn refuse_read<P: Port>(&mut self, next: Psn, code: NakCode, tx: &mut TxContext<'_, P>) -> TxOutcome {
        if self.send_acknowledge(next, Syndrome::Nak(code), tx).is_err() {
            return TxOutcome::TxRingFull;
        }
        match code {
            NakCode::RemoteAccessError => tx.counters.resp_remote_access_errors += 1,
            _ => tx.counters.resp_remote_operation_errors += 1,
        }
        self.reads.clear();
        self.acks.clear();
        TxOutcome::Refused(code)
    }

    #[inline]
    fn transmit_due<P: Port>(&mut self, tx: &mut TxContext<'_, P>) -> TxOutcome {
        let expected = self.order.expected();
        let (psn, syndrome) = match self.acks.due() {
            Due::Nothing => return TxOutcome::Done,
            Due::Ack if self.acks.delays_ack(expected) => return TxOutcome::AckDelayed,
            Due::Ack => (self.last_acknowledged(), Syndrome::ACK),
            Due::Refusal(syndrome) => (expected, syndrome),
            Due::Sack { .. } => return TxOutcome::MoreToSend, // the SACK was not sent: `tx.budget` was 0
        };
        if *tx.budget == 0 {
            return TxOutcome::MoreToSend;
        }
        let is_sequence_error = syndrome == Syndrome::Nak(NakCode::PsnSequenceError);
        if is_sequence_error && self.order.buffers() && self.needs_ack_before_nak() {
            if self.send_acknowledge(expected.minus(1), Syndrome::ACK, tx).is_err() {
                return TxOutcome::TxRingFull;
            }
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
        }
        if self.send_acknowledge(psn, syndrome, tx).is_err() {
            return TxOutcome::TxRingFull;
        }
        self.acks.clear();
        TxOutcome::Done
    }

    /// Returns whether an ACK is sent before the NAK (PSN sequence error) that is due, because Linux's rxe ignores a
    /// second NAK until an ACK or a READ response advances the una of rxe. If a READ was executed last, no ACK is sent:
    /// the responses of the READ advance una, and have higher PSNs than the ACK ([`Self::reads_acknowledge_all`]).
    fn needs_ack_before_nak(&mut self) -> bool {
        let expected = self.order.expected();
        self.acks.last_acked_psn() != expected && self.last_acknowledged() == expected.minus(1)
    }

    /// Returns whether queued READ responses acknowledge all requests that an ACK would acknowledge: a READ was
    /// executed last, and its responses, or the rest of them, are queued and have higher PSNs than the ACK. If Linux's
    /// rxe receives this ACK between two responses of a READ, it ends the connection at the second one.
    #[inline]
    fn reads_acknowledge_all(&mut self) -> bool {
        if !self.has_reads || self.reads.front().is_none() {
            return false;
        }
        let (end, last) = (self.order.expected(), self.last_acknowledged());
        let reads_pkts = end.minus(1).distance_from(last);
        reads_pkts > 0 && self.reads.has_queued(last.plus(1), reads_pkts)
    }

    /// Returns the PSN for an ACK: the last PSN below the expected PSN that belongs to no READ. A READ is acknowledged
    /// by its responses, and Linux's rxe ends a connection if an ACK has a PSN of a READ.
    #[inline]
    pub(super) fn last_acknowledged(&mut self) -> Psn {
        let last = self.order.expected().minus(1);
        if !self.has_reads {
            return last;
        }
        self.forget_stale_reads();
        self.reads.last_before(last)
    }

    /// Removes from the responder resources the READs whose PSNs new requests reuse. A call is necessary at least once
    /// per half of the PSN circle. The calls for each ACK, each SACK and each new READ are sufficient: a requester may
    /// have at most half of the PSN circle unacknowledged (IBA 9.7.2), so the requester elicits an ACK or SACK or sends
    /// a READ at least this often.
    #[inline]
    fn forget_stale_reads(&mut self) {
        self.reads.forget_stale(self.order.expected().minus(1));
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
        self.acks.on_sent(self.order.expected());
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        Ok(())
    }

    /// Sends a SACK: the expected PSN, and a bitmap of the out-of-order PSNs above it.
    #[cold]
    fn send_sack<P: Port>(&self, header: SackEth, tx: &mut TxContext<'_, P>) -> Result<(), PortFull> {
        let Some(words) = self.order.bitmap() else { return Ok(()) };
        let mut spec = tx.builder.packet(Opcode::RC_SELECTIVE_ACKNOWLEDGE, self.order.expected(), 0);
        spec.payload_len = 4 * words.len();
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: self.msn };
        tx.builder.emit(tx.port, &spec, |parts| {
            // The opcode has an AETH and a SackETH, so both setters write.
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

    /// Sends the next response of the queued READ `waiting`.
    #[inline]
    fn send_response<P: Port>(
        &self,
        waiting: &Waiting,
        congestion: &mut Congestion,
        tx: &mut TxContext<'_, P>,
    ) -> Result<(), NoResponse> {
        let mtu_bytes = self.mtu_bytes;
        let Waiting { request: read, sent: index, starts_message, .. } = *waiting;
        let (opcode, len) = response_segment(read.reth.len_bytes, index, starts_message, mtu_bytes);
        let va = read.reth.va.wrapping_add(u64::from(index * mtu_bytes));
        let opened = tx.memory.open_remote(tx.pd, read.reth.rkey, va, len, Access::REMOTE_READ);
        let span = opened.map_err(|_| NoResponse::Refused(NakCode::RemoteAccessError))?;
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: read.msn };
        let spec = tx.builder.packet(opcode, waiting.next_psn(), len);
        tx.builder.emit_copied(tx.port, &spec, |parts| {
            // MIDDLE responses have no AETH: for them `set_aeth` writes nothing.
            let _ = parts.set_aeth(aeth);
            span.copy_to(parts.payload)
        })?;
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sent_bytes += u64::from(len);
        if !congestion.is_window() {
            congestion.on_sent(tx.now, tx.builder.frame_bytes(opcode, len));
        }
        Ok(())
    }
}
