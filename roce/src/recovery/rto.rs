//! The retransmission timer: the standard's local ACK timeout (IBA 9.7.6.1.3).

use crate::time::Instant;

/// The unit of the timeout attribute, in nanoseconds.
const TIMEOUT_UNIT_NANOS: u64 = 4096;

/// Runs while anything is unacknowledged; every acknowledgement of something new restarts it.
#[derive(Clone, Copy, Debug)]
pub struct RetransmitTimer {
    /// `None`: never expires.
    rto_nanos: Option<u64>,
    deadline: Option<Instant>,
}

impl RetransmitTimer {
    /// A stopped timer of 4.096 us * 2^`timeout`; `timeout` has 5 bits, and 0 means never.
    pub fn new(timeout: u8) -> Self {
        RetransmitTimer { rto_nanos: rto_nanos(timeout), deadline: None }
    }

    /// Changes the timeout, from the next start on: what runs goes on.
    pub fn set_timeout(&mut self, timeout: u8) {
        self.rto_nanos = rto_nanos(timeout);
    }

    /// When it expires next.
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Starts it where it stands still.
    #[inline]
    pub fn start(&mut self, now: Instant) {
        if self.deadline.is_none() {
            self.restart(now);
        }
    }

    /// Starts it anew.
    #[inline]
    pub fn restart(&mut self, now: Instant) {
        self.deadline = self.rto_nanos.map(|rto_nanos| now.plus_nanos(rto_nanos));
    }

    /// Stops it.
    #[inline]
    pub fn stop(&mut self) {
        self.deadline = None;
    }

    /// Whether it has expired; it then stands still.
    pub fn take_expired(&mut self, now: Instant) -> bool {
        let expired = self.deadline.is_some_and(|deadline| deadline <= now);
        if expired {
            self.stop();
        }
        expired
    }
}

fn rto_nanos(timeout: u8) -> Option<u64> {
    (timeout != 0).then(|| TIMEOUT_UNIT_NANOS << (timeout & 0x1F))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fourteen_is_sixty_seven_milliseconds_and_zero_is_never() {
        let mut timer = RetransmitTimer::new(14);
        timer.start(Instant::ZERO);
        timer.start(Instant::from_nanos(9));
        assert_eq!(timer.deadline(), Some(Instant::from_nanos(67_108_864)));
        assert!(!timer.take_expired(Instant::from_nanos(67_108_863)));
        assert!(timer.take_expired(Instant::from_nanos(67_108_864)));
        assert!(!timer.take_expired(Instant::from_nanos(67_108_865)));
        let mut never = RetransmitTimer::new(0);
        never.restart(Instant::ZERO);
        assert_eq!(never.deadline(), None);
    }

    #[test]
    fn a_change_does_not_stop_what_runs() {
        let mut timer = RetransmitTimer::new(1);
        timer.start(Instant::ZERO);
        timer.set_timeout(2);
        assert_eq!(timer.deadline(), Some(Instant::from_nanos(8192)));
        timer.restart(Instant::ZERO);
        assert_eq!(timer.deadline(), Some(Instant::from_nanos(16384)));
    }
}
