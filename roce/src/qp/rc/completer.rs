//! The completer: processes responses to requests in flight (IBA 9.7.5.1.7, 9.7.7, 9.9).
//!
//! ```text
//!               una                                            max_sent
//!   acknowledged | SEND WRITE ..  | READ responses | ...        | never sent
//!   stale:       | an ACK of PSN n acknowledges all PSNs up to  | stale:
//!   dropped      | n, but only READ responses complete a READ   | dropped
//! ```

use super::events::ResponseEvent;
use crate::counters::QpCounters;
use crate::mem::{MemoryView, PdId};
use crate::psn::Psn;
use crate::qp::outstanding::{Outstanding, Place};
use crate::queue::WcStatus;
use crate::recovery::{AckEvent, Recovery, Requests as _, ResponseState};
use crate::wire::{Aeth, NakCode, Operation, Packet, SackEth, Syndrome, rnr_timer_nanos};

/// State of queue pair and device that the completer needs to process a response.
pub(crate) struct Completer<'a> {
    pub outstanding: &'a mut Outstanding,
    pub una: Psn,
    /// Number of PSNs sent from `una` on.
    pub sent: u32,
    pub recovery: &'a Recovery,
    pub mtu_bytes: u32,
    pub memory: &'a MemoryView,
    pub pd: PdId,
    pub counters: &'a mut QpCounters,
}

