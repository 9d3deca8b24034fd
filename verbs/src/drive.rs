//! Who drives the engine: one thread at a time, and none leaves before what others have posted meanwhile is sent.
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
//! Of the two swaps one is first. If it is the poster's, the holder's finds true. If it is the holder's, the lock was
//! released before, and the poster's second try finds it free, or held by a thread whose swap is yet to come.

use std::ops::{Deref, DerefMut};
use std::thread;

use roce::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::lock::{Lock, LockGuard};

/// What is driven.
pub(crate) trait Drive {
    /// Sends what was posted and not yet sent.
    fn send_posted(&mut self);
    /// The thread that held it has panicked, perhaps between two of its states.
    fn on_panic(&mut self);
}

/// The engine and the right to drive it.
pub(crate) struct DriveLock<T: Drive> {
    driven: Lock<T>,
    /// A thread that found the lock taken has posted work.
    asked: AtomicBool,
}

/// The lock, taken.
struct PoisonGuard<'a, T: Drive> {
    driven: LockGuard<'a, T>,
    /// A lock that a `Drop` takes and releases while its thread unwinds has nothing to do with the panic.
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

/// The right to drive, until it is dropped.
pub(crate) struct DriveGuard<'a, T: Drive> {
    // Dropped in this order: who answers has released the lock.
    poison_guard: PoisonGuard<'a, T>,
    _answer: Answer<'a, T>,
}

impl<T: Drive> DriveLock<T> {
    /// Nobody drives yet.
    pub(crate) fn new(driven: T) -> Self {
        DriveLock { driven: Lock::new(driven), asked: AtomicBool::new(false) }
    }

    #[inline]
    fn guard<'a>(&'a self, driven: LockGuard<'a, T>) -> DriveGuard<'a, T> {
        DriveGuard { poison_guard: PoisonGuard::new(driven), _answer: Answer(self) }
    }

    /// Waits until nobody else drives.
    pub(crate) fn lock(&self) -> DriveGuard<'_, T> {
        self.guard(self.driven.lock())
    }

    /// The right to drive, if nobody has it just now.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<DriveGuard<'_, T>> {
        self.driven.try_lock().map(|poison_guard| self.guard(poison_guard))
    }

    /// The right to drive for a thread that has posted. Who has it now, if anyone, will send what was posted.
    #[inline]
    pub(crate) fn try_lock_to_send(&self) -> Option<DriveGuard<'_, T>> {
        self.driven.try_lock().or_else(|| self.ask()).map(|poison_guard| self.guard(poison_guard))
    }

    #[cold]
    fn ask(&self) -> Option<LockGuard<'_, T>> {
        self.asked.swap(true, Ordering::AcqRel);
        self.driven.try_lock()
    }

    /// Sends for those who asked. It ends, because each round has taken work out of a send queue and none receives
    /// the acknowledgements that would make room in one.
    #[cold]
    fn answer(&self) {
        // A thread whose engine has panicked must not use it again.
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
        // A swap even where nobody has asked: a load alone may be done before the lock's release is seen by others.
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

/// What the application's threads let the background thread know.
#[derive(Default)]
pub(crate) struct Activity {
    polls: AtomicU64,
    handed_over: AtomicBool,
}

impl Activity {
    /// Polls by application threads so far: while it moves, the background thread sleeps.
    #[inline]
    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Counts a poll. Only for who drives: so the count needs no exchange between processors.
    #[inline]
    pub(crate) fn count_poll(&self) {
        self.polls.store(self.polls().wrapping_add(1), Ordering::Relaxed);
    }

    /// The application stops polling for now. The background thread must be woken after.
    pub(crate) fn hand_over(&self) {
        // A swap where a store would do: loom may order a store before an exchange that has not seen it.
        self.handed_over.swap(true, Ordering::AcqRel);
    }
}

/// The background thread's view of the application.
#[derive(Default)]
pub(crate) struct Watch {
    polls_seen: u64,
}

/// Whose turn it is to drive, as the background thread finds when it wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// The application's, which has polled since the last look.
    Application,
    /// The background thread's: nobody has polled since.
    Background,
    /// The background thread's, from this moment on.
    TakenOver,
}

impl Watch {
    /// Whose turn it is.
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
