//! Initial values of counters that wrap.
//!
//! If the environment variable `ROCE_NEAR_WRAP` is set, each counter begins a few steps before its wrap, so that the
//! counter wraps in every test that uses the counter. Only a build with debug assertions reads the variable.
//!
//! | counter | bits | steps before the wrap, with the variable | initial value, without the variable |
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
//! [`Instant`] saturates after 584 years and does not wrap. Instants truncated to fewer bits wrap. With the variable,
//! the clock starts 50 ns before 2^32 s. At 2^32 s all truncations of an instant wrap: its nanoseconds, microseconds,
//! milliseconds and seconds in 32 bits, and its slot in the simulator's timing wheel (2^12 slots, 1 ns each).

use std::sync::OnceLock;

use crate::id::Msn;
use crate::psn::Psn;
use crate::time::Instant;

/// Name of the environment variable that starts counters near their wraps.
const VARIABLE: &str = "ROCE_NEAR_WRAP";

/// Under [`VARIABLE`], the largest number of steps from the first PSN, and from the first IPv4 identification, to the
/// wrap.
const DRAWN_MAX: u32 = 100;

/// Returns whether counters start near their wraps. Without debug assertions the answer is a constant.
fn near_wrap() -> bool {
    static IS_SET: OnceLock<bool> = OnceLock::new();
    cfg!(debug_assertions) && *IS_SET.get_or_init(|| std::env::var_os(VARIABLE).is_some())
}

/// Returns 2^32 - `before_wrap` near the wrap; otherwise 0.
fn first(before_wrap: u32) -> u32 {
    if near_wrap() { before_wrap.wrapping_neg() } else { 0 }
}

pub(crate) fn ring_position() -> u32 {
    first(3)
}

/// Recv WQE sequence number of the first receive that a connection completes.
pub fn receive() -> u32 {
    first(2)
}

pub(crate) fn transmission() -> u32 {
    first(4)
}

/// Initial MSN, before the first request is executed (IBA 9.7.7.1: 0).
pub(crate) fn msn() -> Msn {
    Msn::new(first(5))
}

/// First instant of simulations and of tests.
pub fn instant() -> Instant {
    Instant::from_nanos(if near_wrap() { (1_000_000_000 << 32) - 50 } else { 0 })
}

/// Returns the first PSN of a connection: the low 24 bits of `chosen`; near the wrap, a PSN from 2^24 - 100 to 2^24 - 1.
pub fn psn(chosen: u32) -> Psn {
    if near_wrap() { Psn::new(0).minus(1 + chosen % DRAWN_MAX) } else { Psn::new(chosen) }
}

/// Returns the first IPv4 identification of an address vector: the random number `drawn`; near the wrap, a number from
/// 2^16 - 100 to 2^16 - 1.
pub(crate) fn ip_id(drawn: u16) -> u16 {
    // `DRAWN_MAX` is below 2^16, so the cast loses no bit.
    if near_wrap() { (1 + drawn % DRAWN_MAX as u16).wrapping_neg() } else { drawn }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_begin_at_0_or_within_100_of_their_wraps() {
        let steps_before = |wraps_at: u64, value: u64| (wraps_at - value) % wraps_at;
        let before_wraps = [
            steps_before(1 << 32, ring_position().into()),
            steps_before(1 << 32, receive().into()),
            steps_before(1 << 32, transmission().into()),
            steps_before(1 << 24, msn().value().into()),
            steps_before(1 << 24, psn(0).value().into()),
            steps_before(1 << 16, ip_id(0).into()),
            steps_before(1_000_000_000 << 32, instant().as_nanos()),
        ];
        let range = if near_wrap() { 1..=100 } else { 0..=0 };
        assert!(before_wraps.iter().all(|steps| range.contains(steps)), "{before_wraps:?}");
    }

    #[test]
    fn the_variable_is_set_by_the_checks() {
        let checks = include_str!("../../scripts/check.sh");
        assert!(checks.contains(&format!(" {VARIABLE}=1 ")));
    }

    #[test]
    fn what_is_drawn_begins_as_drawn_or_within_100_of_its_wrap() {
        let far = |chosen| psn(chosen).plus(chosen % DRAWN_MAX);
        assert!((0..1000).all(|chosen| if near_wrap() {
            far(chosen) == psn(0)
        } else {
            psn(chosen) == Psn::new(chosen)
        }));
        let far = |drawn| ip_id(drawn).wrapping_add(drawn % DRAWN_MAX as u16);
        assert!((0..1000).all(|drawn| if near_wrap() {
            far(drawn) == ip_id(0)
        } else {
            ip_id(drawn) == drawn
        }));
    }
}
