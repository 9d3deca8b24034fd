//! The requester: segments work requests into request packets, and retransmits lost packets (IBA 9.7.2 to 9.7.6).

use super::ack_req::AckReq;
use super::events::ResponseEvent;
use crate::congestion::loss_window::LossWindow;
use crate::congestion::{Congestion, CongestionScheme};
use crate::counters::QpCounters;
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::ConnAttr;
use crate::qp::context::{TxContext, TxOutcome};
use crate::qp::emit::{NotSent, PortFull};
use crate::qp::local::start_local;
use crate::qp::outbound::{send_segment, takes_receive};
use crate::qp::outstanding::{Kind, Outstanding, Place};
use crate::qp::segment::{Segment, segment};
use crate::queue::{SendOp, WcStatus};
use crate::recovery::loss_timer::LossTimer;
use crate::recovery::{
    AckEvent, Expiry, Nak, Recovery, RecoveryResult, RecoveryScheme, Requests as _, SentRequest, Spurious,
};
use crate::time::{Instant, OptionalInstant};
use crate::wire::{Opcode, PacketSpec, PrecedingReads, RecvEth, Reth};

const RNR_RETRY_FOREVER: u8 = 7;

/// If the oldest request in flight is a READ request, this number of READs of the same length may be in flight, even if
/// the loss window is smaller. A loss window of less than two READs would permit one READ at a time, with a round trip
/// between two READs. Four READs of up to 4 packets are within the smallest loss window.
const READS_IN_FLIGHT_MIN: u32 = 4;

/// Parameters of a requester, known at the transition to RTS; fields as in [`ConnAttr`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequesterConfig {
    pub first_psn: Psn,
    pub mtu_bytes: u32,
    pub timeout: u8,
    pub initial_rtt_nanos: u32,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub max_rd_atomic: u8,
    pub congestion: CongestionScheme,
    pub link_bits_per_sec: u64,
    pub recovery: RecoveryScheme,
}

impl RequesterConfig {
    pub(crate) fn new(conn: &ConnAttr, first_psn: Psn, link_bits_per_sec: u64) -> Self {
        RequesterConfig {
            first_psn,
            mtu_bytes: conn.path_mtu.bytes(),
            timeout: conn.timeout,
            initial_rtt_nanos: conn.initial_rtt_nanos,
            retry_count: conn.retry_count,
            rnr_retry: conn.rnr_retry,
            max_rd_atomic: conn.max_rd_atomic,
            congestion: conn.congestion.unwrap_or_default(),
            link_bits_per_sec,
            recovery: conn.recovery,
        }
    }

    pub(crate) fn read_pkts_max(&self) -> u32 {
        let window_pkts = self.congestion.read_window_pkts(self.max_rd_atomic);
        self.recovery.read_pkts_max(window_pkts, self.max_rd_atomic)
    }
}

/// A work request that cannot be sent: its payload cannot be read from registered memory, or it is a READ and
/// `max_rd_atomic` is 0, or it is a local operation that failed.
#[derive(Clone, Copy, Debug)]
struct LocalFault {
    position: u32,
    status: WcStatus,
}

/// State of the requester of a reliable connection. Each message accesses all of this state, so `Requester` does not
/// store the parameters of [`RequesterConfig`] that only `new` and `reconfigure` need.
pub(crate) struct Requester {
    pub(super) recovery: Recovery,
    pub(super) loss_timer: LossTimer,
    pub(super) congestion: Congestion,
    /// Under improved go-back-N, limits the packets in flight, because a loss causes the retransmission of all of them.
    /// Under selective repeat, if the peer's reorder buffer had no room, limits the number of PSNs sent from una on.
    loss_window: LossWindow,
    /// RNR wait: no request is sent before this time.
    pub(super) rnr_until: OptionalInstant,
    local_fault: Option<LocalFault>,
    ack_req: AckReq,
    mtu_bytes: u32,
    max_rd_atomic: u8,
    retry_count: u8,
    rnr_retry: u8,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// True in state SQD: no further work request starts.
    draining: bool,
}

