//! The queue of pending events of a completion channel.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use roce::queue::CqId;
use roce::sync::Mutex;

/// A counting semaphore.
pub(crate) trait Semaphore {
    /// Adds 1 to the count and wakes waiters.
    fn add(&self);
    /// Subtracts 1 from the count; a count of 0 is unchanged.
    fn take(&self);
}

impl Semaphore for OwnedFd {
    fn add(&self) {
        // Fails only if 2^64 - 2 events are pending (`eventfd`).
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn take(&self) {
        let _ = rustix::io::read(self, &mut [0; 8]);
    }
}

/// The pending events of a completion channel, appended by the thread that drives the engine, removed by waiters.
#[derive(Debug)]
pub(crate) struct Inbox<S = OwnedFd> {
    ready: Mutex<VecDeque<CqId>>,
    /// Number of events in `ready`, plus 1 after `close`. Waiters poll the file descriptor, which is readable while the
    /// number is above 0.
    count: S,
}

impl<S: Semaphore> Inbox<S> {
    pub(crate) fn new(count: S) -> Self {
        Inbox { ready: Mutex::new(VecDeque::new()), count }
    }

    pub(crate) fn count(&self) -> &S {
        &self.count
    }

    /// Appends an event of `cq`. `ready` stays locked until `count` is raised. Otherwise another thread could take the
    /// event while `count` is still 0 and cannot be lowered; `count` would then stay 1 too high.
    pub(crate) fn put(&self, cq: CqId) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push_back(cq);
        self.count.add();
    }

    /// Wakes all waiters, also later ones, because the count stays above 0 from now on.
    pub(crate) fn close(&self) {
        self.count.add();
    }

    pub(crate) fn take(&self) -> Option<CqId> {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let cq = ready.pop_front()?;
        self.count.take();
        Some(cq)
    }
}
