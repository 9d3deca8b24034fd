//! Sets the time slice that the kernel's scheduler gives to the background thread.
#![allow(unsafe_code)]

use std::mem::zeroed;
use std::time::Duration;

/// Time slice of the background thread: the shortest that the kernel permits.
const SLICE: Duration = Duration::from_micros(100);

/// If the calling thread has the default scheduling policy, gives this thread the time slice [`SLICE`]. When a thread
/// with this slice wakes up, the thread displaces a thread with the default slice (3 ms) from the processor at once.
/// Otherwise a program that polls its memory for a WRITE of the peer would keep the processor until the end of the
/// program's slice, and the background thread could not receive this WRITE meanwhile. Linux before 6.12 ignores the
/// time slice that `sched_setattr` sets.
pub(crate) fn shorten() {
    // SAFETY: zeros are a value of each field.
    let mut attr: libc::sched_attr = unsafe { zeroed() };
    let len = size_of::<libc::sched_attr>() as u32;
    // SAFETY: `attr` has room for `len` bytes; 0 is the calling thread.
    let read = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, len, 0) };
    if read != 0 || attr.sched_policy != libc::SCHED_OTHER.cast_unsigned() {
        return;
    }
    attr.sched_runtime = SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads `attr.size` bytes, which it has set above to at most `len`. A failure changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
}
