//! Times of the loss timer: the local ACK timeout (IBA 9.7.6.1.3), and PTO and RTO, computed from measured round trips.

use crate::psn::Psn;
use crate::time::{Instant, OptionalInstant};

/// 4.096 us, the unit of the local ACK timeout (IBA 9.7.6.1.3), in nanoseconds.
const TIMEOUT_UNIT_NANOS: u64 = 4096;

/// A timeout that never expires: any instant plus this timeout is [`OptionalInstant::NONE`], because the sum saturates.
const NEVER_NANOS: u64 = u64::MAX;

/// Deadline and local ACK timeout of the loss timer of a requester. The loss timer is armed while packets are
/// unacknowledged, and rearmed at progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitTimer {
    /// The local ACK timeout (not the RTO of RFC 6298) in nanoseconds; [`NEVER_NANOS`] if disabled.
    timeout_nanos: u64,
    /// None while the timer is disarmed.
    deadline: OptionalInstant,
}

impl RetransmitTimer {
    /// Creates a disarmed timer. The local ACK timeout is 4.096 us * 2^`timeout`, and is disabled if `timeout` is 0.
    pub(crate) fn new(timeout: u8) -> Self {
        RetransmitTimer { timeout_nanos: timeout_nanos(timeout), deadline: OptionalInstant::NONE }
    }

    /// Changes the local ACK timeout; a deadline that is already set does not change.
    pub(crate) fn set_timeout(&mut self, timeout: u8) {
        self.timeout_nanos = timeout_nanos(timeout);
    }

    #[inline]
    pub(crate) fn deadline(&self) -> OptionalInstant {
        self.deadline
    }

    #[inline]
    pub(crate) fn start(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.restart(now);
        }
    }

    /// Arms the timer for `wait_nanos`, but not beyond the end of the local ACK timeout that began at `since`.
    pub(crate) fn restart_for(&mut self, now: Instant, wait_nanos: u64, since: Instant) {
        let left_nanos = self.timeout_nanos.saturating_sub(now.nanos_since(since));
        self.deadline = OptionalInstant::some(now.plus_nanos(left_nanos.min(wait_nanos)));
    }

    pub(crate) fn has_passed(&self, since: Instant, now: Instant) -> bool {
        now.nanos_since(since) >= self.timeout_nanos
    }

    /// Arms the timer for the local ACK timeout; if this timeout is disabled, disarms the timer.
    #[inline]
    pub(crate) fn restart(&mut self, now: Instant) {
        self.deadline = OptionalInstant::some(now.plus_nanos(self.timeout_nanos));
    }

    #[inline]
    pub(crate) fn stop(&mut self) {
        self.deadline = OptionalInstant::NONE;
    }

    pub(crate) fn take_expired(&mut self, now: Instant) -> bool {
        let expired = self.deadline.get().is_some_and(|deadline| deadline <= now);
        if expired {
            self.stop();
        }
        expired
    }
}

