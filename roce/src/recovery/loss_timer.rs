//! Loss timer of the requester. Under selective repeat and improved go-back-N, PTO and RTO are derived from the
//! measured round trip; the expiry of a PTO does not use up a retry. Under go-back-N the timer is the local ACK
//! timeout.
//!
//! ```text
//!   wait expired            selective repeat               improved go-back-N
//!   PTO                     retransmit the last packet     retransmit the oldest packet
//!   2 PTO, .. if < RTO      retransmit the oldest packet   retransmit the oldest packet
//!   2 PTO, .. if >= RTO     both: retransmit the oldest packet, and report a loss to congestion control
//!   local ACK timeout       both: use up a retry, and act by one of the rows above: the first row if the loss timer
//!                           expires for the first time since a packet was acknowledged, otherwise the second or third
//!                           row; if no retry is left, fail the oldest work request instead
//! ```
//! Under both schemes, NAKs use up no retry.

use std::num::NonZeroU64;

use super::events::{Answers, Nak, RecoveryResult, Requests};
use super::go_back_n::GoBackN;
use super::rto::{AdaptiveRto, Expiry, RetransmitTimer};
use super::sent_log::{AckTime, RTT_UNKNOWN_NANOS, SentLog};
use super::{Recovery, RecoveryScheme, SentRequest};
use crate::psn::Psn;
use crate::time::{Instant, OptionalInstant};

/// Largest number of packets above a probe that are retransmitted without a NAK.
const UNSHOWN_LOSS_PKTS_MAX: u32 = 2;

/// Probe of improved go-back-N: only una is retransmitted. The next response shows whether packets above una are lost.
///
/// ```text
///   response after a probe                    packets above the probe are taken as
///   NAK                                       lost, from the PSN of the NAK on
///   FIRST or MIDDLE of a READ                 in flight: the response is of una's first transmission
///   LAST or ONLY below a READ's last PSN      lost: the response is of the probe
///   acknowledges more than the probe          in flight: una was not lost, or the responder buffers packets above una
///   acknowledges the probe alone,
///     < 1/4 shortest RTT after the probe      in flight: the ACK is of una's first transmission (Eifel, RFC 3522) *
///     more than two packets above the probe,  in flight, and the last packet is retransmitted: if packets below the
///       the last is no part of a longer READ  last are lost, a NAK follows (F-RTO, RFC 5682, sends new packets) **
///     before the first round-trip sample      in flight *
///     otherwise                               lost
///
///   *  not for two probes in succession: if the packets above the first probe had been in flight, their ACKs would
///      have followed without a second probe
///   ** if the PTO interrupted the retransmissions after a NAK, the next of them is sent instead of the last packet
/// ```
/// "In flight" means: as before the PTO. If a NAK had shown a loss, and the PTO interrupted the retransmissions, the
/// packets from `resume` on are still to be retransmitted:
///
/// ```text
///     una       sent after the NAK       resume       lost before the NAK       max_sent
///      |----------------------------------|---------------------------------------|
///     probe                                                  without a NAK: resume == max_sent
/// ```
/// The shortest measured round trip may include queueing, and be many times the round trip of a probe. By the first row
/// with * alone, each packet of a lost window would then be probed in turn, after a PTO that doubles.
///
/// If an ACK follows the retransmission of the last packet, the probe was spurious: the first transmission of the probed
/// packet was only acknowledged late, and the time from this transmission to its ACK is a round-trip sample (the Eifel
/// response, RFC 4015, section 3.2). If the PTO were not raised so, each delay of this length would cause probes again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
// The compiler encodes the variant of an outer enum in unused values of one inner field: the field with the most unused
// values. For the enums that contain a queue pair, this field must be `qp::rc::Responses`, whose tag has 64 bits.
// Therefore the tag of `Probe` has only 8 bits.
#[repr(u8)]
enum Probe {
    None,
    /// The probe was sent at `at`, and no response arrived since.
    InFlight {
        resume: Psn,
        at: Instant,
    },
    /// An ACK acknowledged the probe alone, `resume` or, if this is `max_sent`, the last packet is retransmitted, and
    /// no response arrived since. `rtt_nanos`: time from the first transmission of the probed packet to this ACK;
    /// `None` if it was not measured.
    LastInFlight {
        resume: Psn,
        rtt_nanos: Option<NonZeroU64>,
    },
}

