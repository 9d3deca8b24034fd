//! Objects of C with their part in Rust behind them: boxes whose address is the cookie of the object.

use std::mem::MaybeUninit;
use std::ptr;

/// Memory for a new object. The address is known before the object exists, because the object's cookie is needed to
/// create it.
pub(crate) struct Place<T>(Box<MaybeUninit<T>>);

impl<T> Place<T> {
    pub(crate) fn new() -> Self {
        Place(Box::new_uninit())
    }

    /// Returns the cookie of the object: the address of its handle.
    pub(crate) fn cookie(&self) -> u64 {
        self.0.as_ptr().expose_provenance() as u64
    }

    /// Returns the object, which the caller drops as a box.
    pub(crate) fn fill(self, handle: T) -> *mut T {
        Box::into_raw(Box::write(self.0, handle))
    }
}

/// Returns the object whose cookie is `cookie`.
///
/// # Safety
/// The cookie is that of an event of an object of type `T`, which is not destroyed.
pub(crate) unsafe fn of_cookie<'a, T>(cookie: u64) -> &'a T {
    // SAFETY: as the caller states.
    unsafe { &*ptr::with_exposed_provenance(cookie as usize) }
}
