//! A thread in `CompChannel::wait`. The thread first polls, then sleeps. If no other thread is the leader (`sleep.rs`),
//! the thread becomes the leader and sleeps on the port's wake sources in place of the background thread, so that a
//! frame wakes only the leader.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use crate::device::Shared;
use crate::error::Error;
use crate::linger::Linger;
use crate::options::ProgressPolicy;
use crate::sleep::{NAP_MAX, NAP_MIN, nanos, timespec};

/// Before a leader returns from `CompChannel::wait`, the leader polls at most this number of times, until a poll finds
/// no work. If all these polls find work, the leader wakes the background thread.
const LAST_POLLS: u32 = 4;

pub(crate) struct Waiter<'a> {
    shared: &'a Shared,
    linger: Linger,
    leads: bool,
    /// Length of the latest nap; `NAP_MIN` before the first nap, and after a sleep that was no nap.
    nap: Duration,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(shared: &'a Shared) -> Self {
        let linger = Linger::begin(shared.linger_nanos.load(Ordering::Relaxed));
        Waiter { shared, linger, leads: false, nap: NAP_MIN }
    }

    /// Polls the engine, or sleeps until `inbox` may be readable, but not longer than `timeout`. If a signal handler
    /// runs during the sleep, fails with EINTR.
    pub(crate) fn turn(&mut self, inbox: BorrowedFd<'_>, timeout: Duration) -> Result<(), Error> {
        if self.linger.goes_on(false) {
            return self.shared.drive();
        }
        self.leads =
            self.leads || (self.shared.policy != ProgressPolicy::Busy && self.shared.sleep.try_lead());
        if !self.leads {
            // Under the policy `Application` no background thread drives the engine after the leader has returned from
            // `CompChannel::wait`. Therefore this thread sleeps for at most `NAP_MAX`, and then tries again to become
            // the leader.
            let is_alone = self.shared.policy == ProgressPolicy::Application;
            return sleep_on(&[inbox], if is_alone { timeout.min(NAP_MAX) } else { timeout });
        }
        self.lead(inbox, timeout)
    }

    fn lead(&mut self, inbox: BorrowedFd<'_>, timeout: Duration) -> Result<(), Error> {
        let shared = self.shared;
        let mut driven = shared.lock()?;
        shared.wakes.iter().for_each(|wakes| wakes.switch(false));
        let is_armed = driven.arm() && shared.sleep.has_barriers() && shared.wakes.is_some();
        shared.sleep.announce();
        shared.activity.count_poll_at(shared.now());
        if !driven.poll(shared.now()).is_idle() {
            shared.sleep.wake_up();
            self.linger.goes_on(true);
            return Ok(());
        }
        let now = shared.now();
        let deadline = driven.next_deadline();
        let naps = !is_armed || driven.is_tx_stalled();
        self.nap = if deadline.is_some() || !naps { NAP_MIN } else { (self.nap * 2).min(shared.nap_max()) };
        let longest = if naps { timeout.min(self.nap) } else { timeout };
        let until = now.plus_nanos(nanos(longest));
        let until = deadline.map_or(until, |deadline| deadline.min(until));
        shared.sleep.sleep_until(until);
        drop(driven);
        let mut fds = vec![inbox, shared.sleep.leader_bell()];
        fds.extend(shared.wakes.iter().flat_map(|wakes| wakes.sources()).map(AsFd::as_fd));
        let slept = sleep_on(&fds, Duration::from_nanos(until.nanos_since(now)));
        shared.sleep.clear_leader_bell();
        let mut driven = shared.lock()?;
        shared.sleep.wake_up();
        shared.activity.count_poll_at(shared.now());
        if !driven.poll(shared.now()).is_idle() {
            self.linger.goes_on(true);
        }
        slept
    }
}

impl Drop for Waiter<'_> {
    /// If this thread is the leader, makes the background thread the server of the port.
    fn drop(&mut self) {
        self.shared.linger_nanos.store(self.linger.end(), Ordering::Relaxed);
        if !self.leads {
            return;
        }
        let shared = self.shared;
        let mut driven = shared.inspect();
        shared.sleep.wake_up();
        let mut is_served = shared.policy == ProgressPolicy::Application || shared.check().is_err();
        if !is_served {
            let is_armed = driven.arm() && shared.wakes.is_some();
            shared.wakes.iter().for_each(|wakes| wakes.switch(true));
            // The background thread may be asleep, and then continues to sleep without a poll. Therefore this thread
            // announces the sleep of the background thread to threads that post, and then polls, as a server of the
            // port does before its own sleep.
            shared.sleep.announce();
            is_served = is_armed
                && shared.sleep.has_barriers()
                && (0..LAST_POLLS).any(|_| driven.poll(shared.now()).is_idle());
        }
        shared.sleep.end_lead();
        drop(driven);
        if !is_served {
            shared.sleep.wake_background();
        }
    }
}

fn sleep_on(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<(), Error> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::System { what: "poll", error: io::Error::from(error) }),
    }
}