/// Loss timer of a requester: expires at the probe timeout or at the local ACK timeout, whichever is first; under
/// go-back-N, at the local ACK timeout only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LossTimer {
    timer: RetransmitTimer,
    rto: AdaptiveRto,
    /// Whether PTO and RTO are used besides the local ACK timeout.
    is_adaptive: bool,
    /// Whether the last response that changed `recovery` acknowledged a probe alone, and was taken as the ACK of the first
    /// transmission (rows with * in the table of [`Probe`]).
    was_first_alone: bool,
    /// Whether a packet was sent since the timer last expired. Not used under go-back-N.
    has_sent: bool,
    /// Start of the local ACK timeout: the time of the latest of five events: progress, expiry of the local ACK
    /// timeout, end of an RNR wait, transmission of a packet that armed the timer, end of a time in which the pacer
    /// delayed a retransmission.
    last_progress_at: Instant,
    /// Time of the latest of these events since the timer was armed: arrival of a READ response or of a stale response,
    /// retransmission of una. When the timer expires, the timer is rearmed as if armed at this time. Not used under
    /// go-back-N.
    rearm_at: OptionalInstant,
    last_ack_req_at: Instant,
    /// The PSN after the latest packet with AckReq, retransmissions excepted. Not used under go-back-N.
    ack_req_end: Psn,
    /// `Probe::None` except under improved go-back-N.
    probe: Probe,
}

impl LossTimer {
    /// Creates a stopped timer; the local ACK timeout is 4.096 us * 2^`timeout`. `initial_rtt_nanos`: see
    /// [`AdaptiveRto::new`].
    pub(crate) fn new(scheme: RecoveryScheme, timeout: u8, initial_rtt_nanos: u32) -> Self {
        LossTimer {
            timer: RetransmitTimer::new(timeout),
            rto: AdaptiveRto::new(initial_rtt_nanos),
            is_adaptive: scheme.is_adaptive(),
            was_first_alone: false,
            has_sent: false,
            last_progress_at: Instant::ZERO,
            rearm_at: OptionalInstant::NONE,
            last_ack_req_at: Instant::ZERO,
            ack_req_end: Psn::default(),
            probe: Probe::None,
        }
    }

    pub(crate) fn set_timeout(&mut self, timeout: u8) {
        self.timer.set_timeout(timeout);
    }

    #[inline]
    pub(crate) fn deadline(&self) -> OptionalInstant {
        self.timer.deadline()
    }

    pub(crate) fn stop(&mut self) {
        self.timer.stop();
    }

    /// Returns whether a probe of improved go-back-N is in flight.
    #[inline]
    pub(crate) fn is_probing(&self) -> bool {
        matches!(self.probe, Probe::InFlight { .. })
    }

    /// Returns whether improved go-back-N retransmits the last packet, or awaits the response to it.
    pub(crate) fn retransmits_last(&self) -> bool {
        matches!(self.probe, Probe::LastInFlight { .. })
    }

    /// Returns the maximum number of packets in flight during a probe: no PSN above the probe, or above the packet that
    /// is retransmitted as the last, is sent. `None` without a probe.
    #[inline]
    pub(crate) fn probe_pkts_max(&self, recovery: &Recovery) -> Option<u32> {
        match self.probe {
            Probe::None => None,
            Probe::InFlight { .. } => Some(1),
            Probe::LastInFlight { resume, .. } => {
                Some(recovery.sent().min(resume.distance_from(recovery.una()) + 1))
            }
        }
    }

    #[inline]
    pub(crate) fn ack_time(&self, now: Instant) -> AckTime {
        let rtt_min_nanos = match self.rto.min_nanos() {
            0 => RTT_UNKNOWN_NANOS,
            nanos => nanos,
        };
        AckTime { now, rtt_min_nanos }
    }

    /// Records that `sent` was sent; `recovery` must have recorded its PSNs already. If the timer is stopped, arms the
    /// timer. If the packet has AckReq and is not a retransmission, starts a round-trip measurement; under go-back-N
    /// only if congestion control uses round trips (`follows_round_trip`).
    #[inline(always)]
    pub(crate) fn on_packet_sent(
        &mut self,
        sent: SentRequest,
        follows_round_trip: impl FnOnce() -> bool,
        recovery: &Recovery,
        now: Instant,
    ) {
        let SentRequest { psn, psn_span, has_ack_req, is_retransmission } = sent;
        if !self.is_adaptive {
            self.timer.start(now);
            if has_ack_req && !is_retransmission && follows_round_trip() {
                self.rto.on_sent(psn, now);
            }
            return;
        }
        self.has_sent = true;
        if has_ack_req {
            self.last_ack_req_at = now;
            if !is_retransmission {
                self.ack_req_end = psn.plus(psn_span);
                // The round trip of a READ ends with its first response.
                self.rto.on_sent(psn, now);
            }
        }
        if is_retransmission && psn == recovery.una() {
            self.rearm_at = OptionalInstant::some(now);
        }
        if self.timer.deadline().is_none() {
            self.last_progress_at = now;
            self.arm(recovery.unacked(), now);
        }
    }

