//! The requester's timing where it follows the network: probes and timeouts by the measured round trip,
//! giving up by the local ACK timeout.
//!
//! ```text
//!   silence for         selective repeat                  improved go-back-N
//!   a round trip        the last packet again             the oldest packet again; where the peer then acknowledges
//!   twice that, ..      the oldest packet again           that alone, all behind it too
//!   of those, the RTO   and congestion control sees a loss
//!   local ACK timeout   one of `retry_count` is used up; after the last the work request fails
//! ```

use super::outstanding::Outstanding;
use super::requester::Requester;
use crate::counters::QpCounters;
use crate::psn::Psn;
use crate::queue::WcStatus;
use crate::recovery::{AdaptiveRto, Expiry, LossWindow, Recovery, SelectiveRepeat};
use crate::time::Instant;

/// Timing that follows the network.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossTimer {
    /// Under improved go-back-N, what may be in flight: a loss costs all of it.
    loss_window: LossWindow,
    /// The same, or 1 until the peer answers a probe.
    pub(super) in_flight_pkts_max: u32,
    pub(super) rto: AdaptiveRto,
    /// When what everything waits for last came, or a retry was spent on it.
    last_progress_at: Instant,
    /// When something came since the timer was started, of which it was not told.
    last_rx_at: Option<Instant>,
    /// When an acknowledgement was asked for last.
    last_ack_req_at: Instant,
    /// Under improved go-back-N, a probe is under way.
    is_probing: bool,
    /// Under selective repeat, what was repeated in the last first silence, and in a longer one: first packet, count.
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
    /// The peer is not ready: what was timed will be answered much later, or is taken back.
    pub(super) fn abandon(&mut self) {
        self.rto.cancel();
        self.end_probe();
    }

    /// Whether `psn` was sent again as a probe: a duplicate of it says nothing of the network.
    pub(super) fn was_probe(&self, psn: Psn) -> bool {
        self.probes.iter().any(|(first, count)| psn.index_in(*first, *count).is_some())
    }

    /// Returns whether a probe was under way.
    fn end_probe(&mut self) -> bool {
        self.in_flight_pkts_max = self.loss_window.window_pkts();
        std::mem::take(&mut self.is_probing)
    }
}

impl Requester {
    /// The packet `psn` was sent.
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
                // Of a READ, the first response.
                self.loss_timer.rto.on_sent(psn, now);
            }
        }
        if self.timer.deadline().is_none() {
            self.loss_timer.last_progress_at = now;
            self.arm(now);
        }
    }

    /// Whether the peer's silence would look like a loss, if it were not asked for an acknowledgement now: a
    /// pacer may take long over the packets between two that ask.
    #[inline]
    pub(super) fn is_ack_req_overdue(&self, now: Instant) -> bool {
        !self.congestion.is_window()
            && self.config.recovery.is_adaptive()
            && now.nanos_since(self.loss_timer.last_ack_req_at) >= self.loss_timer.rto.min_nanos()
    }

    /// The wait for a receive is over.
    pub(super) fn rearm_after_rnr(&mut self, now: Instant) {
        if self.selective().is_some() && self.recovery.sent() > 0 {
            self.on_progress(now);
            self.rearm(now);
        }
    }

    /// What everything waits for has come. Nothing less gives back retries: what arrives behind a packet
    /// that never does may be thrown away and arrive again for ever.
    pub(super) fn on_progress(&mut self, now: Instant) {
        self.loss_timer.last_progress_at = now;
        self.retries_left = self.config.retry_count;
    }

    /// Starts the timer anew, if anything was sent.
    pub(super) fn rearm(&mut self, now: Instant) {
        self.loss_timer.rto.on_progress();
        if self.recovery.sent() > 0 {
            self.arm(now);
        } else {
            self.timer.stop();
        }
    }

    /// As [`Requester::rearm`], but the timer learns of it when it expires: most that comes has company. Where
    /// nothing is waited for it stops at once: whoever does not poll for a while must not find it expired.
    #[inline]
    pub(super) fn rearm_lazily(&mut self, now: Instant) {
        if self.recovery.sent() == 0 {
            self.timer.stop();
        }
        self.loss_timer.rto.on_progress();
        self.loss_timer.last_rx_at = Some(now);
    }

    /// Waits for silence from now on, though no longer than the local ACK timeout.
    fn arm(&mut self, now: Instant) {
        self.loss_timer.last_rx_at = None;
        let wait_nanos = self.loss_timer.rto.wait_nanos(self.recovery.unacked());
        self.timer.restart_for(now, wait_nanos, self.loss_timer.last_progress_at);
    }

    /// Under improved go-back-N, the peer acknowledged packets, or told that one was lost. Returns the round
    /// trip of the packet timed, where its answer has come, in nanoseconds.
    pub(super) fn on_ack_result(&mut self, now: Instant, newly_acked_pkts: u32, lost: bool) -> Option<u64> {
        if newly_acked_pkts == 0 && !lost {
            // What was in flight when a READ response was lost still comes in: no silence yet.
            if self.timer.deadline().is_some() {
                self.arm(now);
            }
            return None;
        }
        self.loss_timer.loss_window.on_ack_event(newly_acked_pkts, self.recovery.sent(), lost);
        if self.loss_timer.end_probe() {
            match &mut self.recovery {
                Recovery::GoBackN(scheme) if newly_acked_pkts > 1 && !lost => scheme.undo_timeout(),
                // What is timed is sent again.
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

    /// Under go-back-N, whether the packet timed was among those acknowledged: its round trip in nanoseconds.
    pub(super) fn take_rtt_sample(&mut self, now: Instant, lost: bool) -> Option<u64> {
        let timed = self.loss_timer.rto.timed()?;
        let is_answered = timed.index_in(self.recovery.una(), self.recovery.sent()).is_none();
        let rtt_nanos = if is_answered { self.loss_timer.rto.on_acked(now) } else { None };
        if lost {
            self.loss_timer.rto.cancel();
        }
        rtt_nanos
    }

    /// The timer expired: a probe, and after that more, and when the peer was silent for the local ACK
    /// timeout, a retry is used up.
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
                self.loss_timer.probes[usize::from(expiry != Expiry::TailLossProbe)] = (first, count);
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

/// What to probe with, first packet and count, where `psn` belongs to a READ that the peer may not have, so that no
/// part of it will do: the last response still due to those that it has, or else the whole of this one.
fn probe_of_read(scheme: &SelectiveRepeat, outstanding: &mut Outstanding, psn: Psn) -> Option<(Psn, u32)> {
    let place = outstanding.find(psn).filter(|place| place.span.is_read)?;
    let last_due = scheme.executed().minus(1);
    match (scheme.is_executed(psn), scheme.is_unacked(last_due)) {
        (true, _) => None,
        (_, true) => Some((last_due, 1)),
        _ => Some((place.span.first, place.span.packets)),
    }
}
