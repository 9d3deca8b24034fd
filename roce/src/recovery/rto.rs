//! The retransmission timer: the standard's local ACK timeout (IBA 9.7.6.1.3).

use crate::psn::Psn;
use crate::time::Instant;

/// The unit of the timeout attribute, in nanoseconds.
const TIMEOUT_UNIT_NANOS: u64 = 4096;

/// Runs while anything is unacknowledged; every acknowledgement of something new restarts it.
#[derive(Clone, Copy, Debug)]
pub struct RetransmitTimer {
    /// `None`: never expires.
    rto_nanos: Option<u64>,
    deadline: Option<Instant>,
}

impl RetransmitTimer {
    /// A stopped timer of 4.096 us * 2^`timeout`; `timeout` has 5 bits, and 0 means never.
    pub fn new(timeout: u8) -> Self {
        RetransmitTimer { rto_nanos: rto_nanos(timeout), deadline: None }
    }

    /// Changes the timeout, from the next start on: what runs goes on.
    pub fn set_timeout(&mut self, timeout: u8) {
        self.rto_nanos = rto_nanos(timeout);
    }

    /// When it expires next.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Starts it where it stands still.
    #[inline]
    pub fn start(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.restart(now);
        }
    }

    /// Starts it anew for `wait_nanos`, but not beyond the timeout since `since`.
    pub fn restart_for(&mut self, now: Instant, wait_nanos: u64, since: Instant) {
        let passed = now.nanos_since(since);
        let left_nanos = self.rto_nanos.map_or(wait_nanos, |rto| rto.saturating_sub(passed));
        self.deadline = Some(now.plus_nanos(left_nanos.min(wait_nanos)));
    }

    /// Whether the timeout has passed since `since`.
    pub fn has_passed(&self, since: Instant, now: Instant) -> bool {
        self.rto_nanos.is_some_and(|rto| now.nanos_since(since) >= rto)
    }

    /// Starts it anew.
    #[inline]
    pub fn restart(&mut self, now: Instant) {
        self.deadline = self.rto_nanos.map(|rto_nanos| now.plus_nanos(rto_nanos));
    }

    /// Stops it.
    #[inline]
    pub fn stop(&mut self) {
        self.deadline = None;
    }

    /// Whether it has expired; it then stands still.
    pub fn take_expired(&mut self, now: Instant) -> bool {
        let expired = self.deadline.is_some_and(|deadline| deadline <= now);
        if expired {
            self.stop();
        }
        expired
    }
}

/// A packet whose round trip is being measured.
#[derive(Clone, Copy, Debug)]
struct Timed {
    psn: Psn,
    at: Instant,
}

/// A retransmission timeout that follows the measured round trip (RFC 6298), IRN's two floors below it (SIGCOMM'18,
/// section 3.1), with probes before it (RFC 8985, section 7), which go on like those of QUIC (RFC 9002, section 6.2).
///
/// ```text
///   heard -- w --> probe -- 2 w --> probe -- 4 w --> probe ..        w = 2 min rtt + 4 rttvar
///   a wait of srtt + 4 rttvar, at least low or high, was a timeout
///   before a round trip was measured: w is low or high, and 1 ms was a timeout
/// ```
/// It decides when to send again, never when to give up: that stays with the local ACK timeout.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdaptiveRto {
    srtt_nanos: u64,
    rttvar_nanos: u64,
    /// The shortest round trip: without what waits in queues.
    min_nanos: u64,
    timed: Option<Timed>,
    expiries: u32,
}

/// The timeout where no round trip was measured: the network may be a slow one. In nanoseconds.
const FIRST_RTO_NANOS: u64 = 1_000_000;
/// The shortest wait for a probe, in nanoseconds: timers are no finer.
const PROBE_MIN_NANOS: u64 = 10_000;
/// IRN's floor with few packets in flight, in nanoseconds.
const RTO_LOW_NANOS: u64 = 100_000;
/// IRN's floor otherwise, in nanoseconds.
const RTO_HIGH_NANOS: u64 = 320_000;
/// As many packets in flight are few.
const RTO_LOW_PKTS: u32 = 3;
/// Doublings at most.
const BACKOFF_MAX: u32 = 16;

impl AdaptiveRto {
    /// The packet `psn` was sent for the first time: its answer is timed, if no other's is.
    #[inline]
    pub fn on_sent(&mut self, psn: Psn, now: Instant) {
        if self.timed.is_none() {
            self.timed = Some(Timed { psn, at: now });
        }
    }

    /// The packet whose answer is timed.
    #[inline]
    pub fn timed(&self) -> Option<Psn> {
        self.timed.map(|timed| timed.psn)
    }

    /// The packet timed was answered: its round trip in nanoseconds.
    pub fn on_acked(&mut self, now: Instant) -> Option<u64> {
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

    /// The shortest round trip, in nanoseconds; 0 before one was measured.
    #[inline]
    pub fn min_nanos(&self) -> u64 {
        self.min_nanos
    }

    /// The packet timed was lost, and what answers it would answer its repetition.
    pub fn cancel(&mut self) {
        self.timed = None;
    }

    /// The peer brought something new.
    #[inline]
    pub fn on_progress(&mut self) {
        self.expiries = 0;
    }

    /// The wait from now on, with `in_flight_pkts` in flight.
    pub fn wait_nanos(&self, in_flight_pkts: u32) -> u64 {
        let first = if self.srtt_nanos == 0 {
            floor_nanos(in_flight_pkts)
        } else {
            // Expiry: while queues drain, they bring something all the time.
            (2 * self.min_nanos + 4 * self.rttvar_nanos).max(PROBE_MIN_NANOS)
        };
        first << self.expiries.min(BACKOFF_MAX)
    }

    /// The wait is over, with `in_flight_pkts` in flight. Returns what that means.
    pub fn on_expired(&mut self, in_flight_pkts: u32) -> Expiry {
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

/// How long nothing was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// One wait.
    TailLossProbe,
    /// More than one.
    Pto,
    /// The retransmission timeout.
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
    fn a_silence_is_probed_more_and_more_seldom_and_is_a_timeout_in_the_end() {
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
        let mut near = measured(5_000); // and 2,500 of variation
        let waits = expire_all(&mut near, 4);
        assert_eq!(waits[4..6], [(320_000, timeout), (640_000, timeout)]);
        near.on_progress();
        let waits = expire_all(&mut near, 3);
        assert_eq!(waits[..4], [(20_000, first), (40_000, longer), (80_000, longer), (160_000, timeout)]);
        let mut far = measured(500_000);
        assert_eq!(expire_all(&mut far, 4)[..2], [(2_000_000, first), (4_000_000, timeout)]);
        // Long queues: 2 ms +- 250 us on average, 100 us at least.
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