/// PTO of a requester, computed from measured round trips (RFC 6298, section 2), and RTO, one of the two timeouts of
/// IRN (SIGCOMM'18, section 3.1). The PTO is the longer of that of RFC 8985, section 7.2, and that of RFC 9002, section
/// 6.2; each probe doubles it.
///
/// ```text
///   progress -- PTO --> probe -- 2 PTO --> probe -- 4 PTO --> probe ..
///   PTO = srtt + max(srtt, 4 rttvar), at least PROBE_MIN_NANOS, quadrupled by each spurious probe since the last loss;
///         before the first round-trip sample: at least RTO_LOW_NANOS or RTO_HIGH_NANOS, and at least three times the
///         initial round trip; from the fourth expiry on quadrupled instead of doubled
///   RTO = RTO_LOW_NANOS with up to RTO_LOW_PKTS in flight, otherwise RTO_HIGH_NANOS;
///         before the first round-trip sample: FIRST_RTO_NANOS
///   from the second probe on, a probe after a wait of RTO or more is reported to congestion control as a loss
/// ```
/// After [`EXPIRIES_UNMEASURED_MAX`] probe timeouts without a round-trip sample of a timed packet
/// ([`AdaptiveRto::on_acked`]), only such a sample ends the backoff (RFC 6298, section 5), or a response that shows a
/// loss of a request: a NAK (PSN sequence error), or a SACK ([`super::loss_timer::LossTimer::on_out_of_order`]). If
/// every ACK or READ response ended the backoff, a path whose round trip exceeds the PTO would yield no sample: each
/// packet would be retransmitted before its ACK arrives (Karn's algorithm).
#[derive(Clone, Copy, Debug)]
pub(crate) struct AdaptiveRto {
    /// The smoothed round trip; before the first sample an upper bound of the round trip, or 0 if no probe was
    /// acknowledged ([`AdaptiveRto::on_first_progress`]). At most 4.3 s, as `rttvar_nanos` and `min_nanos`.
    srtt_nanos: u32,
    /// The variation of the round trip; before the first sample, half the initial round trip (RFC 6298, section 2.2).
    rttvar_nanos: u32,
    /// The shortest round trip measured, in nanoseconds; 0 before the first sample.
    min_nanos: u32,
    /// The timed packet, whose round trip is measured since `timed_at`; valid unless `timed_at` is none.
    timed_psn: Psn,
    timed_at: OptionalInstant,
    /// Number of expiries for which the next PTO is doubled (or quadrupled, see [`EXPIRIES_FIRST_MAX`]).
    backoff: u8,
    /// Number of probe timeouts that expired since the last round-trip sample of a timed packet (`timed_psn`, the
    /// packet whose round trip is being measured).
    unmeasured: u8,
    /// Number of probe timeouts that expired since a packet was last acknowledged.
    expiries: u8,
    /// Number of probes since the last round-trip sample of a timed packet that have not proved spurious.
    probes: u8,
    /// Number of spurious probes for which the PTO is quadrupled, at most [`SPURIOUS_MAX`].
    spurious: u8,
}

/// RTO before the first round-trip sample, in nanoseconds: long, because the round trip is unknown.
const FIRST_RTO_NANOS: u64 = 1_000_000;
/// Lower bound of the PTO, in nanoseconds: the precision with which timers expire.
const PROBE_MIN_NANOS: u64 = 10_000;
/// Largest number of times that spurious probes quadruple the PTO.
const SPURIOUS_MAX: u8 = 2;
/// IRN's RTO_low: the RTO with at most [`RTO_LOW_PKTS`] packets in flight, in nanoseconds.
const RTO_LOW_NANOS: u64 = 100_000;
/// IRN's RTO_high: the RTO with more than [`RTO_LOW_PKTS`] packets in flight, in nanoseconds.
const RTO_HIGH_NANOS: u64 = 320_000;
/// Largest number of packets in flight at which the RTO is [`RTO_LOW_NANOS`].
const RTO_LOW_PKTS: u32 = 3;
/// After this number of probe timeouts without a round-trip sample of a timed packet (`timed_psn`, the packet whose
/// round trip is being measured), only such a sample, a PSN sequence error or a SACK ends the backoff of the PTO.
const EXPIRIES_UNMEASURED_MAX: u8 = 8;
/// Number of probe timeouts before the first round-trip sample that double the PTO; each further one quadruples it,
/// because a peer that has not responded yet is more probable than the loss of four probes.
const EXPIRIES_FIRST_MAX: u8 = 3;
/// Largest number of times that the PTO is doubled.
const BACKOFF_MAX: u8 = 16;

impl AdaptiveRto {
    /// `initial_rtt_nanos`: [`crate::qp::ConnAttr::initial_rtt_nanos`].
    pub(crate) fn new(initial_rtt_nanos: u32) -> Self {
        AdaptiveRto {
            srtt_nanos: 0,
            rttvar_nanos: initial_rtt_nanos / 2,
            min_nanos: 0,
            timed_psn: Psn::default(),
            timed_at: OptionalInstant::NONE,
            backoff: 0,
            unmeasured: 0,
            expiries: 0,
            probes: 0,
            spurious: 0,
        }
    }