impl Completer<'_> {
    /// Processes a response; places the payload of a READ response.
    pub(crate) fn on_response<'p>(&mut self, packet: &Packet<'p>) -> ResponseEvent<'p> {
        let psn = packet.bth.psn;
        let recovery = self.recovery;
        let is_sack = || {
            packet.info.operation == Operation::SelectiveAcknowledge
                && recovery.accepts(packet.info.transport)
        };
        if psn.index_in(self.una, self.sent).is_none() && !is_sack() {
            self.counters.stale_responses += 1;
            let is_read_response = packet.info.operation == Operation::ReadResponse;
            if is_read_response && self.recovery.is_retransmitted(psn) {
                return ResponseEvent::Ack(AckEvent::Duplicate { psn });
            }
            let is_below_una = psn.offset_from(self.una).is_some_and(|offset| offset < 0);
            return if is_below_una { ResponseEvent::Stale } else { ResponseEvent::Ignored };
        }
        match (packet.info.operation, packet.aeth()) {
            (Operation::Acknowledge, Some(aeth)) => self.on_acknowledge(psn, aeth),
            (Operation::ReadResponse, _) => self.on_read_response(packet),
            _ if is_sack() => self.on_sack(packet),
            _ => self.ignore_opcode(),
        }
    }

    fn ignore_opcode(&mut self) -> ResponseEvent<'static> {
        self.counters.bad_opcode_dropped += 1;
        ResponseEvent::Ignored
    }

    /// Processes a SACK. The PSN of a SACK is the peer's expected PSN: if the peer executed all requests, one past the
    /// highest PSN sent (`una + sent`).
    fn on_sack<'p>(&mut self, packet: &Packet<'p>) -> ResponseEvent<'p> {
        let next = packet.bth.psn;
        let in_flight = next.index_in(self.una, self.sent + 1).is_some();
        match packet.sacketh().filter(|header| header.version == SackEth::VERSION) {
            Some(header) if in_flight => {
                ResponseEvent::Ack(AckEvent::Sack { next, header, bitmap: packet.payload })
            }
            Some(_) => {
                self.counters.stale_responses += 1;
                ResponseEvent::Ignored
            }
            None => self.ignore_opcode(),
        }
    }

    fn on_acknowledge(&mut self, psn: Psn, aeth: Aeth) -> ResponseEvent<'static> {
        match aeth.syndrome {
            Syndrome::Ack { .. } => return ResponseEvent::Ack(AckEvent::Ack { next: psn.plus(1) }),
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                return ResponseEvent::Ack(AckEvent::SequenceError { next: psn });
            }
            Syndrome::Reserved(_) | Syndrome::Nak(NakCode::Reserved(_) | NakCode::InvalidRdRequest) => {
                return self.ignore_opcode();
            }
            Syndrome::Nak(_) | Syndrome::RnrNak { .. } => {}
        }
        if self.outstanding.first_read_before(self.una, psn).is_some() {
            // READ responses below `psn` are missing: an implied NAK. The NAK or RNR NAK received is ignored, because
            // the missing READ responses must be requested first.
            return ResponseEvent::Ack(AckEvent::Ack { next: psn });
        }
        let status = match aeth.syndrome {
            Syndrome::RnrNak { timer } => {
                self.counters.rcvd_rnr_err += 1;
                return ResponseEvent::RnrNak { next: psn, wait_nanos: rnr_timer_nanos(timer) };
            }
            Syndrome::Nak(NakCode::InvalidRequest) => {
                self.counters.req_remote_invalid_request += 1;
                WcStatus::RemInvReqErr
            }
            Syndrome::Nak(NakCode::RemoteAccessError) => {
                self.counters.req_remote_access_errors += 1;
                WcStatus::RemAccessErr
            }
            _ => {
                self.counters.req_remote_operation_errors += 1;
                WcStatus::RemOpErr
            }
        };
        ResponseEvent::Failed { next: psn, status }
    }

    /// Returns whether opcode and AETH of the READ response `packet` are valid. `place`: the READ, and the PSN of
    /// `packet`. The opcode must fit the position of the PSN in the original READ request. If the PSN was requested
    /// more than once, the opcode may additionally begin or end a message at this PSN, because a later READ request may
    /// begin or end there.
    fn is_response_valid(&self, packet: &Packet<'_>, place: &Place) -> bool {
        let psn = packet.bth.psn;
        let request = self.outstanding.request_of(place);
        let (is_first, is_last) = (psn == request.first, psn.plus(1) == request.end());
        let (starts, ends) = (packet.info.starts_message(), packet.info.ends_message());
        let is_ack = packet.aeth().is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        is_ack
            && starts >= is_first
            && ends >= is_last
            && ((starts, ends) == (is_first, is_last) || self.recovery.is_retransmitted(psn))
    }

    fn on_read_response(&mut self, packet: &Packet<'_>) -> ResponseEvent<'static> {
        let psn = packet.bth.psn;
        let place = self.outstanding.find(psn).filter(|place| place.span.is_read);
        let wqe = place.and_then(|place| self.outstanding.wqe(place.index).copied());
        let (Some(place), Some(wqe)) = (place, wqe) else {
            self.counters.stale_responses += 1;
            return ResponseEvent::Ignored;
        };
        let request = self.outstanding.request_of(&place);
        let ends_message = packet.info.ends_message();
        let response = ResponseEvent::Ack(AckEvent::ReadResponse { psn, request, ends_message });
        match self.recovery.response_state(psn, self.outstanding) {
            ResponseState::Missing => {}
            ResponseState::Received => {
                self.counters.stale_responses += 1;
                return ResponseEvent::Ack(AckEvent::Duplicate { psn });
            }
            ResponseState::BeyondWindow => return response,
        }
        let offset = place.packet * self.mtu_bytes;
        let wanted_bytes = (wqe.list.len_bytes - offset).min(self.mtu_bytes);
        if packet.payload.len() != wanted_bytes as usize || !self.is_response_valid(packet, &place) {
            self.counters.bad_resp_err += 1;
            return ResponseEvent::Failed { next: psn, status: WcStatus::BadRespErr };
        }
        let mut lists = self.outstanding.queue().lists(self.memory, self.pd);
        if lists.scatter(&wqe.list, offset, packet.payload).is_err() {
            return ResponseEvent::Failed { next: psn, status: WcStatus::LocProtErr };
        }
        self.counters.rcvd_bytes += u64::from(wanted_bytes);
        response
    }
}
