//! DCQCN's reaction point (Zhu et al., SIGCOMM'15, section 3). The parameters have the names of NVIDIA's adapters
//! ("DCQCN CC Parameters" in NVIDIA's documentation; `/sys/class/net/*/ecn/roce_rp`) and the defaults of the paper. The
//! preset `nvidia` has the defaults of the adapters. Under this preset, flows that share a bottleneck do not converge
//! to equal rates: a decrease is permitted every 4 us, so a flow decreases its rate several times in the round trip
//! that passes before CNPs show the effect of the first decrease.
//!
//! ```text
//!            first CNP: a limiter at the maximum rate
//!   unlimited ---------------------------------------> CNP: if current has risen since the last decrease,
//!       ^                                                       target := current
//!       |                                                   current := current * (1 - alpha / 2)
//!       |                                                 |
//!       |  current = maximum                              v   every rpg_time_reset, and every rpg_byte_reset
//!       '---------------- increase: fast -> additive -> hyper     target += 0 | rpg_ai_rate | rpg_hai_rate
//!                                                                 current := (target + current) / 2
//!   alpha, every dce_tcp_rtt:  alpha := g * alpha + (1 - g) * (1 if a CNP was received, or else 0)
//! ```
//! No timer runs: [`Dcqcn::may_send`] and [`Dcqcn::on_cnp`] apply the changes that are due at the time of the call.

use super::pacer::{Pacer, RATE_MAX_BITS_PER_SEC};
use super::parameters::{BITS_PER_MBIT, DEFAULT_WINDOW_PKTS, WINDOW_PKTS_MAX, parameters};
use crate::time::{Instant, OptionalInstant};

parameters! {
    /// DCQCN's parameters, with the names of NVIDIA's adapters and the defaults of DCQCN's paper. Rates are in
    /// Mbit/s, times in microseconds.
    DcqcnParameters of "dcqcn", presets &[("nvidia", NVIDIA)], {
        /// Largest number of packets in flight; applies in addition to the rate.
        window_pkts = DEFAULT_WINDOW_PKTS, in 1 to WINDOW_PKTS_MAX;
        /// 1: each decrease first sets the target rate to the current rate; 0: the next parameter
        /// (clamp_tgt_rate_after_time_inc) selects the decreases that do so.
        clamp_tgt_rate = 0, in 0 to 1;
        /// Used only if `clamp_tgt_rate` is 0. 1: if the timer or the byte counter has increased the rate since the
        /// last decrease, a decrease first sets the target rate to the current rate. 0: a decrease does so only if the
        /// byte counter has increased the rate since the last decrease.
        clamp_tgt_rate_after_time_inc = 1, in 0 to 1;
        /// Time between rate increases by the timer, in microseconds.
        rpg_time_reset = 55, in 1 to 131_071;
        /// Number of bytes sent between two rate increases by the byte counter.
        rpg_byte_reset = 10_000_000, in 1 to 0x7FFF_FFFF;
        /// Fast recovery ends when the number of increases by the timer, or of increases by the byte counter, exceeds
        /// `rpg_threshold`. Additive increase follows or, when both numbers exceed `rpg_threshold`, hyper increase.
        rpg_threshold = 5, in 1 to 31;
        /// The maximum rate, at which the rate limiter is removed, in Mbit/s; 0: the link's speed.
        rpg_max_rate = 0, in 0 to 10_000_000;
        /// Step of the target rate in an additive increase, in Mbit/s.
        rpg_ai_rate = 40, in 1 to 10_000_000;
        /// Step of the target rate in a hyper increase, in Mbit/s; the paper gives no value.
        rpg_hai_rate = 200, in 1 to 10_000_000;
        /// A decrease reduces the rate by the fraction `alpha / 2^rpg_gd`, with alpha in 1024ths.
        rpg_gd = 11, in 10 to 15;
        /// A decrease leaves at least this percentage of the rate.
        rpg_min_dec_fac = 50, in 0 to 100;
        /// The lowest rate, in Mbit/s.
        rpg_min_rate = 1, in 1 to 10_000_000;
        /// If a CNP arrives while no rate limiter exists (the rate is the maximum rate), the rate is set to this value,
        /// in Mbit/s, before the decrease. 0: the decrease begins at the maximum rate.
        rate_to_set_on_first_cnp = 0, in 0 to 10_000_000;
        /// Weight of the old alpha in an update of alpha, in 1024ths.
        dce_tcp_g = 1020, in 0 to 1023;
        /// Time between updates of alpha, in microseconds.
        dce_tcp_rtt = 55, in 1 to 131_071;
        /// Least time between rate decreases, in microseconds.
        rate_reduce_monitor_period = 50, in 1 to 1_000_000;
        /// If a CNP arrives while no rate limiter exists (the rate is the maximum rate), alpha is set to this value, in
        /// 1024ths, before the decrease.
        initial_alpha_value = 1023, in 1 to 1023;
        /// A NAK, or a READ request for responses sent before, counts as a CNP if the last CNP was received less than
        /// this time ago, in microseconds. If greater than 0, a timeout always counts as a CNP. Neither in the paper,
        /// whose networks lose no packet, nor a parameter of NVIDIA's adapters.
        loss_after_cnp = 400, in 0 to 1_000_000;
    }
}

