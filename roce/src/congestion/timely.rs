//! Congestion control by the gradient of the delay, after Timely (Mittal et al., SIGCOMM'15, section 4.3): a
//! rate that falls while the round trip rises.
//!
//! ```text
//!   rtt < t_low:    rate += add_step
//!   rtt > t_high:   rate *= 1 - beta * (1 - t_high / rtt)
//!   otherwise:      gradient = smoothed difference of round trips / min_rtt
//!       <= 0:       rate += add_step; 5 * add_step after hai_threshold - 1 such samples in a row
//!       > 0:        rate *= 1 - beta * gradient, with a gradient of at most 1
//! ```

use super::pacer::Pacer;
use super::parameters::{BITS_PER_MBIT, DEFAULT_WINDOW_PKTS, WINDOW_PKTS_MAX, parameters};
use crate::time::Instant;

parameters! {
    /// Timely's parameters; the defaults are those of the paper. Fractions are in thousandths, rates in Mbit/s.
    TimelyParameters of "timely", presets &[], {
        /// Largest number of packets in flight; applies in addition to the rate.
        window_pkts = DEFAULT_WINDOW_PKTS, in 1 to WINDOW_PKTS_MAX;
        /// Round trip below which the rate rises, in nanoseconds.
        t_low_nanos = 50_000, in 1 to 100_000_000;
        /// Round trip above which the rate falls, in nanoseconds.
        t_high_nanos = 500_000, in 1 to 100_000_000;
        /// Divisor, in nanoseconds, that converts the smoothed difference of round trips to the gradient.
        min_rtt_nanos = 20_000, in 1 to 100_000_000;
        /// Additive increase per round-trip sample, in Mbit/s.
        add_step_mbps = 10, in 1 to 10_000_000;
        /// From the `hai_threshold`-th consecutive gradient of at most 0 on, the increase is five times
        /// `add_step_mbps`.
        hai_threshold = 5, in 1 to 1000;
        /// Multiplicative decrease: weight of the gradient, or of the excess of the round trip over `t_high_nanos`, in
        /// thousandths.
        beta_milli = 800, in 1 to 1000;
        /// Weight of a new difference of round trips in the smoothed difference, in thousandths.
        alpha_milli = 875, in 1 to 1000;
        /// The lowest rate, in Mbit/s.
        min_rate_mbps = 10, in 1 to 10_000_000;
    }
}

/// Factor of the hyperactive increase, which starts at the `hai_threshold`-th consecutive gradient of at most 0.
const HAI_STEPS: u64 = 5;
/// The number 1 in thousandths.
const MILLI: i64 = 1000;

/// Congestion state of a queue pair under Timely.
#[derive(Clone, Debug)]
pub struct Timely {
    parameters: TimelyParameters,
    max_rate: u64,
    pacer: Pacer,
    /// The last round-trip sample, in nanoseconds; 0 before the first sample.
    rtt_nanos: i64,
    /// Smoothed difference between a round-trip sample and the previous sample, in nanoseconds.
    difference_nanos: i64,
    /// Number of consecutive gradients of at most 0.
    falls: u32,
}

impl Timely {
    pub(crate) fn new(parameters: &TimelyParameters, link_bits_per_sec: u64) -> Self {
        let max_rate = link_bits_per_sec.max(u64::from(parameters.min_rate_mbps) * BITS_PER_MBIT);
        let pacer = Pacer::new(max_rate); // clamps to RATE_MAX_BITS_PER_SEC
        Timely {
            parameters: *parameters,
            max_rate: pacer.bits_per_sec(),
            pacer,
            rtt_nanos: 0,
            difference_nanos: 0,
            falls: 0,
        }
    }

    #[inline]
    pub(crate) fn window_pkts(&self) -> u32 {
        self.parameters.window_pkts
    }

    pub(crate) fn rate_bits_per_sec(&self) -> u64 {
        self.pacer.bits_per_sec()
    }

    #[inline]
    fn is_paced(&self) -> bool {
        self.pacer.bits_per_sec() < self.max_rate
    }

