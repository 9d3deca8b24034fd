//! Event file descriptors of rings, by which a producer wakes a consumer that sleeps.
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

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

/// Commands of membarrier (linux/membarrier.h).
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;
/// Flag of preadv2: returns EAGAIN instead of blocking, also if the peer has made the descriptor blocking.
const RWF_NOWAIT: libc::c_int = 8;

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

fn own(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: a new descriptor, which has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn epoll_ctl(epoll: &OwnedFd, operation: libc::c_int, fd: RawFd) -> bool {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: descriptors, and an event that is copied.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) == 0 }
}

/// The eventfd of a ring, which the peer has too.
#[derive(Debug)]
pub(super) struct Event {
    fd: OwnedFd,
}

impl Event {
    /// A duplicate of `fd`. `None` if `fd` is no eventfd, because a read or write of another file could block.
    pub(super) fn new(fd: RawFd) -> Option<Arc<Self>> {
        let link = fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        if link != Path::new("anon_inode:[eventfd]") {
            return None;
        }
        // SAFETY: plain numbers.
        let fd = own(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
        // SAFETY: plain numbers.
        let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
        (ret == 0).then(|| Arc::new(Event { fd }))
    }

    /// Makes the eventfd readable.
    #[cold]
    pub(super) fn raise(&self) {
        let one = 1_u64.to_ne_bytes();
        // An error is ignored: if the count is at its limit, the eventfd is readable.
        // SAFETY: eight bytes.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the eventfd unreadable until it is raised.
    pub(super) fn clear(&self) {
        let mut count = [0_u8; 8];
        let buffer = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // SAFETY: one buffer of eight bytes, which outlives the call.
        unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const buffer, 1, -1, RWF_NOWAIT) };
    }
}

/// Wakes the consumer of a ring. `is_masked` reads the ring's flags.
#[inline]
pub(super) fn notify(event: Option<&Arc<Event>>, is_masked: impl FnOnce() -> bool) {
    light_barrier();
    if !is_masked()
        && let Some(event) = event
    {
        event.raise();
    }
}

/// A descriptor that is readable when a queue may have frames to receive, or its connection has begun or ended:
/// readable while one of the eventfds in it is.
#[derive(Debug)]
pub(super) struct Wake {
    epoll: OwnedFd,
    /// Raised when the connection begins or ends.
    link: OwnedFd,
}

impl Wake {
    /// `None` if the process has no descriptor left.
    pub(super) fn new() -> Option<Arc<Self>> {
        // SAFETY: plain numbers.
        let (epoll, link) = unsafe {
            let link = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (own(libc::epoll_create1(libc::EPOLL_CLOEXEC))?, own(link)?)
        };
        epoll_ctl(&epoll, libc::EPOLL_CTL_ADD, link.as_raw_fd()).then(|| Arc::new(Self { epoll, link }))
    }

    /// Returns the descriptor.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.epoll)
    }

    /// Reports that the connection has begun or ended.
    pub(super) fn on_link_change(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes.
        unsafe { libc::write(self.link.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Forgets earlier reports of the connection's begin or end.
    pub(super) fn clear_link_change(&self) {
        let mut count = [0_u8; 8];
        // SAFETY: eight bytes; the descriptor does not block and is this process's alone.
        unsafe { libc::read(self.link.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

/// The eventfd of a ring that this process receives from, in the [`Wake`] of its queue until it is dropped.
#[derive(Debug)]
pub(super) struct Watched {
    event: Arc<Event>,
    wake: Arc<Wake>,
}

impl Watched {
    pub(super) fn new(event: Arc<Event>, wake: Arc<Wake>) -> Option<Self> {
        let added = epoll_ctl(&wake.epoll, libc::EPOLL_CTL_ADD, event.fd.as_raw_fd());
        added.then(|| Self { event, wake })
    }

    pub(super) fn clear(&self) {
        self.event.clear();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A close does not suffice: the file stays in the epoll while the peer has it open.
        epoll_ctl(&self.wake.epoll, libc::EPOLL_CTL_DEL, self.event.fd.as_raw_fd());
    }
}
