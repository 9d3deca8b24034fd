//! The right to drive the engine: one thread at a time has it, and none stops before work that others posted
//! meanwhile is sent.
//!
//! ```text
//!   poster                               holder
//!                                        takes the lock, drains the doorbells
//!   rings its doorbell
//!   try_lock: taken
//!   asked = true       (swap)            ..
//!   try_lock: taken, returns             releases the lock
//!                                        asked = false (swap): was true -> locks and sends, and so on
//! ```
//!
//! The two swaps are ordered. If the poster's is first, the holder's reads true. Otherwise the lock was
//! released before, and the poster's second try_lock finds it free, or held by a thread whose swap is still
//! to follow.

use std::ops::{Deref, DerefMut};
use std::thread;

use roce::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::lock::{Lock, LockGuard};

/// The state behind a [`DriveLock`].
pub(crate) trait Drive {
    /// Sends work requests that were posted and not yet sent.
    fn send_posted(&mut self);
    /// Called if the holder panics, which may have left the engine between two states.
    fn on_panic(&mut self);
}

/// The engine, and the lock that a thread holds while it drives the engine.
pub(crate) struct DriveLock<T: Drive> {
    driven: Lock<T>,
    /// Set by a thread that posted work and found the lock taken.
    asked: AtomicBool,
}

/// The lock, taken; reports a panic of its holder.
struct PoisonGuard<'a, T: Drive> {
    driven: LockGuard<'a, T>,
    /// Whether the thread unwound already when it took the lock, as a `Drop` may: then the panic is not the
    /// engine's.
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
    }
}

/// The right to drive the engine, until dropped.
pub(crate) struct DriveGuard<'a, T: Drive> {
    // Dropped in this order, because `Answer` takes the lock itself.
    poison_guard: PoisonGuard<'a, T>,
    _answer: Answer<'a, T>,
}

impl<T: Drive> DriveLock<T> {
    pub(crate) fn new(driven: T) -> Self {
        DriveLock { driven: Lock::new(driven), asked: AtomicBool::new(false) }
    }

    #[inline]
    fn guard<'a>(&'a self, driven: LockGuard<'a, T>) -> DriveGuard<'a, T> {
        DriveGuard { poison_guard: PoisonGuard::new(driven), _answer: Answer(self) }
    }

    /// Waits for the lock.
    pub(crate) fn lock(&self) -> DriveGuard<'_, T> {
        self.guard(self.driven.lock())
    }

    /// Takes the lock if it is free.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<DriveGuard<'_, T>> {
        self.driven.try_lock().map(|poison_guard| self.guard(poison_guard))
    }

    /// Takes the lock for a thread that has posted. `None`: the holder will send what was posted.
    #[inline]
    pub(crate) fn try_lock_to_send(&self) -> Option<DriveGuard<'_, T>> {
        self.driven.try_lock().or_else(|| self.ask()).map(|poison_guard| self.guard(poison_guard))
    }

    #[cold]
    fn ask(&self) -> Option<LockGuard<'_, T>> {
        self.asked.swap(true, Ordering::AcqRel);
        self.driven.try_lock()
    }

    /// Sends for the threads that set `asked`. Terminates, because each round removes work requests from send
    /// queues and none receives the ACKs that would make room for more.
    #[cold]
    fn answer(&self) {
        // Because a panic may have left the engine between two states, the thread must not use it again.
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
        // A swap even if `asked` is clear, because a load may be executed before the lock's release is
        // visible.
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

/// Signals from the application's threads to the background thread.
#[derive(Default)]
pub(crate) struct Activity {
    polls: AtomicU64,
    handed_over: AtomicBool,
}

impl Activity {
    /// Returns the number of polls by application threads. While it grows, the background thread sleeps.
    #[inline]
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Counts a poll. Only for the holder of the lock, so a load and a store suffice.
    #[inline]
    pub(crate) fn count_poll(&self) {
        self.polls.store(self.polls().wrapping_add(1), Ordering::Relaxed);
    }

    /// Announces that the application stops polling. The caller must wake the background thread afterwards.
    pub(crate) fn hand_over(&self) {
        // A swap, because loom may order a plain store before an exchange that has not seen it.
        self.handed_over.swap(true, Ordering::AcqRel);
    }
}

/// The background thread's view of the application.
#[derive(Default)]
pub(crate) struct Watch {
    polls_seen: u64,
}

/// Which threads should drive the engine, as found by the background thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// The application's, which polled since the last look.
    Application,
    /// The background thread, because no application thread polled since the last look.
    Background,
    /// The background thread, because the application has handed over.
    TakenOver,
}

impl Watch {
    /// Compares the application's signals with those of the last look.
    pub(crate) fn look(&mut self, activity: &Activity) -> Duty {
        let handed_over = activity.handed_over.swap(false, Ordering::AcqRel);
        let polls = activity.polls();
        let polled = std::mem::replace(&mut self.polls_seen, polls) != polls;
        match (handed_over, polled) {
            (true, _) => Duty::TakenOver,
            (false, true) => Duty::Application,
            (false, false) => Duty::Background,
        }
    }
}
