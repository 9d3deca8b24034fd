//! The pacer: spaces packets to a rate by computing the time at which the next packet may be sent.
//!
//! ```text
//!   due        *   *   *   *   *   *   *   *   *   *   *   *   *          one packet each
//!   polls      |     |           |   |                           |
//!   sent       *     *           *** *                           ***
//! ```
//! A poll sends the packets that became due since the previous poll, at most those of the last [`BURST_NANOS`]
//! nanoseconds. The pacer has no timer and makes no system call: each poll of the engine checks the pacer, and an idle
//! engine is polled when the next packet is due.

use crate::time::Instant;

/// Bound of a burst, in nanoseconds: a burst has at most the bytes that the rate permits in this time, plus one packet.
/// If polls are further apart than this time, fewer bytes are sent than the rate permits.
pub(crate) const BURST_NANOS: u64 = 10_000;

/// The highest rate, in bits per second: above the rate of any link, and small enough for 64-bit arithmetic.
pub(crate) const RATE_MAX_BITS_PER_SEC: u64 = 10_000_000_000_000;

/// Upper bound of the parameter `bytes` of [`Pacer::on_sent`]. For a READ request, Timely passes the bytes of all its
/// responses in one call.
pub(crate) const BYTES_MAX: u32 = 1 << 30;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Spaces packets to a rate. The remainder of each division is carried over, because otherwise rounding errors would
/// add up.
#[derive(Clone, Debug)]
pub(crate) struct Pacer {
    bits_per_sec: u64,
    next_at: Instant,
    /// Remainder of the last division in [`Pacer::on_sent`], in 10^-9 bits; below `bits_per_sec`.
    remainder: u64,
}

impl Pacer {
    /// Creates a pacer of `bits_per_sec`, clamped to the range from 1 to [`RATE_MAX_BITS_PER_SEC`]. The first packet
    /// may be sent at once.
    pub(crate) fn new(bits_per_sec: u64) -> Self {
        let bits_per_sec = bits_per_sec.clamp(1, RATE_MAX_BITS_PER_SEC);
        Pacer { bits_per_sec, next_at: Instant::ZERO, remainder: 0 }
    }

    #[inline]
    pub(crate) fn bits_per_sec(&self) -> u64 {
        self.bits_per_sec
    }

    #[inline]
    pub(crate) fn next_at(&self) -> Instant {
        self.next_at
    }

