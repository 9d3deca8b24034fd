//! CNPs: a received CNP is passed to the reaction point of its queue pair. When a packet with a CE mark is received,
//! the notification point decides whether a CNP to the peer becomes due.

use super::Engine;
use super::limits::CNPS_PER_POLL;
use crate::port::Port;
use crate::qp::emit::PacketBuilder;
use crate::wire::Packet;

impl<P: Port> Engine<P> {
    /// Counts a CE mark. If the packet has a payload and the notification point permits a CNP, a CNP becomes due. A
    /// packet without payload (ACK, READ request) elicits no CNP, because a CNP reduces the rate of payload packets.
    #[cold]
    pub(super) fn on_marked(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(connection) = &qp.connection else { return };
        let Some(handle) = self.address_handles.get(connection.address_handle) else { return };
        qp.counters.np_ecn_marked_roce_packets += 1;
        if packet.payload.is_empty() || qp.cnp_due {
            return;
        }
        if self.notifier.point.on_marked(self.now, slot, handle.peer()) {
            qp.cnp_due = true;
            self.notifier.due.push_back(slot);
        }
    }

    /// Passes a CNP to the congestion control of its queue pair. A CNP without the BECN bit, or to a queue pair whose
    /// congestion control does not react to CNPs, is counted as ignored.
    #[cold]
    pub(super) fn on_cnp(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(connection) = &mut qp.connection else { return };
        if packet.bth.becn && connection.service.congestion_mut().on_cnp(self.now) {
            qp.counters.rp_cnp_handled += 1;
        } else {
            qp.counters.rp_cnp_ignored += 1;
        }
    }

    /// Sends due CNPs, before all other packets of a poll. Returns the number of CNPs sent or discarded.
    #[cold]
    pub(super) fn transmit_notifications(&mut self) -> u32 {
        let traffic_class = self.notifier.point.config().traffic_class();
        for sent in 0..CNPS_PER_POLL {
            let Some(&slot) = self.notifier.due.front() else { return sent };
            // If the queue pair was destroyed, or is no longer in RTR, RTS, SQD or SQE, the due CNP is discarded.
            if let Some(qp) = self.qps.at_mut(slot).filter(|qp| qp.cnp_due)
                && let Some(connection) = qp.connection.as_mut().filter(|_| qp.state.receives())
                && let Some(handle) = self.address_handles.get(connection.address_handle)
            {
                let headers = &mut connection.headers;
                let mut builder = PacketBuilder { template: &handle.template, headers };
                if builder.emit_notification(&mut self.port, traffic_class).is_err() {
                    return sent;
                }
                qp.counters.np_cnp_sent += 1;
                qp.counters.sent_pkts += 1;
            }
            if let Some(qp) = self.qps.at_mut(slot) {
                qp.cnp_due = false;
            }
            self.notifier.due.pop_front();
        }
        CNPS_PER_POLL
    }
}
