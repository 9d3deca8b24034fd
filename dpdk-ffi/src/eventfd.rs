//! Eventfds by which a peer wakes a thread of this process.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;

/// Flag of preadv2: returns EAGAIN instead of blocking, also if the peer has made the descriptor blocking.
const RWF_NOWAIT: libc::c_int = 8;

/// Takes over a new descriptor; `None` if `fd` is the negative result of a call that failed.
pub(crate) fn own(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: a new descriptor, which has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn epoll_ctl(epoll: &OwnedFd, operation: libc::c_int, fd: RawFd) -> bool {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: descriptors, and an event that is copied.
    unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, fd, &raw mut event) == 0 }
}

/// Returns whether `fd` is an eventfd.
pub(crate) fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link == Path::new("anon_inode:[eventfd]"))
}

/// Makes the eventfd `fd` unreadable until it is raised. Returns whether it was readable.
pub(crate) fn clear(fd: BorrowedFd<'_>) -> bool {
    let mut count = [0_u8; 8];
    let buffer = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
    // SAFETY: one buffer of eight bytes, which outlives the call.
    unsafe { libc::preadv2(fd.as_raw_fd(), &raw const buffer, 1, -1, RWF_NOWAIT) > 0 }
}

/// The eventfd of a ring, which the peer has too.
#[derive(Debug)]
pub(crate) struct Event {
    fd: OwnedFd,
}

impl Event {
    /// A duplicate of `fd`. `None` if `fd` is no eventfd, because a read or write of another file could block.
    pub(crate) fn duplicate(fd: RawFd) -> Option<Arc<Self>> {
        // SAFETY: plain numbers.
        own(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) }).and_then(Self::new)
    }

    /// `None` if `fd` is no eventfd.
    pub(crate) fn new(fd: OwnedFd) -> Option<Arc<Self>> {
        if !is_eventfd(fd.as_fd()) {
            return None;
        }
        // SAFETY: plain numbers.
        let ret = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_RDWR | libc::O_NONBLOCK) };
        (ret == 0).then(|| Arc::new(Event { fd }))
    }

    /// Makes the eventfd readable.
    #[cold]
    pub(crate) fn raise(&self) {
        let one = 1_u64.to_ne_bytes();
        // An error is ignored: if the count is at its limit, the eventfd is readable.
        // SAFETY: eight bytes.
        unsafe { libc::write(self.fd.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes the eventfd unreadable until it is raised.
    pub(crate) fn clear(&self) {
        clear(self.fd.as_fd());
    }
}

/// A descriptor that is readable when a queue may have frames to receive, or its connection has begun or ended:
/// readable while one of the eventfds in it is.
#[derive(Debug)]
pub(crate) struct RingWake {
    epoll: OwnedFd,
    /// Raised when the connection begins or ends.
    link: OwnedFd,
}

impl RingWake {
    /// `None` if the process has no descriptor left.
    pub(crate) fn new() -> Option<Arc<Self>> {
        // SAFETY: plain numbers.
        let (epoll, link) = unsafe {
            let link = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            (own(libc::epoll_create1(libc::EPOLL_CLOEXEC))?, own(link)?)
        };
        epoll_ctl(&epoll, libc::EPOLL_CTL_ADD, link.as_raw_fd()).then(|| Arc::new(Self { epoll, link }))
    }

    /// Returns the descriptor.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Reports that the connection has begun or ended.
    pub(crate) fn on_link_change(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes.
        unsafe { libc::write(self.link.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Forgets earlier reports of the connection's begin or end. Returns whether there was one.
    pub(crate) fn clear_link_change(&self) -> bool {
        clear(self.link.as_fd())
    }

    /// Returns the eventfd that [`RingWake::on_link_change`] raises, for others that report changes.
    pub(crate) fn link(&self) -> BorrowedFd<'_> {
        self.link.as_fd()
    }
}

/// The eventfd of a ring that this process receives from, in the [`RingWake`] of its queue until it is dropped.
#[derive(Debug)]
pub(crate) struct Watched {
    event: Arc<Event>,
    wake: Arc<RingWake>,
}

impl Watched {
    pub(crate) fn new(event: Arc<Event>, wake: Arc<RingWake>) -> Option<Self> {
        let added = epoll_ctl(&wake.epoll, libc::EPOLL_CTL_ADD, event.fd.as_raw_fd());
        added.then(|| Self { event, wake })
    }

    pub(crate) fn clear(&self) {
        self.event.clear();
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // A close does not suffice: the file stays in the epoll while the peer has it open.
        epoll_ctl(&self.wake.epoll, libc::EPOLL_CTL_DEL, self.event.fd.as_raw_fd());
    }
}
