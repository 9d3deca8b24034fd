//! Completions of send work requests.

use super::outstanding::Outstanding;
use crate::counters::QpCounters;
use crate::id::Qpn;
use crate::psn::Psn;
use crate::queue::{CqSlot, CqTable, Cqe, SendOp, SendWqe, WcOpcode, WcStatus};

pub(crate) struct SendCompletions<'a> {
    pub cqs: &'a mut CqTable,
    pub cq: CqSlot,
    pub qpn: Qpn,
    pub counters: &'a mut QpCounters,
}

impl SendCompletions<'_> {
    /// Completes the work requests whose PSNs are all below `una`, and the local operations before and directly after
    /// them. Each signaled work request writes a CQE.
    #[inline]
    pub(crate) fn complete_before(&mut self, outstanding: &mut Outstanding, una: Psn) {
        while let Some(span) = outstanding.oldest() {
            // `una` is never below the first PSN of the oldest work request, so `una` is in `span` or above `span`.
            debug_assert!(una.offset_from(span.first).is_none_or(|offset| offset >= 0));
            if una.index_in(span.first, span.packets).is_some() {
                return;
            }
            let Some(wqe) = outstanding.wqe(0) else { return };
            let (is_signaled, cqe) = (wqe.flags.signaled, self.cqe(wqe, WcStatus::Success));
            // The work request is released before its CQE is written, so that an application that polls the CQE finds
            // room for a post.
            outstanding.release(span);
            if span.packets > 0 && !span.is_read {
                self.counters.rdma_sends += 1;
            }
            if is_signaled {
                self.cqs.write(self.cq, cqe, false);
            }
        }
    }

    /// Completes the oldest work request with the error `status`. Returns false if no work request is outstanding.
    pub(crate) fn fail_oldest(&mut self, outstanding: &mut Outstanding, status: WcStatus) -> bool {
        let Some(wqe) = outstanding.pop() else { return false };
        self.counters.cqe_flush_err += u64::from(status == WcStatus::WrFlushErr);
        self.counters.local_protection_err += u64::from(status == WcStatus::LocProtErr);
        self.cqs.write(self.cq, self.cqe(&wqe, status), false);
        true
    }

    fn cqe(&self, wqe: &SendWqe, status: WcStatus) -> Cqe {
        let opcode = match wqe.op {
            SendOp::Send
            | SendOp::SendWithImm { .. }
            | SendOp::SendTo { .. }
            | SendOp::SendToWithImm { .. } => WcOpcode::Send,
            SendOp::Write { .. } | SendOp::WriteWithImm { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::LocalInvalidate { .. } => WcOpcode::LocalInvalidate,
        };
        let len_bytes = wqe.list.len_bytes;
        Cqe::new(wqe.wr_id, status, opcode, len_bytes, self.qpn)
    }
}