    /// Records that a packet of `bytes` bytes was sent at `now`: the next packet is delayed by the time that these
    /// bytes take at the rate. `bytes`: at most [`BYTES_MAX`].
    #[inline]
    pub(crate) fn on_sent(&mut self, now: Instant, bytes: u32) {
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(BURST_NANOS));
        if self.next_at < earliest {
            (self.next_at, self.remainder) = (earliest, 0);
        }
        // The sum below does not overflow: `bytes` is at most BYTES_MAX, so the product is below 2^63, and `remainder`
        // is below 2^44.
        let owed = u64::from(bytes) * 8 * NANOS_PER_SEC + self.remainder;
        self.next_at = self.next_at.plus_nanos(owed / self.bits_per_sec);
        self.remainder = owed % self.bits_per_sec;
    }

    /// Changes the rate, clamped as by [`Pacer::new`]. If the next packet has to wait, multiplies the remaining wait by
    /// the old rate and divides the product by the new rate.
    pub(crate) fn set_rate(&mut self, now: Instant, bits_per_sec: u64) {
        let bits_per_sec = bits_per_sec.clamp(1, RATE_MAX_BITS_PER_SEC);
        let wait_nanos = u128::from(self.next_at.nanos_since(now));
        if wait_nanos > 0 {
            let wait_nanos = wait_nanos * u128::from(self.bits_per_sec) / u128::from(bits_per_sec);
            self.next_at = now.plus_nanos(u64::try_from(wait_nanos).unwrap_or(u64::MAX));
        }
        (self.bits_per_sec, self.remainder) = (bits_per_sec, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// At each time of `polls`, in nanoseconds, sends packets of `bytes` bytes until the pacer delays the next packet.
    /// Returns time and bytes of each burst.
    fn send(pacer: &mut Pacer, polls: impl Iterator<Item = u64>, bytes: u32) -> Vec<(u64, u64)> {
        let mut sent = Vec::new();
        for now in polls {
            let now_at = Instant::from_nanos(now);
            let mut burst = 0;
            while pacer.next_at() <= now_at {
                pacer.on_sent(now_at, bytes);
                burst += u64::from(bytes);
            }
            if burst > 0 {
                sent.push((now, burst));
            }
        }
        sent
    }

    fn earned(bits_per_sec: u64, nanos: u64) -> u64 {
        (u128::from(bits_per_sec) * u128::from(nanos) / 8 / u128::from(NANOS_PER_SEC)) as u64
    }

    const START: u64 = 1_000_000;
    const SPAN: u64 = 10_000;

    proptest! {
        /// The bytes sent in any 10 us differ from those that the rate permits by at most 1 %, plus one packet, plus
        /// the bytes that the rate permits in the longest time between two polls.
        #[test]
        fn the_rate_is_held_over_ten_microseconds(
            mbps in prop_oneof![Just(1u64), Just(400_000), 1..400_000u64],
            bytes in prop_oneof![Just(62u32), Just(4170), 62..4170u32],
            gaps in prop::collection::vec(prop_oneof![Just(1u64), 1..100u64, 1..5_000u64], 100..400),
        ) {
            let rate = mbps * 1_000_000;
            let mut pacer = Pacer::new(rate);
            pacer.on_sent(Instant::from_nanos(START), 1); // the next packet is due at or after START - BURST_NANOS
            let gap_max = *gaps.iter().max().unwrap();
            let polls: Vec<u64> = gaps.iter().scan(START, |now, gap| { *now += gap; Some(*now) }).collect();
            let end = *polls.last().unwrap();
            let sent = send(&mut pacer, polls.into_iter(), bytes);
            let slack = u64::from(bytes) + earned(rate, gap_max) + 1;
            let starts = (START..end.saturating_sub(SPAN)).step_by(997);
            for start in starts.filter(|start| *start > START + 2 * BURST_NANOS) {
                let within = sent.iter().filter(|(at, _)| (start..start + SPAN).contains(at));
                let total: u64 = within.map(|(_, bytes)| bytes).sum();
                let fair = earned(rate, SPAN);
                prop_assert!(total <= fair + fair / 100 + slack, "{total} of {fair} + {slack}");
                prop_assert!(total + slack >= fair - fair / 100, "{total} of {fair} - {slack}");
            }
        }

        #[test]
        fn a_burst_is_bounded(mbps in 1..400_000u64, bytes in 62..4170u32, gap in 1..10_000_000u64) {
            let mut pacer = Pacer::new(mbps * 1_000_000);
            let sent = send(&mut pacer, [START, START + gap].into_iter(), bytes);
            // A burst has at most the bytes that the rate permits in `BURST_NANOS`, plus one packet. The bound `most`
            // adds 1 ns, because times are whole nanoseconds, and 1 byte, because `earned` rounds down.
            let most = earned(mbps * 1_000_000, BURST_NANOS + 1) + u64::from(bytes) + 1;
            prop_assert!(sent.iter().all(|(_, burst)| *burst <= most), "{sent:?}, at most {most}");
        }
    }

    /// If each packet is sent at `next_at`, the pacer has no rounding error after 100,000 packets.
    #[test]
    fn no_error_adds_up() {
        for rate in [1_000_000, 999_999_937, 40_000_000_000, 399_999_999_999] {
            for bytes in [62u32, 1086, 4170] {
                let mut pacer = Pacer::new(rate);
                let first = Instant::from_nanos(START);
                pacer.on_sent(first, bytes);
                let origin = pacer.next_at().as_nanos() - u64::from(bytes) * 8 * NANOS_PER_SEC / rate;
                for _ in 1..100_000 {
                    let now = pacer.next_at();
                    pacer.on_sent(now, bytes);
                }
                let exact = u128::from(bytes) * 8 * 100_000 * u128::from(NANOS_PER_SEC) / u128::from(rate);
                assert_eq!(u128::from(pacer.next_at().as_nanos() - origin), exact, "{rate} {bytes}");
            }
        }
    }

    #[test]
    fn a_change_of_rate_changes_the_wait() {
        let mut pacer = Pacer::new(8_000_000); // one byte per microsecond
        let now = Instant::from_nanos(START);
        pacer.on_sent(now, 1000);
        let after = |pacer: &Pacer| pacer.next_at().nanos_since(now.plus_nanos(500_000));
        assert_eq!(after(&pacer), 490_000, "less the 10 us that it may make up for");
        pacer.set_rate(now.plus_nanos(500_000), 16_000_000);
        assert_eq!(after(&pacer), 245_000);
        pacer.set_rate(now.plus_nanos(500_000), 4_000_000);
        assert_eq!(after(&pacer), 980_000);
        pacer.set_rate(now.plus_nanos(5_000_000), 1);
        assert_eq!(after(&pacer), 980_000, "what is past stays past");
    }
}
