//! Loss timer of the requester under selective repeat and improved go-back-N: PTO and RTO are derived from the
//! measured round trip; only local ACK timeouts use up `retry_count`.
//!
//! ```text
//!   wait expired            selective repeat               improved go-back-N
//!   PTO                     retransmit the last packet     retransmit the oldest packet; if an ACK then
//!                                                          acknowledges only this packet, retransmit all after it
//!   2 PTO, 4 PTO, ..        retransmit the oldest packet   as after PTO
//!   2 PTO, .. if >= RTO     both: retransmit as after 2 PTO, and report a loss to congestion control
//!   local ACK timeout       both: use up a retry of `retry_count`; without a retry left, fail the work request
//! ```

use super::outstanding::Outstanding;
use super::requester::Requester;
use crate::counters::QpCounters;
use crate::psn::Psn;
use crate::queue::WcStatus;
use crate::recovery::{AdaptiveRto, Expiry, LossWindow, Recovery, SelectiveRepeat};
use crate::time::Instant;

/// Timing that follows the round trip, and the loss window.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossTimer {
    /// Loss window of improved go-back-N, which retransmits all packets in flight after a loss.
    loss_window: LossWindow,
    /// Maximum packets in flight: the loss window, or 1 until a probe is acknowledged.
    pub(super) in_flight_pkts_max: u32,
    pub(super) rto: AdaptiveRto,
    /// Start of the local ACK timeout: last progress, last retry used up, or first packet in flight.
    last_progress_at: Instant,
    /// Time of the last response since the timer was armed, from which it is rearmed when it expires.
    last_rx_at: Option<Instant>,
    /// Time of the last packet with AckReq.
    last_ack_req_at: Instant,
    /// Improved go-back-N: a probe is in flight.
    is_probing: bool,
    /// Selective repeat: the last tail loss probe, and the last later probe: first PSN, count.
    probes: [(Psn, u32); 2],
}

impl Default for LossTimer {
    fn default() -> Self {
        LossTimer {
            loss_window: LossWindow::default(),
            in_flight_pkts_max: u32::MAX,
            rto: AdaptiveRto::default(),
            last_progress_at: Instant::ZERO,
            last_rx_at: None,
            last_ack_req_at: Instant::ZERO,
            is_probing: false,
            probes: [(Psn::new(0), 0); 2],
        }
    }
}

impl LossTimer {
    /// Ends measurement and probe after an RNR NAK: the timed packet is acknowledged late, or retransmitted.
    pub(super) fn abandon(&mut self) {
        self.rto.cancel();
        self.end_probe();
    }

    /// Whether `psn` was retransmitted as a probe: its duplicate is no sign of reordering.
    pub(super) fn was_probe(&self, psn: Psn) -> bool {
        self.probes.iter().any(|(first, count)| psn.index_in(*first, *count).is_some())
    }

    /// Ends the probe; returns whether one was in flight.
    fn end_probe(&mut self) -> bool {
        self.in_flight_pkts_max = self.loss_window.window_pkts();
        std::mem::take(&mut self.is_probing)
    }
}

impl Requester {
    /// Records that `psn` was sent: times its first transmission if it has AckReq, and arms the timer if stopped.
    pub(super) fn on_packet_sent(
        &mut self,
        psn: Psn,
        asks_for_answer: bool,
        is_retransmission: bool,
        now: Instant,
    ) {
        if asks_for_answer {
            self.loss_timer.last_ack_req_at = now;
            if !is_retransmission {
                // For a READ, the time to its first response.
                self.loss_timer.rto.on_sent(psn, now);
            }
        }
        if self.timer.deadline().is_none() {
            self.loss_timer.last_progress_at = now;
            self.arm(now);
        }
    }

    /// Whether AckReq must be set now, because a shortest round trip has passed without it: a pacer may take so long
    /// over the packets between two with AckReq that the probe timeout expires.
    #[inline]
    pub(super) fn is_ack_req_overdue(&self, now: Instant) -> bool {
        !self.congestion.is_window()
            && self.config.recovery.is_adaptive()
            && now.nanos_since(self.loss_timer.last_ack_req_at) >= self.loss_timer.rto.min_nanos()
    }

    /// Restarts the timer after an RNR wait under selective repeat, as if there had been progress.
    pub(super) fn rearm_after_rnr(&mut self, now: Instant) {
        if self.selective().is_some() && self.recovery.sent() > 0 {
            self.on_progress(now);
            self.rearm(now);
        }
    }

    /// Records progress and restores the retry count. An ACK without progress does not: packets above one that is
    /// lost every time may be dropped by the responder and retransmitted for ever.
    pub(super) fn on_progress(&mut self, now: Instant) {
        self.loss_timer.last_progress_at = now;
        self.retries_left = self.config.retry_count;
    }

    /// Rearms the timer if unacknowledged packets were sent, otherwise stops it; ends the backoff.
    pub(super) fn rearm(&mut self, now: Instant) {
        self.loss_timer.rto.on_progress();
        if self.recovery.sent() > 0 {
            self.arm(now);
        } else {
            self.timer.stop();
        }
    }

