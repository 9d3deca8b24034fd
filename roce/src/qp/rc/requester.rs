//! The requester: segments work requests into request packets, and retransmits them (IBA 9.7.2 to 9.7.6).

use super::emit::{PacketBuilder, PortFull};
use super::events::ResponseEvent;
use super::loss_timer::LossTimer;
use super::outstanding::{Kind, MAX_OUTSTANDING_PSNS, Outstanding, Place};
use super::segment::{Segment, segment};
use crate::congestion::loss_window::LossWindow;
use crate::congestion::{Congestion, CongestionScheme};
use crate::counters::QpCounters;
use crate::mem::{Access, MemoryTable, PdId};
use crate::port::Port;
use crate::psn::Psn;
use crate::qp::ConnAttr;
use crate::queue::{SendOp, SendWqe, WcStatus};
use crate::recovery::sent_log::RTT_UNKNOWN_NANOS;
use crate::recovery::{
    AckEvent, AckResult, AckTime, Answers, Expiry, Recovery, RecoveryScheme, SelectiveEvent,
};
use crate::time::Instant;
use crate::wire::{FrameParts, Opcode, RecvEth};

/// Packets after which AckReq is set even inside a message, so that a long message is acknowledged before its end.
pub const ACK_REQ_INTERVAL_PKTS: u32 = 32;

/// Responses that a probe of a READ requests under improved go-back-N.
const PROBE_PKTS: u32 = 1;

/// Value of `rnr_retry` that permits any number of RNR NAKs.
const RNR_RETRY_FOREVER: u8 = 7;

/// Parameters of a requester, known at the transition to RTS.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequesterConfig {
    /// PSN of the first request.
    pub first_psn: Psn,
    /// Path MTU, in bytes.
    pub mtu_bytes: u32,
    /// Local ACK timeout: 4.096 us * 2^timeout, 5 bits; 0: infinite.
    pub timeout: u8,
    /// Retry count, 3 bits: local ACK timeouts and PSN sequence errors that a work request survives without progress.
    pub retry_count: u8,
    /// RNR retry count, 3 bits: RNR NAKs that a work request survives without progress; 7: any number.
    pub rnr_retry: u8,
    /// Maximum number of outstanding READs.
    pub max_rd_atomic: u8,
    /// Congestion control scheme.
    pub congestion: CongestionScheme,
    /// Rate of the link, in bits per second.
    pub link_bits_per_sec: u64,
    /// Recovery scheme.
    pub recovery: RecoveryScheme,
}

impl RequesterConfig {
    /// Returns the parameters for a connection with `conn`.
    pub(crate) fn new(conn: &ConnAttr, first_psn: Psn, link_bits_per_sec: u64) -> Self {
        RequesterConfig {
            first_psn,
            mtu_bytes: conn.path_mtu.bytes(),
            timeout: conn.timeout,
            retry_count: conn.retry_count,
            rnr_retry: conn.rnr_retry,
            max_rd_atomic: conn.max_rd_atomic,
            congestion: conn.congestion.unwrap_or_default(),
            link_bits_per_sec,
            recovery: conn.recovery,
        }
    }

    /// Returns the maximum number of responses of one READ request.
    pub(crate) fn read_pkts_max(&self) -> u32 {
        let window_pkts = self.congestion.read_window_pkts(self.max_rd_atomic);
        self.recovery.read_pkts_max(window_pkts, self.max_rd_atomic)
    }
}

/// A work request that cannot be sent: its memory cannot be read, or it is a READ and `max_rd_atomic` is 0.
#[derive(Clone, Copy, Debug)]
struct LocalFault {
    position: u32,
    status: WcStatus,
}

/// Reason why requester or responder stopped sending in a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// No packet is left to send, or none may be sent now.
    Done,
    /// The budget of packets is used up; more packets may be ready.
    MoreToSend,
    /// An ACK or other responses are due, and are sent in the next poll.
    AckDelayed,
    /// Packets are ready, and wait for the pacer.
    Paced,
    /// Packets are ready, and the port has no free transmit buffer.
    TxRingFull,
    /// The memory region of a READ of the peer was deregistered; a NAK was sent, and the queue pair changes to ERR.
    MrInvalidated,
}