const NVIDIA: DcqcnParameters = DcqcnParameters {
    window_pkts: DEFAULT_WINDOW_PKTS,
    clamp_tgt_rate: 0,
    clamp_tgt_rate_after_time_inc: 1,
    rpg_time_reset: 300,
    rpg_byte_reset: 32_767,
    rpg_threshold: 1,
    rpg_max_rate: 0,
    rpg_ai_rate: 5,
    rpg_hai_rate: 50,
    rpg_gd: 11,
    rpg_min_dec_fac: 50,
    rpg_min_rate: 1,
    rate_to_set_on_first_cnp: 0,
    dce_tcp_g: 1019,
    dce_tcp_rtt: 1,
    rate_reduce_monitor_period: 4,
    initial_alpha_value: 1023,
    loss_after_cnp: 0,
};

/// Number of fraction bits of alpha: ten more than in NVIDIA's adapters, because rounding errors of updates add up.
const ONE_SHIFT: u32 = 20;
/// Number of fraction bits of parameters in 1024ths.
const FRACTION_SHIFT: u32 = 10;
const _: () = assert!((RATE_MAX_BITS_PER_SEC as u128) << ONE_SHIFT < 1 << 64);

/// Maximum number of rate changes that the loop of `advance` applies. If more are due, as after an idle time, the
/// remaining increases by the timer are skipped; a remaining decrease is applied.
const RATE_CHANGES_PER_CALL: u32 = 32;

const NANOS_PER_MICRO: u64 = 1000;
const NANOS_PER_SEC: u64 = 1_000_000_000;
const BITS_PER_BYTE: u64 = 8;

/// Rate limiter of a queue pair: created by a CNP, removed when the rate is the maximum again.
#[derive(Clone, Debug)]
struct Limiter {
    pacer: Pacer,
    /// Target rate in bits per second; each increase halves the distance of the rate from the target.
    target: u64,
    /// Estimate of congestion from CNPs, from 0 to 1, as a fixed-point number with [`ONE_SHIFT`] fraction bits.
    alpha: u64,
    /// Time up to which alpha was updated.
    alpha_at: Instant,
    /// Whether a CNP was received since `alpha_at`, the time up to which alpha was updated.
    notified: bool,
    /// Arrival time of the latest CNP.
    cnp_at: OptionalInstant,
    /// Number of bytes sent since `used_since`, the time of the last [`Limiter::reduce_to_used`].
    used_bytes: u64,
    used_since: Instant,
    /// Time at which the decrease for a CNP is due; `None` if no CNP was received since the last decrease.
    decrease_at: Option<Instant>,
    /// Earliest time of the next decrease.
    no_decrease_before: Instant,
    /// Time at which the next increase by the timer is due.
    increase_at: Instant,
    /// Value of the byte counter: number of bytes to send until the byte counter next increases the rate.
    bytes_left: u32,
    /// Numbers of increases by the timer (`time_stage`) and by the byte counter (`byte_stage`) since the last decrease.
    time_stage: u32,
    byte_stage: u32,
}

/// Reaction point of a queue pair.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    parameters: DcqcnParameters,
    max_rate: u64,
    limiter: Option<Limiter>,
}

impl Dcqcn {
    pub(crate) fn new(parameters: &DcqcnParameters, link_bits_per_sec: u64) -> Self {
        let configured = bits_per_sec(parameters.rpg_max_rate);
        let max_rate = if configured == 0 { link_bits_per_sec } else { configured };
        // The maximum rate is raised to at least `rpg_min_rate`, because otherwise `clamp` in `Limiter::decrease` would
        // panic.
        let max_rate = max_rate.clamp(bits_per_sec(parameters.rpg_min_rate), RATE_MAX_BITS_PER_SEC);
        Dcqcn { parameters: *parameters, max_rate, limiter: None }
    }

    #[inline]
    pub(crate) fn window_pkts(&self) -> u32 {
        self.parameters.window_pkts
    }

    /// Returns the rate of the rate limiter in bits per second; `None`: no rate limiter, so the rate is the maximum.
    pub(crate) fn rate_bits_per_sec(&self) -> Option<u64> {
        self.limiter.as_ref().map(|limiter| limiter.pacer.bits_per_sec())
    }