    /// Records that a retransmission was spurious. If it may have been a probe, quadruples the PTO until a loss:
    /// the peer, asleep or busy, may respond as late again, and `srtt` does not include the late response (Karn's
    /// algorithm).
    #[cold]
    pub(crate) fn on_spurious(&mut self) {
        if self.probes > 0 {
            self.probes -= 1;
            // Before the first sample the time to the first ACK bounds the PTO (`on_first_progress`).
            self.spurious = (self.spurious + u8::from(self.has_sample())).min(SPURIOUS_MAX);
        }
    }

    /// Records a loss: restores the PTO after spurious probes, so that the next loss at the end of a message is
    /// repaired soon. An upper bound of the round trip ([`AdaptiveRto::on_first_progress`]) becomes void, because it may
    /// include waits for lost packets.
    #[inline]
    pub(crate) fn on_loss(&mut self) {
        self.spurious = 0;
        if !self.has_sample() {
            self.srtt_nanos = 0;
        }
    }

    /// Starts to measure the round trip of `psn`, sent for the first time, unless another round trip is being measured.
    #[inline]
    pub(crate) fn on_sent(&mut self, psn: Psn, now: Instant) {
        if self.timed_at.is_none() {
            (self.timed_psn, self.timed_at) = (psn, OptionalInstant::some(now));
        }
    }

    #[inline]
    pub(crate) fn timed(&self) -> Option<Psn> {
        self.timed_at.get().map(|_| self.timed_psn)
    }

    #[inline]
    pub(crate) fn timed_at(&self) -> Option<Instant> {
        self.timed_at.get()
    }

    /// Records the ACK of the packet whose round trip is being measured. Returns this round trip in nanoseconds.
    pub(crate) fn on_acked(&mut self, now: Instant) -> Option<u64> {
        let rtt = self.take_timed(now)?;
        self.on_unambiguous_sample(rtt);
        Some(rtt)
    }

    /// Records the round trip of a packet that was sent once, in nanoseconds. Ends the backoff.
    pub(crate) fn on_unambiguous_sample(&mut self, rtt: u64) {
        if self.probes > 0 {
            // A second response would have preceded this sample: the probe repaired a loss.
            self.spurious = 0;
        }
        (self.backoff, self.unmeasured, self.probes) = (0, 0, 0);
        self.on_sample(rtt);
    }

    /// Records that packets were acknowledged `nanos` after the last progress; called before
    /// [`AdaptiveRto::on_progress`]. If a probe timeout expired in this time, sets `srtt` to `nanos` unless it is known: an
    /// upper bound of the round trip of a packet sent since the last progress, whichever transmission elicited the ACK.
    #[inline]
    pub(crate) fn on_first_progress(&mut self, nanos: u64) {
        if self.expiries > 0 && self.srtt_nanos == 0 {
            self.srtt_nanos = bounded(nanos);
        }
    }

    /// Returns whether a probe timeout computed from a sample expired since a packet was last acknowledged.
    #[inline]
    pub(crate) fn has_sampled_pto_expired(&self) -> bool {
        self.expiries > 0 && self.has_sample()
    }

    /// Ends the backoff.
    pub(crate) fn end_backoff(&mut self) {
        self.backoff = 0;
    }

    /// Returns whether only a sample ends the backoff.
    #[inline]
    pub(crate) fn needs_sample(&self) -> bool {
        self.unmeasured >= EXPIRIES_UNMEASURED_MAX
    }

    /// Ends the round-trip measurement without a sample. Returns the time since the timed packet was sent, in
    /// nanoseconds.
    pub(crate) fn take_timed(&mut self, now: Instant) -> Option<u64> {
        self.timed_at.take().map(|timed_at| now.nanos_since(timed_at))
    }

    pub(crate) fn on_sample(&mut self, rtt: u64) {
        let rtt = bounded(rtt.max(1));
        if !self.has_sample() {
            (self.srtt_nanos, self.rttvar_nanos, self.min_nanos) = (rtt, rtt / 2, rtt);
        } else {
            let error = rtt.abs_diff(self.srtt_nanos);
            self.rttvar_nanos = average(self.rttvar_nanos, error, 4);
            self.srtt_nanos = average(self.srtt_nanos, rtt, 8).max(1);
            self.min_nanos = self.min_nanos.min(rtt);
        }
    }

