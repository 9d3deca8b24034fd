//! Types for state shared between threads: types of the standard library, or with `--cfg loom` types of the model
//! checker loom. loom executes a test in each order in which threads may observe each other's memory accesses
//! (docs/TESTING.md).

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{Mutex, MutexGuard, atomic},
};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// Lets other threads run while the caller waits for one of them. `calls`: number of earlier calls in this wait. Every
/// 1024th call sleeps for 100 us. Otherwise, under the scheduling policy SCHED_FIFO, the waiting thread would never let
/// a thread of lower priority run. Returns whether the call slept.
#[cfg(not(loom))]
pub(crate) fn relax(calls: u32) -> bool {
    let sleeps = calls % 1024 == 1023;
    if sleeps {
        std::thread::sleep(std::time::Duration::from_micros(100));
    } else {
        std::thread::yield_now();
    }
    sleeps
}

/// Yields to another thread of the test, and never sleeps.
#[cfg(loom)]
pub(crate) fn relax(_calls: u32) -> bool {
    loom::thread::yield_now();
    false
}

/// [`std::cell::UnsafeCell`] with the interface of loom's `UnsafeCell`: a closure receives the pointer to the value.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Calls `read` with the pointer to the value. `read` must not write through this pointer.
    #[inline(always)]
    pub(crate) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Calls `write` with the pointer to the value. The caller must have exclusive access to the cell.
    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::relax;

    #[test]
    fn a_thread_that_waits_sleeps_at_intervals() {
        assert_eq!((0..2048).filter(|calls| relax(*calls)).collect::<Vec<_>>(), [1023, 2047]);
    }
}
