//! A queue pair as the engine keeps it.

use super::admit::Source;
use crate::congestion::CongestionScheme;
use crate::counters::QpCounters;
use crate::id::{Gid, Mac, Qpn};
use crate::mem::Access;
use crate::psn::Psn;
use crate::qp::rc::completer::SendCompletions;
use crate::qp::rc::emit::PacketBuilder;
use crate::qp::rc::outstanding::Outstanding;
use crate::qp::rc::requester::Requester;
use crate::qp::rc::responder::Responder;
use crate::qp::{AddressVector, PathMtu, Placement, QpInit, QpState};
use crate::queue::{CqTable, Cqe, RecvQueue, WcOpcode, WcStatus};
use crate::recovery::RecoveryScheme;

/// Attributes as they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What the peer's requests may do.
    pub access: Access,
    /// The path to the peer.
    pub path: Option<AddressVector>,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// READs served at once.
    pub max_dest_rd_atomic: u8,
    /// READs asked at once.
    pub max_rd_atomic: u8,
    /// RNR timer code.
    pub min_rnr_timer: u8,
    /// Local ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry_count: u8,
    /// Retries after receiver-not-ready.
    pub rnr_retry: u8,
    /// Recovery.
    pub recovery: RecoveryScheme,
    /// The order in which what the peer writes reaches memory.
    pub placement: Placement,
    /// Congestion control.
    pub congestion: CongestionScheme,
}

impl Default for Attributes {
    fn default() -> Self {
        Attributes {
            access: Access::NONE,
            path: None,
            path_mtu: PathMtu::Mtu256,
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            recovery: RecoveryScheme::GoBackN,
            placement: Placement::InOrder,
            congestion: CongestionScheme::default(),
        }
    }
}

/// The connection of a queue pair that has left INIT.
pub(super) struct Connection {
    /// Requests out.
    pub requester: Requester,
    /// Requests in.
    pub responder: Responder,
    /// Answers left no room for requests in the last turn.
    pub requests_first: bool,
    /// Headers to the peer.
    pub builder: PacketBuilder,
    /// Ethernet address they go to.
    pub peer_mac: Mac,
    /// The source of the peer's packets.
    pub source: Source,
    /// The peer's GID.
    pub peer: Gid,
    /// This side's GID.
    pub own: Gid,
    /// The VLAN of that GID: of frames sent, and of those received.
    pub vlan: Option<u16>,
}

/// A queue pair.
pub(super) struct Qp {
    /// Its number.
    pub qpn: Qpn,
    /// What it was created with.
    pub init: QpInit,
    /// Its state.
    pub state: QpState,
    /// Its attributes.
    pub attributes: Attributes,
    /// Send work requests.
    pub outstanding: Outstanding,
    /// Receives.
    pub rq: RecvQueue,
    /// From RTR on.
    pub connection: Option<Connection>,
    /// Counters.
    pub counters: QpCounters,
    /// It owes its peer a congestion notification.
    pub cnp_due: bool,
    /// It waits for its turn to send.
    pub scheduled: bool,
    /// It is on the list of those to be flushed.
    pub flushing: bool,
    /// A packet came in RTR and was told.
    pub established: bool,
    /// SQD was reached with nothing left to drain, and told.
    pub drained: bool,
}

impl Qp {
    /// Where its sends complete.
    pub(super) fn send_completions<'a>(
        cqs: &'a mut CqTable,
        init: &QpInit,
        qpn: Qpn,
        counters: &'a mut QpCounters,
    ) -> SendCompletions<'a> {
        SendCompletions { cqs, cq: init.send_cq, qpn, counters }
    }

    /// Lets posts through as the state allows.
    pub(super) fn set_state(&mut self, state: QpState) {
        self.state = state;
        self.outstanding.queue().set_open(state.takes_sends());
        self.rq.set_open(state != QpState::Reset);
    }

    /// Flushes at most `count` work requests of each queue, oldest first; returns whether any is left.
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

    /// Drops every work request without a completion (RESET).
    pub(super) fn discard(&mut self) {
        while self.outstanding.pop().is_some() {}
        while self.rq.release_oldest().is_some() {}
        self.connection = None;
        self.attributes = Attributes::default();
        self.established = false;
        self.drained = false;
    }
}