impl Requester {
    pub(crate) fn new(config: RequesterConfig) -> Self {
        Requester {
            recovery: Recovery::new(config.recovery, config.first_psn),
            loss_timer: LossTimer::new(config.recovery, config.timeout, config.initial_rtt_nanos),
            congestion: Congestion::new(&config.congestion, config.link_bits_per_sec),
            loss_window: LossWindow::default(),
            rnr_until: OptionalInstant::NONE,
            local_fault: None,
            ack_req: AckReq::default(),
            mtu_bytes: config.mtu_bytes,
            max_rd_atomic: config.max_rd_atomic,
            retry_count: config.retry_count,
            rnr_retry: config.rnr_retry,
            retries_left: config.retry_count,
            rnr_retries_left: config.rnr_retry,
            draining: false,
        }
    }

    #[inline]
    pub(crate) fn mtu_bytes(&self) -> u32 {
        self.mtu_bytes
    }

    /// Returns una, and the number of PSNs sent from una on.
    #[inline]
    pub(crate) fn in_flight(&self) -> (Psn, u32) {
        (self.recovery.una(), self.recovery.sent())
    }

    pub(crate) fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Returns the maximum number of packets in flight. During a probe of improved go-back-N, no packet above the probe
    /// is sent. Otherwise the maximum is the loss window, but if the oldest request in flight is a READ request, at
    /// least [`READS_IN_FLIGHT_MIN`] times the number of its responses.
    #[inline]
    pub(super) fn in_flight_pkts_max(&self, outstanding: &mut Outstanding) -> u32 {
        let probe_pkts_max = self.loss_timer.probe_pkts_max(&self.recovery);
        match (probe_pkts_max, self.loss_window.window_pkts()) {
            (Some(pkts_max), _) => pkts_max,
            (None, u32::MAX) => u32::MAX,
            (None, window_pkts) => window_pkts.max(self.read_pkts_in_flight_min(outstanding)),
        }
    }

    #[cold]
    fn read_pkts_in_flight_min(&self, outstanding: &mut Outstanding) -> u32 {
        let oldest = outstanding.request_at(self.recovery.una()).filter(|request| request.is_read);
        oldest.map_or(0, |request| READS_IN_FLIGHT_MIN * request.packets)
    }

    /// Returns the congestion control, whose pacer also delays the READ responses of this queue pair.
    #[inline]
    pub(crate) fn congestion_mut(&mut self) -> &mut Congestion {
        &mut self.congestion
    }