    /// Returns whether the shortest round trip has passed since the last packet with AckReq was sent; false under
    /// go-back-N. If true, the caller sets AckReq in the next packet, because otherwise a pacer could delay the next
    /// packet with AckReq until the probe timeout expires.
    #[inline]
    pub(crate) fn is_ack_req_overdue(&self, now: Instant) -> bool {
        self.is_adaptive && now.nanos_since(self.last_ack_req_at) >= self.rto.min_nanos()
    }

    /// Returns whether a NAK (PSN sequence error) for `next` shows that the retransmission of una was lost: `next` is una,
    /// and una was retransmitted at least a quarter of the shortest round trip before `now`. A sooner NAK was elicited
    /// before the retransmission arrived. Always false before the first round-trip sample, and under go-back-N.
    #[cold]
    pub(crate) fn shows_lost_again(&self, recovery: &Recovery, next: Psn, now: Instant) -> bool {
        let is_retransmitted = recovery.una() == next && recovery.next_psn() != next;
        let is_known = self.is_adaptive && self.rto.has_sample() && is_retransmitted;
        is_known && self.rearm_at.get().is_some_and(|at| !self.is_early(at, now))
    }

    /// Returns whether less than a quarter of the shortest round trip has passed since `sent_at`: a response received at
    /// `now` was elicited by an earlier transmission of the packet sent at `sent_at`. The limit is not the whole shortest
    /// round trip, because each measured round trip may include queueing behind packets of this queue pair: without
    /// queueing, the response may arrive in less than the shortest measured round trip.
    fn is_early(&self, sent_at: Instant, now: Instant) -> bool {
        now.nanos_since(sent_at) < self.rto.min_nanos() / 4
    }

    /// Records a stale response, which shows that the peer still responds: sets `rearm_at` to `now`. After a probe, the
    /// stale response is the second one to the probed packet: the probe was spurious (D-SACK, RFC 3708).
    pub(crate) fn on_stale_response(&mut self, now: Instant) {
        self.rto.on_spurious();
        self.rearm_at = OptionalInstant::some(now);
    }

    /// Updates probe, round trip and timer after a response. Returns the round trip in nanoseconds, if measured.
    /// `requests` applies to improved go-back-N only, the next two arguments to selective repeat only. If
    /// `samples_ack`, a response that yields no round trip of the timed packet yields the round trip of the packet just
    /// below una. If `is_rnr_wait`, the timer is not rearmed, because no request is sent before the end of the RNR
    /// wait.
    #[inline(always)]
    pub(crate) fn on_result(
        &mut self,
        recovery: &mut Recovery,
        result: &RecoveryResult,
        requests: &mut impl Requests,
        samples_ack: bool,
        is_rnr_wait: bool,
        now: Instant,
    ) -> Option<u64> {
        match recovery {
            Recovery::GoBackN(scheme) if self.is_adaptive => {
                self.on_improved_result(scheme, result, requests, now)
            }
            Recovery::GoBackN(scheme) if result.changed => {
                // If `next` is una (`unacked` returns 0), the timer is stopped; the next packet sent arms the timer.
                if scheme.unacked() > 0 {
                    self.timer.restart(now)
                } else {
                    self.timer.stop()
                }
                self.take_rtt_sample(scheme, result, now)
            }
            Recovery::GoBackN(_) => None,
            Recovery::SelectiveRepeat(scheme) => {
                if result.spurious.is_some() {
                    self.rto.on_spurious();
                }
                if result.lost_pkts > 0 {
                    self.rto.on_loss();
                }
                let log = scheme.log();
                let mut rtt_nanos = self.take_rtt_sample_selective(log, now);
                if samples_ack && rtt_nanos.is_none() {
                    rtt_nanos = self.take_rtt_sample_of_ack(log, now);
                }
                if result.acked_pkts > 0 {
                    // Otherwise requests may be lost, and a longer PTO would delay their retransmission.
                    if log.has_executed_all() {
                        self.rto.on_first_progress(now.nanos_since(self.last_progress_at));
                    }
                    self.last_progress_at = now;
                }
                if is_rnr_wait {
                    // The timer is not armed here, because the end of the RNR wait arms the timer.
                } else if result.is_read_response && rtt_nanos.is_none() {
                    self.rearm_lazily(log.sent(), log.unacked(), now);
                } else if result.is_read_response || result.changed {
                    self.rearm(log.sent(), log.unacked(), now);
                }
                rtt_nanos
            }
        }
    }

