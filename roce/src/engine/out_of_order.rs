//! Out-of-order packets: buffering, expiry, and execution once the gap below them is closed.

use super::Engine;
use super::ingress::Next;
use super::limits::{REORDER_COPY_BYTES, REORDER_EXPIRED_PER_POLL};
use super::reorder::{Kind, Room, Taken};
use crate::counters::QpCounters;
use crate::port::{Payload, Port};
use crate::psn::Psn;
use crate::qp::rc::responder::OutOfOrder;
use crate::wire::Packet;

impl<P: Port> Engine<P> {
    /// Processes an out-of-order packet. If its frame is to be buffered, returns the index of the queue pair (slot) and
    /// the PSN.
    #[cold]
    #[inline(never)]
    pub(super) fn on_out_of_order(
        &mut self,
        slot: usize,
        packet: &Packet<'_>,
        frame_bytes: usize,
        first: bool,
    ) -> Option<(usize, Psn)> {
        let psn = packet.bth.psn;
        self.discard_conflicting(slot, packet);
        let expected = self.qps.at_mut(slot)?.connection.as_ref()?.responder.expected_psn();
        let room = self.reorder.room(slot, Kind::of(frame_bytes), psn, expected);
        let found = OutOfOrder { first, has_room: room != Room::None };
        let next = self.with_responder(slot, |responder, rx| responder.on_out_of_order(packet, found, rx));
        if !matches!(next, Next::Buffer) {
            return None;
        }
        if let Room::Instead(farthest) = room {
            self.reorder.discard(slot, farthest);
            self.on_discarded(slot, farthest, |counters| &mut counters.reorder_no_room);
        }
        Some((slot, psn))
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
        let buffered = self.reorder.get(slot, psn).and_then(|frame| Packet::parse(frame).ok());
        let is_same = match buffered {
            Some(buffered) => Some(packet.has_content_of(&buffered)),
            None => responder.is_same_as_placed(packet),
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

    /// Buffers the frame at index `at` of `frames`, or a copy of that frame. Returns the index of the next frame to
    /// process.
    #[cold]
    #[inline(never)]
    pub(super) fn buffer(&mut self, slot: usize, psn: Psn, frames: &mut Vec<P::Frame>, at: usize) -> usize {
        let Some(frame) = frames.get(at).map(P::Frame::as_ref) else { return at + 1 };
        match Kind::of(frame.len()) {
            Kind::Copy => {
                self.reorder.buffer_copy(slot, psn, frame, self.now);
                at + 1
            }
            Kind::Frame => {
                // `remove` keeps the order of the later frames; it moves at most one burst of them.
                self.reorder.buffer_frame(slot, psn, frames.remove(at), self.now);
                at
            }
        }
    }

    /// Executes buffered and placed packets from the expected PSN up to the next gap, at most one window of packets.
    #[inline(never)]
    pub(super) fn replay(&mut self, slot: usize) {
        let mut room = [0; REORDER_COPY_BYTES];
        loop {
            let Some(qp) = self.qps.at_mut(slot).filter(|qp| qp.state.receives()) else { return };
            let Some(responder) = qp.connection.as_ref().map(|connection| &connection.responder) else {
                return;
            };
            if !responder.has_buffered_next() {
                return;
            }
            let expected = responder.expected_psn();
            if responder.has_placed() {
                self.with_responder(slot, |responder, rx| responder.on_placed(rx));
                continue;
            }
            let Some(taken) = self.reorder.take(slot, expected, &mut room) else { return };
            let frame = match &taken {
                Taken::Frame(frame) => frame.as_ref(),
                Taken::Copy(len_bytes) => room.get(..*len_bytes).unwrap_or_default(),
            };
            if let Ok(packet) = &Packet::parse(frame) {
                // The same closure as in `Engine::on_request`: the compiler would not inline a shared one.
                self.with_responder(slot, |responder, rx| responder.on_request(packet, rx));
            }
        }
    }

    /// Drops expired packets of the reorder buffer. Returns whether more packets may have expired.
    #[inline]
    pub(super) fn expire_buffered(&mut self) -> bool {
        for _ in 0..REORDER_EXPIRED_PER_POLL {
            let Some((slot, psn)) = self.reorder.pop_expired(self.now) else { return false };
            self.on_discarded(slot, psn, |counters| &mut counters.reorder_expired);
        }
        true
    }

    fn on_discarded(&mut self, slot: usize, psn: Psn, counter: fn(&mut QpCounters) -> &mut u64) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        *counter(&mut qp.counters) += 1;
        if let Some(connection) = &mut qp.connection {
            connection.responder.discard(psn);
        }
    }
}
