//! Transmission: in round-robin order, each scheduled queue pair sends a quantum of at most `TX_QUANTUM_PKTS` packets,
//! responses first. The quantum also ends when the port is full. If a quantum that started with responses ends before
//! all responses are sent, the next quantum of the queue pair starts with requests.

use super::ingress::refusal_event;
use super::limits::{
    CACHED_QPS, LAST_RESPONSES_PKTS, NEIGHBOUR_FRAMES_PER_POLL, PREFETCH_AHEAD_QPS, TX_BUDGET_PKTS,
    TX_QUANTUM_PKTS,
};
use super::qp_object::{Connection, Qp, Service};
use super::{Engine, Outgoing};
use crate::port::Port;
use crate::qp::QpState;
use crate::qp::context::{TxContext, TxOutcome};
use crate::qp::emit::PacketBuilder;
use crate::qp::rc::Responses;

impl<P: Port> Engine<P> {
    /// Sends packets and executes local operations of scheduled queue pairs, and returns the number of both.
    #[inline]
    pub(super) fn transmit(&mut self, outgoing: Outgoing) -> u32 {
        if self.tx_ready.is_empty() { 0 } else { self.transmit_scheduled(outgoing) }
    }

    #[inline(never)]
    fn transmit_scheduled(&mut self, outgoing: Outgoing) -> u32 {
        self.memory.enter();
        let mut budget = TX_BUDGET_PKTS;
        while budget > 0 {
            let Some(slot) = self.tx_ready.pop_front() else { break };
            if self.qps.len() > CACHED_QPS {
                self.prefetch_ready();
            }
            let mut quantum = TX_QUANTUM_PKTS.min(budget);
            let before = quantum;
            let outcome = self.transmit_qp(slot, outgoing, &mut quantum);
            budget -= before - quantum;
            match outcome {
                TxOutcome::Done | TxOutcome::Paced => {}
                TxOutcome::MoreToSend => self.tx_ready.push_back(slot),
                TxOutcome::AckDelayed => self.tx_deferred.push(slot),
                TxOutcome::TxRingFull => {
                    // A port at its line rate may have room for fewer packets than a quantum in each poll. If a queue
                    // pair that sent packets remained the first, no other queue pair could send.
                    if quantum < before {
                        self.tx_ready.push_back(slot);
                    } else {
                        self.tx_ready.push_front(slot);
                    }
                    break;
                }
                TxOutcome::Refused(code) => {
                    let event = self.qps.at_mut(slot).map(|qp| refusal_event(qp.qpn, code));
                    self.enter_error(slot, event);
                }
            }
        }
        self.tx_ready.extend(self.tx_deferred.drain(..));
        self.memory.leave();
        TX_BUDGET_PKTS - budget
    }

    /// Prefetches a queue pair that transmits soon. For the queue pair that transmits next, prefetches the `Assignment`
    /// of the work request that starts next (`qp/outstanding.rs`).
    #[inline(never)]
    fn prefetch_ready(&mut self) {
        if let Some(soon) = self.tx_ready.get(PREFETCH_AHEAD_QPS) {
            self.qps.prefetch(*soon, Qp::BOTH);
            self.qps.prefetch(*soon, Qp::SEND);
        }
        if let Some(next) = self.tx_ready.front()
            && let Some(qp) = self.qps.at_mut(*next)
            && qp.has_sends
        {
            qp.outstanding.prefetch_next();
        }
    }

