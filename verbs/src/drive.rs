//! The lock of an engine. The thread that holds the lock drives the engine. A poster (a thread that posts work
//! requests) that fails to lock sets the flag `asked`, and the holder of the lock then sends the work requests.
//!
//! ```text
//!   poster                               holder of the lock
//!                                        takes the lock, drains the doorbells
//!   rings the queue pair's doorbell
//!   try_lock fails
//!   asked.swap(true)
//!   try_lock fails; returns
//!                                        releases the lock
//!                                        asked.swap(false) returns true: takes the lock, sends, releases, swaps ...
//! ```
//!
//! Because the two swaps of `asked` are ordered, one thread always sends the work requests. If the poster's swap is
//! first, the holder's swap returns true, and the holder sends. Otherwise the holder released the lock before the
//! poster's swap. The poster's second try_lock then succeeds, and the poster sends, unless a third thread has taken the
//! lock. In this case the third thread swaps after the poster, and the third thread sends.

use std::ops::{Deref, DerefMut};
use std::thread;

use dpdk_ffi::NoCancel;
use roce::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use roce::time::Instant;

use crate::lock::{Lock, LockGuard};

/// State that the [`DriveLock`] protects: the engine of a device, or a substitute for the engine in a test.
pub(crate) trait Drive {
    /// Sends the packets of the work requests that were posted and not yet sent.
    fn send_posted(&mut self);
    /// Called before each release of the lock.
    fn on_release(&mut self);
    /// Puts the device in a fatal error, because a panic may have left the engine in an inconsistent state.
    fn on_panic(&mut self);
}

/// The engine, and the lock that a thread holds while it drives the engine.
pub(crate) struct DriveLock<T: Drive> {
    driven: Lock<T>,
    /// Set by a thread that posted work requests and failed to lock; the holder of the lock then sends these work
    /// requests.
    asked: AtomicBool,
}

/// A guard whose drop calls [`Drive::on_release`]. If the thread panicked while it held the lock, the drop first calls
/// [`Drive::on_panic`].
struct PoisonGuard<'a, T: Drive> {
    driven: LockGuard<'a, T>,
    /// If true, `on_panic` is not called, because the thread was already unwinding when it took the lock (in a `Drop`).
    was_panicking: bool,
}

impl<'a, T: Drive> PoisonGuard<'a, T> {
    #[inline]
    fn new(driven: LockGuard<'a, T>) -> Self {
        PoisonGuard { driven, was_panicking: thread::panicking() }
    }
}

impl<T: Drive> Drop for PoisonGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if thread::panicking() && !self.was_panicking {
            self.driven.on_panic();
        }
        self.driven.on_release();
    }
}

/// A guard whose drop releases the lock, then sends the work requests of threads that set `asked` because they failed
/// to lock.
pub(crate) struct DriveGuard<'a, T: Drive> {
    // `poison_guard` is dropped first and releases the lock, because the drop of `_answer` takes the lock again.
    poison_guard: PoisonGuard<'a, T>,
    _answer: Answer<'a, T>,
    /// Disables the cancellation of the thread (`pthread_cancel`), because a call that sends, receives or logs may be a
    /// cancellation point.
    _no_cancel: NoCancel,
}

impl<T: Drive> DriveLock<T> {
    pub(crate) fn new(driven: T) -> Self {
        DriveLock { driven: Lock::new(driven), asked: AtomicBool::new(false) }
    }

    #[inline]
    fn guard<'a>(&'a self, driven: LockGuard<'a, T>) -> DriveGuard<'a, T> {
        let _no_cancel = NoCancel::new();
        DriveGuard { poison_guard: PoisonGuard::new(driven), _answer: Answer(self), _no_cancel }
    }

