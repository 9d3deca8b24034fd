//! Packets out: queue pairs take turns; each sends its answers first, then its requests. READ responses that leave
//! no room for requests in one turn go after them in the next.

use super::limits::{NEIGHBOUR_FRAMES_PER_POLL, TX_BUDGET_PKTS, TX_QUANTUM_PKTS};
use super::{Engine, Event};
use crate::port::Port;
use crate::qp::QpState;
use crate::qp::rc::requester::{Outlet, Turn};

/// What queue pairs may send in their turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outgoing {
    /// Answers, then requests.
    All,
    /// Requests; answers wait for the next poll.
    Requests,
}

impl<P: Port> Engine<P> {
    /// Gives queue pairs their turns until the budget or the port is used up. Returns packets sent.
    pub(super) fn transmit(&mut self, outgoing: Outgoing) -> u32 {
        let mut budget = TX_BUDGET_PKTS;
        while budget > 0 {
            let Some(slot) = self.turns.pop_front() else { break };
            let mut quantum = TX_QUANTUM_PKTS.min(budget);
            let before = quantum;
            let turn = self.take_turn(slot as usize, outgoing, &mut quantum);
            budget -= before - quantum;
            match turn {
                Turn::Done | Turn::Paced => {}
                Turn::MoreToSend => self.turns.push_back(slot),
                Turn::Later => self.later.push(slot),
                Turn::PortFull => {
                    self.turns.push_front(slot);
                    break;
                }
                Turn::MemoryGone => {
                    let gone = self.qps.at_mut(slot as usize).map(|qp| Event::QpAccessError(qp.qpn));
                    self.enter_error(slot as usize, gone);
                }
            }
        }
        self.turns.extend(self.later.drain(..));
        TX_BUDGET_PKTS - budget
    }

    #[inline]
    fn take_turn(&mut self, slot: usize, outgoing: Outgoing, quantum: &mut u32) -> Turn {
        let Some(qp) = self.qps.at_mut(slot) else { return Turn::Done };
        qp.scheduled = false;
        let Some(connection) = &mut qp.connection else { return Turn::Done };
        let mut outlet = Outlet {
            now: self.now,
            port: &mut self.port,
            budget: quantum,
            memory: &self.memory,
            pd: qp.init.pd,
            path: &mut connection.path,
            counters: &mut qp.counters,
        };
        let may_request = matches!(qp.state, QpState::Rts | QpState::Sqd);
        if connection.requester.in_flight().1 == 0 {
            connection.requester.share_reordering(&mut self.reorder_pkts);
        }
        let requests_first = std::mem::take(&mut connection.requests_owed) && may_request;
        let mut turn = Turn::Done;
        if requests_first {
            turn = connection.requester.transmit(&mut qp.outstanding, &mut outlet);
        }
        if matches!(turn, Turn::Done | Turn::Paced) {
            let answers = match outgoing {
                Outgoing::All => {
                    connection.responder.transmit(connection.requester.congestion_mut(), &mut outlet)
                }
                Outgoing::Requests if connection.responder.has_answers() => Turn::Later,
                Outgoing::Requests => Turn::Done,
            };
            turn = turn.and_then(answers);
            connection.requests_owed = !requests_first && !matches!(answers, Turn::Done | Turn::Later);
        }
        if matches!(turn, Turn::Done | Turn::Later) && may_request && !requests_first {
            turn = turn.and_then(connection.requester.transmit(&mut qp.outstanding, &mut outlet));
        }
        if let Some(deadline) = connection.requester.deadline().filter(|_| may_request) {
            self.timers.no_later_than(slot, deadline);
        }
        if turn == Turn::Paced
            && let Some(at) = connection.requester.congestion().next_permit_at()
        {
            self.timers.no_later_than(slot, at);
        }
        // Still in line, unless it is done.
        qp.scheduled = matches!(turn, Turn::MoreToSend | Turn::Later | Turn::PortFull);
        if connection.requester.local_fault(&qp.outstanding).is_some() {
            self.after_requester(slot, None);
        }
        turn
    }

    pub(super) fn transmit_neighbour(&mut self) {
        for _ in 0..NEIGHBOUR_FRAMES_PER_POLL {
            let Some(frame) = self.neighbour.poll_transmit(self.now) else { return };
            // A full port loses it; whoever waits for it asks again.
            let Some(room) = self.port.tx_reserve(frame.len()) else { return };
            room.copy_from_slice(frame);
        }
    }
}
