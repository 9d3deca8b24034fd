//! Signals and cancellation in the calls that wait for events. With rdma-core these calls are a `read` of a descriptor of
//! the kernel: a signal handler without SA_RESTART ends the call with EINTR, and the call is a cancellation point.

use std::mem::zeroed;
use std::ptr;
use std::time::Duration;

use libc::c_int;

/// Longest wait between two cancellation points.
pub(crate) const WAIT: Duration = Duration::from_secs(1);

/// Result of a part of a wait after which the call tests for a cancellation, and then waits again.
pub(crate) const AGAIN: c_int = c_int::MIN;

const SIGNAL_MAX: c_int = 64;
/// Signals of faulting instructions, which do not occur in a sleep.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP];

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// Runs `wait` until it returns another value than `AGAIN`. A thread that is cancelled acts on the request here, so that
/// its stack is unwound through this function and its caller, which therefore own nothing that is to be dropped.
#[inline]
pub(crate) fn cancellable(wait: impl Fn() -> c_int + Copy) -> c_int {
    loop {
        // SAFETY: the frames that would be unwound own nothing; those of the program are C's.
        unsafe { pthread_testcancel() };
        let result = wait();
        if result != AGAIN {
            return result;
        }
    }
}

/// Returns whether a wait that a signal handler interrupted ends. The handler is not known, because `poll` reports EINTR
/// for all of them: the wait ends if any handler that may have run in this thread lacks SA_RESTART.
pub(crate) fn ends_wait() -> bool {
    // SAFETY: the mask and the action are places for what the calls write, for which zeros are a value.
    unsafe {
        let mut blocked: libc::sigset_t = zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut blocked);
        (1..=SIGNAL_MAX).any(|signal| {
            let mut action: libc::sigaction = zeroed();
            !FAULTS.contains(&signal)
                && libc::sigismember(&raw const blocked, signal) == 0
                && libc::sigaction(signal, ptr::null(), &raw mut action) == 0
                && ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction)
                && action.sa_flags & libc::SA_RESTART == 0
        })
    }
}
