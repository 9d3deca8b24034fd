//! Initial values of counters that wrap.
//!
//! With the Cargo feature `near-wrap`, for tests only, each counter begins a few steps before its wrap, so that the
//! counter wraps in every test that uses the counter.
//!
//! | counter | bits | steps before the wrap, with the feature | initial value, without the feature |
//! |---|---|---|---|
//! | positions in rings of send, receive and completion queues | 32 | 3 | 0 |
//! | recv WQE sequence number of a connection | 32 | 2 | 0 |
//! | transmission number of a sent-packet log | 32 | 4 | 0 |
//! | MSN | 24 | 5 | 0 |
//! | first PSN of a connection, if not chosen by an application | 24 | 1 to 100 | random, or a constant of a test |
//! | IPv4 identification | 16 | 1 to 100 | a random number |
//! | clock of simulations and of tests, in ns | 64 | 50 (before 2^32 s) | 0 |
//!
//! The fixed numbers of steps differ. Otherwise two counters would wrap at the same time, and a test could not detect
//! code that uses one counter in place of the other.
//!
//! [`Instant`] saturates after 584 years and does not wrap. Instants truncated to fewer bits wrap. With the feature,
//! the clock starts 50 ns before 2^32 s. At 2^32 s all truncations of an instant wrap: its nanoseconds, microseconds,
//! milliseconds and seconds in 32 bits, and its slot in the simulator's timing wheel (2^12 slots, 1 ns each).

use crate::id::Msn;
use crate::psn::Psn;
use crate::time::Instant;

const NEAR_WRAP: bool = cfg!(feature = "near-wrap");

/// Under `near-wrap`, the largest number of steps from the first PSN, and from the first IPv4 identification, to the
/// wrap.
const DRAWN_MAX: u32 = 100;

/// With the feature `near-wrap`, returns 2^32 - `before_wrap`; otherwise 0.
const fn first(before_wrap: u32) -> u32 {
    if NEAR_WRAP { before_wrap.wrapping_neg() } else { 0 }
}

pub(crate) const RING_POSITION: u32 = first(3);

/// Recv WQE sequence number of the first receive that a connection completes.
pub const RECEIVE: u32 = first(2);

pub(crate) const TRANSMISSION: u32 = first(4);

/// Initial MSN, before the first request is executed (IBA 9.7.7.1: 0).
pub(crate) const MSN: Msn = Msn::new(first(5));

/// First instant of simulations and of tests.
pub const INSTANT: Instant = Instant::from_nanos(if NEAR_WRAP { (1_000_000_000 << 32) - 50 } else { 0 });

/// Returns the first PSN of a connection: the low 24 bits of `chosen`. With the feature `near-wrap`, the PSN is from
/// 2^24 - 100 to 2^24 - 1.
pub const fn psn(chosen: u32) -> Psn {
    if NEAR_WRAP { Psn::new(0).minus(1 + chosen % DRAWN_MAX) } else { Psn::new(chosen) }
}

/// Returns the first IPv4 identification of an address vector: the random number `drawn`; with the feature
/// `near-wrap`, a number from 2^16 - 100 to 2^16 - 1.
pub(crate) const fn ip_id(drawn: u16) -> u16 {
    // `DRAWN_MAX` is below 2^16, so the cast loses no bit.
    if NEAR_WRAP { (1 + drawn % DRAWN_MAX as u16).wrapping_neg() } else { drawn }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_begin_at_0_or_within_100_of_their_wraps() {
        let steps_before = |wraps_at: u64, value: u64| (wraps_at - value) % wraps_at;
        let before_wraps = [
            steps_before(1 << 32, RING_POSITION.into()),
            steps_before(1 << 32, RECEIVE.into()),
            steps_before(1 << 32, TRANSMISSION.into()),
            steps_before(1 << 24, MSN.value().into()),
            steps_before(1 << 24, psn(0).value().into()),
            steps_before(1 << 16, ip_id(0).into()),
            steps_before(1_000_000_000 << 32, INSTANT.as_nanos()),
        ];
        let range = if NEAR_WRAP { 1..=100 } else { 0..=0 };
        assert!(before_wraps.iter().all(|steps| range.contains(steps)), "{before_wraps:?}");
    }

    #[test]
    fn what_is_drawn_begins_as_drawn_or_within_100_of_its_wrap() {
        let far = |chosen| psn(chosen).plus(chosen % DRAWN_MAX);
        assert!((0..1000).all(|chosen| if NEAR_WRAP {
            far(chosen) == psn(0)
        } else {
            psn(chosen) == Psn::new(chosen)
        }));
        let far = |drawn| ip_id(drawn).wrapping_add(drawn % DRAWN_MAX as u16);
        assert!((0..1000).all(|drawn| if NEAR_WRAP {
            far(drawn) == ip_id(0)
        } else {
            ip_id(drawn) == drawn
        }));
    }
}
