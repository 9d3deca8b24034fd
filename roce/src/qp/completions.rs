//! Completions of send work requests.

use super::outstanding::{MAX_OUTSTANDING_PSNS, Outstanding};
use crate::counters::QpCounters;
use crate::id::Qpn;
use crate::psn::Psn;
use crate::queue::{CqId, CqTable, Cqe, SendOp, SendWqe, WcOpcode, WcStatus};

pub(crate) struct SendCompletions<'a> {
    pub cqs: &'a mut CqTable,
    pub cq: CqId,
    pub qpn: Qpn,
    pub counters: &'a mut QpCounters,
}

impl SendCompletions<'_> {
    /// Completes the work requests whose PSNs are all below `una`, and the local operations before and directly after
    /// them. Each signaled work request writes a CQE.
    #[inline]
    pub(crate) fn complete_before(&mut self, outstanding: &mut Outstanding, una: Psn) {
        while let Some(span) = outstanding.oldest() {
            let newly_acked_pkts = una.index_in(span.first, MAX_OUTSTANDING_PSNS + 1).unwrap_or(0);
            if newly_acked_pkts < span.packets {
                return;
            }
            let Some(wqe) = outstanding.pop() else { return };
            self.counters.rdma_sends += u64::from(!span.is_read && span.packets > 0);
            if wqe.flags.signaled {
                self.write(&wqe, WcStatus::Success);
            }
        }
    }

    /// Completes the oldest work request with the error `status`. Returns false if no work request is outstanding.
    pub(crate) fn fail_oldest(&mut self, outstanding: &mut Outstanding, status: WcStatus) -> bool {
        let Some(wqe) = outstanding.pop() else { return false };
        self.counters.cqe_flush_err += u64::from(status == WcStatus::WrFlushErr);
        self.counters.local_protection_err += u64::from(status == WcStatus::LocProtErr);
        self.write(&wqe, status);
        true
    }

    fn write(&mut self, wqe: &SendWqe, status: WcStatus) {
        let opcode = match wqe.op {
            SendOp::Send | SendOp::SendWithImm { .. } => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        };
        let len_bytes = wqe.list.len_bytes;
        let cqe = Cqe { wr_id: wqe.wr_id, status, opcode, len_bytes, imm: None, qpn: self.qpn };
        self.cqs.write(self.cq, cqe, false);
    }
}
