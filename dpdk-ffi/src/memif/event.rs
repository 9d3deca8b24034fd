//! The barriers by which a producer and a consumer that sleeps agree whether the producer wakes the consumer.
//!
//! ```text
//!   consumer                                  producer
//!   clears MASK_INT in the ring's flags       stores its index
//!   heavy barrier                             light barrier
//!   reads the index once more                 reads the flags; if MASK_INT is clear, writes the eventfd
//! ```
//!
//! Between the two accesses of each side a barrier is needed, otherwise both could read the old value of the other, and
//! the consumer would sleep beside a frame. The consumer's barrier is made for all processors at once (membarrier, Linux
//! 4.16), because a barrier in each burst of the producer would wait for the writes of the burst. A peer of another
//! implementation may have no barrier; its store then becomes visible a few nanoseconds late, and the consumer's poll
//! after arming takes longer than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

use crate::eventfd::Event;

/// Commands of membarrier (linux/membarrier.h).
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Whether producers of this process need a barrier of their own, because membarrier is refused.
static FENCES: AtomicBool = AtomicBool::new(false);

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

/// Makes this process one whose threads the heavy barriers of its peers reach. Called before the first connection.
pub(super) fn register() {
    FENCES.store(!membarrier(REGISTER_GLOBAL_EXPEDITED), Ordering::Relaxed);
}

/// Orders a producer's index before its read of the flags.
#[inline]
fn light_barrier() {
    compiler_fence(Ordering::SeqCst);
    if FENCES.load(Ordering::Relaxed) {
        fence(Ordering::SeqCst);
    }
}

/// Orders the flags before the consumer's next read of the index, on both sides of the ring. False if the system has no
/// such barrier; the consumer must then not sleep.
pub(super) fn heavy_barrier() -> bool {
    membarrier(GLOBAL_EXPEDITED)
}

/// Wakes the consumer of a ring, if the consumer has not masked the interrupt; returns whether it did. `is_masked` reads
/// the ring's flags.
#[inline]
pub(super) fn notify(event: Option<&Arc<Event>>, is_masked: impl FnOnce() -> bool) -> bool {
    light_barrier();
    let Some(event) = event.filter(|_| !is_masked()) else { return false };
    event.raise();
    true
}
