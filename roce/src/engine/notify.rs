//! Congestion notifications: in, to the reaction point of the queue pair they name; out, where a marked
//! packet came in.

use std::collections::VecDeque;

use super::Engine;
use super::limits::CNPS_PER_POLL;
use crate::congestion::notification::{NotificationConfig, NotificationPoint};
use crate::port::Port;
use crate::wire::Packet;

/// Notifications that wait to be sent.
pub(super) struct Notifier {
    point: NotificationPoint,
    /// Slots of queue pairs that owe their peer one; a queue pair owes one at most.
    due: VecDeque<u32>,
}

impl Notifier {
    /// For a device with `slots` queue pairs at most.
    pub(super) fn new(config: NotificationConfig, slots: usize) -> Self {
        Notifier { point: NotificationPoint::new(config, slots), due: VecDeque::new() }
    }

    /// Whether any waits.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.due.is_empty()
    }

    /// Makes room for those of `qps` queue pairs, so that none is allocated for later.
    pub(super) fn reserve(&mut self, qps: usize) {
        self.due.reserve(qps);
    }
}

impl<P: Port> Engine<P> {
    /// A packet that is right in every way, and whose PSN is plausible, was marked on its way here. Only data is answered: a mark on an
    /// acknowledgement tells of congestion that slowing data the other way would not mend.
    #[cold]
    pub(super) fn on_marked(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(connection) = &qp.connection else { return };
        qp.counters.np_ecn_marked_roce_packets += 1;
        if packet.payload.is_empty() || qp.cnp_due {
            return;
        }
        if self.notifier.point.on_marked(self.now, slot, &connection.peer) {
            qp.cnp_due = true;
            self.notifier.due.push_back(slot as u32);
        }
    }

    /// A notification came.
    #[cold]
    pub(super) fn on_cnp(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(connection) = &mut qp.connection else { return };
        if packet.bth.becn && connection.requester.congestion_mut().on_cnp(self.now) {
            qp.counters.rp_cnp_handled += 1;
        } else {
            qp.counters.rp_cnp_ignored += 1;
        }
    }

    /// Sends notifications, before all else: they are to overtake what waits. Returns how many.
    #[cold]
    pub(super) fn transmit_notifications(&mut self) -> u32 {
        let traffic_class = self.notifier.point.config().traffic_class();
        for sent in 0..CNPS_PER_POLL {
            let Some(&slot) = self.notifier.due.front() else { return sent };
            // A queue pair that is no more, or no longer connected, owes nothing.
            if let Some(qp) = self.qps.at_mut(slot as usize).filter(|qp| qp.cnp_due)
                && let Some(connection) = qp.connection.as_mut().filter(|_| qp.state.receives())
            {
                if connection.builder.emit_notification(&mut self.port, traffic_class).is_err() {
                    return sent;
                }
                qp.counters.np_cnp_sent += 1;
                qp.counters.sent_pkts += 1;
            }
            if let Some(qp) = self.qps.at_mut(slot as usize) {
                qp.cnp_due = false;
            }
            self.notifier.due.pop_front();
        }
        CNPS_PER_POLL
    }
}
