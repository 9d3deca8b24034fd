//! Loss timer of the requester under selective repeat and improved go-back-N: PTO and RTO are derived from the
//! measured round trip; only local ACK timeouts use up `retry_count`.
//!
//! ```text
//!   wait expired            selective repeat               improved go-back-N
//!   PTO                     retransmit the last packet     retransmit the oldest packet: `Probe`
//!   2 PTO, 4 PTO, ..        retransmit the oldest packet   as after PTO
//!   2 PTO, .. if >= RTO     both: retransmit as after 2 PTO, and report a loss to congestion control
//!   local ACK timeout       both: retransmit as above, and use up a retry; if none is left, fail the work request
//! ```

use super::outstanding::Outstanding;
use crate::psn::Psn;
use crate::recovery::sent_log::SentLog;
use crate::recovery::{
    AckEvent, AckResult, AdaptiveRto, Answers, Expiry, GoBackN, Recovery, RetransmitTimer,
};
use crate::time::Instant;

/// Probe of improved go-back-N: una is retransmitted alone, then the ACK decides on the packets above una.
///
/// ```text
///   ACK after a probe                                  packets above the probe
///   NAK                                                retransmitted from the PSN of the NAK
///   acknowledges more than the probe                   in flight: a responder of go-back-N drops all above a gap
///   acknowledges the probe alone,
///     sooner than the shortest round trip              in flight: the ACK is that of the first transmission (Eifel, RFC 3522)
///     before the first round-trip sample               in flight, unless the timer expires before the next ACK (F-RTO, RFC 5682)
///     otherwise                                        retransmitted, unless the next ACK is sooner than a round trip
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    None,
    /// The probe was sent at `at`, and no ACK arrived since.
    InFlight {
        at: Instant,
    },
    /// Before the first round-trip sample, the probe alone was acknowledged.
    Answered,
    /// The packets above the probe are retransmitted from `at` on.
    Retransmitting {
        at: Instant,
    },
}

/// Timer for probes, RTO and local ACK timeout of a requester.
#[derive(Clone, Copy, Debug)]
pub(super) struct LossTimer {
    pub(super) timer: RetransmitTimer,
    pub(super) rto: AdaptiveRto,
    /// Start of the local ACK timeout: the last progress, the last use of a retry, or the sending that armed the timer.
    last_progress_at: Instant,
    /// Time of the last READ response since the timer was armed. If set, the expired timer is rearmed from this time.
    last_rx_at: Option<Instant>,
    /// Time at which the last packet with AckReq was sent.
    last_ack_req_at: Instant,
    /// Under improved go-back-N.
    probe: Probe,
}

impl LossTimer {
    /// Creates a stopped timer; the local ACK timeout is 4.096 us * 2^`timeout`.
    pub(super) fn new(timeout: u8) -> Self {
        LossTimer {
            timer: RetransmitTimer::new(timeout),
            rto: AdaptiveRto::default(),
            last_progress_at: Instant::ZERO,
            last_rx_at: None,
            last_ack_req_at: Instant::ZERO,
            probe: Probe::None,
        }
    }

    /// After an RNR NAK, ends the probe, and the round-trip measurement, because the ACK of the timed packet is late.
    pub(super) fn abandon(&mut self) {
        self.rto.cancel();
        self.end_probe();
    }

    /// Ends the probe of improved go-back-N. Returns the probe.
    fn end_probe(&mut self) -> Probe {
        std::mem::replace(&mut self.probe, Probe::None)
    }

    /// Returns whether una is retransmitted alone, as the probe of improved go-back-N: no other packet may be in
    /// flight.
    #[inline]
    pub(super) fn is_probing(&self) -> bool {
        matches!(self.probe, Probe::InFlight { .. })
    }