impl TxOutcome {
    /// Combines the outcomes of requester and responder in one poll; `next` is that of the half which sent last.
    pub(crate) fn and_then(self, next: TxOutcome) -> TxOutcome {
        match (self, next) {
            // `AckDelayed` schedules the queue pair in the next poll, which then finds the queue pair paced again.
            (TxOutcome::AckDelayed, TxOutcome::Done | TxOutcome::Paced) => TxOutcome::AckDelayed,
            (TxOutcome::Paced, TxOutcome::Done) => TxOutcome::Paced,
            (_, next) => next,
        }
    }
}

/// State of queue pair and device that requester and responder need to send.
pub(crate) struct TxContext<'a, P: Port> {
    /// Current time.
    pub now: Instant,
    /// Port that frames are sent to.
    pub port: &'a mut P,
    /// Number of packets that may still be sent; decremented by 1 for each packet.
    pub budget: &'a mut u32,
    /// Memory regions of the device.
    pub memory: &'a MemoryTable,
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Headers of all packets to the peer.
    pub builder: &'a mut PacketBuilder,
    /// Counters of the queue pair.
    pub counters: &'a mut QpCounters,
}

pub(crate) struct Requester {
    pub(super) config: RequesterConfig,
    pub(super) recovery: Recovery,
    pub(super) congestion: Congestion,
    /// Limits the packets in flight of improved go-back-N, because a loss retransmits all of them, and the PSNs from
    /// una on of selective repeat, if the responder drops packets for want of room.
    loss_window: LossWindow,
    /// Local ACK timeout, probe timeout, RTO and measured round trip.
    pub(super) loss_timer: LossTimer,
    pub(super) retries_left: u8,
    pub(super) rnr_retries_left: u8,
    /// RNR wait: no request is sent before this time.
    pub(super) rnr_until: Option<Instant>,
    since_ack_req_pkts: u32,
    local_fault: Option<LocalFault>,
    /// True in state SQD: no further work request starts.
    draining: bool,
}

impl Requester {
    /// Creates a requester that has sent nothing.
    pub(crate) fn new(config: RequesterConfig) -> Self {
        Requester {
            config,
            recovery: Recovery::new(config.recovery, config.first_psn),
            congestion: Congestion::new(&config.congestion, config.link_bits_per_sec),
            loss_window: LossWindow::default(),
            loss_timer: LossTimer::new(config.timeout),
            retries_left: config.retry_count,
            rnr_retries_left: config.rnr_retry,
            rnr_until: None,
            since_ack_req_pkts: 0,
            local_fault: None,
            draining: false,
        }
    }

    /// Returns una, and the number of PSNs sent from una on.
    #[inline]
    pub(crate) fn in_flight(&self) -> (Psn, u32) {
        (self.recovery.una(), self.recovery.sent())
    }

    pub(crate) fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// Returns the largest number of packets in flight: the loss window, or 1 until a probe of improved go-back-N is
    /// acknowledged.
    #[inline]
    pub(super) fn in_flight_pkts_max(&self) -> u32 {
        if self.loss_timer.is_probing() { 1 } else { self.loss_window.window_pkts() }
    }

    /// Returns the time by which an acknowledgement at `now` is judged.
    #[inline]
    fn ack_time(&self, now: Instant) -> AckTime {
        let rtt_min_nanos = match self.loss_timer.rto.min_nanos() {
            0 => RTT_UNKNOWN_NANOS,
            nanos => nanos,
        };
        AckTime { now, rtt_min_nanos }
    }

    /// Returns the congestion control, whose pacer also delays the READ responses of this queue pair.
    #[inline]
    pub(crate) fn congestion_mut(&mut self) -> &mut Congestion {
        &mut self.congestion
    }

