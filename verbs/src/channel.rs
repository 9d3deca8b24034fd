//! Completion channels: waiting for a completion without polling.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use roce::queue::CqId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::context::{Context, Shared};
use crate::error::Error;

/// How long a waiting thread polls before it sleeps: most answers come sooner, and a sleep costs more.
const SPIN: Duration = Duration::from_micros(50);

/// The part that the engine's driver reaches.
#[derive(Debug)]
pub(crate) struct Inbox {
    ready: Mutex<VecDeque<CqId>>,
    /// Counts the events that nobody has taken: readable while there are any.
    fd: OwnedFd,
}

impl Inbox {
    /// Adds an event.
    pub(crate) fn put(&self, cq: CqId) {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner).push_back(cq);
        // It fails only when 2^64-2 events wait.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    /// Ends all waiting for good: the descriptor stays readable.
    pub(crate) fn close(&self) {
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Option<CqId> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let cq = ready.pop_front()?;
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.fd, &mut count);
        Some(cq)
    }
}

/// A channel on which completion queues announce completions (`ibv_comp_channel`).
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
        let inbox = Arc::new(Inbox { ready: Mutex::default(), fd });
        Ok(CompChannel { inbox, shared: context.shared() })
    }

    /// Waits for an event: the completion queue that has completions. `None` after `timeout`.
    ///
    /// Each notification that was requested gives one event; request the next before polling the
    /// queue empty, or a completion in between goes unannounced.
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
            let mut fds = [PollFd::new(&self.inbox.fd, PollFlags::IN)];
            match poll(&mut fds, Some(&left)) {
                Ok(_) => {}
                Err(error) if error == rustix::io::Errno::INTR => {}
                Err(error) => {
                    return Err(Error::System { what: "poll", error: io::Error::from(error) });
                }
            }
        }
    }

    /// An event that has come, without waiting.
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
    /// Readable while an event waits, and for good when the device is out of order; for `poll` and its like. Do not
    /// read from it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.fd.as_fd()
    }
}
