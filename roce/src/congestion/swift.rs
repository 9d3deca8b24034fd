//! Congestion control by delay, after Swift (Kumar et al., SIGCOMM'20, section 3): a window that grows while the round
//! trip is below a target, and shrinks in proportion to the excess over the target, at most once per round trip.
//! Swift's endpoint window is not implemented, because a polling engine cannot measure the delay of its own host; the
//! implemented window is Swift's fabric window.
//!
//! ```text
//!   target = base_target + flow scaling (0 at a large window, up to fs_range at a small one)
//!   rtt < target:  window += ai / window for each packet acknowledged
//!   rtt >= target: window *= max(1 - beta * (rtt - target) / rtt, 1 - max_mdf)
//!   loss:          window *= 1 - max_mdf
//! ```
//! A loss detected by selective repeat reduces the window only in two cases: the round trip is at or above the target,
//! or more than `loss_tolerance_milli` thousandths of the packets are lost. The paper reduces the window at each loss.
//! By that rule, one or two flows on a link of 40 Gbit/s that loses 1 % of the packets would each have a window of 7
//! packets; 57 packets fill the link. If a switch whose queue is full drops a packet while the round trip is below the
//! target, the window is not reduced, so `base_target_nanos` must be below the round trip with full switch queues.
//!
//! The target has no term for the number of hops, which is unknown: switches do not change the hop limit of frames that
//! they forward without routing.
//!
//! While the window is below one packet, one packet is sent per rtt / window. Unlike in the paper, a round trip of more
//! than 16 targets counts as 16 targets there. The round trip of a READ includes the time for which the responder, if its
//! window is below one packet, holds back the READ response: two ends that READ from each other would each lengthen the
//! round trip of the other without a limit, until a work request fails because its retries are exceeded.

use super::parameters::{DEFAULT_WINDOW_PKTS, WINDOW_PKTS_MAX, parameters};
use crate::time::Instant;

parameters! {
    /// Swift's parameters. Fractions are in thousandths.
    SwiftParameters of "swift", presets &[], {
        /// Largest number of packets in flight.
        window_pkts = DEFAULT_WINDOW_PKTS, in 1 to WINDOW_PKTS_MAX;
        /// Target of the round trip for a large window, in nanoseconds.
        base_target_nanos = 25_000, in 1_000 to 100_000_000;
        /// Flow scaling: largest addition to the target, for a small window, in nanoseconds.
        fs_range_nanos = 25_000, in 0 to 100_000_000;
        /// Window, in thousandths of a packet, up to which all of `fs_range_nanos` is added to the target.
        fs_min_window_milli = 100, in 1 to 1_000_000;
        /// Window, in packets, from which on no part of `fs_range_nanos` is added to the target.
        fs_max_window_pkts = 100, in 2 to WINDOW_PKTS_MAX;
        /// Additive increase per round trip, in thousandths of a packet.
        ai_milli = 1000, in 1 to 1_000_000;
        /// Multiplicative decrease: weight of the excess of the round trip over the target, in thousandths.
        beta_milli = 800, in 1 to 1000;
        /// The largest decrease, as a share of the window, in thousandths.
        max_mdf_milli = 500, in 1 to 1000;
        /// Under selective repeat, while the round trip is below the target: share of lost packets, in thousandths, up
        /// to which a loss causes no decrease. 0: each loss causes a decrease, as in the paper.
        loss_tolerance_milli = 50, in 0 to 1000;
        /// The smallest window, in thousandths of a packet.
        min_window_milli = 100, in 1 to 1000;
    }
}

/// One packet as a fixed-point number with 16 fraction bits.
const ONE: u64 = 1 << 16;
/// Number of packets over which the share of packets lost is averaged. With 256 packets, random losses of 2 % do not
/// exceed the default of `loss_tolerance_milli` (5 %); 14 consecutive losses do.
const LOSS_PKTS: u64 = 256;
/// Largest round trip by which packets are paced, in targets. By default 16 targets are 800 us, in which 4 MB leave a queue
/// at 40 Gbit/s: more than one port of a switch buffers.
const PACING_TARGETS_MAX: u64 = 16;
/// The number 1 in thousandths.
const MILLI: u64 = 1000;

