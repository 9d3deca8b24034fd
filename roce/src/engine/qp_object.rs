use super::source::Source;
use crate::counters::QpCounters;
use crate::id::{Gid, Mac, Qpn};
use crate::psn::Psn;
use crate::qp::rc::completer::SendCompletions;
use crate::qp::rc::emit::PacketBuilder;
use crate::qp::rc::outstanding::Outstanding;
use crate::qp::rc::reorder_buffer::ReorderStore;
use crate::qp::rc::requester::Requester;
use crate::qp::rc::responder::Responder;
use crate::qp::{AddressVector, ConnAttr, QpInit, QpState};
use crate::queue::{CqTable, Cqe, Posting, RecvPoster, RecvQueue, SendPoster, WcOpcode, WcStatus};
use crate::time::Instant;

/// Attributes of a queue pair (`struct ibv_qp_attr`), as last modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Attributes of the connection. Congestion control is `None` in RESET only: the transition to INIT sets the
    /// default of the device.
    pub conn: ConnAttr,
    /// Address vector; `None` before RTR.
    pub path: Option<AddressVector>,
    /// The peer's QPN.
    pub dest_qpn: Qpn,
    /// PSN of the first request from the peer.
    pub rq_psn: Psn,
    /// PSN of the first request to the peer.
    pub sq_psn: Psn,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes {
            conn: ConnAttr::RESET,
            path: None,
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
        }
    }
}

/// A new queue pair: its number and the application's ends of its queues.
pub struct QpHandles {
    /// Queue pair number, random, 24 bits.
    pub qpn: Qpn,
    /// The application's end of the send queue.
    pub send: SendPoster,
    /// The application's end of the receive queue.
    pub recv: RecvPoster,
}

/// The connection of a queue pair, from RTR on.
pub(super) struct Connection {
    pub requester: Requester,
    pub responder: Responder,
    /// Whether the next quantum starts with requests, because the last quantum ended before all responses were sent.
    pub requests_first: bool,
    pub builder: PacketBuilder,
    /// Destination MAC: that of the peer or of a gateway.
    pub peer_mac: Mac,
    pub source: Source,
    pub peer: Gid,
    /// Source GID of packets to the peer.
    pub own: Gid,
    /// VLAN of the GID `own`, for packets of both directions; `None`: untagged.
    pub vlan: Option<u16>,
}

pub(super) struct Qp {
    pub qpn: Qpn,
    pub init: QpInit,
    pub state: QpState,
    pub attributes: Attributes,
    /// Send queue and the PSNs of its work requests.
    pub outstanding: Outstanding,
    pub rq: RecvQueue,
    pub connection: Option<Connection>,
    pub counters: QpCounters,
    /// Whether a CNP to the peer is due; if so, the queue pair's index is in `Notifier::due`.
    pub cnp_due: bool,
    pub scheduled: bool,
    /// Whether `Engine::errors` contains the queue pair.
    pub flushing: bool,
    /// End of the time in which a receive that was posted during the transition to ERR may reach its queue.
    pub flush_until: Instant,
    /// Whether `CommunicationEstablished` was reported.
    pub established: bool,
    /// Whether `SendQueueDrained` was reported since the queue pair entered SQD.
    pub drained: bool,
}

impl Qp {
    pub(super) fn send_completions<'a>(
        cqs: &'a mut CqTable,
        init: &QpInit,
        qpn: Qpn,
        counters: &'a mut QpCounters,
    ) -> SendCompletions<'a> {
        SendCompletions { cqs, cq: init.send_cq, qpn, counters }
    }

    /// Sets the state, which decides whether work requests may be posted: to the send queue in RTS, SQD, SQE and ERR,
    /// to the receive queue in all states but RESET.
    pub(super) fn set_state(&mut self, state: QpState) {
        self.state = state;
        let posting = |takes: bool| match state {
            QpState::Err => Posting::Flushed,
            _ if takes => Posting::Queued,
            _ => Posting::Refused,
        };
        self.outstanding.queue().set_posting(posting(state.takes_sends()));
        self.rq.set_posting(posting(state != QpState::Reset));
    }

    /// Flushes at most `count` work requests of each queue. Returns whether work requests are left.
    pub(super) fn flush(&mut self, cqs: &mut CqTable, count: usize) -> bool {
        let mut completions = Qp::send_completions(cqs, &self.init, self.qpn, &mut self.counters);
        for _ in 0..count {
            if !completions.fail_oldest(&mut self.outstanding, WcStatus::WrFlushErr) {
                break;
            }
        }
        for _ in 0..count {
            let Some(wqe) = self.rq.release_oldest() else { break };
            self.counters.cqe_flush_err += 1;
            let (wr_id, status, opcode) = (wqe.wr_id, WcStatus::WrFlushErr, WcOpcode::Recv);
            let cqe = Cqe { wr_id, status, opcode, len_bytes: 0, imm: None, qpn: self.qpn };
            cqs.write(self.init.recv_cq, cqe, false);
        }
        !self.rq.is_empty() || !self.outstanding.queue().is_empty()
    }

    /// Drops all buffered and placed requests, and ends the reservation in `store` of this queue pair (index `slot`).
    pub(super) fn close_reorder_buffer(&mut self, slot: usize, store: &mut ReorderStore) {
        if let Some(connection) = &mut self.connection {
            connection.responder.clear_out_of_order(store);
        }
        store.close(slot);
    }

    /// Discards connection, attributes and work requests, at the transition to RESET. No completions are written.
    pub(super) fn discard(&mut self) {
        while self.outstanding.pop().is_some() {}
        while self.rq.release_oldest().is_some() {}
        self.connection = None;
        self.attributes = Attributes::default();
        self.established = false;
        self.drained = false;
    }
}
