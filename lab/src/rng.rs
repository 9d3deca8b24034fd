//! Pseudo-random numbers and payloads from a seed, for inputs that proptest need not shrink.

pub use netsim::rng::SplitMix;
