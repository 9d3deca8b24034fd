//! Numbers and contents from a seed, where proptest has nothing to shrink.

pub use netsim::rng::SplitMix;