    #[inline]
    pub(crate) fn has_sample(&self) -> bool {
        self.min_nanos > 0
    }

    #[inline]
    pub(crate) fn min_nanos(&self) -> u64 {
        self.min_nanos.into()
    }

    /// Abandons the round-trip measurement, because a retransmission may elicit the next ACK (RFC 6298, section 3).
    pub(crate) fn cancel(&mut self) {
        self.timed_at = OptionalInstant::NONE;
    }

    /// Records that packets were acknowledged: the next expiry is a tail loss probe. Ends the backoff if fewer than
    /// [`EXPIRIES_UNMEASURED_MAX`] probe timeouts expired since the last round-trip sample of a timed packet.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        self.expiries = 0;
        if !self.needs_sample() {
            self.backoff = 0;
        }
    }

    /// Returns the time to wait before the next probe, in nanoseconds: the PTO after `backoff` expiries and `spurious`
    /// spurious probes. `in_flight_pkts` selects the PTO before the first round-trip sample.
    pub(crate) fn wait_nanos(&self, in_flight_pkts: u32) -> u64 {
        // The PTO is computed from `srtt`: if packets wait in a standing queue, a PTO computed from the shortest round
        // trip would expire before the ACK arrives (RFC 8985, section 7.2).
        let (srtt_nanos, rttvar_nanos) = (u64::from(self.srtt_nanos), u64::from(self.rttvar_nanos));
        let mut pto_nanos = srtt_nanos + srtt_nanos.max(4 * rttvar_nanos);
        let mut doublings = self.backoff.saturating_add(2 * self.spurious);
        if !self.has_sample() {
            // With `rttvar` as half the initial round trip, three times this round trip (RFC 6298, section 2.2).
            pto_nanos = pto_nanos.max(6 * rttvar_nanos).max(rto_nanos(in_flight_pkts));
            doublings = doublings.saturating_add(doublings.saturating_sub(EXPIRIES_FIRST_MAX));
        }
        pto_nanos.max(PROBE_MIN_NANOS) << doublings.min(BACKOFF_MAX)
    }

    pub(crate) fn on_expired(&mut self, in_flight_pkts: u32) -> Expiry {
        let waited_nanos = self.wait_nanos(in_flight_pkts);
        let rto_nanos = if self.has_sample() { rto_nanos(in_flight_pkts) } else { FIRST_RTO_NANOS };
        self.expiries = self.expiries.saturating_add(1);
        self.backoff = self.backoff.saturating_add(1);
        self.unmeasured = self.unmeasured.saturating_add(1);
        self.probes = self.probes.saturating_add(1);
        match self.expiries {
            1 => Expiry::TailLossProbe,
            _ if waited_nanos < rto_nanos => Expiry::Pto,
            _ => Expiry::Rto,
        }
    }
}

/// Kind of an expired probe timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The first expiry since a packet was acknowledged, after one PTO: a tail loss probe (RFC 8985, section 7).
    TailLossProbe,
    /// The second or a later expiry since a packet was acknowledged, after a wait shorter than the RTO: one more probe
    /// (RFC 9002, section 6.2).
    Pto,
    /// The second or a later expiry since a packet was acknowledged, after a wait of at least the RTO: reported to
    /// congestion control as a loss.
    Rto,
}

/// Returns `nanos`, at most 4.3 s: with 32 bits for each time, the state of the requester fills whole cache lines.
fn bounded(nanos: u64) -> u32 {
    u32::try_from(nanos).unwrap_or(u32::MAX)
}

/// Returns the moving average, in which `sample` has a weight of 1 / `divisor`.
fn average(old_nanos: u32, sample_nanos: u32, divisor: u64) -> u32 {
    bounded(((divisor - 1) * u64::from(old_nanos) + u64::from(sample_nanos)) / divisor)
}

fn rto_nanos(in_flight_pkts: u32) -> u64 {
    if in_flight_pkts <= RTO_LOW_PKTS { RTO_LOW_NANOS } else { RTO_HIGH_NANOS }
}