    pub(crate) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Returns the time at which the engine must call `on_time`.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.loss_timer.deadline().min(self.rnr_until).get()
    }

    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Changes the parameters. An armed timer keeps its deadline. If `is_congestion_changed`, congestion control starts
    /// anew.
    pub(crate) fn reconfigure(&mut self, config: RequesterConfig, is_congestion_changed: bool) {
        if is_congestion_changed {
            self.congestion = Congestion::new(&config.congestion, config.link_bits_per_sec);
        }
        self.mtu_bytes = config.mtu_bytes;
        self.max_rd_atomic = config.max_rd_atomic;
        self.retry_count = config.retry_count;
        self.rnr_retry = config.rnr_retry;
        self.loss_timer.set_timeout(config.timeout);
        self.retries_left = config.retry_count;
        self.rnr_retries_left = config.rnr_retry;
    }

    /// Sends requests and retransmissions until no packet is ready or permitted, `tx.budget` is 0, or the port is
    /// full.
    pub(crate) fn transmit<P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        tx: &mut TxContext<'_, P>,
    ) -> TxOutcome {
        if !self.rnr_until.is_none() {
            return TxOutcome::Done;
        }
        let in_flight_pkts_max = self.in_flight_pkts_max(outstanding);
        loop {
            let psn = self.recovery.next_psn();
            if !self.may_send(tx.now, in_flight_pkts_max) {
                let is_paced = self.congestion.next_permit_at().is_some_and(|at| at > tx.now);
                return if is_paced { TxOutcome::Paced } else { TxOutcome::Done };
            }
            let is_new = psn == outstanding.end();
            let place = if is_new { self.start_next(outstanding, tx) } else { self.find(outstanding, psn) };
            let Some(place) = place else { return TxOutcome::Done };
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            if place.span.packets == 0 {
                // A local operation was executed. `tx.budget` also bounds the local operations of a poll.
                *tx.budget -= 1;
                continue;
            }
            let is_selective = self.recovery.is_selective();
            // SENDs are numbered under selective repeat.
            let recveth = is_selective.then(|| RecvEth {
                recv_seq: outstanding.receives_before(place.index),
                packet: place.packet,
            });
            let Some(open) = outstanding.queue().open(place.index, tx.memory, tx.pd) else {
                return TxOutcome::Done;
            };
            let (op, len_bytes, mtu_bytes) = (&open.wqe.op, open.wqe.list.len_bytes, self.mtu_bytes);
            let part = segment(op, len_bytes, place.packet, mtu_bytes, is_selective);
            if part.opcode == Opcode::RC_RDMA_READ_REQUEST {
                match self.send_read(outstanding, part, (psn, place, in_flight_pkts_max), tx) {
                    Ok(true) => continue,
                    Ok(false) => return TxOutcome::Done,
                    Err(PortFull) => return TxOutcome::TxRingFull,
                }
            }
            let mut spec = tx.builder.packet(part.opcode, psn, part.payload_len);
            let has_ack_req = self.is_ack_req_due(part.is_last, in_flight_pkts_max, tx.now);
            spec.ack_req = has_ack_req;
            match send_segment(open, &part, &mut spec, (recveth, None), tx) {
                Ok(()) => self.account_for(psn, &part, has_ack_req, tx),
                Err(NotSent::PortFull) => return TxOutcome::TxRingFull,
                Err(NotSent::BadMemory) => {
                    let position = outstanding.position_of(place.index);
                    self.local_fault = Some(LocalFault { position, status: WcStatus::LocProtErr });
                    return TxOutcome::Done;
                }
            }
        }
    }

    /// Returns the position of packet `psn`, whose PSN is already assigned to a work request; `None` if this work
    /// request cannot be sent (its position is in the field `local_fault`). Lost packets of earlier work requests
    /// are still retransmitted.
    #[inline]
    fn find(&self, outstanding: &mut Outstanding, psn: Psn) -> Option<Place> {
        let place = outstanding.find(psn)?;
        let position = outstanding.position_of(place.index);
        self.local_fault.is_none_or(|fault| fault.position != position).then_some(place)
    }

    /// Returns whether `max_rd_atomic` READ requests are outstanding. Does not count READ requests that the peer
    /// buffers, because these do not use responder resources yet.
    #[inline]
    fn is_at_max_reads(&self, outstanding: &Outstanding) -> bool {
        outstanding.outstanding_reads().saturating_sub(self.recovery.buffered_reads())
            >= u32::from(self.max_rd_atomic)
    }

    /// Returns the number of PSNs of the READ request to send. `place`: the READ and the PSN to send. `None` if no READ
    /// request may be sent now.
    #[inline(never)]
    fn read_span(&self, outstanding: &Outstanding, place: Place) -> Option<u32> {
        let request = outstanding.request_of(&place);
        let is_probe = self.loss_timer.is_probing();
        self.recovery.read_span(request, is_probe, || !self.is_at_max_reads(outstanding))
    }

    #[inline]
    pub(super) fn may_send(&mut self, now: Instant, in_flight_pkts_max: u32) -> bool {
        let Some(limited_pkts) = self.recovery.limited_pkts(in_flight_pkts_max) else { return false };
        // A window that congestion control reduced below the number of packets in flight does not block the last packet
        // of improved go-back-N, as it blocks no probe (RFC 9002, section 7.5); a pacer does.
        self.congestion.permit(now, limited_pkts)
            || (self.loss_timer.retransmits_last() && self.congestion.permit(now, 0))
    }

    /// If the next work request may start, assigns PSNs to it and returns the position of its first packet. If it is a
    /// local operation, executes it and returns its position.
    #[inline]
    fn start_next<P: Port>(&mut self, outstanding: &mut Outstanding, tx: &TxContext<'_, P>) -> Option<Place> {
        if self.draining || self.local_fault.is_some() {
            return None;
        }
        let wqe = outstanding.next_unassigned()?;
        if wqe.op.is_local() {
            let is_una_end = self.recovery.una() == outstanding.end();
            let started = start_local(outstanding, is_una_end, tx);
            return started.unwrap_or_else(|status| self.fail_next(outstanding, status));
        }
        let is_read = matches!(wqe.op, SendOp::Read { .. });
        let kind = Kind { is_read, takes_receive: takes_receive(&wqe.op) };
        let is_fenced = wqe.flags.fence;
        let len_bytes = wqe.list.len_bytes;
        let max_reads = u32::from(self.max_rd_atomic);
        if is_read && max_reads == 0 {
            // If `max_rd_atomic` is 0, no READ request may be sent: the READ fails, because otherwise it would never
            // complete.
            return self.fail_next(outstanding, WcStatus::LocQpOpErr);
        }
        if (is_read && self.is_at_max_reads(outstanding)) || (is_fenced && outstanding.assigned_reads() > 0) {
            return None;
        }
        outstanding.assign(len_bytes, kind, self.recovery.sent(), self.mtu_bytes)
    }

    /// Records that the next work request cannot start: it completes with `status` when it is the oldest.
    #[cold]
    fn fail_next(&mut self, outstanding: &Outstanding, status: WcStatus) -> Option<Place> {
        let position = outstanding.position_of(outstanding.assigned());
        self.local_fault = Some(LocalFault { position, status });
        None
    }

    /// Returns whether the next packet has AckReq. `is_last`: the packet ends its message.
    #[inline(always)]
    fn is_ack_req_due(&self, is_last: bool, in_flight_pkts_max: u32, now: Instant) -> bool {
        let window_pkts = || self.congestion.window_pkts().min(in_flight_pkts_max);
        let is_overdue = || !self.congestion.is_window() && self.loss_timer.is_ack_req_overdue(now);
        self.ack_req.is_due(is_last, window_pkts, || self.recovery.unacked(), is_overdue)
    }

    /// Sends the READ request `part`, limited to the responses that may be requested now. Returns false if no READ
    /// request may be sent now. Not inlined, so that the code for SENDs and WRITEs stays short.
    #[inline(never)]
    fn send_read<P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        mut part: Segment,
        (psn, place, in_flight_pkts_max): (Psn, Place, u32),
        tx: &mut TxContext<'_, P>,
    ) -> Result<bool, PortFull> {
        let (is_selective, is_retransmission) =
            (self.recovery.is_selective(), self.recovery.is_retransmission());
        let mut is_doubled = false;
        if is_selective || is_retransmission {
            let Some(span) = self.read_span(outstanding, place) else { return Ok(false) };
            part.limit_read(span, self.mtu_bytes);
            is_doubled =
                *tx.budget > 1 && self.congestion.is_window() && self.recovery.doubles_read(part.psn_span);
        }
        let mut spec = tx.builder.packet(part.opcode, psn, 0);
        if is_selective {
            spec.preceding_reads = outstanding.preceding_reads(psn);
        }
        let has_ack_req = self.is_ack_req_due(part.is_last, in_flight_pkts_max, tx.now);
        spec.ack_req = has_ack_req && !is_doubled;
        emit_read(&spec, part.reth, tx)?;
        if is_selective && !is_retransmission {
            outstanding.on_read_sent();
        }
        self.account_for(psn, &part, has_ack_req, tx);
        if !self.congestion.is_window() {
            let response = Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
            let frame_bytes = tx.builder.frame_bytes(response, self.mtu_bytes);
            self.congestion.on_read_sent(tx.now, part.psn_span, frame_bytes);
        }
        if is_doubled {
            self.send_double(psn, spec.preceding_reads, part.reth, tx);
        }
        Ok(true)
    }

    /// Sends the second packet of a doubled READ request, unless the port is full. The two packets have one transmission
    /// number, because the responder answers only one of them; therefore the sent-packet log records only the first
    /// packet.
    #[cold]
    #[inline(never)]
    fn send_double<P: Port>(
        &mut self,
        psn: Psn,
        preceding_reads: PrecedingReads,
        reth: Option<Reth>,
        tx: &mut TxContext<'_, P>,
    ) {
        let mut spec = tx.builder.packet(Opcode::RC_RDMA_READ_REQUEST, psn, 0);
        spec.preceding_reads = preceding_reads;
        if emit_read(&spec, reth, tx).is_ok() {
            *tx.budget -= 1;
            tx.counters.sent_pkts += 1;
        }
    }

    #[inline(always)]
    fn account_for<P: Port>(
        &mut self,
        psn: Psn,
        part: &Segment,
        has_ack_req: bool,
        tx: &mut TxContext<'_, P>,
    ) {
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sent_bytes += u64::from(part.payload_len);
        let is_retransmission = self.recovery.is_retransmission();
        if is_retransmission {
            tx.counters.retransmitted_pkts += 1;
        }
        if !self.congestion.is_window() {
            self.congestion.on_sent(tx.now, tx.builder.frame_bytes(part.opcode, part.payload_len));
        }
        self.recovery.on_sent(part.psn_span, tx.now);
        self.ack_req.on_sent(has_ack_req);
        self.on_packet_sent(
            SentRequest { psn, psn_span: part.psn_span, has_ack_req, is_retransmission },
            tx.now,
        );
    }

    #[inline(always)]
    pub(super) fn on_packet_sent(&mut self, sent: SentRequest, now: Instant) {
        let follows_round_trip = || self.congestion.follows_round_trip();
        self.loss_timer.on_packet_sent(sent, follows_round_trip, &self.recovery, now);
    }

    /// Processes a response. If the oldest work request failed, returns its error status.
    pub(crate) fn on_response_event(
        &mut self,
        now: Instant,
        outcome: ResponseEvent<'_>,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        match outcome {
            ResponseEvent::Ignored => None,
            ResponseEvent::Stale => {
                self.loss_timer.on_stale_response(now);
                None
            }
            ResponseEvent::Ack(event) => self.on_ack_event(now, &event, outstanding, counters),
            ResponseEvent::RnrNak { next, wait_nanos } => {
                self.on_rnr_nak(now, next, wait_nanos, outstanding, counters)
            }
            ResponseEvent::Failed { next, status } => {
                self.recovery.on_refused(next, outstanding, self.loss_timer.ack_time(now));
                self.loss_timer.stop();
                Some(status)
            }
        }
    }

    /// Processes an ACK, NAK, SACK or READ response. An advance of una restores the retry count. A SACK of packets
    /// above una does not restore the count. Otherwise a peer that reneges could restore the count any number of times
    /// by such SACKs, and packet una, if lost at each transmission, would be retransmitted for ever.
    #[inline]
    fn on_ack_event(
        &mut self,
        now: Instant,
        event: &AckEvent<'_>,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        if let AckEvent::SequenceError { next } = *event
            && self.loss_timer.shows_lost_again(&self.recovery, next, now)
        {
            self.recovery.on_lost_again();
        }
        let result = self.recovery.on_event(event, outstanding, self.loss_timer.ack_time(now));
        if result.nak.is_some() | result.spurious.is_some() | matches!(event, AckEvent::Sack { .. }) {
            count(event, &result, counters);
            match *event {
                AckEvent::Sack { header, .. } if !header.duplicate => {
                    self.loss_timer.on_out_of_order(&self.recovery, header.trigger, now);
                }
                AckEvent::ReadResponse { psn, .. } if result.nak.is_some() => {
                    self.loss_timer.on_implied_nak(&self.recovery, psn, now);
                }
                _ => {}
            }
        }
        // Under selective repeat, the requester measures the round trip of one packet at a time. A retransmission of
        // this packet, for example as a probe, cancels the measurement. Therefore, if congestion control needs round
        // trips, ACKs of other packets yield samples, too.
        let samples_ack = result.had_no_gap
            && result.acked_pkts > 0
            && if result.is_read_response {
                self.congestion.samples_each_response()
            } else {
                self.congestion.follows_round_trip()
            };
        let is_rnr_wait = !self.rnr_until.is_none();
        let recovery = &mut self.recovery;
        let rtt_nanos =
            self.loss_timer.on_result(recovery, &result, outstanding, samples_ack, is_rnr_wait, now);
        if result.changes_loss_window {
            // An implied NAK does not reduce the loss window, because READ responses received above the lost response
            // are not retransmitted.
            let is_loss = result.has_gone_back && result.nak != Some(Nak::Implied);
            let is_reduced = is_loss || result.has_no_room;
            self.loss_window.on_ack_event(result.acked_pkts, self.recovery.sent(), is_reduced);
        }
        if !self.congestion.is_window() {
            self.notify_congestion(now, &result, rtt_nanos);
        }
        if result.is_executed {
            self.rnr_retries_left = self.rnr_retry;
        }
        if result.acked_pkts > 0 {
            self.retries_left = self.retry_count;
        } else if result.uses_retry {
            return self.use_retry(counters);
        }
        None
    }

    #[inline(never)]
    fn notify_congestion(&mut self, now: Instant, result: &RecoveryResult, rtt_nanos: Option<u64>) {
        if result.has_gone_back {
            self.congestion.on_nak(now, self.loss_window.window_pkts() != u32::MAX);
        }
        if result.acked_pkts > 0 || rtt_nanos.is_some() {
            self.congestion.on_ack(now, result.acked_pkts, rtt_nanos);
        }
        if result.lost_pkts > 0 {
            self.congestion.on_detected_loss(now, result.lost_pkts);
        }
    }

    fn on_rnr_nak(
        &mut self,
        now: Instant,
        next: Psn,
        wait_nanos: u64,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        let refusal = self.recovery.on_refused(next, outstanding, self.loss_timer.ack_time(now));
        if refusal.is_progress {
            self.retries_left = self.retry_count;
            self.rnr_retries_left = self.rnr_retry;
        }
        if !self.rnr_until.is_none() || refusal.in_flight_pkts == 0 {
            return None; // an RNR NAK within the RNR wait, or with nothing in flight
        }
        if self.rnr_retries_left == 0 {
            counters.retry_rnr_exceeded_err += 1;
            self.loss_timer.stop();
            return Some(WcStatus::RnrRetryExcErr);
        }
        if self.rnr_retry != RNR_RETRY_FOREVER {
            self.rnr_retries_left -= 1;
        }
        // An RNR NAK shows that the packet with the PSN of the RNR NAK was received, and therefore restores the retry
        // count. Otherwise the NAK (PSN sequence error) that Linux's rxe sends after each RNR NAK would use up the
        // retry count.
        self.retries_left = self.retry_count;
        self.recovery.go_back();
        self.loss_timer.on_rnr_nak();
        self.rnr_until = OptionalInstant::some(now.plus_nanos(wait_nanos));
        None
    }

    /// If the RNR wait is over, ends the RNR wait. If the loss timer has expired, processes the expiry. If the oldest
    /// work request failed, returns its error status. Not inlined, because otherwise an idle poll would save registers
    /// for this function.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_time(
        &mut self,
        now: Instant,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        if self.rnr_until.get().is_some_and(|until| until <= now) {
            self.rnr_until = OptionalInstant::NONE;
            if self.loss_timer.on_rnr_wait_over(&self.recovery, now) {
                self.retries_left = self.retry_count;
            }
        }
        let in_flight_pkts_max = self.in_flight_pkts_max(outstanding);
        let has_ready = self.local_fault.is_none()
            && self.recovery.next_psn() != outstanding.end()
            && self.may_send(now, in_flight_pkts_max);
        let permit_at = || self.congestion.next_permit_at();
        if self.loss_timer.take_expired(&mut self.recovery, has_ready, permit_at, now)? {
            counters.local_ack_timeout_err += 1;
            if let Some(failed) = self.use_retry(counters) {
                return Some(failed);
            }
        }
        match self.loss_timer.on_expired(&mut self.recovery, outstanding, now) {
            Some(Expiry::TailLossProbe | Expiry::Pto) => counters.tail_probes += 1,
            Some(Expiry::Rto) => {
                self.congestion.on_timeout(now);
                counters.roce_adp_retrans_to += 1;
            }
            None => self.congestion.on_timeout(now),
        }
        None
    }

    fn use_retry(&mut self, counters: &mut QpCounters) -> Option<WcStatus> {
        if self.retries_left == 0 {
            counters.retry_exceeded_err += 1;
            self.loss_timer.stop();
            return Some(WcStatus::RetryExcErr);
        }
        self.retries_left -= 1;
        None
    }

    /// Returns whether the oldest work request completes without a response, because it is a local operation, or
    /// because it cannot be sent.
    #[inline]
    pub(crate) fn completes_oldest(&self, outstanding: &Outstanding) -> bool {
        outstanding.oldest_is_local() || self.local_fault(outstanding).is_some()
    }

    /// Returns the error status of the oldest work request, if that work request cannot be sent.
    pub(crate) fn local_fault(&self, outstanding: &Outstanding) -> Option<WcStatus> {
        self.local_fault.filter(|fault| outstanding.oldest_is(fault.position)).map(|fault| fault.status)
    }
}

