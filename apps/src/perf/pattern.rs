//! Message contents that identify their message.

const WORD_BYTES: usize = 8;

/// Fills `out` with the contents of message `n` of a lane.
pub(super) fn fill(out: &mut [u8], lane: usize, n: u64) {
    let key = key(out.len(), lane, n);
    for (index, bytes) in out.chunks_mut(WORD_BYTES).enumerate() {
        bytes.copy_from_slice(word(key, index).get(..bytes.len()).unwrap_or_default());
    }
}

/// Returns the offset at which `bytes` differ from the contents of message `n` of a lane, if they do.
pub(super) fn first_difference(bytes: &[u8], lane: usize, n: u64) -> Option<usize> {
    let key = key(bytes.len(), lane, n);
    let (index, chunk) =
        bytes.chunks(WORD_BYTES).enumerate().find(|(index, chunk)| !word(key, *index).starts_with(chunk))?;
    let within = chunk.iter().zip(word(key, index)).position(|(is, wanted)| *is != wanted)?;
    Some(index * WORD_BYTES + within)
}

fn key(len_bytes: usize, lane: usize, n: u64) -> u64 {
    mix(mix((lane as u64) << 48 ^ n) ^ len_bytes as u64)
}

fn word(key: u64, index: usize) -> [u8; WORD_BYTES] {
    mix(key ^ index as u64).to_le_bytes()
}

/// The finalizer of SplitMix64: every bit of the input changes about half of the output.
fn mix(value: u64) -> u64 {
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_from_one_another_and_from_zeroes() {
        let mut bytes = [0; 21];
        fill(&mut bytes, 3, 7);
        assert_eq!(first_difference(&bytes, 3, 7), None);
        assert_eq!(first_difference(&bytes, 3, 8), Some(0));
        assert_eq!(first_difference(&bytes, 2, 7), Some(0));
        assert!(first_difference(&bytes[..20], 3, 7).is_some(), "the length counts");
        assert!(first_difference(&[0; 21], 3, 7).is_some());
        bytes[17] ^= 1;
        assert_eq!(first_difference(&bytes, 3, 7), Some(17));
    }
}