fn timeout_nanos(timeout: u8) -> u64 {
    if timeout == 0 { NEVER_NANOS } else { TIMEOUT_UNIT_NANOS << (timeout & 0x1F) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fourteen_is_sixty_seven_milliseconds_and_zero_is_never() {
        let mut timer = RetransmitTimer::new(14);
        timer.start(Instant::ZERO);
        timer.start(Instant::from_nanos(9));
        assert_eq!(timer.deadline().get(), Some(Instant::from_nanos(67_108_864)));
        assert!(!timer.take_expired(Instant::from_nanos(67_108_863)));
        assert!(timer.take_expired(Instant::from_nanos(67_108_864)));
        assert!(!timer.take_expired(Instant::from_nanos(67_108_865)));
        let mut never = RetransmitTimer::new(0);
        never.restart(Instant::ZERO);
        assert_eq!(never.deadline().get(), None);
    }

    #[test]
    fn a_change_does_not_stop_what_runs() {
        let mut timer = RetransmitTimer::new(1);
        timer.start(Instant::ZERO);
        timer.set_timeout(2);
        assert_eq!(timer.deadline().get(), Some(Instant::from_nanos(8192)));
        timer.restart(Instant::ZERO);
        assert_eq!(timer.deadline().get(), Some(Instant::from_nanos(16384)));
    }

    #[test]
    fn the_probe_timeout_includes_a_standing_queue() {
        let mut rto = AdaptiveRto::new(0);
        rto.on_sample(10_000);
        (0..200).for_each(|_| rto.on_sample(40_000));
        assert!(rto.wait_nanos(4).abs_diff(2 * 40_000) < 100, "{} ns", rto.wait_nanos(4));
    }

    #[test]
    fn probe_timeouts_double_until_the_retransmission_timeout() {
        let expire_all = |rto: &mut AdaptiveRto, in_flight_pkts| {
            [0; 7].map(|_| (rto.wait_nanos(in_flight_pkts), rto.on_expired(in_flight_pkts)))
        };
        let (first, longer, timeout) = (Expiry::TailLossProbe, Expiry::Pto, Expiry::Rto);
        let mut rto = AdaptiveRto::new(0);
        let waits = expire_all(&mut rto, RTO_LOW_PKTS);
        assert_eq!(waits[..2], [(100_000, first), (200_000, longer)]);
        assert_eq!(waits[3..6], [(800_000, longer), (3_200_000, timeout), (12_800_000, timeout)]);
        rto.on_progress();
        let waits = expire_all(&mut rto, RTO_LOW_PKTS + 1);
        assert_eq!(waits[..3], [(320_000, first), (640_000, longer), (1_280_000, timeout)]);
        let measured = |rtt_nanos| {
            let mut rto = AdaptiveRto::new(0);
            rto.on_sent(Psn::new(0), Instant::ZERO);
            assert_eq!(rto.on_acked(Instant::from_nanos(rtt_nanos)), Some(rtt_nanos));
            rto
        };
        let mut near = measured(5_000); // rttvar: 2,500 ns
        let waits = expire_all(&mut near, 4);
        assert_eq!(waits[4..6], [(240_000, longer), (480_000, timeout)]);
        near.on_progress();
        let waits = expire_all(&mut near, 3);
        assert_eq!(waits[..4], [(15_000, first), (30_000, longer), (60_000, longer), (120_000, timeout)]);
        let mut far = measured(500_000);
        assert_eq!(expire_all(&mut far, 4)[..2], [(1_500_000, first), (3_000_000, timeout)]);
        // A path whose queues became long: the first round trip was 100 us, the later ones are alternately 1.75 ms and
        // 2.25 ms.
        let mut full = measured(100_000);
        for n in 0..200 {
            full.on_sent(Psn::new(0), Instant::ZERO);
            full.on_acked(Instant::from_nanos(if n % 2 == 0 { 1_750_000 } else { 2_250_000 }));
        }
        let waits = expire_all(&mut full, 4);
        assert_eq!([waits[0].1, waits[1].1], [first, timeout]);
        assert!(
            (3_850_000..4_150_000).contains(&waits[0].0),
            "{waits:?}: two round trips, longer than one and four variations"
        );
    }

    #[test]
    fn an_initial_round_trip_raises_the_probe_timeout_until_the_first_sample() {
        // Columns: initial round trip, packets in flight, first and second PTO.
        for (initial_rtt_nanos, in_flight_pkts, waits) in [
            (0, 1, [100_000, 200_000]),
            (33_000, 1, [100_000, 200_000]),
            (34_000, 1, [102_000, 204_000]),
            (34_000, 4, [320_000, 640_000]),
            (5_000_000, 4, [15_000_000, 30_000_000]),
            (u32::MAX, 4, [12_884_901_882, 25_769_803_764]),
        ] {
            let mut rto = AdaptiveRto::new(initial_rtt_nanos);
            let found = [0; 2].map(|_| {
                let wait_nanos = rto.wait_nanos(in_flight_pkts);
                rto.on_expired(in_flight_pkts);
                wait_nanos
            });
            assert_eq!(found, waits, "{initial_rtt_nanos} ns, {in_flight_pkts} packets");
            // A loss before the first sample leaves the initial round trip in force.
            rto.end_backoff();
            rto.on_loss();
            assert_eq!(rto.wait_nanos(in_flight_pkts), waits[0], "{initial_rtt_nanos} ns, after a loss");
            rto.on_sample(10_000);
            assert_eq!(rto.wait_nanos(in_flight_pkts), 30_000, "{initial_rtt_nanos} ns, after a sample");
        }
    }

    #[test]
    fn waits_before_a_sample_never_become_shorter() {
        let mut rto = AdaptiveRto::new(0);
        let waits: Vec<u64> = (0..300)
            .map(|_| {
                rto.on_expired(1);
                rto.wait_nanos(1)
            })
            .collect();
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&(RTO_LOW_NANOS << BACKOFF_MAX)));
    }

    #[test]
    fn times_longer_than_32_bits_count_as_the_longest() {
        let longest_nanos = u64::from(u32::MAX);
        for rtt_nanos in [longest_nanos - 1, longest_nanos, longest_nanos + 1, u64::MAX] {
            let mut rto = AdaptiveRto::new(u32::MAX);
            (0..100).for_each(|_| rto.on_sample(rtt_nanos));
            assert!(rto.wait_nanos(4).abs_diff(2 * longest_nanos) < 100, "{} ns", rto.wait_nanos(4));
            rto.on_sample(1);
            assert_eq!(rto.min_nanos(), 1);
            let mut first = AdaptiveRto::new(0);
            first.on_expired(4);
            first.on_first_progress(rtt_nanos);
            assert!(first.wait_nanos(4) >= 4 * (longest_nanos - 1), "{} ns", first.wait_nanos(4));
        }
    }

    #[test]
    fn spurious_probes_quadruple_the_timeout_until_a_loss() {
        let expire_and_prove_spurious = |rto: &mut AdaptiveRto| {
            let wait_nanos = rto.wait_nanos(4);
            rto.on_expired(4);
            rto.on_progress();
            rto.on_spurious();
            rto.on_spurious(); // There was one probe only.
            wait_nanos
        };
        let quadrupled = [10_000, 40_000, 160_000, 160_000];
        let mut rto = AdaptiveRto::new(0);
        rto.on_sample(1_000);
        assert_eq!([0; 4].map(|_| expire_and_prove_spurious(&mut rto)), quadrupled);
        rto.on_unambiguous_sample(1_000);
        assert_eq!(rto.wait_nanos(4), 160_000, "a sample is no loss");
        rto.on_loss();
        assert_eq!(rto.wait_nanos(4), 10_000);
        expire_and_prove_spurious(&mut rto);
        rto.on_expired(4);
        rto.on_unambiguous_sample(1_000);
        assert_eq!(rto.wait_nanos(4), 10_000, "the second probe repaired a loss");
        rto.on_spurious();
        assert_eq!(rto.wait_nanos(4), 10_000, "no probe since the sample");
        let mut unmeasured = AdaptiveRto::new(0);
        expire_and_prove_spurious(&mut unmeasured);
        unmeasured.on_sample(1_000);
        unmeasured.on_spurious();
        assert_eq!(unmeasured.wait_nanos(4), 10_000, "the only probe preceded the first sample");
    }
}
