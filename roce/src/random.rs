//! Random numbers: unpredictable without the seed, reproducible with the same seed.

use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Cryptographic random number generator. With a real port, the seed is from the operating system; in a
/// simulation, the seed is a constant.
#[derive(Debug)]
pub struct Random(ChaCha12Rng);

impl Random {
    /// Creates a generator. Generators with equal seeds return equal sequences of numbers.
    pub fn new(seed: [u8; 32]) -> Self {
        Random(ChaCha12Rng::from_seed(seed))
    }

    /// Returns 32 random bits.
    pub fn bits(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns a random number below `bound`; 0 if `bound` is 0. The probabilities of results differ by at most 2^-32.
    pub fn below(&mut self, bound: u32) -> u32 {
        let scaled = (u64::from(self.bits()) * u64::from(bound)) >> 32;
        scaled as u32 // below `bound`, so the cast loses no bit
    }
}
