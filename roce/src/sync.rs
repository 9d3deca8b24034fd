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

#[cfg(loom)]
pub(crate) use loom::thread::yield_now;
#[cfg(not(loom))]
pub(crate) use std::thread::yield_now;

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
