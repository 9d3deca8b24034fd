//! The lock of everything that is held for a moment only.

/// Taken by one locked instruction and released by none: a system mutex takes two, and each waits until
/// what was written to a port before has reached the other processor. Who finds it taken tries again and
/// gives way to other threads; nobody sleeps while holding it but on the control plane.
pub(crate) type Lock<T> = spin::mutex::SpinMutex<T, spin::Yield>;

/// What holds a [`Lock`].
pub(crate) type LockGuard<'a, T> = spin::mutex::SpinMutexGuard<'a, T>;
