//! The spin lock of send, receive and completion queues and of the engine. A thread holds the lock for a short time.

use std::cell::Cell;
use std::thread;
use std::time::Duration;

use dpdk_ffi::NoCancel;

/// A spin lock. One atomic read-modify-write instruction locks, a plain store unlocks. A system mutex needs a second
/// read-modify-write instruction to unlock, and each such instruction waits until the processor's store buffer is
/// empty. A thread that fails to lock calls [`relax`] and retries. A thread that has the lock sleeps only in control
/// operations, such as the creation of a queue pair.
#[cfg(not(loom))]
pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, Relax>;

/// Calls [`relax`] while a thread waits for a [`Lock`].
#[cfg(not(loom))]
pub(crate) struct Relax;

#[cfg(not(loom))]
impl spin::RelaxStrategy for Relax {
    #[inline]
    fn relax() {
        relax();
    }
}

/// Every `CALLS_PER_SLEEP`th call of [`relax`] by a thread sleeps.
const CALLS_PER_SLEEP: u32 = 1024;
/// Length of the sleep in [`relax`] and [`spin`].
const SLEEP: Duration = Duration::from_micros(100);

thread_local! {
    /// Number of calls of [`relax`] since the last sleep.
    static CALLS: Cell<u32> = const { Cell::new(0) };
}

/// Lets other threads run before the caller tries again to lock. Every `CALLS_PER_SLEEP`th call sleeps, the other calls
/// yield the processor. A yield by a thread of the scheduling policy SCHED_FIFO lets no thread of lower priority run.
/// Without the sleeps, a thread of lower priority that has the lock would therefore never release it. Returns whether
/// the call slept.
#[cold]
// If the function were inlined in a shared library, each call of `lock` would first call a function that returns the
// address of `CALLS`.
#[inline(never)]
pub(crate) fn relax() -> bool {
    let calls = CALLS.get() + 1;
    let sleeps = calls == CALLS_PER_SLEEP;
    CALLS.set(if sleeps { 0 } else { calls });
    if sleeps {
        sleep();
    } else {
        thread::yield_now()
    }
    sleeps
}

/// If a thread calls [`spin`] this number of times with the same argument `progress`, the last of these calls sleeps.
/// Sleeps must be rare: if the thread that has the lock runs on another processor, a sleep of the caller is of no use.
const SPINS_PER_SLEEP: u32 = 1 << 16;

thread_local! {
    /// Argument of the last call of [`spin`], and the number of calls with this argument.
    static SPINS: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Called after a failure to lock a [`Lock`] that will soon be free: most calls return at once, without a yield of the
/// processor. `progress`: a number that changes if an application thread takes the lock and polls between two calls.
/// Every `SPINS_PER_SLEEP`th call with the same `progress` sleeps, for the reason given for [`relax`]. Returns whether
/// the call slept.
#[cold]
pub(crate) fn spin(progress: u64) -> bool {
    let (seen, calls) = SPINS.get();
    let calls = if seen == progress { calls + 1 } else { 1 };
    let sleeps = calls == SPINS_PER_SLEEP;
    SPINS.set((progress, if sleeps { 0 } else { calls }));
    if sleeps {
        sleep();
    }
    sleeps
}

/// Sleeps. No cancellation point, because the thread may have other locks.
fn sleep() {
    let _no_cancel = NoCancel::new();
    thread::sleep(SLEEP);
}

#[cfg(not(loom))]
pub(crate) type LockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

#[cfg(loom)]
pub(crate) use double::{Lock, LockGuard};

/// The lock under loom, with the memory ordering of the spin lock: locked with Acquire, unlocked by a store with
/// Release.
#[cfg(loom)]
mod double {
    use std::ops::{Deref, DerefMut};

    use roce::sync::atomic::{AtomicBool, Ordering};
    use roce::sync::{Mutex, MutexGuard};

    pub(crate) struct Lock<T> {
        held: AtomicBool,
        /// The protected value. The mutex is never contended, because a thread locks the mutex only after the thread
        /// has set `held`, that is, after the thread has taken the spin lock.
        value: Mutex<T>,
    }

    pub(crate) struct LockGuard<'a, T> {
        // `value` is dropped before `_held`; otherwise the next thread that sets `Lock::held` would find the mutex
        // `Lock::value` locked.
        value: MutexGuard<'a, T>,
        _held: LockedFlag<'a>,
    }

    struct LockedFlag<'a>(&'a AtomicBool);

    impl Drop for LockedFlag<'_> {
        fn drop(&mut self) {
            self.0.store(false, Ordering::Release);
        }
    }

    impl<T> Lock<T> {
        pub(crate) fn new(value: T) -> Self {
            Lock { held: AtomicBool::new(false), value: Mutex::new(value) }
        }

        pub(crate) fn lock(&self) -> LockGuard<'_, T> {
            loop {
                match self.try_lock() {
                    Some(guard) => return guard,
                    None => loom::thread::yield_now(),
                }
            }
        }

        pub(crate) fn try_lock(&self) -> Option<LockGuard<'_, T>> {
            let taken = self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
            taken.ok().map(|_| LockGuard { value: self.value.lock().unwrap(), _held: LockedFlag(&self.held) })
        }

        pub(crate) fn is_locked(&self) -> bool {
            self.held.load(Ordering::Relaxed)
        }
    }

    impl<T> Deref for LockGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            &self.value
        }
    }

    impl<T> DerefMut for LockGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.value
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_for_a_lock_sleeps_at_intervals() {
        let slept: Vec<bool> = (0..2 * CALLS_PER_SLEEP).map(|_| relax()).collect();
        assert_eq!(slept.iter().filter(|slept| **slept).count(), 2);
        assert!(slept[CALLS_PER_SLEEP as usize - 1], "and yields before");
    }

    #[test]
    fn a_thread_that_spins_sleeps_only_without_progress() {
        let sleeps = |progress: u64| (0..SPINS_PER_SLEEP - 1).filter(|_| spin(progress)).count();
        assert_eq!((sleeps(1), sleeps(2)), (0, 0));
        assert!(spin(2));
        assert_eq!(sleeps(2), 0);
    }
}