    #[inline(never)]
    fn on_improved_result(
        &mut self,
        scheme: &mut GoBackN,
        result: &RecoveryResult,
        requests: &mut impl Requests,
        now: Instant,
    ) -> Option<u64> {
        if result.nak == Some(Nak::SequenceError) && self.rto.needs_sample() {
            // The NAK shows that the packets that were timed were lost, not retransmitted before their ACK arrived. An
            // implied NAK shows the loss of a READ response only.
            self.rto.end_backoff();
        }
        if !result.changed {
            // una did not advance, and no packet was newly marked lost, for example because the response is the second
            // READ response above a missing READ response. The timer is rearmed, because more READ responses may be
            // arriving.
            if !self.timer.deadline().is_none() {
                self.arm(scheme.unacked(), now);
            }
            return None;
        }
        if result.acked_pkts > 0 {
            self.rto.on_first_progress(now.nanos_since(self.last_progress_at));
            self.last_progress_at = now;
        }
        if result.nak.is_some() {
            self.rto.on_loss();
        }
        let was_first_alone = std::mem::take(&mut self.was_first_alone);
        match (self.end_probe(), result.answers) {
            (Probe::InFlight { resume, at }, Some(answers)) => {
                self.on_probe_acked(scheme, result, (answers, was_first_alone), requests, (resume, at), now);
            }
            (Probe::LastInFlight { resume, rtt_nanos }, Some(_)) if !result.has_gone_back => {
                // If no NAK preceded the PTO, and the ACK arrives before the last packet is retransmitted, this packet is
                // not retransmitted.
                scheme.undo_timeout(resume);
                self.rto.on_spurious();
                if let Some(rtt_nanos) = rtt_nanos {
                    self.rto.on_sample(rtt_nanos.get());
                }
            }
            // The retransmission may have elicited the NAK, so the round-trip measurement is cancelled (Karn's algorithm).
            (Probe::InFlight { .. } | Probe::LastInFlight { .. }, _) => self.rto.cancel(),
            (Probe::None, _) => {}
        }
        let rtt_nanos = self.take_rtt_sample(scheme, result, now);
        if matches!(self.probe, Probe::LastInFlight { .. }) {
            // The backoff does not end, because the probe may have been spurious: a PTO that expired too soon once would
            // do so again.
            self.arm(scheme.unacked(), now);
        } else {
            self.rearm(scheme.sent(), scheme.unacked(), now);
        }
        rtt_nanos
    }

    /// Decides by the table of [`Probe`], after an ACK, whether the packets above the probe are in flight. `at`: time
    /// at which the probe was sent; `resume`: see [`Probe`]. If the probe may have elicited the ACK, cancels the
    /// round-trip measurement (Karn's algorithm, RFC 6298 section 3), or keeps it in [`Probe::LastInFlight`] until the
    /// next response.
    fn on_probe_acked(
        &mut self,
        scheme: &mut GoBackN,
        result: &RecoveryResult,
        (answers, was_first_alone): (Answers, bool),
        requests: &mut impl Requests,
        (resume, at): (Psn, Instant),
        now: Instant,
    ) {
        let is_early = !was_first_alone && self.is_early(at, now);
        let is_any = answers == Answers::Any;
        let is_alone = is_any && result.acked_pkts == 1;
        let is_first = answers == Answers::First || (is_alone && is_early);
        let is_unshown =
            is_alone && !is_first && !result.has_gone_back && scheme.sent() > UNSHOWN_LOSS_PKTS_MAX;
        if is_unshown && scheme.retransmit_last(resume, requests) {
            let rtt_nanos = if self.is_timed_acked(scheme) { self.rto.take_timed(now) } else { None };
            if self.rto.timed() == Some(scheme.next_psn()) {
                // The last packet is timed, and is retransmitted now.
                self.rto.cancel();
            }
            self.probe = Probe::LastInFlight { resume, rtt_nanos: rtt_nanos.and_then(NonZeroU64::new) };
            return;
        }
        if is_first {
            self.rto.on_spurious();
        } else {
            self.rto.cancel();
        }
        if result.has_gone_back {
            return;
        }
        let is_unmeasured = !was_first_alone && !self.rto.has_sample();
        if is_first || (is_any && (!is_alone || is_unmeasured)) {
            self.was_first_alone = is_alone;
            scheme.undo_timeout(resume);
        }
    }

