//! Completion channels: waiting for a completion without polling.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use roce::queue::CqId;
use roce::sync::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::context::{Context, Shared};
use crate::error::Error;

/// Time that a waiting thread polls before it sleeps, because most completions take less than a wake-up
/// costs.
const SPIN: Duration = Duration::from_micros(50);

/// A counting semaphore.
pub(crate) trait Semaphore {
    /// Adds one, which wakes waiters.
    fn add(&self);
    /// Subtracts one; 0 stays 0.
    fn take(&self);
}

impl Semaphore for OwnedFd {
    fn add(&self) {
        // Fails only with 2^64 - 2 events pending.
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn take(&self) {
        let _ = rustix::io::read(self, &mut [0; 8]);
    }
}

/// The events of a channel: put by the thread that drives the engine, taken by waiters.
#[derive(Debug)]
pub(crate) struct Inbox<S = OwnedFd> {
    ready: Mutex<VecDeque<CqId>>,
    /// Number of events in `ready`, plus one after `close`: readable while above 0.
    count: S,
}

impl<S: Semaphore> Inbox<S> {
    pub(crate) fn new(count: S) -> Self {
        Inbox { ready: Mutex::new(VecDeque::new()), count }
    }

    pub(crate) fn count(&self) -> &S {
        &self.count
    }

    /// Appends an event. Counted under the lock, otherwise a `take` in between would find the count at 0,
    /// leave it there, and the count would stay above 0 for ever.
    pub(crate) fn put(&self, cq: CqId) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push_back(cq);
        self.count.add();
    }

    /// Wakes all waiters for good: the count stays above 0.
    pub(crate) fn close(&self) {
        self.count.add();
    }

    /// Removes the oldest event.
    pub(crate) fn take(&self) -> Option<CqId> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let cq = ready.pop_front()?;
        self.count.take();
        Some(cq)
    }
}

/// A channel that notifies of completions (`ibv_comp_channel`). Clones are the same channel.
#[derive(Clone)]
pub struct CompChannel {
    pub(crate) inbox: Arc<Inbox>,
    shared: Arc<Shared>,
}

impl CompChannel {
    pub(crate) fn new(context: &Context) -> Result<Self, Error> {
        let fd =
            eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map_err(
                |error| Error::System { what: "cannot make an event file descriptor", error: error.into() },
            )?;
        Ok(CompChannel { inbox: Arc::new(Inbox::new(fd)), shared: context.shared() })
    }

    /// Waits for an event and returns its completion queue; `None` after `timeout`.
    ///
    /// Each notification that was requested gives one event. Request the next one before polling the queue
    /// empty, otherwise a completion in between gives no event.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`], which ends the wait of every thread; [`Error::System`].
    pub fn wait(&self, timeout: Duration) -> Result<Option<CqId>, Error> {
        let start = Instant::now();
        loop {
            if let Some(cq) = self.try_wait()? {
                return Ok(Some(cq));
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(None);
            }
            if waited < SPIN {
                self.shared.drive()?;
                continue;
            }
            self.shared.hand_over();
            let left = Timespec::try_from(timeout - waited)
                .unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 });
            let mut fds = [PollFd::new(self.inbox.count(), PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(_) => {}
                Err(error) if error == rustix::io::Errno::INTR => {}
                Err(error) => {
                    return Err(Error::System { what: "poll", error: io::Error::from(error) });
                }
            }
        }
    }

    /// Returns a pending event, without waiting.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`], after the last event.
    pub fn try_wait(&self) -> Result<Option<CqId>, Error> {
        let taken = self.inbox.take();
        if taken.is_none() {
            self.shared.check()?;
        }
        Ok(taken)
    }
}

impl AsFd for CompChannel {
    /// Readable while an event is pending, and for good once the device is fatal; for `poll` and `epoll`. Do
    /// not read from it, because `try_wait` does.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.count().as_fd()
    }
}
