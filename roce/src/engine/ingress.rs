//! Reception: a RoCE packet is subject to header checks (`admit`) and the ICRC check (IBA 9.6), then processed by the
//! responder or completer (RC), or by the receiver (UC), of its queue pair; `datagram` processes packets to queue pairs
//! of UD. Module `neighbour` processes ARP, neighbour discovery and ICMP.

use super::admit::{Admission, admit, bind_source_port, is_mark_plausible};
use super::limits::{CACHED_QPS, FLUSH_NANOS, RX_BURST_FRAMES};
use super::qp_object::{Connection, Qp, Service};
use super::{Engine, Event, flush_later, schedule, schedule_qp};
use crate::counters::DropCounters;
use crate::id::{Mac, Qpn};
use crate::port::{PHANTOM_ICRC, Payload, Port};
use crate::qp::QpState;
use crate::qp::context::RxContext;
use crate::qp::rc::completer::Completer;
use crate::qp::rc::events::ResponseEvent;
use crate::qp::rc::reorder_buffer::ReorderStore;
use crate::qp::rc::responder::{Responder, ResponderAction};
use crate::qp::uc::receiver::ReceiverAction;
use crate::queue::WcStatus;
use crate::wire::{NakCode, Packet, ParseError, Transport, probable_dest_qp};

/// Builds the `RxContext` of a request to queue pair `$qp`. A function in place of this macro would borrow the whole
/// engine while `$qp`, a part of the engine, is borrowed.
macro_rules! rx_context {
    ($engine:ident, $qp:ident, $access:expr, $slot:expr) => {
        RxContext {
            memory: &$engine.memory,
            pd: $qp.pd,
            access: $access,
            min_rnr_timer: $qp.min_rnr_timer,
            receives: &mut $qp.receives,
            srqs: &mut $engine.srqs,
            cqs: &mut $engine.cqs,
            cq: $qp.recv_cq,
            qpn: $qp.qpn,
            counters: &mut $qp.counters,
            slot: $slot,
            now: $engine.now,
        }
    };
}
pub(super) use rx_context;

impl<P: Port> Engine<P> {
    pub(super) fn receive(&mut self) -> usize {
        let count = self.port.rx_burst(&mut self.frames, RX_BURST_FRAMES);
        if count > 0 {
            self.on_burst();
        }
        count
    }

    /// Processes the frames received. Not inlined, because otherwise each idle poll would save registers that only this
    /// function uses.
    #[inline(never)]
    fn on_burst(&mut self) {
        self.memory.enter();
        let mut frames = std::mem::take(&mut self.frames);
        if self.qps.len() > CACHED_QPS {
            self.prefetch_qps(&frames);
        }
        for frame in &frames {
            self.on_frame(frame.as_ref());
        }
        self.port.free_frames(&mut frames);
        self.frames = frames;
        self.report_srq_limits();
        // The engine uses memory regions only between `enter` and `leave`. If a queue pair is scheduled,
        // `transmit_scheduled` calls `leave`. If `poll` called `leave` at its end instead, each idle poll would have to
        // check whether `enter` was called.
        if self.tx_ready.is_empty() {
            self.memory.leave();
        }
    }

    /// Prefetches the destination queue pairs of a burst, so that the processor loads their states concurrently. First,
    /// the table entries of all QPNs are prefetched; otherwise the look-up of each QPN would wait for its table entry.
    #[inline(never)]
    fn prefetch_qps(&self, frames: &[P::Frame]) {
        let mut numbers = [0; RX_BURST_FRAMES];
        for (frame, number) in frames.iter().zip(&mut numbers) {
            *number = probable_dest_qp(frame.as_ref()).map_or(0, Qpn::value);
            self.qps.prefetch_number(*number);
        }
        for slot in numbers.iter().take(frames.len()).filter_map(|number| self.qps.slot_of(*number)) {
            self.qps.prefetch(slot, Qp::RECEIVE);
        }
    }

    #[inline]
    pub(super) fn report_srq_limits(&mut self) {
        while let Some(srq) = self.srqs.take_at_limit() {
            self.events.push_back(Event::SrqLimitReached(srq));
        }
    }

