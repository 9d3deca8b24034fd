//! State of a queue pair and its device that a transport service needs to receive or send packets.

use super::emit::PacketBuilder;
use super::receives::Receives;
use crate::counters::QpCounters;
use crate::id::Qpn;
use crate::mem::{Access, MemoryView, PdId};
use crate::port::Port;
use crate::queue::{CqSlot, CqTable, Cqe, NetworkHeader, RecvWqe, SrqTable, WcOpcode, WcStatus};
use crate::time::Instant;
use crate::wire::NakCode;

/// State needed to process a request.
pub(crate) struct RxContext<'a> {
    pub memory: &'a MemoryView,
    pub pd: PdId,
    pub access: Access,
    pub min_rnr_timer: u8,
    pub receives: &'a mut Receives,
    pub srqs: &'a mut SrqTable,
    pub cqs: &'a mut CqTable,
    pub cq: CqSlot,
    pub qpn: Qpn,
    pub counters: &'a mut QpCounters,
    /// Index of the queue pair in the table of the device.
    pub slot: usize,
    pub now: Instant,
}

impl RxContext<'_> {
    /// Returns the current receive: the oldest receive of the receive queue, or the receive taken from the SRQ.
    #[inline]
    pub(crate) fn receive(&mut self) -> Option<&RecvWqe> {
        self.receives.current(self.srqs)
    }

    /// Fails the receive that [`RxContext::receive`] returns (local protection error), because the memory of this
    /// receive cannot be written.
    pub(crate) fn fail_receive(&mut self) {
        self.counters.local_protection_err += 1;
        self.complete_receive(WcStatus::LocProtErr, WcOpcode::Recv, 0, None, false);
    }

    /// Removes the receive that [`RxContext::receive`] returns, and writes its completion.
    #[inline]
    pub(crate) fn complete_receive(
        &mut self,
        status: WcStatus,
        opcode: WcOpcode,
        len_bytes: u32,
        imm: Option<u32>,
        solicited: bool,
    ) {
        let Some(RecvWqe { wr_id, .. }) = self.receives.release() else { return };
        let cqe = Cqe { imm, ..Cqe::new(wr_id, status, opcode, len_bytes, self.qpn) };
        self.cqs.write(self.cq, cqe, solicited);
    }

    /// Removes the receive that [`RxContext::receive`] returns, and writes its completion. `src_qpn`: the queue pair
    /// that sent the datagram in this receive. `len_bytes` includes the GRH area.
    pub(crate) fn complete_datagram(
        &mut self,
        len_bytes: u32,
        imm: Option<u32>,
        solicited: bool,
        (src_qpn, header): (Qpn, NetworkHeader),
    ) {
        let Some(RecvWqe { wr_id, .. }) = self.receives.release() else { return };
        let received = Cqe::new(wr_id, WcStatus::Success, WcOpcode::Recv, len_bytes, self.qpn);
        self.cqs.write(self.cq, Cqe { imm, src_qpn, grh: Some(header), ..received }, solicited);
    }
}

/// State needed to send packets.
pub(crate) struct TxContext<'a, P: Port> {
    pub now: Instant,
    pub port: &'a mut P,
    /// Number of packets that the queue pair may still send before another queue pair transmits; each packet sent, and
    /// each local operation executed, decrements this number by 1.
    pub budget: &'a mut u32,
    pub memory: &'a MemoryView,
    pub pd: PdId,
    pub builder: PacketBuilder<'a>,
    pub counters: &'a mut QpCounters,
}

/// Reason why requester or responder stopped sending in a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// No packet is left to send, or no packet may be sent now.
    Done,
    /// `TxContext::budget` or `DatagramContext::budget` is 0; more packets may be ready.
    MoreToSend,
    /// An ACK or other responses are due, and are sent in the next poll.
    AckDelayed,
    /// Packets are ready, but the pacer delays them.
    Paced,
    /// Packets are ready, but the port has no free transmit buffer.
    TxRingFull,
    /// The memory that a READ of the peer reads was deregistered, or could not be accessed (memory fault). A NAK with
    /// this code was sent, and the queue pair changes to ERR.
    Refused(NakCode),
}

impl TxOutcome {
    /// Combines the outcomes of requester and responder in one poll. `next`: the outcome of the role that transmitted
    /// second.
    pub(crate) fn and_then(self, next: TxOutcome) -> TxOutcome {
        match (self, next) {
            // `AckDelayed` takes precedence over `Paced`: the next poll sends the delayed responses, and checks the
            // pacer again.
            (TxOutcome::AckDelayed, TxOutcome::Done | TxOutcome::Paced) => TxOutcome::AckDelayed,
            (TxOutcome::Paced, TxOutcome::Done) => TxOutcome::Paced,
            (_, next) => next,
        }
    }
}