    fn end_probe(&mut self) -> Probe {
        std::mem::replace(&mut self.probe, Probe::None)
    }

    /// Ends the backoff. If `sent_pkts`, the number of PSNs from una to the highest PSN sent, is above 0, rearms the
    /// timer; otherwise stops the timer.
    fn rearm(&mut self, sent_pkts: u32, unacked_pkts: u32, now: Instant) {
        self.rto.on_progress();
        if sent_pkts > 0 {
            self.arm(unacked_pkts, now);
        } else {
            self.timer.stop();
        }
    }

    /// Ends the backoff after a READ response, and stores the time of the response in `rearm_at`. The timer is
    /// rearmed from this time when it expires, not before, because READ responses arrive in bursts. In two cases the
    /// timer is changed at once. After a probe, the timer is rearmed, because its deadline includes the backoff; before
    /// the first sample it is not, because the next response may be as late as this one. If all PSNs are acknowledged
    /// (`sent_pkts` is 0), the timer is stopped, because otherwise a packet sent just before the expiry of the timer
    /// would be retransmitted as a probe.
    #[inline]
    fn rearm_lazily(&mut self, sent_pkts: u32, unacked_pkts: u32, now: Instant) {
        if sent_pkts == 0 || self.rto.has_sampled_pto_expired() {
            return self.rearm(sent_pkts, unacked_pkts, now);
        }
        self.rto.on_progress();
        self.rearm_at = OptionalInstant::some(now);
    }

    /// Arms the timer for the probe timeout, or for the end of the local ACK timeout if that is sooner.
    fn arm(&mut self, unacked_pkts: u32, now: Instant) {
        self.rearm_at = OptionalInstant::NONE;
        self.timer.restart_for(now, self.rto.wait_nanos(unacked_pkts), self.last_progress_at);
    }

    /// Returns whether a packet is timed that is acknowledged by now; under both kinds of go-back-N only.
    fn is_timed_acked(&self, scheme: &GoBackN) -> bool {
        self.rto.timed().is_some_and(|timed| timed.index_in(scheme.una(), scheme.sent()).is_none())
    }

    /// Under both kinds of go-back-N, returns the round trip of the timed packet in nanoseconds, if the response newly
    /// acknowledges this packet. If the response causes retransmissions, cancels the measurement, because this packet
    /// is retransmitted, too.
    fn take_rtt_sample(&mut self, scheme: &GoBackN, result: &RecoveryResult, now: Instant) -> Option<u64> {
        let rtt_nanos = if self.is_timed_acked(scheme) { self.rto.on_acked(now) } else { None };
        if result.has_gone_back {
            self.rto.cancel();
        }
        rtt_nanos.filter(|_| result.acked_pkts > 0)
    }

    /// Under selective repeat, returns the round trip of the timed packet in nanoseconds if this packet is
    /// acknowledged. If the packet was lost or retransmitted, cancels the measurement (Karn's algorithm, RFC 6298
    /// section 3).
    #[inline]
    fn take_rtt_sample_selective(&mut self, log: &SentLog, now: Instant) -> Option<u64> {
        let psn = self.rto.timed()?;
        if log.is_retransmitted(psn) || log.is_lost(psn) {
            self.rto.cancel();
        } else if !log.is_unacked(psn) {
            return self.rto.on_acked(now);
        }
        None
    }

    /// Under selective repeat, returns the round trip of the packet just below una, in nanoseconds; `None` if this
    /// packet was retransmitted. Requires that the response received at `now` acknowledged this packet, and that
    /// `RecoveryResult::had_no_gap` is true: until this response no packet above una was acknowledged.
    fn take_rtt_sample_of_ack(&mut self, log: &SentLog, now: Instant) -> Option<u64> {
        let rtt_nanos = log.rtt_nanos(now)?;
        self.rto.on_sample(rtt_nanos);
        Some(rtt_nanos)
    }