    /// Processes a received frame. Inlined, because a function call takes a tenth of the processing time of a packet.
    #[inline(always)]
    fn on_frame(&mut self, frame: &[u8]) {
        // The destination MAC is compared with the port's MAC first, so that unicast frames to another MAC are not
        // parsed.
        if frame.first_chunk() != Some(&self.mac.0) {
            return self.on_foreign_frame(frame);
        }
        // The packet is passed by reference. A move would load several fields in one access just after separate stores
        // to these fields, and such a load stalls until the stores have completed.
        match &Packet::parse(frame) {
            Ok(packet) => self.on_packet(packet),
            Err(reason) => {
                *parse_counter(&mut self.drops, *reason) += 1;
                if *reason == ParseError::NotRoce {
                    self.neighbour.handle_frame(frame, self.now);
                }
            }
        }
    }

    /// Processes a frame whose destination is not the port's own MAC. If the destination is a multicast or broadcast
    /// MAC that the port receives, an ARP, neighbour discovery or ICMP frame is passed to the module `neighbour`. All
    /// other frames are dropped, including RoCE packets to a group MAC, because RoCE multicast is not supported.
    #[cold]
    #[inline(never)]
    fn on_foreign_frame(&mut self, frame: &[u8]) {
        let Some(destination) = frame.first_chunk().map(|bytes| Mac(*bytes)) else {
            self.drops.truncated += 1;
            return;
        };
        if !destination.is_group() || !matches!(Packet::parse(frame), Err(ParseError::NotRoce)) {
            self.drops.wrong_mac += 1;
            return;
        }
        self.drops.not_roce += 1;
        if self.neighbour.is_member(destination) {
            self.neighbour.handle_frame(frame, self.now);
        }
    }

    #[inline(always)]
    fn on_packet(&mut self, packet: &Packet<'_>) {
        let slot = self.qps.slot_of(packet.bth.dest_qp.value());
        let Some((slot, qp)) = slot.and_then(|slot| Some((slot, self.qps.at_mut(slot)?))) else {
            let is_own = self.qpn_prefix.contains(packet.bth.dest_qp);
            *if is_own { &mut self.drops.unknown_qp } else { &mut self.drops.foreign_qp } += 1;
            return;
        };
        match admit(qp, &self.address_handles, packet) {
            Admission::Pass => {}
            Admission::Stale => {
                qp.counters.rcvd_pkts += 1;
                qp.counters.stale_responses += 1;
                return;
            }
            Admission::Drop(counter) => {
                // A queue pair of UD has no connection, so `admit` drops every packet to this queue pair. Only
                // dropped packets are tested for UD (`datagrams`): packets that `admit` passes need no test.
                if qp.datagrams.is_some() {
                    return self.on_datagram(slot, packet);
                }
                *counter(&mut self.drops) += 1;
                return;
            }
        }
        if !is_intact(&self.port, packet) {
            self.drops.rx_icrc_errors += 1;
            return;
        }
        qp.counters.rcvd_pkts += 1;
        if packet.info.transport == Transport::Cnp {
            self.on_cnp(slot, packet);
            return;
        }
        let is_request = packet.info.is_request;
        if qp.connection.as_ref().is_some_and(|connection| connection.source_ports.is_unbound(is_request)) {
            bind_source_port(qp, packet);
        }
        if packet.congestion_experienced() && is_mark_plausible(qp, packet) {
            self.on_marked(slot, packet);
        }
        if !is_request {
            self.on_response(slot, packet);
            return;
        }
        match self.with_responder(slot, |responder, rx, store| responder.on_request(packet, rx, store)) {
            Some(false) => {}
            Some(true) => self.replay(slot),
            None => self.on_uc_request(slot, packet),
        }
    }

    /// Executes each buffered or placed request of a queue pair, from the expected PSN up to the next gap.
    #[cold]
    #[inline(never)]
    fn replay(&mut self, slot: usize) {
        if self.qps.at_mut(slot).is_some_and(|qp| qp.state.receives()) {
            self.with_responder(slot, Responder::replay);
        }
    }