    pub(crate) fn congestion(&self) -> &Congestion {
        &self.congestion
    }

    /// Returns the time to call `on_time`: the end of the RNR wait or the deadline of the timer, whichever is earlier.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match (self.loss_timer.timer.deadline(), self.rnr_until) {
            (Some(a), Some(b)) => Some(if a < b { a } else { b }),
            (a, b) => a.or(b),
        }
    }

    /// Sets whether further work requests may start: not if `draining` (state SQD).
    pub(crate) fn set_draining(&mut self, draining: bool) {
        self.draining = draining;
    }

    /// Changes timeout, retry counts, limits and congestion control. An armed timer keeps its deadline.
    pub(crate) fn reconfigure(&mut self, config: RequesterConfig) {
        if config.congestion != self.config.congestion {
            self.congestion = Congestion::new(&config.congestion, config.link_bits_per_sec);
        }
        self.config = config;
        self.loss_timer.timer.set_timeout(config.timeout);
        self.retries_left = config.retry_count;
        self.rnr_retries_left = config.rnr_retry;
    }

    /// Sends requests and retransmissions until none is ready or permitted, the budget is used up, or the port is full.
    pub(crate) fn transmit<P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        tx: &mut TxContext<'_, P>,
    ) -> TxOutcome {
        if self.rnr_until.is_some() {
            return TxOutcome::Done;
        }
        let in_flight_pkts_max = self.in_flight_pkts_max();
        loop {
            let psn = self.recovery.next_psn();
            if !self.may_send(tx.now, in_flight_pkts_max) {
                let is_paced = self.congestion.next_permit_at().is_some_and(|at| at > tx.now);
                return if is_paced { TxOutcome::Paced } else { TxOutcome::Done };
            }
            let is_new = psn == outstanding.end();
            let place = if is_new { self.start_next(outstanding) } else { outstanding.find(psn) };
            let Some(place) = place else { return TxOutcome::Done };
            if *tx.budget == 0 {
                return TxOutcome::MoreToSend;
            }
            // A work request with a fault is not sent; lost packets of earlier work requests are still retransmitted.
            let position = outstanding.position_of(place.index);
            if self.local_fault.is_some_and(|fault| fault.position == position) {
                return TxOutcome::Done;
            }
            let Some(wqe) = outstanding.wqe(place.index) else { return TxOutcome::Done };
            let is_numbered = self.recovery.log().is_some();
            let (len_bytes, mtu_bytes) = (wqe.list.len_bytes, self.config.mtu_bytes);
            let mut part = segment(&wqe.op, len_bytes, place.packet, mtu_bytes, is_numbered);
            let is_part = part.opcode == Opcode::RC_RDMA_READ_REQUEST
                && (is_numbered || self.recovery.is_retransmission());
            if is_part {
                let Some(span) = self.read_span(outstanding, psn, place) else { return TxOutcome::Done };
                part.limit_read(span, mtu_bytes);
            }
            match self.send_one(outstanding, &wqe, &part, (psn, place, in_flight_pkts_max), tx) {
                Ok(()) => {}
                Err(NotSent::PortFull) => return TxOutcome::TxRingFull,
                Err(NotSent::BadMemory) => {
                    self.local_fault = Some(LocalFault { position, status: WcStatus::LocProtErr });
                    return TxOutcome::Done;
                }
            }
            if is_part && is_numbered && !self.recovery.is_retransmission() {
                outstanding.on_read_sent();
            }
            self.account_for(psn, &part, tx);
        }
    }

    /// Whether as many READ requests are in flight as the peer has responder resources.
    #[inline]
    fn is_at_max_reads(&self, outstanding: &Outstanding) -> bool {
        outstanding.read_requests_in_flight(self.recovery.una()) >= u32::from(self.config.max_rd_atomic)
    }

    /// Returns the PSNs of the READ request to be sent for `psn`; `None` if no READ request may be sent now.
    #[inline(never)]
    fn read_span(&self, outstanding: &Outstanding, psn: Psn, place: Place) -> Option<u32> {
        let request = outstanding.request_of(&place);
        let span = request.end().distance_from(psn);
        match &self.recovery {
            Recovery::GoBackN(_) if self.loss_timer.is_probing() => Some(PROBE_PKTS),
            Recovery::GoBackN(scheme) => Some(scheme.read_part(span)),
            Recovery::SelectiveRepeat(scheme) if scheme.log().has_lost() => {
                Some(scheme.read_part(psn, request))
            }
            Recovery::SelectiveRepeat(scheme) => {
                let has_room = scheme.log().sent() + span <= scheme.log().window_pkts();
                (has_room && !self.is_at_max_reads(outstanding)).then_some(span)
            }
        }
    }

    /// Returns whether recovery and congestion control permit one more packet.
    #[inline]
    fn may_send(&mut self, now: Instant, in_flight_pkts_max: u32) -> bool {
        let joins_pkts = match &self.recovery {
            Recovery::GoBackN(scheme) if scheme.unacked() >= in_flight_pkts_max => {
                return false;
            }
            Recovery::GoBackN(scheme) => scheme.unacked(),
            // Because READ responses in flight would block them, retransmissions are not counted.
            Recovery::SelectiveRepeat(scheme) if scheme.log().has_lost() => 0,
            Recovery::SelectiveRepeat(scheme)
                if scheme.log().sent() >= scheme.log().window_pkts().min(in_flight_pkts_max) =>
            {
                return false;
            }
            Recovery::SelectiveRepeat(scheme) => scheme.log().unacked(),
        };
        self.congestion.permit(now, joins_pkts)
    }

    /// If the next work request may start, assigns PSNs to it and returns the position of its first packet.
    #[inline]
    fn start_next(&mut self, outstanding: &mut Outstanding) -> Option<Place> {
        if self.draining || self.local_fault.is_some() {
            return None;
        }
        let wqe = outstanding.next_unassigned()?;
        let is_read = matches!(wqe.op, SendOp::Read { .. });
        let kind = Kind { is_read, takes_receive: takes_receive(&wqe.op) };
        let is_fenced = wqe.flags.fence;
        let len_bytes = wqe.list.len_bytes;
        let max_reads = u32::from(self.config.max_rd_atomic);
        if is_read && max_reads == 0 {
            // `max_rd_atomic` of 0 permits no READ, so the READ fails; otherwise it would wait for ever.
            let position = outstanding.position_of(outstanding.assigned());
            self.local_fault = Some(LocalFault { position, status: WcStatus::LocQpOpErr });
            return None;
        }
        if (is_read && self.is_at_max_reads(outstanding)) || (is_fenced && outstanding.assigned_reads() > 0) {
            return None;
        }
        outstanding.assign(len_bytes, kind, self.recovery.sent(), self.config.mtu_bytes)
    }

    // Always inlined, because otherwise `part` and `wqe` are passed in memory: 60 instructions a packet.
    #[inline(always)]
    fn send_one<P: Port>(
        &mut self,
        outstanding: &mut Outstanding,
        wqe: &SendWqe,
        part: &Segment,
        (psn, place, in_flight_pkts_max): (Psn, Place, u32),
        tx: &mut TxContext<'_, P>,
    ) -> Result<(), NotSent> {
        let mut spec = tx.builder.packet(part.opcode, psn, part.payload_len);
        let window_pkts = self.congestion.window_pkts().min(in_flight_pkts_max);
        spec.ack_req = part.is_last
            // AckReq at least twice in a window, so that an ACK arrives while the other half is in flight.
            || self.since_ack_req_pkts + 1 >= ACK_REQ_INTERVAL_PKTS.min(window_pkts / 2)
            // AckReq in the last packet of the window, because only an ACK opens the window.
            || self.recovery.unacked() + 1 >= window_pkts
            || (!self.congestion.is_window()
                && self.config.recovery.is_adaptive()
                && self.loss_timer.is_ack_req_overdue(tx.now));
        spec.solicited = part.is_last && wqe.flags.solicited && takes_receive(&wqe.op);
        self.since_ack_req_pkts = if spec.ack_req { 0 } else { self.since_ack_req_pkts + 1 };
        let recveth = self
            .recovery
            .log()
            .is_some()
            .then(|| RecvEth { recv_seq: outstanding.receives_before(place.index), packet: place.packet });
        let headers = |parts: &mut FrameParts<'_>| {
            if parts.ext.is_empty() {
                return;
            }
            // A header that the opcode does not have is not written, and its setter returns `None`.
            let _ = part.reth.map(|reth| parts.set_reth(reth));
            let _ = recveth.map(|recveth| parts.set_recveth(recveth));
            let _ = part.imm.map(|imm| parts.set_immdt(imm));
        };
        let (offset, len) = (part.offset, part.payload_len);
        let queue = outstanding.queue();
        let in_one = if wqe.inline {
            Some(Ok(queue.inline_span(wqe, offset, len)))
        } else {
            queue.lists(tx.memory, tx.pd).open_one(&wqe.list, offset, len, Access::NONE)
        };
        // The memory is checked before a transmit buffer is reserved, because a reserved buffer cannot be given back.
        if let Some(span) = in_one {
            let span = span.map_err(|_| NotSent::BadMemory)?;
            tx.builder.emit(tx.port, &spec, |parts| {
                headers(parts);
                span.copy_to(parts.payload);
            })?;
            return Ok(());
        }
        let mut lists = queue.lists(tx.memory, tx.pd);
        lists.check(&wqe.list, offset, len, Access::NONE).map_err(|_| NotSent::BadMemory)?;
        tx.builder.emit(tx.port, &spec, |parts| {
            headers(parts);
            #[expect(clippy::expect_used, reason = "internal: the list was checked just before")]
            lists.gather(&wqe.list, offset, parts.payload).expect("checked just before");
        })?;
        Ok(())
    }

    #[inline]
    fn account_for<P: Port>(&mut self, psn: Psn, part: &Segment, tx: &mut TxContext<'_, P>) {
        *tx.budget -= 1;
        tx.counters.sent_pkts += 1;
        tx.counters.sent_bytes += u64::from(part.payload_len);
        let is_retransmission = self.recovery.is_retransmission();
        tx.counters.retransmitted_pkts += u64::from(is_retransmission);
        if !self.congestion.is_window() {
            self.congestion.on_sent(tx.now, tx.builder.frame_bytes(part.opcode, part.payload_len));
            if part.opcode == Opcode::RC_RDMA_READ_REQUEST {
                let response = Opcode::RC_RDMA_READ_RESPONSE_MIDDLE;
                let frame_bytes = tx.builder.frame_bytes(response, self.config.mtu_bytes);
                self.congestion.on_read_sent(tx.now, part.psn_span, frame_bytes);
            }
        }
        self.recovery.on_sent(part.psn_span, tx.now);
        if self.config.recovery.is_adaptive() {
            self.on_packet_sent(psn, self.since_ack_req_pkts == 0, is_retransmission, tx.now);
        } else {
            self.loss_timer.timer.start(tx.now);
            if self.congestion.follows_round_trip() && !is_retransmission && self.since_ack_req_pkts == 0 {
                self.loss_timer.rto.on_sent(psn, tx.now);
            }
        }
    }

    /// Processes a response as reported by the completer. If the oldest work request failed, returns its error status.
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
            ResponseEvent::Ack(event) => self.on_ack_event(now, event, counters),
            ResponseEvent::ReadResponse { psn, executed } => {
                self.on_read_response(now, psn, executed, outstanding, counters);
                None
            }
            ResponseEvent::Selective(event) => {
                self.on_selective_event(now, &event, outstanding, counters);
                None
            }
            ResponseEvent::RnrNak { next, wait_nanos } => {
                let progress = self.on_everything_before(now, next, outstanding);
                self.on_rnr_nak(now, next, wait_nanos, progress, counters)
            }
            ResponseEvent::Failed { next, status } => {
                self.on_everything_before(now, next, outstanding);
                self.loss_timer.timer.stop();
                Some(status)
            }
        }
    }

    /// Under improved go-back-N and selective repeat, records that `psn` was sent.
    #[inline]
    pub(super) fn on_packet_sent(
        &mut self,
        psn: Psn,
        asks_for_answer: bool,
        is_retransmission: bool,
        now: Instant,
    ) {
        let unacked_pkts = self.recovery.unacked();
        self.loss_timer.on_packet_sent(psn, asks_for_answer, is_retransmission, unacked_pkts, now);
    }

    /// Records progress: restores the retry count. Only an advance of una is progress, because if a packet is lost
    /// every time, packets above it may be acknowledged, dropped by the responder and retransmitted for ever.
    fn on_progress(&mut self, now: Instant) {
        self.loss_timer.on_progress(now);
        self.retries_left = self.config.retry_count;
    }

    /// Processes a response under selective repeat, and updates congestion control and timer.
    fn on_selective_event(
        &mut self,
        now: Instant,
        event: &SelectiveEvent<'_>,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) {
        let time = self.ack_time(now);
        let Recovery::SelectiveRepeat(scheme) = &mut self.recovery else { return };
        // A probe cancels the timed packet, so a scheme that needs a sample in each round trip takes them from ACKs, too.
        let samples_ack = self.congestion.follows_round_trip() && !scheme.log().has_acked();
        let result = scheme.on_event(event, outstanding, time);
        let mut rtt_nanos = self.loss_timer.take_rtt_sample_selective(scheme.log(), now);
        if samples_ack && rtt_nanos.is_none() && result.acked_pkts > 0 {
            rtt_nanos = self.loss_timer.take_rtt_sample_of_ack(scheme.log(), now);
        }
        counters.sacks_received += u64::from(matches!(event, SelectiveEvent::Sack { .. }));
        counters.spurious_retransmits += u64::from(result.is_spurious);
        counters.implied_nak_seq_err += u64::from(result.lost_responses > 0);
        if result.is_executed {
            self.rnr_retries_left = self.config.rnr_retry;
        }
        self.loss_window.on_ack_event(result.acked_pkts, self.recovery.sent(), result.no_room);
        if result.acked_pkts > 0 || rtt_nanos.is_some() {
            self.congestion.on_ack(now, result.acked_pkts, rtt_nanos);
        }
        let lost_pkts = result.lost_requests + result.lost_responses;
        if lost_pkts > 0 {
            self.congestion.on_detected_loss(now, lost_pkts);
        }
        if result.acked_pkts > 0 {
            self.on_progress(now);
        }
        // The end of an RNR wait arms the timer, because nothing is sent before.
        if result.changed && self.rnr_until.is_none() {
            self.loss_timer.rearm(&self.recovery, now);
        }
    }

    /// Processes a READ response under selective repeat.
    fn on_read_response(
        &mut self,
        now: Instant,
        psn: Psn,
        executed: Psn,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) {
        let time = self.ack_time(now);
        let Recovery::SelectiveRepeat(scheme) = &mut self.recovery else { return };
        let samples_ack = self.congestion.samples_each_response() && !scheme.log().has_acked();
        let (acked_pkts, lost_pkts) = scheme.on_read_response(psn, executed, outstanding, time);
        let mut rtt_nanos = self.loss_timer.take_rtt_sample_selective(scheme.log(), now);
        if samples_ack && rtt_nanos.is_none() && acked_pkts > 0 {
            rtt_nanos = self.loss_timer.take_rtt_sample_of_ack(scheme.log(), now);
        }
        if acked_pkts > 0 || rtt_nanos.is_some() {
            self.congestion.on_ack(now, acked_pkts, rtt_nanos);
        }
        if lost_pkts > 0 {
            counters.implied_nak_seq_err += 1;
            self.congestion.on_detected_loss(now, lost_pkts);
        }
        if acked_pkts > 0 {
            self.on_progress(now);
        }
        self.rnr_retries_left = self.config.rnr_retry;
        match rtt_nanos {
            _ if self.rnr_until.is_some() => {}
            Some(_) => self.loss_timer.rearm(&self.recovery, now),
            None => self.loss_timer.rearm_lazily(self.recovery.sent(), now),
        }
    }

    /// Acknowledges all packets below `next`. Returns false if earlier responses acknowledged them all.
    fn on_everything_before(&mut self, now: Instant, next: Psn, outstanding: &mut Outstanding) -> bool {
        let time = self.ack_time(now);
        match &mut self.recovery {
            Recovery::GoBackN(scheme) => {
                let acked = AckEvent::Cumulative { next, answers: Answers::Any };
                scheme.on_ack_event(acked).newly_acked_pkts > 0
            }
            Recovery::SelectiveRepeat(scheme) => {
                let is_news = scheme.on_executed(next, outstanding, time);
                if is_news {
                    self.rnr_retries_left = self.config.rnr_retry;
                }
                is_news
            }
        }
    }

    fn on_ack_event(&mut self, now: Instant, event: AckEvent, counters: &mut QpCounters) -> Option<WcStatus> {
        let Recovery::GoBackN(scheme) = &mut self.recovery else { return None };
        let result = scheme.on_ack_event(event);
        let rtt_nanos = if self.config.recovery.is_adaptive() {
            self.loss_window.on_ack_event(result.newly_acked_pkts, self.recovery.sent(), result.lost);
            self.loss_timer.on_ack_result(&mut self.recovery, event, result, now)
        } else if result.newly_acked_pkts > 0 || result.lost {
            // With nothing in flight the timer stops; the next packet sent arms it.
            if self.recovery.unacked() > 0 {
                self.loss_timer.timer.restart(now)
            } else {
                self.loss_timer.timer.stop()
            }
            if self.congestion.follows_round_trip() {
                self.loss_timer.take_rtt_sample(&self.recovery, result.lost, now)
            } else {
                None
            }
        } else {
            None
        };
        if !self.congestion.is_window() {
            self.notify_congestion(now, result, rtt_nanos);
        }
        if result.newly_acked_pkts > 0 {
            self.retries_left = self.config.retry_count;
            self.rnr_retries_left = self.config.rnr_retry;
            return None;
        }
        if result.lost { self.use_retry(counters) } else { None }
    }

    /// Reports ACKs and losses under go-back-N to congestion control.
    #[inline(never)]
    fn notify_congestion(&mut self, now: Instant, result: AckResult, rtt_nanos: Option<u64>) {
        if result.lost {
            self.congestion.on_loss(now);
        }
        if result.newly_acked_pkts > 0 {
            self.congestion.on_ack(now, result.newly_acked_pkts, rtt_nanos);
        }
    }

    fn on_rnr_nak(
        &mut self,
        now: Instant,
        next: Psn,
        wait_nanos: u64,
        progress: bool,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        if progress {
            self.retries_left = self.config.retry_count;
            self.rnr_retries_left = self.config.rnr_retry;
        }
        let in_flight = match &mut self.recovery {
            Recovery::GoBackN(scheme) => scheme.unacked(),
            Recovery::SelectiveRepeat(scheme) => {
                scheme.on_rnr_nak(next);
                scheme.log().sent()
            }
        };
        if self.rnr_until.is_some() || in_flight == 0 {
            return None; // an RNR NAK within the RNR wait, or with nothing in flight
        }
        if self.rnr_retries_left == 0 {
            counters.retry_rnr_exceeded_err += 1;
            self.loss_timer.timer.stop();
            return Some(WcStatus::RnrRetryExcErr);
        }
        if self.config.rnr_retry != RNR_RETRY_FOREVER {
            self.rnr_retries_left -= 1;
        }
        // An RNR NAK shows that `next` arrived, so it restores the retry count. Otherwise the PSN sequence error NAK
        // that Linux's rxe sends after each RNR NAK would use up the retry count.
        self.retries_left = self.config.retry_count;
        self.recovery.go_back();
        self.loss_timer.abandon();
        self.loss_timer.timer.stop();
        self.rnr_until = Some(now.plus_nanos(wait_nanos));
        None
    }

    /// Ends an RNR wait that is over, and processes an expired timer. If the oldest work request failed, returns its
    /// error status. Not inlined, because otherwise an idle poll would save registers for this function.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_time(
        &mut self,
        now: Instant,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
            // Under selective repeat the end of the RNR wait is progress: restores the retry count, rearms the timer.
            if self.recovery.log().is_some() && self.recovery.sent() > 0 {
                self.on_progress(now);
                self.loss_timer.rearm(&self.recovery, now);
            }
        }
        if !self.loss_timer.timer.take_expired(now) {
            return None;
        }
        if self.config.recovery.is_adaptive() {
            return self.on_timeout(now, outstanding, counters);
        }
        counters.local_ack_timeout_err += 1;
        self.congestion.on_loss(now);
        self.loss_timer.rto.cancel();
        self.recovery.go_back();
        self.use_retry(counters)
    }

    /// Processes an expired timer under improved go-back-N or selective repeat: marks a probe for retransmission. If
    /// the local ACK timeout has passed, uses up a retry first.
    fn on_timeout(
        &mut self,
        now: Instant,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        if !self.loss_timer.is_due(&self.recovery, now) {
            return None;
        }
        if self.loss_timer.take_ack_timeout(now) {
            counters.local_ack_timeout_err += 1;
            if let Some(failed) = self.use_retry(counters) {
                return Some(failed);
            }
        }
        if self.loss_timer.on_expired(&mut self.recovery, outstanding, now) == Expiry::Rto {
            self.congestion.on_loss(now);
            counters.roce_adp_retrans_to += 1;
        } else {
            counters.tail_probes += 1;
        }
        self.loss_timer.arm(self.recovery.unacked(), now);
        None
    }

    fn use_retry(&mut self, counters: &mut QpCounters) -> Option<WcStatus> {
        if self.retries_left == 0 {
            counters.retry_exceeded_err += 1;
            self.loss_timer.timer.stop();
            return Some(WcStatus::RetryExcErr);
        }
        self.retries_left -= 1;
        None
    }

    /// Returns the error status of the oldest work request, if that work request cannot be sent.
    pub(crate) fn local_fault(&self, outstanding: &Outstanding) -> Option<WcStatus> {
        self.local_fault.filter(|fault| outstanding.oldest_is(fault.position)).map(|fault| fault.status)
    }

    /// Returns whether every work request with PSNs has completed.
    pub(crate) fn is_drained(&self, outstanding: &Outstanding) -> bool {
        outstanding.assigned() == 0
    }
}

/// Returns whether the message of `op` consumes a receive of the peer. Only such a message may raise a solicited event.
fn takes_receive(op: &SendOp) -> bool {
    !matches!(op, SendOp::Write { .. } | SendOp::Read { .. })
}

enum NotSent {
    PortFull,
    BadMemory,
}

impl From<PortFull> for NotSent {
    fn from(_: PortFull) -> Self {
        NotSent::PortFull
    }
}

const _: () = assert!(ACK_REQ_INTERVAL_PKTS < MAX_OUTSTANDING_PSNS);

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
        let outstanding = &mut Outstanding::new(queue, 1, first_psn);
        let mut counters = QpCounters::default();
        let lost = ResponseEvent::Ack(AckEvent::Lost { next: first_psn });
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
        // Without RNR NAKs the PSN sequence errors use up the retry count.
        requester.recovery.go_back();
        requester.recovery.on_sent(10, now);
        assert_eq!(
            requester.on_response_event(now, lost, outstanding, &mut counters),
            Some(WcStatus::RetryExcErr)
        );
    }
}