    /// Called before [`LossTimer::on_result`] for a SACK that `trigger`, no duplicate, elicited. If otherwise only a
    /// round-trip sample ended the backoff, ends the backoff: the SACK shows that the packets that were timed were lost, not
    /// retransmitted before their ACK arrived. In this case, and before the first sample, the round trip of `trigger` is
    /// a sample if `trigger` was sent once.
    pub(crate) fn on_out_of_order(&mut self, recovery: &Recovery, trigger: Psn, now: Instant) {
        if let Recovery::SelectiveRepeat(scheme) = recovery {
            self.take_rtt_sample_above_gap(scheme.log(), trigger, now);
            if self.rto.needs_sample() {
                self.rto.end_backoff();
            }
        }
    }

    /// Called before [`LossTimer::on_result`] for the READ response `psn`, received above a missing READ response. Under
    /// go-back-N of both kinds, if `psn` is timed, takes its round trip as a sample: the sample upon the advance of una
    /// would include the repair of the loss. `psn` was sent once (Karn's algorithm): a go-back cancels the measurement,
    /// and after an expiry only una is retransmitted, until a response cancels the measurement or shows that nothing was
    /// lost. Under selective repeat, the round trip of `psn` is a sample as in [`LossTimer::on_out_of_order`].
    pub(crate) fn on_implied_nak(&mut self, recovery: &Recovery, psn: Psn, now: Instant) {
        match recovery {
            Recovery::GoBackN(_) if self.rto.timed() == Some(psn) => _ = self.rto.on_acked(now),
            Recovery::GoBackN(_) => {}
            Recovery::SelectiveRepeat(scheme) => self.take_rtt_sample_above_gap(scheme.log(), psn, now),
        }
    }

    /// If there is no round-trip sample, or if only a sample ends the backoff, takes the round trip of `psn`, received
    /// above a missing packet, unless `psn` was retransmitted. If only timed packets yielded samples, many losses could
    /// prevent a sample, because the loss of the timed packet cancels the measurement. Without a sample, the response to
    /// a probe does not show which packets are lost, because the first transmission of the probed packet may have
    /// elicited this response.
    fn take_rtt_sample_above_gap(&mut self, log: &SentLog, psn: Psn, now: Instant) {
        let is_sampled = self.rto.has_sample() && !self.rto.needs_sample();
        if is_sampled || self.rto.timed() == Some(psn) {
            return; // `on_result` takes the round trip of the timed packet.
        }
        let Some(rtt_nanos) = log.sacked_rtt_nanos(psn, now) else { return };
        self.rto.on_unambiguous_sample(rtt_nanos);
        if !self.timer.deadline().is_none() {
            // The deadline of the PTO before the sample may be much later.
            self.arm(log.unacked(), now);
        }
    }

    /// After an RNR NAK, stops the timer, and ends the probe and the round-trip measurement, because the RNR wait
    /// delays the ACK of the timed packet.
    pub(crate) fn on_rnr_nak(&mut self) {
        self.rto.cancel();
        self.end_probe();
        self.timer.stop();
    }

    /// Ends an RNR wait. Under selective repeat, if packets are unacknowledged, arms the timer and returns true: the
    /// caller restores the retry count. Under both kinds of go-back-N, the next packet sent arms the timer.
    pub(crate) fn on_rnr_wait_over(&mut self, recovery: &Recovery, now: Instant) -> bool {
        let is_progress = recovery.is_selective() && recovery.sent() > 0;
        if is_progress {
            self.last_progress_at = now;
            self.rearm(recovery.sent(), recovery.unacked(), now);
        }
        is_progress
    }

    /// Called when the timer has expired. Returns whether a probe timeout or local ACK timeout has passed; false if all
    /// packets are acknowledged.
    ///
    /// If many queue pairs share a port, a packet waits until the engine serves this queue pair. A probe timeout
    /// therefore has not passed in two cases, in which the peer need not respond: una is to be retransmitted, but was
    /// not sent yet; or no packet with AckReq is in flight, and the rest of the message, with AckReq, can be sent
    /// (`has_ready`).
    ///
    /// Rearms the timer as if armed at the latest of these times, and returns whether the rearmed timer has expired,
    /// too: `rearm_at`; the transmission of the packet whose round trip is being measured, the oldest packet in flight
    /// with AckReq, which may be sent much later than the first packet of its message, which armed the timer.
    fn is_due(&mut self, recovery: &Recovery, has_ready: bool, now: Instant) -> bool {
        if recovery.sent() == 0 {
            return false;
        }
        let ack_req_pkts = self.ack_req_end.index_in(recovery.una(), recovery.sent() + 1);
        let is_una_next = recovery.next_psn() == recovery.una();
        let need_not_respond = is_una_next || (has_ready && ack_req_pkts.is_none_or(|pkts| pkts == 0));
        if need_not_respond && !self.timer.has_passed(self.last_progress_at, now) {
            self.arm(recovery.unacked(), now);
            return false;
        }
        let timed_at = self.rto.timed_at().filter(|at| *at > self.last_progress_at);
        let Some(since) = self.rearm_at.get().max(timed_at) else { return true };
        self.arm(recovery.unacked(), since);
        self.timer.take_expired(now)
    }

