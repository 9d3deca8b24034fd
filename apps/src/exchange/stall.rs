//! Detection of a peer that has stopped.

use std::time::{Duration, Instant};

/// Number of reads of the count in one time limit.
const LOOKS_PER_LIMIT: u32 = 8;

/// Watches a count that grows while the peer is active.
#[derive(Debug)]
pub(crate) struct Stall {
    limit: Duration,
    /// Time of the last read of the count.
    looked_at: Instant,
    /// Time for which the count has not grown.
    quiet: Duration,
    count: u64,
}

impl Stall {
    pub(crate) fn new(limit: Duration, now: Instant) -> Self {
        Stall { limit, looked_at: now, quiet: Duration::ZERO, count: 0 }
    }

    /// Returns whether the count has not grown for the time limit. Reads the count at most [`LOOKS_PER_LIMIT`] times
    /// per limit, because a read may be costly. At most half of the limit is counted between two reads: if this process
    /// has not run for the whole limit, what the peer sent has not been received yet.
    pub(crate) fn is_over(&mut self, now: Instant, count: impl FnOnce() -> u64) -> bool {
        let elapsed = now.saturating_duration_since(self.looked_at);
        if elapsed < self.limit / LOOKS_PER_LIMIT {
            return false;
        }
        self.looked_at = now;
        let count = count();
        if count == self.count {
            self.quiet += elapsed.min(self.limit / 2);
        } else {
            (self.count, self.quiet) = (count, Duration::ZERO);
        }
        self.quiet >= self.limit
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
        assert!(!stall.is_over(at(4), || 1));
        assert!(!stall.is_over(at(8), || 1));
        assert!(!stall.is_over(at(11), || 1));
        assert!(stall.is_over(at(12), || 1));
        assert!(!stall.is_over(at(13), || 2));
        assert!(!stall.is_over(at(17), || 2));
        assert!(stall.is_over(at(21), || 2));
    }

    #[test]
    fn a_process_that_did_not_run_is_no_stall() {
        let start = Instant::now();
        let mut stall = Stall::new(Duration::from_secs(8), start);
        let at = |secs| start + Duration::from_secs(secs);
        assert!(!stall.is_over(at(100), || 0));
        assert!(!stall.is_over(at(101), || 1));
        assert!(!stall.is_over(at(201), || 1));
        assert!(stall.is_over(at(301), || 1));
    }
}
