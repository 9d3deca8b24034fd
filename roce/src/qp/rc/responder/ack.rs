//! Acknowledgement policy: when an ACK, NAK, RNR NAK or SACK is due (IBA 9.7.5.1).

use super::config::ResponderAction;
use super::order::{Disposition, Order};
use crate::counters::QpCounters;
use crate::psn::Psn;
use crate::qp::request::RequestHeader;
use crate::recovery::responder::{Reply, ResponderRecovery};
use crate::wire::{NakCode, Operation, Syndrome};

const ACK_DELAY_PKTS_MAX: u32 = 16;

/// The ACK, NAK or SACK that is due, if any. A SACK is sent before the queued READ responses. An ACK or NAK is sent
/// after the queued READ responses, which have lower PSNs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ack,
    Refusal(Syndrome),
    /// SACK: PSN of the request that triggered the SACK, and whether that request was a duplicate.
    Sack {
        trigger: Psn,
        duplicate: bool,
    },
}

/// The response that is due, and the state that decides when it is sent.
#[derive(Debug)]
pub(super) struct AckPolicy {
    due: Due,
    /// Expected PSN when the last ACK or NAK was sent.
    last_acked_psn: Psn,
    /// True if, since the last SACK, an out-of-order packet was dropped because the reorder buffer had no room.
    no_room: bool,
    /// True if the ACK became due after responses were last transmitted. Such an ACK is delayed by one poll, so that a
    /// reply of the application is sent before the ACK, and one ACK acknowledges the packets of two polls. An ACK of at
    /// least [`ACK_DELAY_PKTS_MAX`] PSNs is not delayed, because a peer with a small window waits for this ACK.
    ack_may_wait: bool,
}

impl AckPolicy {
    pub(super) fn new(first_psn: Psn) -> Self {
        AckPolicy { due: Due::Nothing, last_acked_psn: first_psn, no_room: false, ack_may_wait: false }
    }

    #[inline]
    pub(super) fn due(&self) -> Due {
        self.due
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.due = Due::Nothing;
    }

    /// Makes an ACK due, even without AckReq, because a request was executed while other requests were buffered or
    /// placed.
    #[inline]
    pub(super) fn on_missing_executed(&mut self) {
        self.due = Due::Ack;
    }

    #[inline]
    pub(super) fn on_executed(
        &mut self,
        request: RequestHeader,
        order: &Order,
        recovery: &ResponderRecovery,
    ) -> ResponderAction {
        if self.report_gap(request.psn, order, recovery) {
            return ResponderAction::Answer;
        }
        if request.info.operation == Operation::ReadRequest {
            // The responses of a READ acknowledge all requests before the READ, so no ACK is due for these requests.
            self.due = Due::Nothing;
            return ResponderAction::Answer;
        }
        if request.ack_req {
            self.ack_may_wait |= self.due != Due::Ack;
            self.due = Due::Ack;
            return ResponderAction::Answer;
        }
        // The NAK or SACK that is due refuses the packet just executed, or reports this packet as missing, so an ACK
        // replaces this NAK or SACK.
        if matches!(self.due, Due::Refusal(_) | Due::Sack { .. }) {
            self.due = Due::Ack;
        }
        // If `on_missing_executed` made an ACK due (a request was executed while other requests were buffered or
        // placed), the engine must schedule the queue pair to send this ACK.
        let closed_gap = order.buffers() && self.due == Due::Ack;
        if closed_gap { ResponderAction::Answer } else { ResponderAction::Nothing }
    }

    /// Records that early READs count as executed. `last`: first PSN of the highest of them.
    pub(super) fn on_early_reads_executed(&mut self, last: Psn, order: &Order, recovery: &ResponderRecovery) {
        self.due = Due::Nothing;
        self.report_gap(last, order, recovery);
    }

    /// Records that placed requests were executed. `last`: PSN of the highest of them.
    pub(super) fn on_placed_executed(&mut self, last: Psn, order: &Order, recovery: &ResponderRecovery) {
        self.report_gap(last, order, recovery);
    }

    /// Makes a SACK due that the request of `trigger` elicits, if the recovery scheme reports requests that are still
    /// buffered or placed after its execution. Returns whether it does.
    #[inline]
    fn report_gap(&mut self, trigger: Psn, order: &Order, recovery: &ResponderRecovery) -> bool {
        let has_gap = recovery.reports_gap(|| order.has_buffered_or_placed());
        if has_gap {
            self.due = Due::Sack { trigger, duplicate: false };
        }
        has_gap
    }

    pub(super) fn on_refused(&mut self, code: NakCode) {
        self.due = Due::Refusal(Syndrome::Nak(code));
    }

    pub(super) fn on_not_ready(&mut self, timer: u8) {
        self.due = Due::Refusal(Syndrome::RnrNak { timer });
    }

    /// Makes a SACK or ACK due for a duplicate SEND or WRITE (IBA 9.7.5.1.3).
    pub(super) fn on_duplicate(&mut self, psn: Psn, reply: Reply) {
        if reply == Reply::Sack {
            self.make_sack_due(psn, true);
        } else if self.due == Due::Nothing {
            self.due = Due::Ack;
        }
    }

    /// Makes a SACK due, unless a NAK or RNR NAK is due.
    fn make_sack_due(&mut self, trigger: Psn, duplicate: bool) {
        if !matches!(self.due, Due::Refusal(_)) {
            self.due = Due::Sack { trigger, duplicate };
        }
    }

    /// After an out-of-order packet was received, records that the response of kind `reply` is due. `None`: no response
    /// is due.
    pub(super) fn on_out_of_order(
        &mut self,
        psn: Psn,
        disposition: Disposition,
        reply: Option<Reply>,
        counters: &mut QpCounters,
    ) -> ResponderAction {
        self.no_room |= disposition.lacked_room();
        match reply {
            Some(Reply::Sack) => self.make_sack_due(psn, disposition == Disposition::Duplicate),
            Some(Reply::Nak) => {
                counters.send_seq_err += 1;
                self.on_refused(NakCode::PsnSequenceError);
            }
            Some(Reply::Ack) | None => {}
        }
        if reply.is_some() { ResponderAction::Answer } else { ResponderAction::Nothing }
    }

    /// Returns the SACK that is due: PSN of the request that triggered the SACK, whether that request was a duplicate,
    /// and whether the reorder buffer had no room since the last SACK.
    #[inline]
    pub(super) fn sack(&self) -> Option<(Psn, bool, bool)> {
        let Due::Sack { trigger, duplicate } = self.due else { return None };
        Some((trigger, duplicate, self.no_room))
    }

    pub(super) fn on_sack_sent(&mut self) {
        (self.due, self.no_room) = (Due::Nothing, false);
    }

    /// Returns whether the ACK that is due is delayed until the next poll.
    #[inline]
    pub(super) fn delays_ack(&mut self, expected: Psn) -> bool {
        std::mem::take(&mut self.ack_may_wait)
            && expected.distance_from(self.last_acked_psn) < ACK_DELAY_PKTS_MAX
    }

    /// Ends the delay of the ACK that is due.
    pub(super) fn end_delay(&mut self) {
        self.ack_may_wait = false;
    }

    #[inline]
    pub(super) fn last_acked_psn(&self) -> Psn {
        self.last_acked_psn
    }

    #[inline]
    pub(super) fn on_sent(&mut self, expected: Psn) {
        self.last_acked_psn = expected;
    }
}
