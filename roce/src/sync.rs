//! What threads share: the standard library's types, or loom's doubles, which explore the orders in which threads
//! may see each other's accesses (`--cfg loom`, docs/TESTING.md).

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::{Mutex, MutexGuard, atomic},
};
#[cfg(not(loom))]
pub use std::sync::{Mutex, MutexGuard, atomic};

/// [`std::cell::UnsafeCell`] with the interface of loom's, whose accesses begin and end.
#[cfg(not(loom))]
#[derive(Debug)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Hands the pointer to `read`, which may only read.
    #[inline(always)]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Hands the pointer to `write`, which has the value to itself.
    #[inline(always)]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}
