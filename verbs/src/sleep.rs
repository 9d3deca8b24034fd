//! The handshake between the thread that sleeps until the port or a timer wakes it, and the threads that use the engine
//! meanwhile. The sleeping thread is the server of the port: the leader (a thread in `CompChannel::wait`) or, if no
//! thread is the leader, the background thread.
//!
//! ```text
//!   server                                      poster
//!   locks the engine                            rings a doorbell
//!   announces its sleep: until = for ever       light barrier
//!   heavy barrier                               reads `until`; if a server sleeps: locks the engine, sends,
//!   polls: drains the doorbells                   and at the release of the lock, if the engine's next
//!   until = the engine's next deadline            deadline is before `until`: rings the server's bell
//!   releases the lock, sleeps
//! ```
//!
//! In both threads, the barrier orders the write of one variable before the read of the other. Otherwise the server
//! could miss the doorbell while the poster misses the announced sleep, and the work request would wait until the sleep
//! ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use roce::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use roce::time::Instant;
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::inbox::Semaphore;

/// Longest delay, in nanoseconds, of the background thread after a deadline of the engine, if application threads have
/// used the engine. If no delay were permitted, nearly every post of an application that sleeps between messages would
/// wake the background thread, although a thread of this application soon calls `CompChannel::wait`, becomes the leader
/// and meets the deadline.
pub(crate) const LATE_NANOS: u64 = 1_000_000;
/// Length of the shortest nap. While the engine has a deadline, also the length of each nap on a port that cannot be
/// armed.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(50);
/// Length of the longest nap, except for naps of the background thread on an armed port (`NAP_STALLED_MAX`).
pub(crate) const NAP_MAX: Duration = Duration::from_millis(1);

/// Value of `Sleep::until` while the server of the port does not sleep.
const AWAKE: u64 = 0;

#[cfg(not(loom))]
mod barrier {
    use std::sync::atomic::{Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, membarrier};

    pub(super) fn register() -> bool {
        membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    }

    #[inline]
    pub(super) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        // Cannot fail after `register` has registered this process for membarrier(2).
        let _ = membarrier(MembarrierCommand::PrivateExpedited);
    }
}

#[cfg(loom)]
mod barrier {
    use roce::sync::atomic::{Ordering, fence};

    pub(super) fn register() -> bool {
        true
    }

    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

/// The state of the leader and of the background thread of a device, and the bells that wake these two threads.
pub(crate) struct Sleep<B = OwnedFd> {
    /// Time at which the sleeping server of the port wakes by itself, in nanoseconds of the engine's clock; `AWAKE`
    /// while no server of the port sleeps. Written with the engine locked.
    until: AtomicU64,
    /// Time at which the background thread wakes by itself. When the leader returns from
    /// `CompChannel::wait`, the leader copies this time to `until`, the time at which the sleeping server of the port
    /// wakes.
    background_until: AtomicU64,
    /// Whether a thread in `CompChannel::wait` is the server of the port.
    led: AtomicBool,
    /// Whether application threads that poll have taken over the port. Meanwhile the background thread naps, and checks
    /// after each nap whether these threads still poll.
    watching: AtomicBool,
    background_bell: B,
    leader_bell: B,
    /// Whether the kernel supports `membarrier`. Without the barriers, the sleeping leader or background thread could
    /// miss the doorbell of a posted work request, so neither thread sleeps longer than a nap.
    has_barriers: bool,
}

impl Sleep {
    pub(crate) fn with_fds() -> io::Result<Self> {
        let bell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Sleep::new(bell()?, bell()?))
    }

    /// Returns the descriptor that is readable after the bell of the background thread was rung.
    pub(crate) fn background_bell(&self) -> BorrowedFd<'_> {
        self.background_bell.as_fd()
    }

    /// Returns the descriptor that is readable after the bell of the leader was rung.
    pub(crate) fn leader_bell(&self) -> BorrowedFd<'_> {
        self.leader_bell.as_fd()
    }
}

