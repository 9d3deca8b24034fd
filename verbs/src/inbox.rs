//! The queue of pending events of a completion channel or context.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::PoisonError;

use dpdk_ffi::Process;
use roce::sync::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// A counting semaphore.
pub(crate) trait Semaphore {
    /// Adds 1 to the count and wakes waiters.
    fn add(&self);
    /// Subtracts 1 from the count; a count of 0 is unchanged.
    fn take(&self);
}

impl Semaphore for OwnedFd {
    fn add(&self) {
        // `write` fails only if 2^64 - 2 events are pending (`eventfd`).
        let _ = rustix::io::write(self, &1u64.to_ne_bytes());
    }

    fn take(&self) {
        let _ = rustix::io::read(self, &mut [0; 8]);
    }
}

/// Pending events, appended by the thread that drives the engine, removed by waiters.
#[derive(Debug)]
pub(crate) struct Inbox<T, S = OwnedFd> {
    ready: Mutex<VecDeque<T>>,
    /// Number of pending events (length of the queue `ready`), plus 1 after `close`. Waiters poll the file descriptor,
    /// which is readable while the number is above 0.
    count: S,
    /// The process that created the inbox. A process forked from the creator shares the file descriptor with the
    /// creator, so in the forked process `Inbox::take` and `Inbox::take_with` return `None`. No other function that
    /// changes the inbox is called in a forked process.
    process: Process,
}

impl<T> Inbox<T> {
    /// Creates an inbox with a new event file descriptor that counts the pending events.
    pub(crate) fn with_fd() -> io::Result<Self> {
        Ok(Inbox::new(eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }
}

impl<T, S: Semaphore> Inbox<T, S> {
    pub(crate) fn new(count: S) -> Self {
        Inbox { ready: Mutex::new(VecDeque::new()), count, process: Process::current() }
    }

    pub(crate) fn count(&self) -> &S {
        &self.count
    }

    /// Appends `event` to the queue `ready`, and raises `count`, the number of pending events, before `ready` is
    /// unlocked. Otherwise another thread could take the event while `count` is still 0 and cannot be lowered; `count`
    /// would then stay 1 too high.
    pub(crate) fn put(&self, event: T) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push_back(event);
        self.count.add();
    }

    /// Appends `event` as [`Inbox::put`] does. If `max` events are pending, `event` replaces the oldest.
    pub(crate) fn put_within(&self, event: T, max: usize) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push_back(event);
        if ready.len() > max {
            ready.pop_front();
        } else {
            self.count.add();
        }
    }

    /// Wakes all present and future waiters: adds 1 to `count`. Because `count` is otherwise the number of pending
    /// events, `count` then stays above 0.
    pub(crate) fn close(&self) {
        self.count.add();
    }

    /// Removes the pending events for which `is_discarded` returns true.
    pub(crate) fn discard(&self, is_discarded: impl Fn(&T) -> bool) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let pending = ready.len();
        ready.retain(|event| !is_discarded(event));
        (ready.len()..pending).for_each(|_| self.count.take());
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.take_with(|_| {})
    }

    /// Removes the oldest event, calls `on_take` with this event, and returns the event. [`Inbox::discard`] waits until
    /// `on_take` has returned.
    pub(crate) fn take_with(&self, on_take: impl FnOnce(&T)) -> Option<T> {
        if !self.process.is_current() {
            return None;
        }
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        let event = ready.pop_front()?;
        self.count.take();
        on_take(&event);
        Some(event)
    }
}