/// Congestion state of a queue pair under Swift.
#[derive(Clone, Debug)]
pub struct Swift {
    parameters: SwiftParameters,
    /// The window in packets, times [`ONE`].
    window: u64,
    /// The last round trip measured, in nanoseconds; 0 before the first sample.
    rtt_nanos: u64,
    /// Share of packets lost, times [`ONE`]: a moving average in which a new packet has the weight 1 / [`LOSS_PKTS`].
    loss_share: u64,
    /// Earliest time of the next decrease of the window.
    no_decrease_before: Instant,
    /// Time at which the next packet may be sent, while the window is below one packet.
    next_at: Instant,
}

impl Swift {
    pub(crate) fn new(parameters: &SwiftParameters) -> Self {
        Swift {
            parameters: *parameters,
            window: u64::from(parameters.window_pkts) * ONE,
            rtt_nanos: 0,
            loss_share: 0,
            no_decrease_before: Instant::ZERO,
            next_at: Instant::ZERO,
        }
    }

    /// Returns the window in whole packets, at least 1.
    #[inline]
    pub(crate) fn window_pkts(&self) -> u32 {
        // The cast loses no bit: the window is at most the parameter `window_pkts`, which has 32 bits.
        (self.window / ONE).max(1) as u32
    }

    #[cfg(test)]
    pub(crate) fn window_milli(&self) -> u64 {
        self.window * MILLI / ONE
    }

    /// Returns whether a packet may be sent now: the window is at least one packet, or `next_at`, the time set when
    /// the last packet was sent, has passed.
    #[inline]
    pub(crate) fn may_send(&self, now: Instant) -> bool {
        self.window >= ONE || self.next_at <= now
    }

    /// Returns the time at which the next packet may be sent; `None` with a window of at least one packet.
    #[inline]
    pub(crate) fn next_permit_at(&self) -> Option<Instant> {
        (self.window < ONE).then_some(self.next_at)
    }

    /// Records that a packet was sent. If the window is below one packet, delays the next packet.
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant) {
        if self.window < ONE {
            let target_nanos = self.target_nanos();
            let rtt_nanos = match self.rtt_nanos {
                0 => target_nanos,
                nanos => nanos.min(target_nanos * PACING_TARGETS_MAX),
            };
            self.next_at = now.plus_nanos(rtt_nanos.saturating_mul(ONE) / self.window);
        }
    }

    /// Records `acked_pkts` newly acknowledged packets and, if measured, a new round-trip sample (1 ns to 1,000 s). If
    /// the last sample, of this or an earlier call, is below the target, increases the window. If a new sample is at or
    /// above the target, reduces the window.
    pub(crate) fn on_ack(&mut self, now: Instant, acked_pkts: u32, rtt_nanos: Option<u64>) {
        self.rtt_nanos = rtt_nanos.unwrap_or(self.rtt_nanos);
        self.loss_share -= self.loss_share * u64::from(acked_pkts).min(LOSS_PKTS) / LOSS_PKTS;
        let target_nanos = self.target_nanos();
        if self.rtt_nanos < target_nanos {
            let growth = u64::from(self.parameters.ai_milli) * ONE / MILLI * u64::from(acked_pkts);
            // The window grows by `ai_milli` thousandths of a packet per window acknowledged, or per packet
            // acknowledged if the window is below one packet.
            let over = self.window.max(ONE);
            self.set_window(self.window + growth.saturating_mul(ONE) / over);
        } else if rtt_nanos.is_some() {
            let excess_nanos = self.rtt_nanos - target_nanos;
            let off_milli = u64::from(self.parameters.beta_milli) * excess_nanos / self.rtt_nanos;
            self.decrease(now, off_milli);
        }
    }

    /// Records that selective repeat detected `lost_pkts` packets as lost. If the share of packets lost exceeds the
    /// tolerance, or the last round trip measured is not below the target, reduces the window as [`Swift::on_loss`]
    /// does.
    pub(crate) fn on_detected_loss(&mut self, now: Instant, lost_pkts: u32) {
        self.loss_share += (ONE - self.loss_share) * u64::from(lost_pkts).min(LOSS_PKTS) / LOSS_PKTS;
        let tolerance = u64::from(self.parameters.loss_tolerance_milli) * ONE / MILLI;
        if self.loss_share > tolerance || self.rtt_nanos >= self.target_nanos() {
            self.on_loss(now);
        }
    }

    /// Records a loss: reduces the window by `max_mdf_milli` thousandths, at most once per round trip.
    pub(crate) fn on_loss(&mut self, now: Instant) {
        self.decrease(now, MILLI);
    }

    /// Reduces the window by the smaller of `off_milli` and `max_mdf_milli`, in thousandths of the window, at most once
    /// per round trip.
    fn decrease(&mut self, now: Instant, off_milli: u64) {
        if now < self.no_decrease_before {
            return;
        }
        self.no_decrease_before = now.plus_nanos(self.rtt_nanos);
        let off_milli = off_milli.min(u64::from(self.parameters.max_mdf_milli));
        self.set_window(self.window * (MILLI - off_milli) / MILLI);
    }

    fn set_window(&mut self, window: u64) {
        let least = u64::from(self.parameters.min_window_milli) * ONE / MILLI;
        self.window = window.clamp(least.max(1), u64::from(self.parameters.window_pkts) * ONE);
    }

    fn target_nanos(&self) -> u64 {
        let parameters = &self.parameters;
        let most = inverse_root(u64::from(parameters.fs_min_window_milli) * ONE / MILLI);
        let least = inverse_root(u64::from(parameters.fs_max_window_pkts) * ONE);
        let (range, above) = (most.saturating_sub(least), inverse_root(self.window).saturating_sub(least));
        let scaled = u64::from(parameters.fs_range_nanos) * above.min(range);
        u64::from(parameters.base_target_nanos) + scaled.checked_div(range).unwrap_or(0)
    }
}

