//! The events of a completion channel.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use roce::queue::CqId;
use roce::sync::Mutex;

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
