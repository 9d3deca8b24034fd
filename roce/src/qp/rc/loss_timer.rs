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
use crate::psn::Psn;
use crate::recovery::{AdaptiveRto, Expiry, LossWindow, Recovery, RetransmitTimer, SelectiveRepeat};
use crate::time::Instant;

/// The retransmission timer, with timing that follows the round trip, and the loss window.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossTimer {
    pub(super) timer: RetransmitTimer,
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

impl LossTimer {
    /// Creates a stopped timer; the local ACK timeout is 4.096 us * 2^`timeout`.
    pub(super) fn new(timeout: u8) -> Self {
        LossTimer {
            timer: RetransmitTimer::new(timeout),
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

    /// Records that `psn` was sent, after which `unacked_pkts` are in flight: times its first transmission if it has
    /// AckReq, and arms the timer if stopped.
    #[inline]
    pub(super) fn on_packet_sent(
        &mut self,
        psn: Psn,
        asks_for_answer: bool,
        is_retransmission: bool,
        unacked_pkts: u32,
        now: Instant,
    ) {
        if asks_for_answer {
            self.last_ack_req_at = now;
            if !is_retransmission {
                // For a READ, the time to its first response.
                self.rto.on_sent(psn, now);
            }
        }
        if self.timer.deadline().is_none() {
            self.last_progress_at = now;
            self.arm(unacked_pkts, now);
        }
    }

    /// Whether a shortest round trip has passed since the last packet with AckReq: a pacer may take so long over the
    /// packets between two with AckReq that the probe timeout expires.
    #[inline]
    pub(super) fn is_ack_req_overdue(&self, now: Instant) -> bool {
        now.nanos_since(self.last_ack_req_at) >= self.rto.min_nanos()
    }

    /// Records progress: the local ACK timeout starts anew.
    #[inline]
    pub(super) fn on_progress(&mut self, now: Instant) {
        self.last_progress_at = now;
    }

    /// Rearms the timer if unacknowledged packets were sent, otherwise stops it; ends the backoff.
    pub(super) fn rearm(&mut self, recovery: &Recovery, now: Instant) {
        self.rto.on_progress();
        if recovery.sent() > 0 {
            self.arm(recovery.unacked(), now);
        } else {
            self.timer.stop();
        }
    }

    /// As [`LossTimer::rearm`], but the timer is rearmed when it expires, because most responses arrive in
    /// bursts. If all is acknowledged it stops at once, otherwise an application that does not poll for a while
    /// finds it expired.
    #[inline]
    pub(super) fn rearm_lazily(&mut self, sent_pkts: u32, now: Instant) {
        if sent_pkts == 0 {
            self.timer.stop();
        }
        self.rto.on_progress();
        self.last_rx_at = Some(now);
    }

    /// Arms the timer for the probe timeout, but not beyond the local ACK timeout since the last progress.
    pub(super) fn arm(&mut self, unacked_pkts: u32, now: Instant) {
        self.last_rx_at = None;
        self.timer.restart_for(now, self.rto.wait_nanos(unacked_pkts), self.last_progress_at);
    }

    /// Processes an ACK or NAK under improved go-back-N, which acknowledged packets, or `lost` sending at a lost
    /// one. Returns the round trip of the timed packet in nanoseconds, if it is acknowledged.
    pub(super) fn on_ack_result(
        &mut self,
        recovery: &mut Recovery,
        newly_acked_pkts: u32,
        lost: bool,
        now: Instant,
    ) -> Option<u64> {
        if newly_acked_pkts == 0 && !lost {
            // Responses in flight behind a lost READ response still arrive, so a probe is not due yet.
            if self.timer.deadline().is_some() {
                self.arm(recovery.unacked(), now);
            }
            return None;
        }
        self.loss_window.on_ack_event(newly_acked_pkts, recovery.sent(), lost);
        if self.end_probe() {
            match recovery {
                Recovery::GoBackN(scheme) if newly_acked_pkts > 1 && !lost => scheme.undo_timeout(),
                // The timed packet is retransmitted, so it is not measured (Karn's algorithm, RFC 6298 section 3).
                _ => self.rto.cancel(),
            }
        }
        let rtt_nanos = self.take_rtt_sample(recovery, lost, now);
        if newly_acked_pkts > 0 {
            self.on_progress(now);
        }
        self.rearm(recovery, now);
        rtt_nanos
    }

    /// Under go-back-N, returns the round trip of the timed packet in nanoseconds, if it is acknowledged. Where
    /// sending `lost` the measurement is cancelled, because the packet is retransmitted.
    pub(super) fn take_rtt_sample(&mut self, recovery: &Recovery, lost: bool, now: Instant) -> Option<u64> {
        let timed = self.rto.timed()?;
        let is_answered = timed.index_in(recovery.una(), recovery.sent()).is_none();
        let rtt_nanos = if is_answered { self.rto.on_acked(now) } else { None };
        if lost {
            self.rto.cancel();
        }
        rtt_nanos
    }

    /// Under selective repeat, returns the round trip of the timed packet, in nanoseconds, once it is acknowledged. The
    /// measurement is cancelled if the packet was lost or retransmitted (Karn's algorithm, RFC 6298 section 3).
    pub(super) fn take_rtt_sample_selective(
        &mut self,
        scheme: &SelectiveRepeat,
        now: Instant,
    ) -> Option<u64> {
        let psn = self.rto.timed()?;
        if scheme.is_retransmitted(psn) {
            self.rto.cancel();
        } else if !scheme.is_unacked(psn) {
            return self.rto.on_acked(now);
        }
        None
    }

    /// Whether the expired timer is due; otherwise nothing is in flight, or a response has put it off.
    pub(super) fn is_due(&mut self, recovery: &Recovery, now: Instant) -> bool {
        if recovery.sent() == 0 {
            return false;
        }
        let Some(last_rx_at) = self.last_rx_at else { return true };
        self.arm(recovery.unacked(), last_rx_at);
        self.timer.take_expired(now)
    }

    /// Whether the local ACK timeout has passed since the last progress; if so, it starts anew.
    pub(super) fn take_ack_timeout(&mut self, now: Instant) -> bool {
        let has_passed = self.timer.has_passed(self.last_progress_at, now);
        if has_passed {
            self.last_progress_at = now;
        }
        has_passed
    }

    /// Makes `recovery` retransmit a probe after an expired wait. Returns the kind of the expiry.
    pub(super) fn on_expired(&mut self, recovery: &mut Recovery, outstanding: &mut Outstanding) -> Expiry {
        let expiry = self.rto.on_expired(recovery.unacked());
        match recovery {
            Recovery::GoBackN(scheme) => {
                scheme.on_timeout();
                if self.rto.timed() == Some(scheme.una()) {
                    self.rto.cancel();
                }
                self.is_probing = true;
                self.in_flight_pkts_max = 1;
            }
            Recovery::SelectiveRepeat(scheme) => {
                let probe = scheme.probe(expiry == Expiry::TailLossProbe);
                let (first, count) = probe_of_read(scheme, outstanding, probe.0).unwrap_or(probe);
                scheme.retransmit(first, count);
                let [tail_loss, later] = &mut self.probes;
                *(if expiry == Expiry::TailLossProbe { tail_loss } else { later }) = (first, count);
            }
        }
        expiry
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