    pub(crate) fn lock(&self) -> DriveGuard<'_, T> {
        self.guard(self.driven.lock())
    }

    #[inline]
    pub(crate) fn try_lock(&self) -> Option<DriveGuard<'_, T>> {
        self.driven.try_lock().map(|poison_guard| self.guard(poison_guard))
    }

    /// Returns whether a thread has the lock.
    pub(crate) fn is_locked(&self) -> bool {
        self.driven.is_locked()
    }

    /// Takes the lock to send posted work requests; `None` if another thread holds the lock and will send the work
    /// requests.
    #[inline]
    pub(crate) fn try_lock_to_send(&self) -> Option<DriveGuard<'_, T>> {
        self.driven.try_lock().or_else(|| self.ask()).map(|poison_guard| self.guard(poison_guard))
    }

    #[cold]
    fn ask(&self) -> Option<LockGuard<'_, T>> {
        self.asked.swap(true, Ordering::AcqRel);
        self.driven.try_lock()
    }

    /// Sends in a loop the work requests of threads that set `asked` because they failed to lock. On reliable
    /// connections, this loop ends at the latest when all send queues are full: no thread can then post, because only
    /// ACKs free entries of send queues, and the loop receives no ACK. On unreliable connections, transmission frees
    /// these entries, so the loop continues while other threads post.
    #[cold]
    fn answer(&self) {
        // A thread that panicked must not use the engine, which the panic may have left in an inconsistent state.
        while !thread::panicking() {
            let Some(driven) = self.driven.try_lock().or_else(|| self.ask()) else { return };
            let mut poison_guard = PoisonGuard::new(driven);
            poison_guard.driven.send_posted();
            drop(poison_guard);
            if !self.asked.swap(false, Ordering::AcqRel) {
                return;
            }
        }
    }
}

struct Answer<'a, T: Drive>(&'a DriveLock<T>);

impl<T: Drive> Drop for Answer<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // A swap, not a load: the processor may execute a load before the release of the lock is visible to other
        // threads. If a thread that posted work requests set `asked` (a request to the holder of the lock to send these
        // work requests) after that load, and then failed to lock, the work requests would not be sent.
        if self.0.asked.swap(false, Ordering::AcqRel) {
            self.0.answer();
        }
    }
}

impl<T: Drive> Deref for DriveGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.poison_guard.driven
    }
}

impl<T: Drive> DerefMut for DriveGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.poison_guard.driven
    }
}

/// Bounds of `Activity::polls_min`: if application threads make this number of polls without a request of a
/// notification, these threads take over the port. The lower bound is more than the number of polls that an application
/// makes between two notifications, and less than the number of polls that an application can make in the time of one
/// thread wake-up.
///
/// If the application stops polling soon after a takeover, `polls_min` is doubled, so that takeovers become rare. The
/// application may have stopped in order to read its memory in a loop until a WRITE of the peer changes the memory.
/// Only the background thread receives this WRITE, and after a takeover the background thread naps.
pub(crate) const POLLS_MIN: u64 = 64;
const POLLS_MAX: u64 = 1 << 20;

/// Number of send work requests, posted since the last push, at which [`Activity::count_posts`] requests a push.
const POSTS_PER_PUSH: u32 = 16;

/// Numbers of polls, pushes and posts by application threads, and a flag that the background thread sets while the
/// background thread drives the engine.
pub(crate) struct Activity {
    polls: AtomicU64,
    /// Value of `polls`, the number of polls and pushes by application threads, at the last [`Activity::end_push`]. If
    /// `polls` has changed since, a push is due at the next post. If each queue pair had such a value of its own, a
    /// thread that posts to several queue pairs in turn would push at each post, because each push changes `polls`.
    polls_at_push: AtomicU64,
    /// Number of send work requests posted since the last [`Activity::end_push`]. If several threads post at the same
    /// time, this number may be too low; [`Activity::count_posts`] then requests a push after more than
    /// `POSTS_PER_PUSH` posts.
    posts: AtomicU32,
    /// Time of the last poll by an application thread, in nanoseconds of the engine's clock.
    last_nanos: AtomicU64,
    /// Number of polls and pushes by application threads at the last [`Activity::await_polls`].
    polls_awaited: AtomicU64,
    /// [`Activity::is_polled`] returns true after at least this number of polls and pushes by application threads since
    /// the last [`Activity::await_polls`].
    polls_min: AtomicU64,
    background_drives: AtomicBool,
}

impl Default for Activity {
    fn default() -> Self {
        Activity {
            polls: AtomicU64::new(0),
            polls_at_push: AtomicU64::new(u64::MAX),
            posts: AtomicU32::new(0),
            last_nanos: AtomicU64::new(0),
            polls_awaited: AtomicU64::new(0),
            polls_min: AtomicU64::new(POLLS_MIN),
            background_drives: AtomicBool::new(false),
        }
    }
}