    /// Applies the rate changes due until `now`, and returns whether a packet may be sent now.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        self.advance(now);
        self.limiter.as_ref().is_none_or(|limiter| limiter.pacer.next_at() <= now)
    }

    /// Returns the time at which to call [`Dcqcn::may_send`] again; `None` without a rate limiter.
    pub(crate) fn next_permit_at(&self) -> Option<Instant> {
        // The result is no later than the next rate change, because the new rate may permit a packet earlier than the
        // present rate does.
        self.limiter.as_ref().map(|limiter| limiter.pacer.next_at().min(limiter.next_change_at()))
    }

    /// Records that a packet of `bytes` bytes was sent. Whenever `rpg_byte_reset` bytes were sent, increases the rate.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) {
        let Some(limiter) = &mut self.limiter else { return };
        limiter.pacer.on_sent(now, bytes);
        limiter.used_bytes = limiter.used_bytes.saturating_add(u64::from(bytes));
        limiter.bytes_left = limiter.bytes_left.saturating_sub(bytes);
        if limiter.bytes_left == 0 {
            limiter.bytes_left = self.parameters.rpg_byte_reset;
            limiter.byte_stage = limiter.byte_stage.saturating_add(1);
            self.increase(now);
        }
    }

    /// Records a CNP. If `rate_reduce_monitor_period` has passed since the last decrease, decreases the rate now,
    /// otherwise at the end of this period.
    pub(crate) fn on_cnp(&mut self, now: Instant) {
        self.notify(now);
        if let Some(limiter) = &mut self.limiter {
            limiter.cnp_at = OptionalInstant::some(now);
        }
    }

    /// Records a timeout.
    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if self.parameters.loss_after_cnp > 0 {
            self.notify(now);
        }
    }

    /// Records a loss without a timeout. Only soon after a CNP, which shows congestion, the rate is reduced: losses for
    /// other reasons, such as bit errors, would reduce the rate to a fraction of the fair share.
    ///
    /// If `is_limited`, the loss window limits the queue pair. Such a queue pair sends few packets at a high rate, so it
    /// receives few CNPs, and would keep this rate. Therefore the rate is first reduced to twice the rate at which
    /// packets were sent since the last such loss (RFC 7661, section 4.4.1, so reduces a window that was not used).
    pub(crate) fn on_loss(&mut self, now: Instant, is_limited: bool) {
        let parameters = &self.parameters;
        let Some(limiter) = self.limiter.as_mut().filter(|limiter| limiter.is_congested(parameters, now))
        else {
            return;
        };
        if is_limited {
            limiter.reduce_to_used(parameters, now);
        }
        self.notify(now);
    }

    fn notify(&mut self, now: Instant) {
        self.advance(now);
        let limiter = self.limiter.get_or_insert_with(|| Limiter::new(&self.parameters, self.max_rate, now));
        limiter.update_alpha(&self.parameters, now);
        limiter.notified = true;
        limiter.decrease_at.get_or_insert(limiter.no_decrease_before.max(now));
        self.advance(now);
    }

    /// Applies the rate decreases and the timer's rate increases that are due at `now`: the first
    /// [`RATE_CHANGES_PER_CALL`] changes and, if a decrease is still due then, this decrease.
    fn advance(&mut self, now: Instant) {
        for _ in 0..RATE_CHANGES_PER_CALL {
            let Some(limiter) = &mut self.limiter else { return };
            let due = limiter.next_change_at();
            if due > now {
                return;
            }
            if limiter.decrease_at == Some(due) {
                limiter.decrease(&self.parameters, self.max_rate, due);
                continue;
            }
            limiter.increase_at = due.plus_nanos(nanos(self.parameters.rpg_time_reset));
            limiter.time_stage = limiter.time_stage.saturating_add(1);
            self.increase(due);
        }
        let Some(limiter) = &mut self.limiter else { return };
        limiter.increase_at = now.plus_nanos(nanos(self.parameters.rpg_time_reset));
        if limiter.decrease_at.is_some_and(|at| at <= now) {
            limiter.decrease(&self.parameters, self.max_rate, now);
        }
    }

    /// Increases the rate once. At the maximum rate, removes the rate limiter unless a decrease is pending.
    fn increase(&mut self, now: Instant) {
        let Some(limiter) = &mut self.limiter else { return };
        limiter.increase(&self.parameters, self.max_rate, now);
        if limiter.pacer.bits_per_sec() >= self.max_rate && limiter.decrease_at.is_none() {
            self.limiter = None;
        }
    }
}

