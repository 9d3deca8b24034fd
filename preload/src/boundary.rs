//! The boundary between C and Rust: panics, errors and values of errno.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use libc::c_int;
use verbs::{CreateError, DestroyError, Error, OpenError, PostError, UnusableMemory};

/// A value of errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::QueueFull { .. } => Errno(libc::ENOMEM),
            _ => INVALID,
        }
    }
}

impl From<Error> for Errno {
    /// Returns the error of the kernel's verbs for the same cause.
    fn from(error: Error) -> Self {
        let errno = match &error {
            Error::Create(CreateError::TooMany { .. }) => libc::ENOMEM,
            Error::Destroy(DestroyError::Busy(_)) => libc::EBUSY,
            Error::Post(error) => return (*error).into(),
            Error::Unreachable { .. } | Error::LinkDown { .. } => libc::ETIMEDOUT,
            Error::Kernel(_) => libc::ENETUNREACH,
            Error::DeviceFatal { .. } => libc::EIO,
            Error::Forked { .. } => libc::EPERM,
            Error::TooFewDescriptors(_) => libc::EMFILE,
            Error::UnusableMemory(UnusableMemory::NotMapped { .. }) => libc::EFAULT,
            Error::UnusableMemory(_) => libc::EACCES,
            Error::System { error, .. } => error.raw_os_error().unwrap_or(libc::EIO),
            _ => libc::EINVAL,
        };
        Errno(errno)
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Self {
        Errno(error.raw_os_error())
    }
}

impl From<OpenError> for Errno {
    fn from(_: OpenError) -> Self {
        Errno(libc::ENODEV)
    }
}

/// Writes one line to standard error: on a failed call, because a program that receives only an errno cannot name the
/// cause, or on a device.
pub(crate) fn explain(call: &str, error: impl std::fmt::Display) {
    eprintln!("roce: {call}: {error}");
}

/// Sets `errno`.
pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the address is that of the calling thread's errno.
    unsafe { *libc::__errno_location() = errno.0 };
}

fn caught<T>(call: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    // The state behind the call is not used after a panic: a panic of the engine puts the device in a fatal error.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or(Err(Errno(libc::EIO)))
}

/// Runs a verb that returns 0, or a value of errno.
pub(crate) fn status(call: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match caught(call) {
        Ok(()) => 0,
        Err(errno) => {
            set_errno(errno);
            errno.0
        }
    }
}

/// Runs a verb that returns a number, or -1 with errno set.
pub(crate) fn number(call: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    caught(call).unwrap_or_else(|errno| {
        set_errno(errno);
        -1
    })
}

/// Runs a verb that returns a new object, or null with errno set.
pub(crate) fn object<T>(call: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    caught(call).unwrap_or_else(|errno| {
        set_errno(errno);
        ptr::null_mut()
    })
}
