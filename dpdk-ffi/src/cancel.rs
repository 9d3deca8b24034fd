//! Cancellation of threads (`pthread_cancel`).
//!
//! Many functions of the C library are cancellation points: `write`, `sendto`, `nanosleep`, `pthread_join`. A thread that
//! acts on a cancellation request there unwinds its call stack. Stack frames of Rust functions must not be unwound in
//! this way, and a lock that the thread has would stay locked.

use std::ffi::c_int;
use std::marker::PhantomData;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old_state: *mut c_int) -> c_int;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

/// While the value exists, the calling thread acts on no cancellation request. A request stays pending until the
/// thread's next cancellation point after the drop.
#[derive(Debug)]
pub struct NoCancel {
    old_state: c_int,
    /// Not `Send`, because the state belongs to this thread.
    _not_send: PhantomData<*const ()>,
}

impl NoCancel {
    /// Disables the cancellation of the calling thread. Takes a few ns: no system call.
    #[inline]
    #[expect(clippy::new_without_default, reason = "a guard")]
    pub fn new() -> Self {
        let mut old_state = 0;
        // SAFETY: a place for the old state.
        unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old_state) };
        Self { old_state, _not_send: PhantomData }
    }
}

impl Drop for NoCancel {
    #[inline]
    fn drop(&mut self) {
        let mut ignored = 0;
        // SAFETY: a state that this thread had, and a place for the present one.
        unsafe { pthread_setcancelstate(self.old_state, &raw mut ignored) };
    }
}
