//! Retransmission timers: the local ACK timeout (IBA 9.7.6.1.3), and the PTO and RTO that follow the round trip.

use crate::psn::Psn;
use crate::time::Instant;

/// 4.096 us, the unit of the local ACK timeout (IBA 9.7.6.1.3), in nanoseconds.
const TIMEOUT_UNIT_NANOS: u64 = 4096;

/// Timer of a requester, armed while packets are unacknowledged and rearmed by progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetransmitTimer {
    /// The local ACK timeout; `None`: disabled.
    rto_nanos: Option<u64>,
    deadline: Option<Instant>,
}

impl RetransmitTimer {
    /// Creates a disarmed timer of 4.096 us * 2^`timeout`. `timeout` has 5 bits; 0 disables it.
    pub(crate) fn new(timeout: u8) -> Self {
        RetransmitTimer { rto_nanos: rto_nanos(timeout), deadline: None }
    }

    /// Changes the timeout from the next arming on; a deadline that is set stays.
    pub(crate) fn set_timeout(&mut self, timeout: u8) {
        self.rto_nanos = rto_nanos(timeout);
    }

    /// Returns the deadline; `None` while disarmed.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Arms the timer with the local ACK timeout, unless it is armed.
    #[inline]
    pub(crate) fn start(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.restart(now);
        }
    }

    /// Arms the timer for `wait_nanos`, but not beyond the local ACK timeout counted from `since`.
    pub(crate) fn restart_for(&mut self, now: Instant, wait_nanos: u64, since: Instant) {
        let passed = now.nanos_since(since);
        let left_nanos = self.rto_nanos.map_or(wait_nanos, |rto| rto.saturating_sub(passed));
        self.deadline = Some(now.plus_nanos(left_nanos.min(wait_nanos)));
    }

    /// Returns whether the local ACK timeout has passed since `since`; false if it is disabled.
    pub(crate) fn has_passed(&self, since: Instant, now: Instant) -> bool {
        self.rto_nanos.is_some_and(|rto| now.nanos_since(since) >= rto)
    }

    /// Rearms the timer with the local ACK timeout; disarms it if that is disabled.
    #[inline]
    pub(crate) fn restart(&mut self, now: Instant) {
        self.deadline = self.rto_nanos.map(|rto_nanos| now.plus_nanos(rto_nanos));
    }

    /// Disarms the timer.
    #[inline]
    pub(crate) fn stop(&mut self) {
        self.deadline = None;
    }

    /// Returns whether the deadline has passed, and disarms the timer if so.
    pub(crate) fn take_expired(&mut self, now: Instant) -> bool {
        let expired = self.deadline.is_some_and(|deadline| deadline <= now);
        if expired {
            self.stop();
        }
        expired
    }
}

/// The packet whose round trip is measured, and when it was sent.
#[derive(Clone, Copy, Debug)]
struct Timed {
    psn: Psn,
    at: Instant,
}

/// RTO from the measured round trip (RFC 6298) with IRN's two floors (SIGCOMM'18, section 3.1), and tail loss probes
/// (RFC 8985, section 7) whose PTO doubles with each (RFC 9002, section 6.2).
///
/// ```text
///   progress -- PTO --> probe -- 2 PTO --> probe -- 4 PTO --> probe ..      PTO = 2 min rtt + 4 rttvar
///   from the second on, the expiry of a wait of RTO or more counts as an RTO: RTO = srtt + 4 rttvar, at
///   least RTO_LOW_NANOS or RTO_HIGH_NANOS
///   before the first round-trip sample: PTO = RTO_LOW_NANOS or RTO_HIGH_NANOS, RTO = 1 ms
/// ```
/// An `AdaptiveRto` decides when to retransmit; only the local ACK timeout uses up retries.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdaptiveRto {
    srtt_nanos: u64,
    rttvar_nanos: u64,
    /// The shortest round trip, taken as that without queueing; 0 before the first sample.
    min_nanos: u64,
    timed: Option<Timed>,
    expiries: u32,
}

