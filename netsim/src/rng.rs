//! A seeded pseudo-random generator.

/// SplitMix64 (Steele, Lea, Flood, OOPSLA 2014), for payloads and draws of a simulation; not for cryptography.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// Creates a generator; its sequence depends on `seed` only.
    pub fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    /// Creates a generator for one of many uses of a seed; different `stream`s give unrelated sequences.
    pub fn stream(seed: u64, stream: u64) -> Self {
        SplitMix(mix(mix(seed) ^ stream))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix_added(self.0)
    }

    /// An integer from 0 to `max`, inclusive.
    pub fn up_to(&mut self, max: usize) -> usize {
        (self.bits() % (max as u64 + 1)) as usize
    }

    /// A number of [0, 1), with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.bits().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// `len` random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.fill(&mut bytes);
        bytes
    }
}

/// Hashes 64 bits.
#[inline]
pub(crate) fn mix(bits: u64) -> u64 {
    mix_added(bits.wrapping_add(0x9E37_79B9_7F4A_7C15))
}

#[inline]
fn mix_added(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns `probability * 2^64`: a random number of 64 bits is below this threshold with `probability`.
///
/// # Panics
/// If `probability` is not between 0 and 1.
pub(crate) fn threshold(probability: f64) -> u64 {
    assert!((0.0..=1.0).contains(&probability), "a probability of {probability} is not between 0 and 1");
    (probability * 2f64.powi(64)) as u64 // saturates at certainty, less 2^-64
}