    #[inline]
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        !self.is_paced() || self.pacer.next_at() <= now
    }

    /// Returns the time at which the pacer permits the next packet; `None` at the maximum rate, which is not paced.
    #[inline]
    pub(crate) fn next_permit_at(&self) -> Option<Instant> {
        self.is_paced().then(|| self.pacer.next_at())
    }

    /// Records that a packet of `bytes` bytes was sent, and delays the next packet; no effect at the maximum rate.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) {
        if self.is_paced() {
            self.pacer.on_sent(now, bytes);
        }
    }

    /// Records a round-trip sample, and changes the rate. The caller must not pass a sample above 1,000 s, so that
    /// the products of this function do not overflow.
    pub(crate) fn on_round_trip(&mut self, now: Instant, rtt_nanos: u64) {
        let parameters = self.parameters;
        let rtt_nanos = i64::try_from(rtt_nanos).unwrap_or(i64::MAX);
        let previous = std::mem::replace(&mut self.rtt_nanos, rtt_nanos);
        let difference = if previous == 0 { 0 } else { rtt_nanos - previous };
        let alpha = i64::from(parameters.alpha_milli);
        self.difference_nanos = ((MILLI - alpha) * self.difference_nanos + alpha * difference) / MILLI;
        let (low, high) = (i64::from(parameters.t_low_nanos), i64::from(parameters.t_high_nanos));
        let beta = i64::from(parameters.beta_milli);
        if rtt_nanos < low {
            self.falls = 0;
            self.increase(now, 1);
        } else if rtt_nanos > high {
            self.falls = 0;
            self.decrease(now, beta - beta * high / rtt_nanos);
        } else if self.difference_nanos <= 0 {
            self.falls = self.falls.saturating_add(1);
            self.increase(now, if self.falls >= parameters.hai_threshold { HAI_STEPS } else { 1 });
        } else {
            self.falls = 0;
            let gradient = (self.difference_nanos * MILLI / i64::from(parameters.min_rtt_nanos)).min(MILLI);
            self.decrease(now, beta * gradient / MILLI);
        }
    }

    fn increase(&mut self, now: Instant, steps: u64) {
        let step = u64::from(self.parameters.add_step_mbps) * BITS_PER_MBIT;
        self.set_rate(now, self.pacer.bits_per_sec() + steps * step);
    }

    fn decrease(&mut self, now: Instant, off_milli: i64) {
        let left = MILLI.saturating_sub(off_milli).unsigned_abs();
        self.set_rate(now, self.pacer.bits_per_sec() * left / MILLI.unsigned_abs());
    }

    fn set_rate(&mut self, now: Instant, bits_per_sec: u64) {
        let least = u64::from(self.parameters.min_rate_mbps) * BITS_PER_MBIT;
        self.pacer.set_rate(now, bits_per_sec.clamp(least, self.max_rate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: u64 = 40_000_000_000;
    const MICRO: u64 = 1000;

    fn after(round_trips_micros: &[u64]) -> (Timely, u64) {
        let mut timely = Timely::new(&TimelyParameters::default(), LINK);
        for rtt in round_trips_micros {
            timely.on_round_trip(Instant::ZERO, rtt * MICRO);
        }
        let rate = timely.rate_bits_per_sec();
        (timely, rate)
    }

    #[test]
    fn the_rate_falls_with_the_gradient_and_above_the_upper_threshold() {
        assert_eq!(after(&[60, 60]).1, LINK, "it does not rise");
        // The difference of 10 us is half of min_rtt; weighted by alpha (7/8), the gradient is 437 thousandths. The
        // decrease is the gradient multiplied by a beta of 0.8: 349 thousandths.
        assert_eq!(after(&[60, 70]).1, LINK * (1000 - 349) / 1000);
        assert_eq!(after(&[60, 400]).1, LINK * 200 / 1000, "no gradient counts for more than 1");
        assert_eq!(after(&[1000]).1, LINK * 600 / 1000);
    }

    #[test]
    fn it_grows_below_the_lower_threshold_and_five_times_as_fast_while_it_falls() {
        let (_, low) = after(&[1000]);
        assert_eq!(after(&[1000, 40]).1, low + 10 * BITS_PER_MBIT);
        // The smoothed difference is below 0 after the first sample of 100 us, and at most 0 while samples are equal.
        assert_eq!(after(&[1000, 100, 100, 100, 100]).1, low + 40 * BITS_PER_MBIT);
        assert_eq!(after(&[1000, 100, 100, 100, 100, 100]).1, low + 90 * BITS_PER_MBIT);
        // A gradient above 0 ends the series of gradients of at most 0.
        let (timely, rate) = after(&[1000, 100, 100, 100, 100, 400]);
        let mut timely = timely;
        for rtt in [300, 250] {
            timely.on_round_trip(Instant::ZERO, rtt * MICRO);
        }
        assert_eq!(timely.rate_bits_per_sec(), rate + 20 * BITS_PER_MBIT);
    }

    #[test]
    fn at_the_rate_of_its_link_nothing_is_paced() {
        let (mut timely, _) = after(&[60]);
        let now = Instant::from_nanos(100 * MICRO);
        timely.on_sent(now, 60_000);
        assert!(timely.may_send(now));
        assert_eq!(timely.next_permit_at(), None);
        timely.on_round_trip(now, 1_000_000);
        timely.on_sent(now, 60_000);
        assert!(!timely.may_send(now));
        assert!(timely.next_permit_at().is_some_and(|at| at > now));
    }

    proptest! {
        #[test]
        fn the_rate_stays_between_its_bounds(round_trips in prop::collection::vec(any::<u64>(), 1..200)) {
            let mut timely = Timely::new(&TimelyParameters::default(), LINK);
            for rtt in round_trips {
                timely.on_round_trip(Instant::ZERO, rtt % 2_000_000);
                prop_assert!((10 * BITS_PER_MBIT..=LINK).contains(&timely.rate_bits_per_sec()));
                timely.on_round_trip(Instant::ZERO, rtt % 1_000_000_000_000);
            }
        }
    }
}