/// RTO before the first round-trip sample, in nanoseconds: long, because the network may be slow.
const FIRST_RTO_NANOS: u64 = 1_000_000;
/// The shortest PTO, in nanoseconds: timers are no finer.
const PROBE_MIN_NANOS: u64 = 10_000;
/// IRN's RTO_low, the floor with at most [`RTO_LOW_PKTS`] in flight, in nanoseconds.
const RTO_LOW_NANOS: u64 = 100_000;
/// IRN's RTO_high, the floor otherwise, in nanoseconds.
const RTO_HIGH_NANOS: u64 = 320_000;
/// Packets in flight up to which [`RTO_LOW_NANOS`] applies.
const RTO_LOW_PKTS: u32 = 3;
/// Doublings of the PTO at most.
const BACKOFF_MAX: u32 = 16;

impl AdaptiveRto {
    /// Starts a round-trip measurement with the first transmission of `psn`, unless one is running.
    #[inline]
    pub(crate) fn on_sent(&mut self, psn: Psn, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some(Timed { psn, at: now });
        }
    }

    /// Returns the PSN whose round trip is being measured.
    #[inline]
    pub(crate) fn timed(&self) -> Option<Psn> {
        self.timed.map(|timed| timed.psn)
    }

    /// Ends the measurement, because the timed packet was acknowledged, and updates srtt and rttvar (RFC 6298,
    /// section 2). Returns the round trip in nanoseconds.
    pub(crate) fn on_acked(&mut self, now: Instant) -> Option<u64> {
        let timed = self.timed.take()?;
        let rtt = now.nanos_since(timed.at);
        if self.srtt_nanos == 0 {
            (self.srtt_nanos, self.rttvar_nanos, self.min_nanos) = (rtt.max(1), rtt / 2, rtt.max(1));
        } else {
            let error = rtt.abs_diff(self.srtt_nanos);
            self.rttvar_nanos = (3 * self.rttvar_nanos + error) / 4;
            self.srtt_nanos = ((7 * self.srtt_nanos + rtt) / 8).max(1);
            self.min_nanos = self.min_nanos.min(rtt.max(1));
        }
        Some(rtt)
    }

    /// Returns the shortest round trip in nanoseconds; 0 before the first sample.
    #[inline]
    pub(crate) fn min_nanos(&self) -> u64 {
        self.min_nanos
    }

    /// Abandons the measurement, because a response may be to a retransmission (RFC 6298, section 3).
    pub(crate) fn cancel(&mut self) {
        self.timed = None;
    }

    /// Ends the backoff: the next expiry is the first again.
    #[inline]
    pub(crate) fn on_progress(&mut self) {
        self.expiries = 0;
    }

    /// Returns the wait for the next expiry in nanoseconds: the PTO, doubled with each expiry since progress.
    /// `in_flight_pkts` selects the floor that stands for the PTO before the first round-trip sample.
    pub(crate) fn wait_nanos(&self, in_flight_pkts: u32) -> u64 {
        let first = if self.srtt_nanos == 0 {
            floor_nanos(in_flight_pkts)
        } else {
            // The shortest round trip, not srtt: while queues drain, packets are acknowledged all the time, and each
            // rearms the timer.
            (2 * self.min_nanos + 4 * self.rttvar_nanos).max(PROBE_MIN_NANOS)
        };
        first << self.expiries.min(BACKOFF_MAX)
    }

    /// Records an expiry of [`AdaptiveRto::wait_nanos`], with `in_flight_pkts` in flight. Returns its kind.
    pub(crate) fn on_expired(&mut self, in_flight_pkts: u32) -> Expiry {
        let waited_nanos = self.wait_nanos(in_flight_pkts);
        let rto_nanos = match self.srtt_nanos {
            0 => FIRST_RTO_NANOS,
            srtt => (srtt + 4 * self.rttvar_nanos).max(floor_nanos(in_flight_pkts)),
        };
        self.expiries += 1;
        match self.expiries {
            1 => Expiry::TailLossProbe,
            _ if waited_nanos < rto_nanos => Expiry::Pto,
            _ => Expiry::Rto,
        }
    }
}

/// Kind of an expiry of the wait for progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expiry {
    /// The first since progress, after the PTO: a tail loss probe (RFC 8985, section 7).
    TailLossProbe,
    /// A later expiry since progress, after a wait shorter than the RTO: one more probe (RFC 9002, section 6.2).
    Pto,
    /// A later expiry since progress, after a wait of at least the RTO: counts as congestion (RFC 6298).
    Rto,
}

