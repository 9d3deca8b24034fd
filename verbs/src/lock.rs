//! A spin lock, for state that a thread locks for a short time only.

/// A spin lock, taken by one locked instruction and released by a plain store. A system mutex needs two locked
/// instructions, and each waits until earlier writes to a port are visible to other processors. A thread that does
/// not get the lock yields and retries. A holder sleeps in control operations only.
#[cfg(not(loom))]
pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, spin::Yield>;

/// The guard of a [`Lock`].
#[cfg(not(loom))]
pub(crate) type LockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;

#[cfg(loom)]
pub(crate) use double::{Lock, LockGuard};

/// A model of the lock with loom's atomics: taken with Acquire, released by a store with Release.
#[cfg(loom)]
mod double {
    use std::ops::{Deref, DerefMut};

    use roce::sync::atomic::{AtomicBool, Ordering};
    use roce::sync::{Mutex, MutexGuard};

    pub(crate) struct Lock<T> {
        held: AtomicBool,
        /// Never contended, because only the thread that set `held` locks it.
        value: Mutex<T>,
    }

    pub(crate) struct LockGuard<'a, T> {
        // Dropped in this order, otherwise the next holder would find `value` locked.
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