    /// Calls `take` with the responder of the queue pair with index `slot`. Then schedules the queue pair if an ACK, a
    /// NAK or a READ response is to be sent, and puts the queue pair into state ERR after `ResponderAction::Fatal`.
    /// Returns whether the packet with the expected PSN is buffered or placed; `None` if the queue pair has no
    /// responder.
    #[inline(always)]
    pub(super) fn with_responder(
        &mut self,
        slot: usize,
        take: impl FnOnce(&mut Responder, &mut RxContext<'_>, &mut ReorderStore) -> ResponderAction,
    ) -> Option<bool> {
        let qp = self.qps.at_mut(slot)?;
        if qp.state == QpState::Rtr && !std::mem::replace(&mut qp.established, true) {
            self.events.push_back(Event::CommunicationEstablished(qp.qpn));
        }
        let Some(Connection { service: Service::Rc(rc), access, .. }) = &mut qp.connection else {
            return None;
        };
        let mut rx = rx_context!(self, qp, *access, slot);
        let action = take(&mut rc.responder, &mut rx, &mut self.reorder);
        let has_next = rc.responder.has_buffered_next();
        if action != ResponderAction::Nothing {
            rc.on_response_due();
        }
        match action {
            ResponderAction::Nothing => {}
            ResponderAction::Answer => schedule_qp(qp, &mut self.tx_ready, slot),
            ResponderAction::Fatal(code) => self.enter_refused(slot, code),
        }
        Some(has_next)
    }

    /// Puts the queue pair with index `slot`, whose responder refused a request, into state ERR, and schedules the NAK
    /// with `code`.
    #[cold]
    #[inline(never)]
    fn enter_refused(&mut self, slot: usize, code: NakCode) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let event = refusal_event(qp.qpn, code);
        self.enter_error(slot, Some(event));
        schedule(&mut self.qps, &mut self.tx_ready, slot);
    }

    #[cold]
    #[inline(never)]
    fn on_uc_request(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        if qp.state == QpState::Rtr && !std::mem::replace(&mut qp.established, true) {
            self.events.push_back(Event::CommunicationEstablished(qp.qpn));
        }
        let Some(Connection { service: Service::Uc(uc), access, .. }) = &mut qp.connection else { return };
        let mut rx = rx_context!(self, qp, *access, slot);
        if uc.receiver.on_request(packet, &mut rx) == ReceiverAction::Fatal {
            let event = Event::QpFatal(qp.qpn);
            self.enter_error(slot, Some(event));
        }
    }

    #[inline]
    fn on_response(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(Connection { service: Service::Rc(rc), .. }) = &mut qp.connection else { return };
        let (una, sent) = rc.requester.in_flight();
        let mut completer = Completer {
            outstanding: &mut qp.outstanding,
            una,
            sent,
            recovery: rc.requester.recovery(),
            mtu_bytes: rc.requester.mtu_bytes(),
            memory: &self.memory,
            pd: qp.pd,
            counters: &mut qp.counters,
        };
        let outcome = completer.on_response(packet);
        if outcome == ResponseEvent::Ignored {
            return;
        }
        let failed = rc.requester.on_response_event(self.now, outcome, &mut qp.outstanding, &mut qp.counters);
        self.after_requester(slot, failed);
    }