impl<B: Semaphore> Sleep<B> {
    pub(crate) fn new(background_bell: B, leader_bell: B) -> Self {
        Sleep {
            until: AtomicU64::new(AWAKE),
            background_until: AtomicU64::new(AWAKE),
            led: AtomicBool::new(false),
            watching: AtomicBool::new(false),
            background_bell,
            leader_bell,
            has_barriers: barrier::register(),
        }
    }

    pub(crate) fn has_barriers(&self) -> bool {
        self.has_barriers
    }

    /// Returns whether the server of the port sleeps. If so, the server may have missed a work request that was posted
    /// before this call.
    #[inline]
    pub(crate) fn is_server_asleep(&self) -> bool {
        barrier::light();
        self.until.load(Ordering::Relaxed) != AWAKE
    }

    /// Announces, with the engine locked, that the server of the port will sleep: the caller or, if the caller is a
    /// leader that leaves `CompChannel::wait`, the background thread. After this call, the caller polls the engine, and
    /// calls `sleep_until`, `wake_up` or `end_lead`.
    pub(crate) fn announce(&self) {
        self.until.store(u64::MAX, Ordering::Relaxed);
        barrier::heavy();
    }

    /// Sets, with the engine locked, the time at which the caller, the server of the port, wakes by itself.
    pub(crate) fn sleep_until(&self, at: Instant) {
        self.until.store(at.as_nanos().max(AWAKE + 1), Ordering::Relaxed);
    }

    /// Records, with the engine locked, that no server of the port sleeps.
    pub(crate) fn wake_up(&self) {
        self.until.store(AWAKE, Ordering::Relaxed);
    }

    /// Returns whether the server of the port sleeps. Called with the engine locked, before each release of the lock.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.until.load(Ordering::Relaxed) != AWAKE
    }

    /// Wakes the sleeping server of the port if the server would otherwise miss `next_deadline` (leader), or miss
    /// `next_deadline` by more than `LATE_NANOS` (background thread). Called with the engine locked.
    #[cold]
    pub(crate) fn ring_if_due(&self, next_deadline: Option<Instant>) {
        let late_nanos = if self.is_led() { 0 } else { LATE_NANOS };
        let until = self.until.load(Ordering::Relaxed);
        if next_deadline.is_some_and(|at| at.as_nanos().saturating_add(late_nanos) < until) {
            // `wake_up` sets `until`, the time at which the sleeping server wakes by itself, to `AWAKE`, so that later
            // calls do not ring the bell again.
            self.wake_up();
            if self.is_led() { self.leader_bell.add() } else { self.background_bell.add() }
        }
    }

    /// Makes the calling thread the leader, unless another thread is the leader.
    pub(crate) fn try_lead(&self) -> bool {
        !self.led.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn is_led(&self) -> bool {
        self.led.load(Ordering::Acquire)
    }

    /// Ends the role of the calling leader, which has locked the engine. From now on the background thread is the
    /// server of the port. The background thread may be asleep, and may have missed the doorbell of a posted work
    /// request. Therefore the caller has called [`Sleep::announce`] and then polled the engine, or the caller wakes the
    /// background thread after `end_lead`.
    pub(crate) fn end_lead(&self) {
        self.until.store(self.background_until.load(Ordering::Relaxed), Ordering::Relaxed);
        self.led.store(false, Ordering::Release);
    }

    /// Records, with the engine locked, the time `at` at which the background thread wakes by itself; `None`: the
    /// background thread is awake.
    pub(crate) fn set_background_until(&self, at: Option<Instant>) {
        let at = at.map_or(AWAKE, |at| at.as_nanos().max(AWAKE + 1));
        self.background_until.store(at, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    pub(crate) fn set_watching(&self, watching: bool) {
        self.watching.store(watching, Ordering::Relaxed);
    }

    /// If application threads have taken over the port, wakes the background thread, because the calling thread will
    /// stop polling.
    pub(crate) fn end_watch(&self) {
        if self.watching.load(Ordering::Relaxed) && self.watching.swap(false, Ordering::Relaxed) {
            self.background_bell.add();
        }
    }

    pub(crate) fn wake_background(&self) {
        self.background_bell.add();
    }

    pub(crate) fn clear_background_bell(&self) {
        self.background_bell.take();
    }

    pub(crate) fn clear_leader_bell(&self) {
        self.leader_bell.take();
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 })
}
