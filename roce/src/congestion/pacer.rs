//! The pacer: holds a rate by saying when the next packet may go.
//!
//! ```text
//!   polls      |     |            |   |                           |
//!   packets    *     **           *   *                           ***     what a gap between polls has
//!   owed to    ---|---|---|---|---|---|---|---|---|---|---|---|---|       earned goes out at once,
//!                                                                         at most BURST_NANOS of it
//! ```
//! It needs no timer and no system call of its own: whoever polls the engine asks it, and an engine with
//! nothing else to do is polled when the next packet is due.

use crate::time::Instant;

/// How much time without a packet may be made up for, in nanoseconds: the longest gap between polls over
/// which the rate is held. What goes out at once is never more than the rate earns in it, and one packet.
pub const BURST_NANOS: u64 = 10_000;

/// The highest rate, in bits per second: of no link yet, and far from what 64 bits overflow at.
pub const RATE_MAX_BITS_PER_SEC: u64 = 10_000_000_000_000;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// A rate, and when the next packet may go at that rate. Times are kept to the remainder of the division, so
/// no error adds up.
#[derive(Clone, Debug)]
pub struct Pacer {
    bits_per_sec: u64,
    next_at: Instant,
    /// What the division left over, in bits * 10^9 below `bits_per_sec`.
    remainder: u64,
}

impl Pacer {
    /// A pacer of `bits_per_sec`, from 1 to [`RATE_MAX_BITS_PER_SEC`]; the first packet may go at once.
    pub fn new(bits_per_sec: u64) -> Self {
        let bits_per_sec = bits_per_sec.clamp(1, RATE_MAX_BITS_PER_SEC);
        Pacer { bits_per_sec, next_at: Instant::ZERO, remainder: 0 }
    }

    /// The rate, in bits per second.
    #[inline]
    pub fn bits_per_sec(&self) -> u64 {
        self.bits_per_sec
    }

    /// When the next packet may go.
    #[inline]
    pub fn next_at(&self) -> Instant {
        self.next_at
    }

    /// A packet of `bytes` went out at `now`.
    #[inline]
    pub fn on_sent(&mut self, now: Instant, bytes: u32) {
        let earliest = Instant::from_nanos(now.as_nanos().saturating_sub(BURST_NANOS));
        if self.next_at < earliest {
            (self.next_at, self.remainder) = (earliest, 0);
        }
        // A frame has less than 2^17 bytes, so this is below 2^51.
        let owed = u64::from(bytes) * 8 * NANOS_PER_SEC + self.remainder;
        self.next_at = self.next_at.plus_nanos(owed / self.bits_per_sec);
        self.remainder = owed % self.bits_per_sec;
    }

    /// Changes the rate. What is left of the wait for the next packet stretches or shrinks with it.
    pub fn set_rate(&mut self, now: Instant, bits_per_sec: u64) {
        let bits_per_sec = bits_per_sec.clamp(1, RATE_MAX_BITS_PER_SEC);
        let wait_nanos = u128::from(self.next_at.nanos_since(now));
        if wait_nanos > 0 {
            let wait_nanos = wait_nanos * u128::from(self.bits_per_sec) / u128::from(bits_per_sec);
            self.next_at = now.plus_nanos(u64::try_from(wait_nanos).unwrap_or(u64::MAX));
        }
        (self.bits_per_sec, self.remainder) = (bits_per_sec, 0);
    }

    /// Waits `nanos` from `now` before the next packet, whatever the rate.
    pub fn wait(&mut self, now: Instant, nanos: u64) {
        (self.next_at, self.remainder) = (now.plus_nanos(nanos), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a sender that always has packets of `bytes` sends when it is polled at `polls`: when, and how much.
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

    /// What the rate earns in `nanos`, in bytes.
    fn earned(bits_per_sec: u64, nanos: u64) -> u64 {
        (u128::from(bits_per_sec) * u128::from(nanos) / 8 / u128::from(NANOS_PER_SEC)) as u64
    }

    const START: u64 = 1_000_000;
    const SPAN: u64 = 10_000;

    proptest! {
        /// Over any 10 us, what goes out is what the rate earns within 1 %, give or take a packet and what the
        /// gap between two polls earns.
        #[test]
        fn the_rate_is_held_over_ten_microseconds(
            mbps in prop_oneof![Just(1u64), Just(400_000), 1..400_000u64],
            bytes in prop_oneof![Just(62u32), Just(4170), 62..4170u32],
            gaps in prop::collection::vec(prop_oneof![Just(1u64), 1..100u64, 1..5_000u64], 100..400),
        ) {
            let rate = mbps * 1_000_000;
            let mut pacer = Pacer::new(rate);
            pacer.on_sent(Instant::from_nanos(START), 1); // no credit from before
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

        /// What a gap in polling, however long, lets out at once is bounded.
        #[test]
        fn a_burst_is_bounded(mbps in 1..400_000u64, bytes in 62..4170u32, gap in 1..10_000_000u64) {
            let mut pacer = Pacer::new(mbps * 1_000_000);
            let sent = send(&mut pacer, [START, START + gap].into_iter(), bytes);
            // Times are whole nanoseconds.
            let most = earned(mbps * 1_000_000, BURST_NANOS + 1) + u64::from(bytes) + 1;
            prop_assert!(sent.iter().all(|(_, burst)| *burst <= most), "{sent:?}, at most {most}");
        }
    }

    /// Polled whenever it asks to be, it is exact in the long run, at any rate.
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
        let mut pacer = Pacer::new(8_000_000); // a byte in a microsecond
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