impl Limiter {
    /// Creates the rate limiter when a CNP is received while no rate limiter exists, that is, while the queue pair
    /// sends at the maximum rate.
    fn new(parameters: &DcqcnParameters, max_rate: u64, now: Instant) -> Self {
        let first = bits_per_sec(parameters.rate_to_set_on_first_cnp);
        let rate = if first == 0 { max_rate } else { first.min(max_rate) };
        Limiter {
            pacer: Pacer::new(rate),
            target: rate,
            alpha: u64::from(parameters.initial_alpha_value) << (ONE_SHIFT - FRACTION_SHIFT),
            alpha_at: now,
            notified: false,
            cnp_at: OptionalInstant::NONE,
            used_bytes: 0,
            used_since: now,
            decrease_at: None,
            no_decrease_before: now,
            increase_at: now.plus_nanos(nanos(parameters.rpg_time_reset)),
            bytes_left: parameters.rpg_byte_reset,
            time_stage: 0,
            byte_stage: 0,
        }
    }

    /// Returns whether a CNP was received less than `loss_after_cnp` ago.
    fn is_congested(&self, parameters: &DcqcnParameters, now: Instant) -> bool {
        self.cnp_at.get().is_some_and(|at| now.nanos_since(at) < nanos(parameters.loss_after_cnp))
    }

    /// Reduces rate and target to twice the rate at which packets were sent since the last call.
    fn reduce_to_used(&mut self, parameters: &DcqcnParameters, now: Instant) {
        let nanos = u128::from(now.nanos_since(self.used_since).max(1));
        let used = u128::from(self.used_bytes) * u128::from(BITS_PER_BYTE * NANOS_PER_SEC) / nanos;
        let most = u64::try_from(2 * used).unwrap_or(u64::MAX).max(bits_per_sec(parameters.rpg_min_rate));
        self.target = self.target.min(most);
        self.pacer.set_rate(now, self.pacer.bits_per_sec().min(most));
        (self.used_bytes, self.used_since) = (0, now);
    }

    fn next_change_at(&self) -> Instant {
        self.decrease_at.map_or(self.increase_at, |at| at.min(self.increase_at))
    }

    /// Updates alpha for each period from `alpha_at` to `now`. If a CNP was received (`notified`), the CNP counts in
    /// the first of these periods only, because `on_cnp` first updates alpha and then sets `notified`.
    fn update_alpha(&mut self, parameters: &DcqcnParameters, now: Instant) {
        let period_nanos = nanos(parameters.dce_tcp_rtt);
        let updates = now.nanos_since(self.alpha_at) / period_nanos;
        if updates == 0 {
            return;
        }
        self.alpha_at = self.alpha_at.plus_nanos(updates * period_nanos);
        let g = u64::from(parameters.dce_tcp_g) << (ONE_SHIFT - FRACTION_SHIFT);
        let share = if std::mem::take(&mut self.notified) { (1 << ONE_SHIFT) - g } else { 0 };
        self.alpha = times(self.alpha, g) + share;
        self.alpha = times(self.alpha, power(g, updates - 1));
    }

    fn decrease(&mut self, parameters: &DcqcnParameters, max_rate: u64, now: Instant) {
        self.update_alpha(parameters, now);
        let has_grown =
            self.byte_stage > 0 || (parameters.clamp_tgt_rate_after_time_inc == 1 && self.time_stage > 0);
        let rate = self.pacer.bits_per_sec();
        if parameters.clamp_tgt_rate == 1 || has_grown {
            self.target = rate;
        }
        // `rate * alpha` does not overflow: the rate is at most RATE_MAX_BITS_PER_SEC, and alpha at most 1.
        let off = (rate * self.alpha) >> (parameters.rpg_gd + ONE_SHIFT - FRACTION_SHIFT);
        let least = rate * u64::from(parameters.rpg_min_dec_fac) / 100;
        let rate = rate.saturating_sub(off).max(least);
        self.pacer.set_rate(now, rate.clamp(bits_per_sec(parameters.rpg_min_rate), max_rate));
        self.decrease_at = None;
        self.no_decrease_before = now.plus_nanos(nanos(parameters.rate_reduce_monitor_period));
        self.increase_at = now.plus_nanos(nanos(parameters.rpg_time_reset));
        self.bytes_left = parameters.rpg_byte_reset;
        (self.time_stage, self.byte_stage) = (0, 0);
    }

    fn increase(&mut self, parameters: &DcqcnParameters, max_rate: u64, now: Instant) {
        let (threshold, stages) = (parameters.rpg_threshold, [self.time_stage, self.byte_stage]);
        let step = if stages.iter().all(|stage| *stage > threshold) {
            parameters.rpg_hai_rate
        } else if stages.iter().any(|stage| *stage > threshold) {
            parameters.rpg_ai_rate
        } else {
            0
        };
        self.target = (self.target + bits_per_sec(step)).min(max_rate);
        // Rounds the rate up, because otherwise the rate would never be equal to the target.
        let rate = (self.target + self.pacer.bits_per_sec()).div_ceil(2);
        self.pacer.set_rate(now, rate.min(max_rate));
    }
}