    /// Decides by an ACK whether the packets above the probe are in flight. Cancels the round-trip measurement unless
    /// the ACK is that of the first transmission, because the timed packet may have been retransmitted (Karn's
    /// algorithm, RFC 6298 section 3).
    fn on_probe_acked(
        &mut self,
        scheme: &mut GoBackN,
        probe: Probe,
        AckResult { newly_acked_pkts, lost }: AckResult,
        answers: Answers,
        now: Instant,
    ) {
        let (Probe::InFlight { at } | Probe::Retransmitting { at }) = probe else { return };
        let is_alone = newly_acked_pkts == 1 || probe == Probe::Retransmitting { at };
        // A quarter, because the shortest round trip measured may contain the wait behind packets of this queue pair.
        let is_early = now.nanos_since(at) < self.rto.min_nanos() / 4;
        let is_first = answers == Answers::First || (answers == Answers::Any && is_alone && is_early);
        if !is_first {
            self.rto.cancel();
        }
        let has_samples = self.rto.min_nanos() > 0;
        if !lost && (is_first || (answers == Answers::Any && (!is_alone || !has_samples))) {
            scheme.undo_timeout();
        }
        if answers == Answers::Any && is_alone && scheme.sent() > 0 {
            let is_doubtful = is_first || !has_samples;
            self.probe = if is_doubtful { Probe::Answered } else { Probe::Retransmitting { at: now } };
        }
    }