    /// Returns whether the local ACK timeout has passed; `None` if the timer has not expired or was rearmed, or if all
    /// packets are acknowledged. If true, the caller uses up a retry, and the local ACK timeout begins anew. Under
    /// go-back-N, if the timer has expired, moves [`Recovery::next_psn`] back to una and returns true.
    ///
    /// `permit_at`: the time at which the pacer permits the next packet. If this time is in the future, and no packet
    /// was sent since the last expiry, the pacer delays the retransmission that this expiry caused: the timer is
    /// rearmed as if armed at this time, and no retry is used up. Under go-back-N the timer is stopped until this
    /// packet is sent. `has_ready`: see [`LossTimer::is_due`].
    pub(crate) fn take_expired(
        &mut self,
        recovery: &mut Recovery,
        has_ready: bool,
        permit_at: impl FnOnce() -> Option<Instant>,
        now: Instant,
    ) -> Option<bool> {
        if !self.timer.take_expired(now) {
            return None;
        }
        if !self.is_adaptive {
            self.rto.cancel();
            recovery.go_back();
            return Some(true);
        }
        if !self.is_due(recovery, has_ready, now) {
            return None;
        }
        if !self.has_sent
            && let Some(permit_at) = permit_at().filter(|at| *at > now)
        {
            self.last_progress_at = permit_at;
            self.arm(recovery.unacked(), permit_at);
            return None;
        }
        self.has_sent = false;
        let has_passed = self.timer.has_passed(self.last_progress_at, now);
        if has_passed {
            self.last_progress_at = now;
        }
        Some(has_passed)
    }

    /// Called after [`LossTimer::take_expired`]: marks a probe for retransmission and arms the timer. Returns the
    /// [`Expiry`]; `None` under go-back-N, which has no probes.
    pub(crate) fn on_expired(
        &mut self,
        recovery: &mut Recovery,
        requests: &mut impl Requests,
        now: Instant,
    ) -> Option<Expiry> {
        if !self.is_adaptive {
            return None;
        }
        let expiry = self.rto.on_expired(recovery.unacked());
        match recovery {
            Recovery::GoBackN(scheme) => {
                let next = scheme.on_timeout();
                let resume = match self.probe {
                    Probe::None => next,
                    Probe::InFlight { resume, .. } | Probe::LastInFlight { resume, .. } => resume,
                };
                self.probe = Probe::InFlight { resume, at: now };
            }
            Recovery::SelectiveRepeat(scheme) => {
                scheme.probe(expiry == Expiry::TailLossProbe, requests);
                // The probe may elicit the next ACK, so no packet is timed (Karn's algorithm, RFC 6298 section 3).
                self.rto.cancel();
            }
        }
        self.arm(recovery.unacked(), now);
        Some(expiry)
    }
}

#[cfg(test)]
mod tests {
    use super::super::events::AckEvent;
    use super::*;
    use crate::recovery::selective_repeat::tests::Sent;

    const FIRST_PSN: Psn = Psn::new(0xFF_FFFE);

    fn request(has_ack_req: bool, is_retransmission: bool) -> SentRequest {
        SentRequest { psn: FIRST_PSN, psn_span: 1, has_ack_req, is_retransmission }
    }

    /// Sends one packet at time 0.
    fn sent(
        scheme: RecoveryScheme,
        has_ack_req: bool,
        is_retransmission: bool,
        follows: bool,
    ) -> (LossTimer, Recovery) {
        let mut recovery = Recovery::new(scheme, FIRST_PSN);
        let mut timer = LossTimer::new(scheme, 8, 0);
        recovery.on_sent(1, Instant::ZERO);
        timer.on_packet_sent(request(has_ack_req, is_retransmission), || follows, &recovery, Instant::ZERO);
        (timer, recovery)
    }