    /// At the transition to SQD, completes the send work requests that are acknowledged (RC) or sent (UC, UD).
    pub(super) fn after_sends(&mut self, slot: usize) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        match qp.connection.as_ref().map(|connection| &connection.service) {
            Some(Service::Rc(_)) => self.after_requester(slot, None),
            _ => self.after_sender(slot),
        }
    }

    /// On an unreliable service, completes each work request of which all packets were sent. If a work request cannot
    /// be sent, the queue pair enters SQE (IBA 10.3.1).
    pub(super) fn after_sender(&mut self, slot: usize) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some((next, fault)) = qp.sent_unreliably() else { return };
        let mut completions = Qp::send_completions(&mut self.cqs, qp.send_cq, qp.qpn, &mut qp.counters);
        completions.complete_before(&mut qp.outstanding, next);
        if let Some(status) = fault {
            completions.fail_oldest(&mut qp.outstanding, status);
            qp.set_state(QpState::Sqe);
            flush_later(&mut self.qps, &mut self.errors, slot);
            return;
        }
        self.report_drained(slot);
    }

    /// In state SQD, reports `SendQueueDrained` once, when all started work requests have completed.
    #[inline]
    fn report_drained(&mut self, slot: usize) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let drained = qp.state == QpState::Sqd && qp.outstanding.assigned() == 0;
        if drained && !std::mem::replace(&mut qp.drained, true) {
            self.events.push_back(Event::SendQueueDrained(qp.qpn));
        }
    }

    pub(super) fn after_requester(&mut self, slot: usize, failed: Option<WcStatus>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(Connection { service: Service::Rc(rc), .. }) = &mut qp.connection else { return };
        let (una, _) = rc.requester.in_flight();
        let mut completions = Qp::send_completions(&mut self.cqs, qp.send_cq, qp.qpn, &mut qp.counters);
        completions.complete_before(&mut qp.outstanding, una);
        let failed = failed.or_else(|| rc.requester.local_fault(&qp.outstanding));
        if let Some(status) = failed {
            completions.fail_oldest(&mut qp.outstanding, status);
            self.enter_error(slot, None);
            return;
        }
        // This call also replaces a deadline of the pacer. If the pacer still delays the queue pair, the transmission
        // scheduled below sets the deadline of the pacer again.
        self.timers.set(slot, rc.requester.deadline(), self.now);
        self.report_drained(slot);
        schedule(&mut self.qps, &mut self.tx_ready, slot);
    }

    /// If a queue pair is not in ERR, changes its state to ERR and reports `event`. In any case, schedules the flush of
    /// its queues.
    pub(super) fn enter_error(&mut self, slot: usize, event: Option<Event>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        if qp.state != QpState::Err {
            qp.set_state(QpState::Err);
            self.qp_errors += 1;
            self.events.extend(event);
            qp.close_reorder_buffer(slot, &mut self.reorder);
            if qp.receives.srq().is_some() {
                qp.flush_receives(&mut self.cqs, 1);
                self.events.push_back(Event::LastWqeReached(qp.qpn));
            }
            qp.flush_until = self.now.plus_nanos(FLUSH_NANOS);
        }
        flush_later(&mut self.qps, &mut self.errors, slot);
    }
}

/// Returns the event of a queue pair that refuses a request by a NAK with `code`.
pub(super) fn refusal_event(qpn: Qpn, code: NakCode) -> Event {
    match code {
        NakCode::RemoteAccessError => Event::QpAccessError(qpn),
        NakCode::RemoteOperationalError => Event::QpFatal(qpn),
        _ => Event::QpRequestError(qpn),
    }
}

#[inline(always)]
fn is_intact<P: Port>(port: &P, packet: &Packet<'_>) -> bool {
    match port.payload() {
        Payload::Carried => packet.icrc_ok(),
        Payload::Phantom => packet.icrc() == PHANTOM_ICRC,
    }
}

fn parse_counter(drops: &mut DropCounters, reason: ParseError) -> &mut u64 {
    match reason {
        ParseError::NotRoce => &mut drops.not_roce,
        ParseError::Truncated => &mut drops.truncated,
        ParseError::StackedVlan => &mut drops.stacked_vlan,
        ParseError::BadIpVersion => &mut drops.bad_ip_version,
        ParseError::Ipv4Options => &mut drops.ipv4_options,
        ParseError::Fragment => &mut drops.fragment,
        ParseError::BadIpChecksum => &mut drops.bad_ip_checksum,
        ParseError::LengthMismatch => &mut drops.length_mismatch,
        ParseError::BadTver => &mut drops.bad_tver,
        ParseError::UnknownOpcode => &mut drops.unknown_opcode,
        ParseError::BadPad => &mut drops.bad_pad,
        ParseError::UnexpectedPayload => &mut drops.unexpected_payload,
    }
}
