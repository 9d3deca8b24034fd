//! Completion channels.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use dpdk_ffi::NoCancel;

use crate::device::Shared;
use crate::error::Error;
use crate::inbox::Inbox;
use crate::limits::TooFewDescriptors;
use crate::listeners::CompletionEvent;
use crate::waiter::Waiter;

/// A completion channel (`ibv_comp_channel`): a queue of events of completion queues. Clones are the same channel.
#[derive(Clone)]
pub struct CompChannel {
    pub(crate) inbox: Arc<Inbox<CompletionEvent>>,
    shared: Arc<Shared>,
}

impl CompChannel {
    pub(crate) fn new(shared: Arc<Shared>) -> Result<Self, Error> {
        shared.check()?;
        let failed = |error| match TooFewDescriptors::of("a completion channel", error) {
            Ok(limited) => limited.into(),
            Err(error) => Error::System { what: "cannot make an event file descriptor", error },
        };
        let inbox = Arc::new(Inbox::with_fd().map_err(failed)?);
        shared.listeners.add_channel(&inbox);
        Ok(CompChannel { inbox, shared })
    }

    pub(crate) fn is_of(&self, shared: &Arc<Shared>) -> bool {
        Arc::ptr_eq(&self.shared, shared)
    }

    /// Waits for an event and removes it (`ibv_get_cq_event`); `None` after `timeout` without an event.
    ///
    /// Each call of [`Cq::request_notify`](crate::Cq::request_notify) causes at most one event. After an event, the
    /// caller first calls `request_notify`, then polls the completion queue until it is empty. Otherwise a completion
    /// between the last poll and `request_notify` causes no event.
    ///
    /// This function is no cancellation point: if the waiting thread is cancelled (`pthread_cancel`), the cancellation
    /// takes effect at the first cancellation point after the return. A caller that is to be cancelled within a bounded
    /// time gives a short `timeout`, and calls `pthread_testcancel` between two calls.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] after a fatal error, which ends the waits of all threads; [`Error::System`] if the system
    /// call `poll` fails.
    pub fn wait(&self, timeout: Duration) -> Result<Option<CompletionEvent>, Error> {
        self.wait_with(timeout, |_| {})
    }

    /// Waits as [`CompChannel::wait`] does, and calls `on_take` before the event is returned. A call that destroys the
    /// event's completion queue does not return while `on_take` runs, so `on_take` may use the cookie.
    pub fn wait_with(
        &self,
        timeout: Duration,
        on_take: impl Fn(&CompletionEvent),
    ) -> Result<Option<CompletionEvent>, Error> {
        self.wait_unless(timeout, on_take, || false)
    }

    /// Waits as [`CompChannel::wait_with`] does. If a signal handler has interrupted the sleep of this thread, calls
    /// the function `ends`. If `ends` returns true, the wait fails with EINTR; otherwise the wait continues.
    ///
    /// # Errors
    /// Those of [`CompChannel::wait`], and [`Error::System`] with EINTR if `ends` returned true.
    pub fn wait_unless(
        &self,
        timeout: Duration,
        on_take: impl Fn(&CompletionEvent),
        ends: impl Fn() -> bool,
    ) -> Result<Option<CompletionEvent>, Error> {
        let _no_cancel = NoCancel::new();
        let start = Instant::now();
        let mut waiter = Waiter::new(&self.shared);
        loop {
            if let Some(event) = self.try_wait_with(&on_take)? {
                return Ok(Some(event));
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(None);
            }
            match waiter.turn(self.as_fd(), timeout - waited) {
                Err(Error::System { error, .. })
                    if error.kind() == std::io::ErrorKind::Interrupted && !ends() => {}
                result => result?,
            }
        }
    }

    /// Removes and returns the oldest pending event; `None` if no event is pending. Does not wait.
    ///
    /// # Errors
    /// [`Error::DeviceFatal`] if the device is in a fatal error and no event is pending.
    pub fn try_wait(&self) -> Result<Option<CompletionEvent>, Error> {
        self.try_wait_with(|_| {})
    }

    /// Removes an event as [`CompChannel::try_wait`] does, and calls `on_take` as [`CompChannel::wait_with`] does.
    pub fn try_wait_with(
        &self,
        on_take: impl Fn(&CompletionEvent),
    ) -> Result<Option<CompletionEvent>, Error> {
        let taken = self.inbox.take_with(on_take);
        if taken.is_none() {
            self.shared.check()?;
        }
        Ok(taken)
    }
}

impl AsFd for CompChannel {
    /// Returns a file descriptor for `poll` and `epoll`, readable while an event is pending, and permanently after a
    /// fatal error. The caller must not read from the file descriptor, because `try_wait` reads from it, once for each
    /// event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inbox.count().as_fd()
    }
}
