//! Rate limit of replies: a token bucket per source MAC.

use crate::id::Mac;
use crate::time::Instant;

/// Size of a token bucket: the largest number of replies to one source MAC in a burst.
pub(crate) const SOURCE_ANSWERS_BURST: u32 = 16;
/// Interval at which one token is credited to a bucket: 1 ms, so 1000 replies per second to a source MAC after a burst.
pub(crate) const SOURCE_ANSWER_INTERVAL_NANOS: u64 = 1_000_000;
/// Largest number of token buckets. A bucket for a further source MAC replaces the bucket to which tokens were credited
/// least recently.
pub(crate) const SOURCES_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Bucket {
    source: Mac,
    tokens: u32,
    /// The time up to which tokens have been credited to the bucket.
    filled_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Budget {
    buckets: Vec<Bucket>,
}

impl Budget {
    /// Takes a token from the bucket of `source`. Returns false if the bucket is empty.
    pub(super) fn charge(&mut self, source: Mac, now: Instant) -> bool {
        let Some(bucket) = self.bucket_of(source, now) else { return false };
        let elapsed_nanos = now.nanos_since(bucket.filled_at);
        let earned = elapsed_nanos / SOURCE_ANSWER_INTERVAL_NANOS;
        match u32::try_from(u64::from(bucket.tokens) + earned) {
            Ok(tokens) if tokens < SOURCE_ANSWERS_BURST => {
                bucket.tokens = tokens;
                bucket.filled_at = bucket.filled_at.plus_nanos(earned * SOURCE_ANSWER_INTERVAL_NANOS);
            }
            _ => (bucket.tokens, bucket.filled_at) = (SOURCE_ANSWERS_BURST, now),
        }
        let has_token = bucket.tokens > 0;
        bucket.tokens -= u32::from(has_token);
        has_token
    }

    fn bucket_of(&mut self, source: Mac, now: Instant) -> Option<&mut Bucket> {
        let fresh = Bucket { source, tokens: SOURCE_ANSWERS_BURST, filled_at: now };
        let known = self.buckets.iter().position(|bucket| bucket.source == source);
        let index = match known {
            Some(index) => index,
            None if self.buckets.len() < SOURCES_MAX => {
                self.buckets.push(fresh);
                self.buckets.len() - 1
            }
            None => {
                let oldest = self.buckets.iter().enumerate().min_by_key(|(_, bucket)| bucket.filled_at);
                let index = oldest.map_or(0, |(index, _)| index);
                *self.buckets.get_mut(index)? = fresh;
                index
            }
        };
        self.buckets.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = Mac([2, 0, 0, 0, 0, 0xA]);
    const B: Mac = Mac([2, 0, 0, 0, 0, 0xB]);

    fn at_micros(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn taken(budget: &mut Budget, source: Mac, now: Instant) -> usize {
        (0..100).filter(|_| budget.charge(source, now)).count()
    }

    #[test]
    fn a_source_gets_a_burst_and_then_one_in_an_interval() {
        let mut budget = Budget::default();
        assert_eq!(taken(&mut budget, A, at_micros(0)), 16);
        assert_eq!(taken(&mut budget, A, at_micros(999)), 0);
        assert_eq!(taken(&mut budget, A, at_micros(1000)), 1);
        assert_eq!(taken(&mut budget, A, at_micros(4999)), 3);
        assert_eq!(taken(&mut budget, A, at_micros(5000)), 1, "part of an interval is not lost");
        assert_eq!(taken(&mut budget, B, at_micros(5000)), 16, "another's is untouched");
        assert_eq!(taken(&mut budget, A, at_micros(10_000_000)), 16, "no more than a burst");
    }

    #[test]
    fn sources_without_end_cost_no_memory() {
        let mut budget = Budget::default();
        for n in 0..10_000u32 {
            let [_, b, c, d] = n.to_be_bytes();
            assert!(budget.charge(Mac([2, 0, 0, b, c, d]), at_micros(u64::from(n))));
        }
        assert_eq!(budget.buckets.len(), SOURCES_MAX);
    }
}