/// Sends a READ request with the RETH `reth`.
#[inline(always)]
fn emit_read<P: Port>(
    spec: &PacketSpec,
    reth: Option<Reth>,
    tx: &mut TxContext<'_, P>,
) -> Result<(), PortFull> {
    tx.builder.emit(tx.port, spec, |parts| {
        let _ = reth.map(|reth| parts.set_reth(reth));
    })
}

/// Counts SACKs, NAKs and spurious retransmissions. Not inlined, because most responses change none of these counters.
#[cold]
#[inline(never)]
fn count(event: &AckEvent<'_>, result: &RecoveryResult, counters: &mut QpCounters) {
    counters.sacks_received += u64::from(matches!(event, AckEvent::Sack { .. }));
    counters.spurious_retransmits += u64::from(result.spurious == Some(Spurious::Retransmission));
    counters.packet_seq_err += u64::from(result.nak == Some(Nak::SequenceError));
    counters.implied_nak_seq_err += u64::from(result.nak == Some(Nak::Implied));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Doorbells, SendQueueSize, send_queue};
    use std::sync::Arc;

    #[test]
    fn sequence_errors_between_receiver_not_ready_do_not_use_up_the_retries() {
        const WAIT_NANOS: u64 = 1000;
        let first_psn = Psn::new(7);
        let conn = ConnAttr {
            retry_count: 1,
            rnr_retry: RNR_RETRY_FOREVER,
            congestion: Some(CongestionScheme::Window { window_pkts: 64 }),
            recovery: RecoveryScheme::GoBackN,
            ..ConnAttr::default()
        };
        let mut requester = Requester::new(RequesterConfig::new(&conn, first_psn, 100_000_000_000));
        let size = SendQueueSize { depth: 1, max_sges: 1, max_inline_bytes: 0 };
        let (_, queue) = send_queue(size, true, Arc::new(Doorbells::new(1)), 0);
        let outstanding = &mut Outstanding::new(queue, first_psn);
        let mut counters = QpCounters::default();
        let lost = ResponseEvent::Ack(AckEvent::SequenceError { next: first_psn });
        let mut now = Instant::from_nanos(0);
        requester.recovery.on_sent(10, now);
        for _ in 0..10 {
            let refused = ResponseEvent::RnrNak { next: first_psn, wait_nanos: WAIT_NANOS };
            assert_eq!(requester.on_response_event(now, refused, outstanding, &mut counters), None);
            assert_eq!(
                requester.on_response_event(now, lost, outstanding, &mut counters),
                None,
                "nothing is in flight"
            );
            now = now.plus_nanos(WAIT_NANOS);
            assert_eq!(requester.on_time(now, outstanding, &mut counters), None);
            requester.recovery.on_sent(10, now);
            assert_eq!(requester.on_response_event(now, lost, outstanding, &mut counters), None);
            requester.recovery.on_sent(10, now);
        }
        // Without RNR NAKs, PSN sequence errors use up the retry count.
        requester.recovery.go_back();
        requester.recovery.on_sent(10, now);
        assert_eq!(
            requester.on_response_event(now, lost, outstanding, &mut counters),
            Some(WcStatus::RetryExcErr)
        );
    }
}
