//! DPDK's error numbers: errno's, and a few of its own.

use std::ffi::{CStr, c_int};
use std::fmt;

/// The error number that a DPDK function reported.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(c_int);

impl Errno {
    /// EINVAL, for errors found before DPDK is called.
    pub(crate) const INVALID: Self = Self(libc::EINVAL);

    /// Returns the calling thread's `rte_errno`.
    pub(crate) fn last() -> Self {
        // SAFETY: reads a thread-local variable.
        Self(unsafe { dpdk_sys::shim_errno() })
    }

    /// Returns the number of a system call's error.
    pub(crate) fn of(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EINVAL))
    }

    /// Converts a return value that is negative on error.
    pub(crate) fn check(ret: c_int) -> Result<c_int, Self> {
        if ret < 0 { Err(Self(-ret)) } else { Ok(ret) }
    }

    /// Returns the positive number, as in errno.h.
    pub fn raw(self) -> i32 {
        self.0
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: takes any number and returns a string that lives until this thread's next call.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(self.0)) };
        write!(f, "{} (error {})", text.to_string_lossy(), self.0)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