    #[inline]
    fn transmit_qp(&mut self, slot: usize, outgoing: Outgoing, quantum: &mut u32) -> TxOutcome {
        let Some(qp) = self.qps.at_mut(slot) else { return TxOutcome::Done };
        qp.scheduled = false;
        // If no work request is outstanding, the requester is not accessed, because the access would load several cache
        // lines of requester state for each ACK sent.
        let may_request = matches!(qp.state, QpState::Rts | QpState::Sqd) && qp.has_sends();
        let Some(Connection { service: Service::Rc(rc), address_handle, headers, .. }) = &mut qp.connection
        else {
            return self.transmit_uc(slot, quantum);
        };
        let Some(handle) = self.address_handles.get(*address_handle) else { return TxOutcome::Done };
        let mut tx = TxContext {
            now: self.now,
            port: &mut self.port,
            budget: quantum,
            memory: &self.memory,
            pd: qp.pd,
            builder: PacketBuilder { template: &handle.template, headers },
            counters: &mut qp.counters,
        };
        let requests_first = rc.responses == Responses::AfterRequests && may_request;
        let mut outcome = TxOutcome::Done;
        if requests_first {
            rc.responses = Responses::First;
            outcome = rc.requester.transmit(&mut qp.outstanding, &mut tx);
        }
        if matches!(outcome, TxOutcome::Done | TxOutcome::Paced) {
            let answers = match outgoing {
                _ if rc.responses == Responses::None => TxOutcome::Done,
                Outgoing::All => rc.responder.transmit(rc.requester.congestion_mut(), &mut tx),
                Outgoing::Requests => TxOutcome::AckDelayed,
            };
            outcome = outcome.and_then(answers);
            rc.responses = match answers {
                TxOutcome::Done => Responses::None,
                TxOutcome::AckDelayed => Responses::First,
                _ if requests_first => Responses::First,
                _ => Responses::AfterRequests,
            };
        }
        if matches!(outcome, TxOutcome::Done | TxOutcome::AckDelayed) && may_request && !requests_first {
            outcome = outcome.and_then(rc.requester.transmit(&mut qp.outstanding, &mut tx));
        }
        if may_request {
            self.timers.set(slot, rc.requester.deadline(), self.now);
        }
        if outcome == TxOutcome::Paced
            && let Some(at) = rc.requester.congestion().next_permit_at()
        {
            self.timers.no_later_than(slot, at, self.now);
        }
        // After `Done` and `Paced`, a posted work request, a received packet or a timer schedules the queue pair again.
        qp.scheduled =
            matches!(outcome, TxOutcome::MoreToSend | TxOutcome::AckDelayed | TxOutcome::TxRingFull);
        if may_request && rc.requester.completes_oldest(&qp.outstanding) {
            self.after_requester(slot, None);
        }
        outcome
    }

    /// Sends responses that the queue pair with index `slot` has not sent yet: as many as the port takes and congestion
    /// control permits, at most `LAST_RESPONSES_PKTS`. The remaining responses are discarded. Called before the
    /// application destroys the queue pair or changes its state to RESET or ERR, after which no response may be sent
    /// (IBA 10.3.1). If an application ends as soon as it has received its last message, the ACK of this message is
    /// due, but not yet sent. Without this call the peer would never receive this ACK, and the retry count of the peer
    /// would be used up.
    #[cold]
    pub(super) fn send_last_responses(&mut self, slot: usize) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(Connection { service: Service::Rc(rc), address_handle, headers, .. }) = &mut qp.connection
        else {
            return;
        };
        let Some(handle) = self.address_handles.get(*address_handle) else { return };
        if std::mem::replace(&mut rc.responses, Responses::None) == Responses::None {
            return;
        }
        self.memory.enter();
        let mut budget = LAST_RESPONSES_PKTS;
        let mut tx = TxContext {
            now: self.now,
            port: &mut self.port,
            budget: &mut budget,
            memory: &self.memory,
            pd: qp.pd,
            builder: PacketBuilder { template: &handle.template, headers },
            counters: &mut qp.counters,
        };
        rc.responder.transmit_last(rc.requester.congestion_mut(), &mut tx);
        self.memory.leave();
        self.port.tx_flush();
    }

    /// Sends packets of an unreliable connection.
    #[inline(never)]
    fn transmit_uc(&mut self, slot: usize, quantum: &mut u32) -> TxOutcome {
        let Some(qp) = self.qps.at_mut(slot) else { return TxOutcome::Done };
        let Some(Connection { service: Service::Uc(uc), address_handle, headers, .. }) = &mut qp.connection
        else {
            return self.transmit_datagrams(slot, quantum);
        };
        let Some(handle) = self.address_handles.get(*address_handle) else { return TxOutcome::Done };
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return TxOutcome::Done;
        }
        let mut tx = TxContext {
            now: self.now,
            port: &mut self.port,
            budget: quantum,
            memory: &self.memory,
            pd: qp.pd,
            builder: PacketBuilder { template: &handle.template, headers },
            counters: &mut qp.counters,
        };
        let outcome = uc.sender.transmit(&mut qp.outstanding, &mut tx);
        if outcome == TxOutcome::Paced
            && let Some(at) = uc.sender.congestion().next_permit_at()
        {
            self.timers.no_later_than(slot, at, self.now);
        }
        qp.scheduled = matches!(outcome, TxOutcome::MoreToSend | TxOutcome::TxRingFull);
        self.after_sender(slot);
        outcome
    }

    pub(super) fn transmit_neighbour(&mut self) {
        for _ in 0..NEIGHBOUR_FRAMES_PER_POLL {
            let Some(frame) = self.neighbour.poll_transmit(self.now) else { return };
            // If the port has no transmit buffer, the frame is dropped. If the frame is an ARP or ND request or reply,
            // the requesting station retransmits the request.
            let Some(room) = self.port.tx_reserve(frame.len()) else { return };
            room.copy_from_slice(frame);
        }
    }
}