impl Activity {
    /// Returns the number of polls and pushes of the engine by application threads, modulo 2^64.
    #[inline]
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Counts a poll at time `now`. Only the holder of the [`DriveLock`] calls this function.
    #[inline]
    pub(crate) fn count_poll_at(&self, now: Instant) {
        self.last_nanos.store(now.as_nanos(), Ordering::Relaxed);
        self.count_poll();
    }

    /// Counts a poll or push. A load and a store suffice, because only the holder of the [`DriveLock`] calls this
    /// function.
    #[inline]
    pub(crate) fn count_poll(&self) {
        self.polls.store(self.polls().wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts `count` posts of send work requests. Returns whether the calling thread must push: at the first post
    /// after a poll by any application thread, and at `POSTS_PER_PUSH` posts since the last push. Otherwise the next
    /// push or poll sends the work requests.
    #[inline]
    pub(crate) fn count_posts(&self, count: u32) -> bool {
        let posts = self.posts.load(Ordering::Relaxed).wrapping_add(count);
        self.posts.store(posts, Ordering::Relaxed);
        self.polls() != self.polls_at_push.load(Ordering::Relaxed) || posts >= POSTS_PER_PUSH
    }

    /// Begins to count posts anew. Called by a thread that posted work requests and then pushed.
    #[inline]
    pub(crate) fn end_push(&self) {
        self.posts.store(0, Ordering::Relaxed);
        self.polls_at_push.store(self.polls(), Ordering::Relaxed);
    }

    /// Begins to count the polls and pushes by application threads for [`Activity::is_polled`]. Called when an
    /// application thread requests a notification, because this thread may then sleep.
    pub(crate) fn await_polls(&self) {
        self.polls_awaited.store(self.polls(), Ordering::Relaxed);
    }

    /// Returns whether application threads have polled so often since the last [`Activity::await_polls`] that they need
    /// no background thread.
    pub(crate) fn is_polled(&self) -> bool {
        let polls = self.polls().wrapping_sub(self.polls_awaited.load(Ordering::Relaxed));
        polls >= self.polls_min.load(Ordering::Relaxed)
    }

    /// Returns the time in nanoseconds from the last poll by an application thread to `now`.
    pub(crate) fn idle_nanos(&self, now: Instant) -> u64 {
        now.as_nanos().saturating_sub(self.last_nanos.load(Ordering::Relaxed))
    }

    /// Begins to count the polls and pushes for [`Activity::is_polled`]. Called at the end of a takeover, when the
    /// application threads have stopped polling, have requested a notification, or wait in `CompChannel::wait`.
    /// `polled_long`: whether the takeover lasted at least `POLLED_LONG`. If not, the next takeover needs twice as many
    /// polls and pushes, at most `POLLS_MAX`.
    pub(crate) fn end_polls(&self, polled_long: bool) {
        let polls = self.polls_min.load(Ordering::Relaxed);
        let polls = if polled_long { POLLS_MIN } else { (polls * 2).min(POLLS_MAX) };
        self.polls_min.store(polls, Ordering::Relaxed);
        self.await_polls();
    }

    /// Marks, until the returned guard is dropped, that the background thread drives the engine or is about to lock it.
    pub(crate) fn drive_in_background(&self) -> BackgroundDrive<'_> {
        self.background_drives.store(true, Ordering::Relaxed);
        BackgroundDrive(self)
    }

    pub(crate) fn is_background_driving(&self) -> bool {
        self.background_drives.load(Ordering::Relaxed)
    }
}

/// A guard that marks the background thread as driving the engine until the guard is dropped.
pub(crate) struct BackgroundDrive<'a>(&'a Activity);

impl Drop for BackgroundDrive<'_> {
    fn drop(&mut self) {
        self.0.background_drives.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_push_is_due_at_the_first_post_after_a_poll_and_at_every_sixteenth() {
        let activity = Activity::default();
        assert!(activity.count_posts(1), "the first post");
        activity.end_push();
        assert!((1..POSTS_PER_PUSH).all(|_| !activity.count_posts(1)));
        assert!(activity.count_posts(1));
        activity.end_push();
        assert!(!activity.count_posts(POSTS_PER_PUSH - 1));
        activity.count_poll();
        activity.end_push();
        assert!(!activity.count_posts(1), "the push counts as a poll itself");
        activity.count_poll();
        assert!(activity.count_posts(1), "a thread has polled since");
    }
}