fn floor_nanos(in_flight_pkts: u32) -> u64 {
    if in_flight_pkts <= RTO_LOW_PKTS { RTO_LOW_NANOS } else { RTO_HIGH_NANOS }
}

fn rto_nanos(timeout: u8) -> Option<u64> {
    (timeout != 0).then(|| TIMEOUT_UNIT_NANOS << (timeout & 0x1F))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fourteen_is_sixty_seven_milliseconds_and_zero_is_never() {
        let mut timer = RetransmitTimer::new(14);
        timer.start(Instant::ZERO);
        timer.start(Instant::from_nanos(9));
        assert_eq!(timer.deadline(), Some(Instant::from_nanos(67_108_864)));
        assert!(!timer.take_expired(Instant::from_nanos(67_108_863)));
        assert!(timer.take_expired(Instant::from_nanos(67_108_864)));
        assert!(!timer.take_expired(Instant::from_nanos(67_108_865)));
        let mut never = RetransmitTimer::new(0);
        never.restart(Instant::ZERO);
        assert_eq!(never.deadline(), None);
    }

    #[test]
    fn a_change_does_not_stop_what_runs() {
        let mut timer = RetransmitTimer::new(1);
        timer.start(Instant::ZERO);
        timer.set_timeout(2);
        assert_eq!(timer.deadline(), Some(Instant::from_nanos(8192)));
        timer.restart(Instant::ZERO);
        assert_eq!(timer.deadline(), Some(Instant::from_nanos(16384)));
    }

    #[test]
    fn probe_timeouts_double_until_the_retransmission_timeout() {
        let expire_all = |rto: &mut AdaptiveRto, in_flight_pkts| {
            [0; 7].map(|_| (rto.wait_nanos(in_flight_pkts), rto.on_expired(in_flight_pkts)))
        };
        let (first, longer, timeout) = (Expiry::TailLossProbe, Expiry::Pto, Expiry::Rto);
        let mut rto = AdaptiveRto::default();
        let waits = expire_all(&mut rto, RTO_LOW_PKTS);
        assert_eq!(waits[..2], [(100_000, first), (200_000, longer)]);
        assert_eq!(waits[3..5], [(800_000, longer), (1_600_000, timeout)]);
        rto.on_progress();
        let waits = expire_all(&mut rto, RTO_LOW_PKTS + 1);
        assert_eq!(waits[..3], [(320_000, first), (640_000, longer), (1_280_000, timeout)]);
        let measured = |rtt_nanos| {
            let mut rto = AdaptiveRto::default();
            rto.on_sent(Psn::new(0), Instant::ZERO);
            assert_eq!(rto.on_acked(Instant::from_nanos(rtt_nanos)), Some(rtt_nanos));
            rto
        };
        let mut near = measured(5_000); // rttvar: 2,500
        let waits = expire_all(&mut near, 4);
        assert_eq!(waits[4..6], [(320_000, timeout), (640_000, timeout)]);
        near.on_progress();
        let waits = expire_all(&mut near, 3);
        assert_eq!(waits[..4], [(20_000, first), (40_000, longer), (80_000, longer), (160_000, timeout)]);
        let mut far = measured(500_000);
        assert_eq!(expire_all(&mut far, 4)[..2], [(2_000_000, first), (4_000_000, timeout)]);
        // Long queues: round trips of 1.75 ms and 2.25 ms in turn, the shortest 100 us.
        let mut full = measured(100_000);
        for n in 0..200 {
            full.on_sent(Psn::new(0), Instant::ZERO);
            full.on_acked(Instant::from_nanos(if n % 2 == 0 { 1_750_000 } else { 2_250_000 }));
        }
        let waits = expire_all(&mut full, 4);
        assert_eq!(waits[..3].iter().map(|wait| wait.1).collect::<Vec<_>>(), [first, longer, timeout]);
        assert!((2_300_000..2_600_000).contains(&waits[1].0), "{waits:?}: longer than the round trip alone");
    }
}
