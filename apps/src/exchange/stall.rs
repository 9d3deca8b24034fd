//! Detection of a peer that has stopped.

use std::time::{Duration, Instant};

/// Number of reads of the count in one time limit.
const LOOKS_PER_LIMIT: u32 = 8;

/// Watches a count that grows while the peer is active.
#[derive(Debug)]
pub(crate) struct Stall {
    limit: Duration,
    /// Time of the last read of the count, and time of the last read that found the count grown.
    looked_at: Instant,
    grown_at: Instant,
    count: u64,
}

impl Stall {
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        Stall { limit, looked_at: now, grown_at: now, count: 0 }
    }

    /// Returns whether the count has not grown for the time limit. Reads the count at most [`LOOKS_PER_LIMIT`] times
    /// per limit, because a read may be costly.
    pub(crate) fn is_over(&mut self, now: Instant, count: impl FnOnce() -> u64) -> bool {
        if now.saturating_duration_since(self.looked_at) < self.limit / LOOKS_PER_LIMIT {
            return false;
        }
        self.looked_at = now;
        let count = count();
        if count != self.count {
            (self.count, self.grown_at) = (count, now);
        }
        now.saturating_duration_since(self.grown_at) >= self.limit
    }

    pub(crate) fn error(&self) -> anyhow::Error {
        anyhow::anyhow!(
            "nothing has come from the peer for {} s: is it still running, and the path to it up? A slower peer needs a \
             longer --peer-timeout",
            self.limit.as_secs()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_grows_is_no_stall() {
        let start = Instant::now();
        let mut stall = Stall::new(Duration::from_secs(8), start);
        let at = |secs| start + Duration::from_secs(secs);
        assert!(!stall.is_over(at(0), || panic!("too early to look")));
        assert!(!stall.is_over(at(7), || 1));
        assert!(!stall.is_over(at(14), || 1));
        assert!(stall.is_over(at(15), || 1));
        assert!(!stall.is_over(at(16), || 2));
        assert!(!stall.is_over(at(23), || 2));
        assert!(stall.is_over(at(24), || 2));
    }
}
