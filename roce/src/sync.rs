//! Types shared between threads: the standard library's, or loom's replacements, which explore the orders in which
//! threads may see each other's accesses (`--cfg loom`, docs/TESTING.md).

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{Mutex, MutexGuard, atomic},
};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// [`std::cell::UnsafeCell`] with loom's interface, in which each access is a closure.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Passes the pointer to `read`, which must not write.
    #[inline(always)]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Passes the pointer to `write`, which must have exclusive access.
    #[inline(always)]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
