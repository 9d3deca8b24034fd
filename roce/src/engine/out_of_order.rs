//! Out-of-order packets: buffering, expiry, and execution once the gap below them is closed.

use super::Engine;
use super::ingress::Next;
use super::limits::REORDER_EXPIRED_PER_POLL;
use super::reorder::Room;
use crate::port::{Payload, Port};
use crate::psn::Psn;
use crate::qp::rc::responder::OutOfOrder;
use crate::wire::Packet;

impl<P: Port> Engine<P> {
    #[cold]
    #[inline(never)]
    pub(super) fn on_out_of_order(&mut self, slot: usize, packet: &Packet<'_>, frame: &[u8], first: bool) {
        let psn = packet.bth.psn;
        self.discard_conflicting(slot, packet);
        let Some(connection) = self.qps.at_mut(slot).and_then(|qp| qp.connection.as_ref()) else { return };
        let expected = connection.responder.expected_psn();
        let mut room = self.reorder.room(slot, frame.len(), psn, expected);
        let found = OutOfOrder { first, has_room: room != Room::None };
        let next = self.with_responder(slot, |responder, rx| responder.on_out_of_order(packet, found, rx));
        if !matches!(next, Next::Buffer) {
            return;
        }
        // A long frame may need the room of several short ones.
        while let Room::Instead(farthest) = room {
            self.reorder.discard(slot, farthest);
            self.on_no_room(slot, farthest);
            room = self.reorder.room(slot, frame.len(), psn, expected);
        }
        if room == Room::None || !self.reorder.buffer(slot, psn, frame, self.now) {
            self.on_no_room(slot, psn);
        }
    }

    /// If the content of `packet` differs from that of the buffered or placed packet of the same PSN (conflict),
    /// discards the earlier packet, because otherwise a forged packet that was received before the peer's packet would
    /// be executed. Under relaxed placement, discards instead all out-of-order packets of the queue pair.
    fn discard_conflicting(&mut self, slot: usize, packet: &Packet<'_>) {
        let psn = packet.bth.psn;
        // Bytes of phantom payload are unspecified, so contents cannot be compared.
        if self.port.payload() == Payload::Phantom {
            return;
        }
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(connection) = &mut qp.connection else { return };
        let responder = &mut connection.responder;
        let is_same = if self.reorder.copy_to(slot, psn, &mut self.taken) {
            Packet::parse(&self.taken).ok().map(|buffered| packet.has_content_of(&buffered))
        } else {
            responder.is_same_as_placed(packet)
        };
        if is_same != Some(false) {
            return;
        }
        qp.counters.reorder_conflicts += 1;
        if responder.discard_out_of_order() {
            self.reorder.clear(slot);
        } else {
            responder.discard(psn);
            self.reorder.discard(slot, psn);
        }
    }

    /// Executes buffered and placed packets from the expected PSN up to the next gap, at most one window of packets.
    #[inline(never)]
    pub(super) fn replay(&mut self, slot: usize) {
        let mut frame = std::mem::take(&mut self.taken);
        while let Some(qp) = self.qps.at_mut(slot).filter(|qp| qp.state.receives()) {
            let Some(connection) = &qp.connection else { break };
            let responder = &connection.responder;
            if !responder.has_buffered_next() {
                break;
            }
            let expected = responder.expected_psn();
            if responder.has_placed() {
                self.with_responder(slot, |responder, rx| responder.on_placed(rx));
                continue;
            }
            if !self.reorder.take(slot, expected, &mut frame) {
                break;
            }
            if let Ok(packet) = &Packet::parse(&frame) {
                // The same closure as in `Engine::on_request`: the compiler would not inline a shared one.
                self.with_responder(slot, |responder, rx| responder.on_request(packet, rx));
            }
        }
        self.taken = frame;
    }

    /// Drops expired packets of the reorder buffer. Returns whether more packets may have expired.
    #[inline]
    pub(super) fn expire_buffered(&mut self) -> bool {
        for _ in 0..REORDER_EXPIRED_PER_POLL {
            let Some((slot, psn)) = self.reorder.pop_expired(self.now) else { return false };
            self.on_expired(slot, psn);
        }
        true
    }

    fn on_no_room(&mut self, slot: usize, psn: Psn) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        qp.counters.reorder_no_room += 1;
        if let Some(connection) = &mut qp.connection {
            connection.responder.discard_for_room(psn);
        }
    }

    fn on_expired(&mut self, slot: usize, psn: Psn) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        qp.counters.reorder_expired += 1;
        if let Some(connection) = &mut qp.connection {
            connection.responder.discard(psn);
        }
    }
}