    /// As [`Requester::rearm`], but the timer is rearmed when it expires, because most responses arrive in
    /// bursts. If all is acknowledged it stops at once, otherwise an application that does not poll for a while
    /// finds it expired.
    #[inline]
    pub(super) fn rearm_lazily(&mut self, now: Instant) {
        if self.recovery.sent() == 0 {
            self.timer.stop();
        }
        self.loss_timer.rto.on_progress();
        self.loss_timer.last_rx_at = Some(now);
    }

    /// Arms the timer for the probe timeout, but not beyond the local ACK timeout since the last progress.
    fn arm(&mut self, now: Instant) {
        self.loss_timer.last_rx_at = None;
        let wait_nanos = self.loss_timer.rto.wait_nanos(self.recovery.unacked());
        self.timer.restart_for(now, wait_nanos, self.loss_timer.last_progress_at);
    }

    /// Processes an ACK or NAK under improved go-back-N, which acknowledged packets, or `lost` sending at a lost
    /// one. Returns the round trip of the timed packet in nanoseconds, if it is acknowledged.
    pub(super) fn on_ack_result(&mut self, now: Instant, newly_acked_pkts: u32, lost: bool) -> Option<u64> {
        if newly_acked_pkts == 0 && !lost {
            // Responses in flight behind a lost READ response still arrive, so a probe is not due yet.
            if self.timer.deadline().is_some() {
                self.arm(now);
            }
            return None;
        }
        self.loss_timer.loss_window.on_ack_event(newly_acked_pkts, self.recovery.sent(), lost);
        if self.loss_timer.end_probe() {
            match &mut self.recovery {
                Recovery::GoBackN(scheme) if newly_acked_pkts > 1 && !lost => scheme.undo_timeout(),
                // The timed packet is retransmitted, so it is not measured (Karn's algorithm, RFC 6298 section 3).
                _ => self.loss_timer.rto.cancel(),
            }
        }
        let rtt_nanos = self.take_rtt_sample(now, lost);
        if newly_acked_pkts > 0 {
            self.on_progress(now);
        }
        self.rearm(now);
        rtt_nanos
    }

    /// Under go-back-N, returns the round trip of the timed packet in nanoseconds, if it is acknowledged. Where
    /// sending `lost` the measurement is cancelled, because the packet is retransmitted.
    pub(super) fn take_rtt_sample(&mut self, now: Instant, lost: bool) -> Option<u64> {
        let timed = self.loss_timer.rto.timed()?;
        let is_answered = timed.index_in(self.recovery.una(), self.recovery.sent()).is_none();
        let rtt_nanos = if is_answered { self.loss_timer.rto.on_acked(now) } else { None };
        if lost {
            self.loss_timer.rto.cancel();
        }
        rtt_nanos
    }

    /// Handles expiry of the timer: retransmits a probe, and uses up a retry if the local ACK timeout has passed.
    pub(super) fn on_timeout(
        &mut self,
        now: Instant,
        outstanding: &mut Outstanding,
        counters: &mut QpCounters,
    ) -> Option<WcStatus> {
        if self.recovery.sent() == 0 {
            return None;
        }
        if let Some(last_rx_at) = self.loss_timer.last_rx_at {
            self.arm(last_rx_at);
            if !self.timer.take_expired(now) {
                return None;
            }
        }
        if self.timer.has_passed(self.loss_timer.last_progress_at, now) {
            counters.local_ack_timeout_err += 1;
            self.loss_timer.last_progress_at = now;
            if let Some(failed) = self.use_retry(counters) {
                return Some(failed);
            }
        }
        let expiry = self.loss_timer.rto.on_expired(self.recovery.unacked());
        match &mut self.recovery {
            Recovery::GoBackN(scheme) => {
                scheme.on_timeout();
                if self.loss_timer.rto.timed() == Some(scheme.una()) {
                    self.loss_timer.rto.cancel();
                }
                self.loss_timer.is_probing = true;
                self.loss_timer.in_flight_pkts_max = 1;
            }
            Recovery::SelectiveRepeat(scheme) => {
                let probe = scheme.probe(expiry == Expiry::TailLossProbe);
                let (first, count) = probe_of_read(scheme, outstanding, probe.0).unwrap_or(probe);
                scheme.retransmit(first, count);
                let [tail_loss, later] = &mut self.loss_timer.probes;
                *(if expiry == Expiry::TailLossProbe { tail_loss } else { later }) = (first, count);
            }
        }
        if expiry == Expiry::Rto {
            self.congestion.on_loss(now);
            counters.roce_adp_retrans_to += 1;
        } else {
            counters.tail_probes += 1;
        }
        self.arm(now);
        None
    }
}

/// Returns the probe, first PSN and count, for a `psn` whose READ request the peer may lack, because a part of it
/// cannot be requested then: the last response missing of READs that the peer has, otherwise the whole READ.
fn probe_of_read(scheme: &SelectiveRepeat, outstanding: &mut Outstanding, psn: Psn) -> Option<(Psn, u32)> {
    let place = outstanding.find(psn).filter(|place| place.span.is_read)?;
    let last_due = scheme.executed().minus(1);
    match (scheme.is_executed(psn), scheme.is_unacked(last_due)) {
        (true, _) => None,
        (_, true) => Some((last_due, 1)),
        _ => Some((place.span.first, place.span.packets)),
    }
}