/// Returns the product of two fixed-point numbers of [`ONE_SHIFT`] fraction bits.
fn times(a: u64, b: u64) -> u64 {
    (a * b) >> ONE_SHIFT
}

/// Returns a power of a fixed-point number below 1, by squaring: at most one step per bit of the exponent.
fn power(mut base: u64, mut exponent: u64) -> u64 {
    let mut product = 1 << ONE_SHIFT;
    while exponent > 0 && product > 0 {
        if exponent & 1 == 1 {
            product = times(product, base);
        }
        base = times(base, base);
        exponent >>= 1;
    }
    product
}

fn nanos(micros: u32) -> u64 {
    u64::from(micros) * NANOS_PER_MICRO
}

fn bits_per_sec(mbps: u32) -> u64 {
    u64::from(mbps) * BITS_PER_MBIT
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LINK: u64 = 40_000_000_000;
    const MICRO: u64 = NANOS_PER_MICRO;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * MICRO)
    }

    fn notified(parameters: DcqcnParameters) -> Dcqcn {
        let mut dcqcn = Dcqcn::new(&parameters, LINK);
        assert_eq!(dcqcn.rate_bits_per_sec(), None);
        dcqcn.on_cnp(at(0));
        dcqcn
    }

    fn rate_at(dcqcn: &mut Dcqcn, micros: u64) -> u64 {
        dcqcn.may_send(at(micros));
        dcqcn.rate_bits_per_sec().unwrap_or(LINK)
    }

    #[test]
    fn the_first_notification_halves_the_rate_and_the_timer_gives_it_back() {
        let mut dcqcn = notified(NVIDIA);
        let first = LINK - LINK * 1023 / 2048;
        assert_eq!(rate_at(&mut dcqcn, 299), first);
        let mut wanted = first;
        for n in 1..20 {
            wanted = (LINK + wanted).div_ceil(2);
            assert_eq!(rate_at(&mut dcqcn, 300 * n), wanted);
            assert_eq!(rate_at(&mut dcqcn, 300 * n + 299), wanted);
        }
        rate_at(&mut dcqcn, 300 * 60);
        assert_eq!(dcqcn.rate_bits_per_sec(), None, "a flow at full rate is limited no more");
    }

    #[test]
    fn additive_and_hyper_increase_follow_fast_recovery() {
        let mut dcqcn = notified(DcqcnParameters {
            rate_to_set_on_first_cnp: 1000,
            rpg_threshold: 2,
            rpg_byte_reset: 1_000_000,
            ..NVIDIA
        });
        let (mut target, mut rate) = (1_000_000_000u64, dcqcn.rate_bits_per_sec().unwrap());
        // For each increase: true if the timer caused the increase, false if bytes sent caused it; and the step of the
        // target in Mbit/s: 0 in fast recovery, 5 in additive increase, 50 in hyper increase.
        let steps = [0, 0, 5, 5].map(|step| (true, step)).into_iter();
        for (n, (by_timer, step)) in (1..).zip(steps.chain([(false, 5), (false, 5), (false, 50), (true, 50)]))
        {
            let now = if by_timer { 300 * n.min(5) } else { 1300 };
            dcqcn.may_send(at(now));
            if !by_timer {
                (0..10).for_each(|_| dcqcn.on_sent(at(now), 100_000));
            }
            target += step * BITS_PER_MBIT;
            rate = (target + rate).div_ceil(2);
            assert_eq!(dcqcn.rate_bits_per_sec(), Some(rate), "increase {n}");
        }
    }

    #[test]
    fn a_decrease_after_an_increase_by_the_timer_sets_the_target_if_configured() {
        for clamp_tgt_rate_after_time_inc in [0, 1] {
            let mut dcqcn = notified(DcqcnParameters { clamp_tgt_rate_after_time_inc, ..NVIDIA });
            let increased = rate_at(&mut dcqcn, 300);
            dcqcn.on_cnp(at(301));
            let decreased = dcqcn.rate_bits_per_sec().unwrap();
            assert!(decreased < increased);
            let target = if clamp_tgt_rate_after_time_inc == 1 { increased } else { LINK };
            assert_eq!(rate_at(&mut dcqcn, 601), (target + decreased).div_ceil(2));
        }
    }

    #[test]
    fn one_decrease_in_a_monitor_period_however_many_notifications() {
        let mut dcqcn = notified(DcqcnParameters { dce_tcp_g: 1023, rpg_byte_reset: 2_000_000, ..NVIDIA });
        let first = dcqcn.rate_bits_per_sec().unwrap();
        dcqcn.on_sent(at(0), 1_000_000); // 400 us at the rate after the first decrease
        (1..4).for_each(|micros| dcqcn.on_cnp(at(micros)));
        assert_eq!(dcqcn.rate_bits_per_sec(), Some(first));
        assert_eq!(dcqcn.next_permit_at(), Some(at(4)), "it wakes for the decrease");
        let second = rate_at(&mut dcqcn, 4);
        assert!(second < first * 51 / 100 && second >= first / 2, "{second} of {first}");
        assert_eq!(rate_at(&mut dcqcn, 299), second, "they are one");
    }

    #[test]
    fn a_flood_of_notifications_ends_at_the_least_rate_and_a_small_factor_holds_it_off() {
        for (rpg_min_dec_fac, least) in [(0, 7_000_000), (50, 7_000_000), (100, LINK)] {
            let parameters = DcqcnParameters { rpg_min_rate: 7, rpg_min_dec_fac, ..NVIDIA };
            let mut dcqcn = notified(parameters);
            for nanos in 0..200_000 {
                dcqcn.on_cnp(Instant::from_nanos(nanos));
                assert!(dcqcn.rate_bits_per_sec().is_some_and(|rate| rate >= least));
            }
            assert_eq!(dcqcn.rate_bits_per_sec(), Some(least));
        }
    }

    #[test]
    fn a_decrease_is_exact_at_low_rates() {
        let mut dcqcn = notified(DcqcnParameters {
            rate_to_set_on_first_cnp: 659,
            rpg_gd: 10,
            rpg_min_dec_fac: 33,
            ..NVIDIA
        });
        let mut wanted = 659_000_000 * 33 / 100;
        for n in 1..6 {
            assert_eq!(dcqcn.rate_bits_per_sec(), Some(wanted), "decrease {n}");
            dcqcn.on_cnp(at(4 * n));
            wanted = wanted * 33 / 100;
        }
    }

    #[test]
    fn what_an_idle_flow_misses_costs_no_time_and_no_overflow() {
        let mut dcqcn = notified(DcqcnParameters { dce_tcp_rtt: 1, rpg_time_reset: 1, ..NVIDIA });
        dcqcn.on_cnp(at(5));
        let end = Instant::from_nanos(u64::MAX);
        assert!(dcqcn.may_send(end));
        dcqcn.on_cnp(end);
        dcqcn.on_sent(end, 4170);
        assert!(dcqcn.rate_bits_per_sec().is_some());
    }

    #[test]
    fn a_notification_that_waits_takes_effect_though_the_full_rate_was_reached_before() {
        let mut dcqcn =
            notified(DcqcnParameters { rate_reduce_monitor_period: 1000, rpg_time_reset: 1, ..NVIDIA });
        dcqcn.on_cnp(at(1));
        (2..900).for_each(|micros| _ = dcqcn.may_send(at(micros)));
        assert_eq!(dcqcn.rate_bits_per_sec(), Some(LINK));
        assert!(rate_at(&mut dcqcn, 1000) < LINK);
    }

    #[test]
    fn a_loss_counts_only_soon_after_a_notification() {
        let rate_after = |loss_after_cnp, call: fn(&mut Dcqcn, Instant), micros| {
            let parameters =
                DcqcnParameters { loss_after_cnp, rpg_time_reset: 10_000, ..DcqcnParameters::default() };
            let mut dcqcn = notified(parameters);
            // Losses do not prolong the time after the CNP.
            (50..=micros).step_by(50).for_each(|micros| call(&mut dcqcn, at(micros)));
            rate_at(&mut dcqcn, micros)
        };
        let lose: fn(&mut Dcqcn, Instant) = |dcqcn, now| dcqcn.on_loss(now, false);
        let first = rate_after(400, |_, _| {}, 0);
        for (loss_after_cnp, micros, is_reduced) in
            [(400, 50, true), (400, 399, true), (51, 50, true), (50, 50, false), (0, 400, false)]
        {
            let rate = rate_after(loss_after_cnp, lose, micros);
            assert_eq!(rate < first, is_reduced, "{loss_after_cnp} {micros}");
        }
        assert_eq!(rate_after(400, lose, 1000), rate_after(400, lose, 399));
        for (loss_after_cnp, is_reduced) in [(1, true), (0, false)] {
            let rate = rate_after(loss_after_cnp, Dcqcn::on_timeout, 5000);
            assert_eq!(rate < first, is_reduced, "a timeout, with {loss_after_cnp}");
        }
        let mut unlimited = Dcqcn::new(&DcqcnParameters::default(), LINK);
        unlimited.on_loss(at(0), false);
        assert_eq!(unlimited.rate_bits_per_sec(), None);
        unlimited.on_timeout(at(0));
        unlimited.on_loss(at(60), false);
        assert_eq!(unlimited.rate_bits_per_sec(), Some(LINK - LINK * 1023 / 2048), "no CNP was received");
    }

    #[test]
    fn a_loss_of_a_limited_flow_reduces_the_rate_to_twice_the_rate_used() {
        // In 100 us: 1 Gbit/s, nothing, 160 Gbit/s.
        for (used_bytes, most) in [(12_500, 2_000_000_000), (0, 1_000_000), (2_000_000, u64::MAX)] {
            let rate_after = |is_limited| {
                let mut dcqcn =
                    notified(DcqcnParameters { rpg_time_reset: 10_000, ..DcqcnParameters::default() });
                // The next decrease is due 50 us after this CNP, so that only the reduction shows.
                dcqcn.on_cnp(at(100));
                let before = dcqcn.rate_bits_per_sec().unwrap();
                dcqcn.on_sent(at(100), used_bytes);
                dcqcn.on_loss(at(100), is_limited);
                (before, dcqcn.rate_bits_per_sec().unwrap())
            };
            let (before, after) = rate_after(true);
            assert_eq!(after, before.min(most), "{used_bytes}");
            assert_eq!(rate_after(false), (before, before), "{used_bytes}");
        }
    }

    #[test]
    fn increases_missed_beyond_a_bound_are_forgotten() {
        let mut dcqcn =
            notified(DcqcnParameters { rate_to_set_on_first_cnp: 1000, rpg_time_reset: 1, ..NVIDIA });
        let first = rate_at(&mut dcqcn, 1_000_000);
        assert!(first < 2_000_000_000, "{first}");
        assert_eq!(rate_at(&mut dcqcn, 1_000_000), first);
        assert!(rate_at(&mut dcqcn, 1_000_001) > first);
    }

    /// Model of a [`Limiter`] in floating point. The model updates alpha at the end of each `dce_tcp_rtt`.
    struct Model {
        p: DcqcnParameters,
        rate: f64,
        target: f64,
        alpha: f64,
        /// Bounds of the rounding errors of the rate limiter: of alpha, of the rate by those of alpha (a fraction of the
        /// rate), and of the rate by its own rounding (bits per second; each change rounds by less than 1).
        alpha_error: f64,
        rate_error: f64,
        rounding_bits_per_sec: f64,
        alpha_at: u64,
        notified: bool,
        decrease_at: Option<u64>,
        no_decrease_before: u64,
        increase_at: u64,
        bytes: u32,
        stages: [u32; 2],
    }

    impl Model {
        fn new(p: DcqcnParameters, now: u64) -> Self {
            let first = if p.rate_to_set_on_first_cnp == 0 {
                LINK as f64
            } else {
                p.rate_to_set_on_first_cnp as f64 * 1e6
            };
            Model {
                p,
                rate: first,
                target: first,
                alpha: f64::from(p.initial_alpha_value) / 1024.0,
                alpha_error: 0.0,
                rate_error: 0.0,
                rounding_bits_per_sec: 0.0,
                alpha_at: now,
                notified: true,
                decrease_at: Some(now),
                no_decrease_before: now,
                increase_at: now + u64::from(p.rpg_time_reset) * MICRO,
                bytes: 0,
                stages: [0; 2],
            }
        }

        fn advance(&mut self, now: u64) {
            let Model { p, .. } = *self;
            loop {
                let tick = self.alpha_at + u64::from(p.dce_tcp_rtt) * MICRO;
                let decrease = self.decrease_at.unwrap_or(u64::MAX);
                let next = tick.min(decrease).min(self.increase_at);
                if next > now {
                    return;
                }
                if next == tick {
                    let g = f64::from(p.dce_tcp_g) / 1024.0;
                    self.alpha = g * self.alpha + if self.notified { 1.0 - g } else { 0.0 };
                    self.alpha_error = g * self.alpha_error + 1.0 / f64::from(1u32 << ONE_SHIFT);
                    (self.notified, self.alpha_at) = (false, tick);
                } else if next == decrease {
                    let grown =
                        self.stages[1] > 0 || (p.clamp_tgt_rate_after_time_inc == 1 && self.stages[0] > 0);
                    if p.clamp_tgt_rate == 1 || grown {
                        self.target = self.rate;
                    }
                    let cut = |alpha: f64| alpha * 1024.0 / f64::from(1u32 << p.rpg_gd);
                    let factor = (1.0 - cut(self.alpha)).max(f64::from(p.rpg_min_dec_fac) / 100.0);
                    self.rate *= factor;
                    self.rate_error += cut(self.alpha_error) / factor;
                    self.rounding_bits_per_sec += 1.0;
                    self.rate = self.rate.max(f64::from(p.rpg_min_rate) * 1e6);
                    self.decrease_at = None;
                    self.no_decrease_before = next + u64::from(p.rate_reduce_monitor_period) * MICRO;
                    self.increase_at = next + u64::from(p.rpg_time_reset) * MICRO;
                    (self.bytes, self.stages) = (0, [0; 2]);
                } else {
                    self.increase_at = next + u64::from(p.rpg_time_reset) * MICRO;
                    self.increase(0);
                }
            }
        }

        fn increase(&mut self, kind: usize) {
            self.stages[kind] += 1;
            let past = self.stages.iter().filter(|stage| **stage > self.p.rpg_threshold).count();
            let step = [0, self.p.rpg_ai_rate, self.p.rpg_hai_rate][past];
            self.target = (self.target + f64::from(step) * 1e6).min(LINK as f64);
            self.rate = (self.target + self.rate) / 2.0;
            self.rounding_bits_per_sec += 1.0;
        }

        fn on_cnp(&mut self, now: u64) {
            self.advance(now);
            self.notified = true;
            self.decrease_at.get_or_insert(self.no_decrease_before.max(now));
            self.advance(now);
        }

        fn on_sent(&mut self, bytes: u32) {
            self.bytes += bytes;
            if self.bytes >= self.p.rpg_byte_reset {
                self.bytes = 0;
                self.increase(1);
            }
        }
    }

    fn parameters() -> impl Strategy<Value = DcqcnParameters> {
        let decrease = (0..=1u32, 0..=1u32, 10..=15u32, 0..=100u32, prop_oneof![Just(1u32), 1..1000u32]);
        let alpha = (prop_oneof![Just(1019u32), 0..=1023u32], 1..60u32, 1..=1023u32, 1..60u32);
        let increase = (250..400u32, 1..50_000u32, 1..6u32, 1..200u32, 1..2000u32);
        let first = prop_oneof![Just(0u32), 100..20_000u32];
        (decrease, alpha, increase, first).prop_map(|(decrease, alpha, increase, first)| DcqcnParameters {
            window_pkts: 256,
            clamp_tgt_rate: decrease.0,
            clamp_tgt_rate_after_time_inc: decrease.1,
            rpg_gd: decrease.2,
            rpg_min_dec_fac: decrease.3,
            rpg_min_rate: decrease.4,
            dce_tcp_g: alpha.0,
            dce_tcp_rtt: alpha.1,
            initial_alpha_value: alpha.2,
            rate_reduce_monitor_period: alpha.3,
            rpg_time_reset: increase.0,
            rpg_byte_reset: increase.1,
            rpg_threshold: increase.2,
            rpg_ai_rate: increase.3,
            rpg_hai_rate: increase.4,
            rpg_max_rate: 0,
            rate_to_set_on_first_cnp: first,
            loss_after_cnp: 100,
        })
    }

    proptest! {
        /// Compares the rate with that of the model, until `dcqcn` removes its rate limiter.
        #[test]
        fn the_rate_is_that_of_the_model(
            p in parameters(),
            events in prop::collection::vec((prop_oneof![1..5_000u64, 1..200_000u64], 0..5u8, 64..60_000u32), 1..24),
        ) {
            let mut dcqcn = Dcqcn::new(&p, LINK);
            let mut now = 777;
            let mut cnp_at = now;
            dcqcn.on_cnp(Instant::from_nanos(now));
            let mut model = Model::new(p, now);
            model.advance(now);
            for (gap, kind, bytes) in events {
                now += gap;
                let instant = Instant::from_nanos(now);
                match kind {
                    0 => {
                        dcqcn.on_cnp(instant);
                        model.on_cnp(now);
                        cnp_at = now;
                    }
                    1 => {
                        dcqcn.on_timeout(instant);
                        model.on_cnp(now);
                    }
                    2 => {
                        dcqcn.may_send(instant);
                        dcqcn.on_loss(instant, false);
                        model.advance(now);
                        if now - cnp_at < 100 * MICRO {
                            model.on_cnp(now);
                        }
                    }
                    _ => {
                        dcqcn.may_send(instant);
                        dcqcn.on_sent(instant, bytes);
                        model.advance(now);
                        model.on_sent(bytes);
                    }
                }
                let Some(rate) = dcqcn.rate_bits_per_sec() else {
                    // `dcqcn` has no rate limiter, so its rate is the maximum; the model must have the maximum, too.
                    prop_assert!(model.rate >= LINK as f64 * 0.999_999);
                    return Ok(());
                };
                let error = model.rate * (1.0 / 100_000.0 + model.rate_error) + model.rounding_bits_per_sec;
                prop_assert!((rate as f64 - model.rate).abs() <= error, "{rate}, not {} +- {error}", model.rate);
            }
        }
    }
}