    /// Records that `psn` was sent, after which `unacked_pkts` are in flight. If the timer is stopped, arms it. If the
    /// packet has AckReq (`asks_for_answer`) and is not a retransmission, starts a round-trip measurement.
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
                // The round trip of a READ ends with its first response.
                self.rto.on_sent(psn, now);
            }
        }
        if self.timer.deadline().is_none() {
            self.last_progress_at = now;
            self.arm(unacked_pkts, now);
        }
    }

    /// Returns whether the shortest round trip has passed since the last packet with AckReq. If so, the next packet has
    /// AckReq, because a pacer may delay the packets up to the next AckReq until the probe timeout expires.
    #[inline]
    pub(super) fn is_ack_req_overdue(&self, now: Instant) -> bool {
        now.nanos_since(self.last_ack_req_at) >= self.rto.min_nanos()
    }

    /// Records progress: the local ACK timeout starts anew.
    #[inline]
    pub(super) fn on_progress(&mut self, now: Instant) {
        self.last_progress_at = now;
    }

    /// Ends the backoff. If sent packets are unacknowledged, rearms the timer, otherwise stops it.
    pub(super) fn rearm(&mut self, recovery: &Recovery, now: Instant) {
        self.rto.on_progress();
        if recovery.sent() > 0 {
            self.arm(recovery.unacked(), now);
        } else {
            self.timer.stop();
        }
    }

    /// As [`LossTimer::rearm`], but an armed timer is rearmed only when it expires, because READ responses arrive in
    /// bursts. If all is acknowledged (`sent_pkts` is 0), the timer is stopped at once, because otherwise the next
    /// packet sent after an idle time would be retransmitted as a probe.
    #[inline]
    pub(super) fn rearm_lazily(&mut self, sent_pkts: u32, now: Instant) {
        if sent_pkts == 0 {
            self.timer.stop();
        }
        self.rto.on_progress();
        self.last_rx_at = Some(now);
    }

    /// Records a response to a packet that is acknowledged already: the peer answers, so an armed timer is rearmed from
    /// this time on when it expires.
    pub(super) fn on_stale_response(&mut self, now: Instant) {
        self.last_rx_at = Some(now);
    }

    /// Arms the timer for the probe timeout, but not beyond the local ACK timeout since the last progress.
    pub(super) fn arm(&mut self, unacked_pkts: u32, now: Instant) {
        self.last_rx_at = None;
        self.timer.restart_for(now, self.rto.wait_nanos(unacked_pkts), self.last_progress_at);
    }

    /// Updates probe and timer after `event`, whose effect is `result`, under improved go-back-N. Returns the round trip of the timed packet in nanoseconds, if that packet is acknowledged.
    pub(super) fn on_ack_result(
        &mut self,
        recovery: &mut Recovery,
        event: AckEvent,
        result: AckResult,
        now: Instant,
    ) -> Option<u64> {
        let AckResult { newly_acked_pkts, lost } = result;
        if newly_acked_pkts == 0 && !lost {
            // READ responses behind a lost one still arrive, each an implied NAK, so a probe is not due yet.
            if self.timer.deadline().is_some() {
                self.arm(recovery.unacked(), now);
            }
            return None;
        }
        let probe = self.end_probe();
        match (recovery as &mut Recovery, event) {
            (Recovery::GoBackN(scheme), AckEvent::Cumulative { answers, .. }) => {
                self.on_probe_acked(scheme, probe, result, answers, now);
            }
            // The NAK may be that of the probe, so the timed packet is not measured (Karn's algorithm).
            _ if probe != Probe::None => self.rto.cancel(),
            _ => {}
        }
        let rtt_nanos = self.take_rtt_sample(recovery, lost, now);
        if newly_acked_pkts > 0 {
            self.on_progress(now);
        }
        self.rearm(recovery, now);
        rtt_nanos
    }

    /// Under go-back-N, returns the round trip of the timed packet in nanoseconds, if that packet is acknowledged. If
    /// `lost`, cancels the measurement, because the timed packet is retransmitted.
    pub(super) fn take_rtt_sample(&mut self, recovery: &Recovery, lost: bool, now: Instant) -> Option<u64> {
        let timed = self.rto.timed()?;
        let is_answered = timed.index_in(recovery.una(), recovery.sent()).is_none();
        let rtt_nanos = if is_answered { self.rto.on_acked(now) } else { None };
        if lost {
            self.rto.cancel();
        }
        rtt_nanos
    }

    /// Under selective repeat, returns the round trip of the timed packet in nanoseconds, once that packet is
    /// acknowledged. If the packet was lost or retransmitted, cancels the measurement (Karn's algorithm, RFC 6298
    /// section 3).
    pub(super) fn take_rtt_sample_selective(&mut self, log: &SentLog, now: Instant) -> Option<u64> {
        let psn = self.rto.timed()?;
        if log.is_retransmitted(psn) || log.is_lost(psn) {
            self.rto.cancel();
        } else if !log.is_unacked(psn) {
            return self.rto.on_acked(now);
        }
        None
    }

    /// Under selective repeat, returns the round trip of the packet acknowledged last, of which an ACK at `now` that
    /// closed no gap is the first, in nanoseconds.
    pub(super) fn take_rtt_sample_of_ack(&mut self, log: &SentLog, now: Instant) -> Option<u64> {
        let rtt_nanos = log.rtt_nanos(now)?;
        self.rto.on_sample(rtt_nanos);
        Some(rtt_nanos)
    }

    /// Confirms an expired timer. If all packets are acknowledged, returns false. If a READ response arrived since the
    /// timer was armed, arms the timer from that response on, and returns whether this wait is over, too.
    pub(super) fn is_due(&mut self, recovery: &Recovery, now: Instant) -> bool {
        if recovery.sent() == 0 {
            return false;
        }
        let Some(last_rx_at) = self.last_rx_at else { return true };
        self.arm(recovery.unacked(), last_rx_at);
        self.timer.take_expired(now)
    }

    /// Returns whether the local ACK timeout has passed since its start. If so, the timeout starts anew.
    pub(super) fn take_ack_timeout(&mut self, now: Instant) -> bool {
        let has_passed = self.timer.has_passed(self.last_progress_at, now);
        if has_passed {
            self.last_progress_at = now;
        }
        has_passed
    }

    /// Marks the packets of a probe for retransmission, after the timer expired. Returns the kind of the expiry.
    pub(super) fn on_expired(
        &mut self,
        recovery: &mut Recovery,
        outstanding: &mut Outstanding,
        now: Instant,
    ) -> Expiry {
        let expiry = self.rto.on_expired(recovery.unacked());
        match recovery {
            Recovery::GoBackN(scheme) => {
                scheme.on_timeout();
                if self.end_probe() != Probe::Answered {
                    self.probe = Probe::InFlight { at: now };
                }
            }
            Recovery::SelectiveRepeat(scheme) => {
                scheme.probe(expiry == Expiry::TailLossProbe, outstanding);
                // The answer may be to the probe: its wait is no round trip (Karn's algorithm, RFC 6298 section 3).
                self.rto.cancel();
            }
        }
        expiry
    }
}
