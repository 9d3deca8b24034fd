//! The sender of an unreliable connection (IBA 9.8.2.1): a work request completes when its last packet is sent.
//!
//! ```text
//!   work requests   | w0     | w1            | w2, posted
//!   PSNs            | sent   | sent | unsent | not assigned
//!                                   next     end: the first PSN not assigned
//! ```

use crate::congestion::Congestion;
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::ConnAttr;
use crate::qp::context::{TxContext, TxOutcome};
use crate::qp::emit::NotSent;
use crate::qp::local::start_local;
use crate::qp::outbound::{send_segment, takes_receive};
use crate::qp::outstanding::{Kind, Outstanding, Place};
use crate::qp::segment::segment;
use crate::queue::{SendOp, WcStatus};
use crate::wire::Transport;

pub(crate) struct Sender {
    mtu_bytes: u32,
    next: Psn,
    /// Paces the packets. Only CNPs reduce the rate, because an unreliable connection has no ACKs.
    congestion: Congestion,
    /// True in state SQD: no further work request starts.
    draining: bool,
    /// Error status of the oldest work request, if this work request cannot be sent.
    fault: Option<WcStatus>,
}

impl Sender {
    pub(crate) fn new(conn: &ConnAttr, first: Psn, link_bits_per_sec: u64) -> Self {
        let congestion = Congestion::new(&conn.congestion.unwrap_or_default(), link_bits_per_sec);
        Sender { mtu_bytes: conn.path_mtu.bytes(), next: first, congestion, draining: false, fault: None }
    }

    /// Returns the PSN of the next packet: all packets below this PSN have been sent.
    pub(crate) fn next(&self) -> Psn {
        self.next
    }

    pub(crate) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    pub(crate) fn congestion_mut(&mut self) -> &mut Congestion {
        &mut self.congestion
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// If the oldest work request cannot be sent, returns and clears its error status.
    pub(crate) fn take_fault(&mut self) -> Option<WcStatus> {
        self.fault.take()
    }

    /// Sends packets until no packet is left, congestion control permits none, `tx.budget` is 0, or the port has no
    /// free transmit buffer.
    pub(crate) fn transmit<P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        tx: &mut TxContext<'_, P>,
    ) -> TxOutcome {
        loop {
            if !self.congestion.permit(tx.now, 0) {
                return TxOutcome::Paced;
            }
            let is_new = self.next == outstanding.end();
            let place = if is_new { self.start_next(outstanding, tx) } else { outstanding.find(self.next) };
            let Some(place) = place else { return TxOutcome::Done };
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            if place.span.packets == 0 {
                // A local operation was executed. `tx.budget` also bounds the local operations of a poll.
                *tx.budget -= 1;
                continue;
            }
            match self.send_one(outstanding, place, tx) {
                Ok(()) => self.next = self.next.plus(1),
                Err(NotSent::PortFull) => return TxOutcome::TxRingFull,
                Err(NotSent::BadMemory) => {
                    self.fault = Some(WcStatus::LocProtErr);
                    return TxOutcome::Done;
                }
            }
        }
    }

    /// If the next work request may start, assigns PSNs to this work request, and returns the position of its first
    /// packet. If this work request is a local operation, executes the local operation, and returns its position.
    fn start_next<P: Port>(&mut self, outstanding: &mut Outstanding, tx: &TxContext<'_, P>) -> Option<Place> {
        if self.draining {
            return None;
        }
        let wqe = outstanding.next_unassigned()?;
        if wqe.op.is_local() {
            // A fence does not delay the local operation: all earlier work requests are sent, and so have completed or
            // complete in this poll.
            return start_local(outstanding, true, tx).unwrap_or_else(|status| {
                self.fault = Some(status);
                None
            });
        }
        if matches!(wqe.op, SendOp::Read { .. }) {
            // UC has no READ (IBA 9.8, table 38).
            self.fault = Some(WcStatus::LocQpOpErr);
            return None;
        }
        let kind = Kind { is_read: false, takes_receive: takes_receive(&wqe.op) };
        let len_bytes = wqe.list.len_bytes;
        outstanding.assign(len_bytes, kind, 0, self.mtu_bytes)
    }

    fn send_one<P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        place: Place,
        tx: &mut TxContext<'_, P>,
    ) -> Result<(), NotSent> {
        let open = outstanding.queue().open(place.index, tx.memory, tx.pd);
        let Some(open) = open else { return Err(NotSent::BadMemory) };
        let part = segment(&open.wqe.op, open.wqe.list.len_bytes, place.packet, self.mtu_bytes, false);
        let opcode = part.opcode.of(Transport::Uc);
        let mut spec = tx.builder.packet(opcode, self.next, part.payload_len);
        send_segment(open, &part, &mut spec, (None, None), tx)?;
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sent_bytes += u64::from(part.payload_len);
        if !self.congestion.is_window() {
            self.congestion.on_sent(tx.now, tx.builder.frame_bytes(opcode, part.payload_len));
        }
        Ok(())
    }
}