    #[test]
    fn first_transmissions_with_ack_req_are_timed() {
        for [has_ack_req, is_retransmission, follows] in
            [0, 1, 2, 3, 4, 5, 6, 7].map(|bits| [1, 2, 4].map(|bit| bits & bit != 0))
        {
            let timed = |scheme| sent(scheme, has_ack_req, is_retransmission, follows).0.rto.timed();
            let is_timed = has_ack_req && !is_retransmission;
            let plain = timed(RecoveryScheme::GoBackN);
            assert_eq!(
                plain,
                (is_timed && follows).then_some(FIRST_PSN),
                "only if congestion control needs it"
            );
            assert_eq!(timed(RecoveryScheme::ImprovedGoBackN), is_timed.then_some(FIRST_PSN));
        }
    }

    #[test]
    fn congestion_control_gets_the_round_trip_of_the_timed_packet() {
        let (mut timer, mut recovery) = sent(RecoveryScheme::GoBackN, true, false, true);
        let (mut requests, now) = (Sent::default(), Instant::from_nanos(7_000));
        let mut rtt_nanos = |next| {
            let event = AckEvent::Ack { next };
            let result = recovery.on_event(&event, &mut requests, timer.ack_time(now));
            timer.on_result(&mut recovery, &result, &mut requests, false, false, now)
        };
        assert_eq!(rtt_nanos(FIRST_PSN), None);
        assert_eq!(rtt_nanos(FIRST_PSN.plus(1)), Some(7_000));
        assert_eq!(rtt_nanos(FIRST_PSN.plus(1)), None);
    }

    #[test]
    fn after_an_rnr_wait_the_timer_is_armed_if_packets_are_in_flight() {
        let scheme = RecoveryScheme::SelectiveRepeat { window_pkts: 64 };
        let mut recovery = Recovery::new(scheme, FIRST_PSN);
        let mut timer = LossTimer::new(scheme, 8, 0);
        assert!(!timer.on_rnr_wait_over(&recovery, Instant::ZERO));
        assert!(timer.deadline().is_none());
        recovery.on_sent(1, Instant::ZERO);
        assert!(timer.on_rnr_wait_over(&recovery, Instant::ZERO));
        assert!(!timer.deadline().is_none());
    }

    #[test]
    fn ack_req_is_overdue_a_shortest_round_trip_after_the_last() {
        let overdue_at = |scheme, nanos| {
            let (mut timer, _) = sent(scheme, true, false, false);
            timer.rto.on_sample(5_000);
            timer.is_ack_req_overdue(Instant::from_nanos(nanos))
        };
        assert!(!overdue_at(RecoveryScheme::ImprovedGoBackN, 4_999));
        assert!(overdue_at(RecoveryScheme::ImprovedGoBackN, 5_000));
        assert!(!overdue_at(RecoveryScheme::GoBackN, 5_000));
    }

    #[test]
    fn a_retry_waits_for_the_pacer_if_no_packet_was_sent_since_the_last_expiry() {
        let (first, now) = (Instant::from_nanos(100_000), Instant::from_nanos(1_048_576));
        let later = now.plus_nanos(1);
        // Columns: whether a packet is sent after the first expiry; time at which the pacer permits the next packet;
        // whether a retry is used up.
        for (sends, permit_at, uses_retry) in [
            (false, None, true),
            (false, Some(now), true),
            (false, Some(later), false),
            (true, Some(later), true),
        ] {
            let (mut timer, mut recovery) = sent(RecoveryScheme::ImprovedGoBackN, true, false, false);
            assert_eq!(timer.take_expired(&mut recovery, false, || Some(later), first), Some(false));
            timer.on_expired(&mut recovery, &mut Sent::default(), first);
            if sends {
                recovery.on_sent(1, first);
                timer.on_packet_sent(request(true, true), || false, &recovery, first);
            }
            let expired = timer.take_expired(&mut recovery, false, || permit_at, now);
            assert_eq!(expired, uses_retry.then_some(true), "{sends} {permit_at:?}");
            if !uses_retry {
                assert_eq!(timer.deadline().get(), Some(later.plus_nanos(200_000)), "the second PTO");
            }
        }
    }

    #[test]
    fn a_changed_local_ack_timeout_applies_from_the_next_packet_on() {
        let mut recovery = Recovery::new(RecoveryScheme::GoBackN, FIRST_PSN);
        let mut timer = LossTimer::new(RecoveryScheme::GoBackN, 8, 0);
        timer.set_timeout(1);
        recovery.on_sent(1, Instant::ZERO);
        timer.on_packet_sent(request(true, false), || false, &recovery, Instant::ZERO);
        assert_eq!(timer.deadline().get(), Some(Instant::from_nanos(8_192)));
        assert!(!timer.is_probing());
    }
}
