//! How long a thread continues to poll before it sleeps.

use std::time::{Duration, Instant};

/// Bounds of the time for which a thread continues to poll after the last poll that found work. A wake-up takes about
/// as long as the lower bound.
const LINGER_MIN: Duration = Duration::from_micros(20);
const LINGER_MAX: Duration = Duration::from_micros(200);

/// The time for which a thread continues to poll after work: doubled if work was found in this time, halved if not.
pub(crate) struct Linger {
    time: Duration,
    /// Time at which the thread stops polling if no poll finds work before; `None` while the thread need not poll.
    until: Option<Instant>,
    /// Whether at least one poll has found no work since `until`, the time at which the thread stops polling, was set.
    was_idle: bool,
}

impl Linger {
    pub(crate) fn new() -> Self {
        Linger { time: LINGER_MIN, until: None, was_idle: false }
    }

    /// Returns a [`Linger`] whose time begins now: `nanos` nanoseconds, limited to the range from `LINGER_MIN` to
    /// `LINGER_MAX`. `nanos`: the result of [`Linger::end`], or 0.
    pub(crate) fn begin(nanos: u64) -> Self {
        let time = Duration::from_nanos(nanos).clamp(LINGER_MIN, LINGER_MAX);
        let mut linger = Linger { time, ..Linger::new() };
        linger.restart();
        linger
    }

    /// Returns the argument of the next [`Linger::begin`]: the length of time for which the thread continues to
    /// poll, in nanoseconds.
    pub(crate) fn end(&self) -> u64 {
        let found = self.until.is_some() && self.was_idle;
        let time = if found { (self.time * 2).min(LINGER_MAX) } else { self.time };
        time.as_nanos() as u64
    }

    /// Sets `until`, the time at which the thread stops polling, to now plus `time`.
    pub(crate) fn restart(&mut self) {
        self.until = Some(Instant::now() + self.time);
        self.was_idle = false;
    }

    /// Returns whether the thread should poll again after a poll; `worked`: the poll found work.
    pub(crate) fn goes_on(&mut self, worked: bool) -> bool {
        if worked {
            if self.until.is_some() && self.was_idle {
                self.time = (self.time * 2).min(LINGER_MAX);
            }
            self.restart();
            return true;
        }
        self.was_idle = true;
        let Some(until) = self.until else { return false };
        if Instant::now() < until {
            return true;
        }
        self.until = None;
        self.time = (self.time / 2).max(LINGER_MIN);
        false
    }
}