/// Returns 1 / sqrt of a fixed-point number with 16 fraction bits.
fn inverse_root(value: u64) -> u64 {
    const SHIFT: u32 = ONE.trailing_zeros();
    (ONE << SHIFT) / (value << SHIFT).isqrt().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICRO: u64 = 1000;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * MICRO)
    }

    /// Returns parameters without flow scaling: the target is 25 us for every window.
    fn plain() -> SwiftParameters {
        SwiftParameters {
            fs_range_nanos: 0,
            window_pkts: 64,
            min_window_milli: 10,
            ..SwiftParameters::default()
        }
    }

    #[test]
    fn the_window_shrinks_with_the_excess_delay_and_no_more_than_half() {
        for (rtt_micros, left) in [(26, 1000 - 800 / 26), (50, 600), (100, 500), (10_000, 500)] {
            let mut swift = Swift::new(&plain());
            swift.on_ack(at(1), 1, Some(rtt_micros * MICRO));
            assert!(swift.window_milli().abs_diff(64 * left) <= 1, "{rtt_micros}");
        }
    }

    #[test]
    fn it_shrinks_once_in_a_round_trip() {
        let mut swift = Swift::new(&plain());
        let mut now = 1000;
        for _ in 0..3 {
            let before = swift.window_milli();
            for later in [0, 1, 99] {
                swift.on_ack(at(now + later), 1, Some(100 * MICRO));
                swift.on_loss(at(now + later));
                assert_eq!(swift.window_milli(), before / 2);
            }
            swift.on_ack(at(now + 100), 1, None);
            assert_eq!(swift.window_milli(), before / 2, "nor again for the same round trip");
            now += 100;
        }
    }

    #[test]
    fn a_detected_loss_is_a_decrease_if_it_shows_congestion() {
        // Columns: round trip in microseconds; loss tolerance in thousandths; packets lost of each 100; whether the
        // window shrinks.
        for (rtt_micros, loss_tolerance_milli, lost_pkts, decreases) in [
            (20, 50, 1, false),
            (20, 50, 4, false),
            (20, 50, 8, true),
            (20, 50, 50, true),
            (20, 0, 1, true),
            (20, 1000, 100, false),
            (25, 50, 1, true),
            (26, 1000, 1, true),
        ] {
            let mut swift = Swift::new(&SwiftParameters { loss_tolerance_milli, ..plain() });
            swift.on_ack(at(1), 1, Some(20 * MICRO));
            swift.rtt_nanos = rtt_micros * MICRO;
            for hundred in 0..10 {
                swift.on_detected_loss(at(1000 * (hundred + 1)), lost_pkts);
                swift.loss_share -= swift.loss_share * u64::from(100 - lost_pkts) / LOSS_PKTS;
            }
            let is_less = swift.window_milli() < 64_000;
            assert_eq!(is_less, decreases, "{rtt_micros} us, {loss_tolerance_milli}, {lost_pkts} %");
        }
    }

    #[test]
    fn it_grows_by_a_packet_in_a_round_trip() {
        let mut swift = Swift::new(&plain());
        (0..4).for_each(|n| swift.on_loss(at(100 * n)));
        assert_eq!(swift.window_milli(), 4000);
        swift.on_ack(at(1000), 4, Some(20 * MICRO));
        assert_eq!(swift.window_milli(), 5000);
        swift.on_ack(at(1020), 5, None);
        assert_eq!(swift.window_milli(), 6000, "the last round trip counts where none is measured");
        (0..10_000).for_each(|_| swift.on_ack(at(2000), 4, Some(20 * MICRO)));
        assert_eq!(swift.window_milli(), 64_000, "and never beyond the cap");
    }

    #[test]
    fn a_window_below_a_packet_paces() {
        let mut swift = Swift::new(&plain());
        swift.on_ack(at(0), 0, Some(100 * MICRO));
        (1..10).for_each(|n| swift.on_loss(at(100 * n)));
        let (window_milli, now) = (swift.window_milli(), at(5000));
        assert_eq!(window_milli, 62, "a sixteenth");
        assert_eq!(swift.window_pkts(), 1);
        assert!(swift.may_send(now));
        swift.on_sent(now);
        assert!(!swift.may_send(now));
        assert_eq!(swift.next_permit_at(), Some(at(5000 + 1600)));
        for (rtt_micros, gap_micros) in [(399, 6384), (400, 6400), (401, 6400), (1_000_000, 6400)] {
            swift.rtt_nanos = rtt_micros * MICRO;
            swift.on_sent(now);
            assert_eq!(
                swift.next_permit_at(),
                Some(at(5000 + gap_micros)),
                "a round trip of {rtt_micros} us"
            );
        }
        swift.rtt_nanos = 100 * MICRO;
        (0..100).for_each(|n| swift.on_loss(at(10_000 + 200 * n)));
        assert_eq!(swift.window_milli(), 9, "never below the least, rounded");
        swift.on_ack(at(50_000), 1, Some(20 * MICRO));
        assert_eq!(swift.window_milli(), 1009, "for each packet, where there is less than one");
        assert_eq!(swift.next_permit_at(), None, "and from one on nothing is paced");
    }

    #[test]
    fn small_windows_aim_at_longer_round_trips() {
        let float = |window: f64| {
            let [most, least]: [f64; 2] = [0.1f64, 100.0].map(|window| 1.0 / window.sqrt());
            25_000.0 + 25_000.0 * ((1.0 / window.sqrt() - least) / (most - least)).clamp(0.0, 1.0)
        };
        let mut swift = Swift::new(&SwiftParameters::default());
        for window_milli in [10u64, 99, 100, 101, 500, 1000, 3000, 99_000, 100_000, 101_000, 256_000] {
            swift.window = window_milli * ONE / MILLI;
            let (target, wanted) = (swift.target_nanos() as f64, float(window_milli as f64 / 1000.0));
            assert!((target - wanted).abs() <= wanted / 1000.0, "{window_milli}: {target}, not {wanted}");
        }
    }

    #[test]
    fn parameters_at_their_limits_do_no_harm() {
        for (fs_min_window_milli, fs_max_window_pkts) in [(1, 2), (1_000_000, 2), (1, WINDOW_PKTS_MAX)] {
            let mut swift = Swift::new(&SwiftParameters {
                fs_min_window_milli,
                fs_max_window_pkts,
                window_pkts: WINDOW_PKTS_MAX,
                ai_milli: 1_000_000,
                min_window_milli: 1,
                fs_range_nanos: 100_000_000,
                ..SwiftParameters::default()
            });
            for rtt_nanos in [1, 1_000_000_000_000, 1 << 39, 5] {
                swift.on_ack(at(1), u32::MAX >> 8, Some(rtt_nanos));
                (0..64).for_each(|n| swift.on_loss(at(1 << (n % 50))));
                swift.on_sent(at(3));
                assert!((1..=WINDOW_PKTS_MAX).contains(&swift.window_pkts()));
            }
        }
    }
}
