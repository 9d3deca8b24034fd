//! How a receive queue wakes a thread that sleeps until frames arrive.

use std::fmt;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;

use crate::port_id::PortId;

/// Kind of the descriptor by which a port wakes a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeKind {
    /// A receive interrupt of the driver.
    RxInterrupt,
    /// The eventfd of a memif ring.
    Eventfd,
    /// The kernel's socket behind the port.
    Socket,
}

impl fmt::Display for WakeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WakeKind::RxInterrupt => "rx interrupt",
            WakeKind::Eventfd => "eventfd",
            WakeKind::Socket => "socket",
        })
    }
}

/// The wake source of a queue whose descriptor is constant while the port is open.
#[derive(Debug)]
pub(super) struct WakeSource {
    pub(super) kind: WakeKind,
    /// A duplicate, so that the descriptor stays valid whatever the driver does.
    fd: OwnedFd,
    /// Whether a read is needed until the descriptor is unreadable again: it is an eventfd.
    counts: bool,
}

impl WakeSource {
    fn new(kind: WakeKind, fd: RawFd) -> Option<Self> {
        // SAFETY: plain numbers. The driver keeps the descriptor open; if it did not, the call would fail.
        let duplicate = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        if duplicate < 0 {
            return None;
        }
        // SAFETY: a new descriptor, which has no other owner.
        let fd = unsafe { std::os::fd::FromRawFd::from_raw_fd(duplicate) };
        let link = fs::read_link(format!("/proc/self/fd/{duplicate}")).ok();
        let counts = link.is_some_and(|link| link == Path::new("anon_inode:[eventfd]"));
        Some(Self { kind, fd, counts })
    }

    /// The receive interrupt of queue `number` of a started port, if it has one.
    pub(super) fn interrupt(port: PortId, number: u16) -> Option<Self> {
        // SAFETY: the port exists; DPDK checks the queue.
        let fd = unsafe { dpdk_sys::rte_eth_dev_rx_intr_ctl_q_get_fd(port, number) };
        (fd >= 0).then(|| Self::new(WakeKind::RxInterrupt, fd)).flatten()
    }

    /// The kernel's socket `fd` behind a queue.
    pub(super) fn socket(fd: RawFd) -> Option<Self> {
        Self::new(WakeKind::Socket, fd)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes the descriptor readable at the next frame. False if the driver refuses.
    pub(super) fn arm(&self, port: PortId, number: u16) -> bool {
        use std::os::fd::AsRawFd;
        match self.kind {
            WakeKind::RxInterrupt => {
                if self.counts {
                    let mut count = [0_u8; 8];
                    let buffer = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
                    // SAFETY: one buffer of eight bytes, which outlives the call.
                    unsafe { libc::preadv2(self.fd.as_raw_fd(), &raw const buffer, 1, -1, RWF_NOWAIT) };
                } else {
                    // The completion channel of mlx5 stays readable until this call takes its event.
                    self.disarm(port, number);
                }
                // SAFETY: the port exists and is started.
                let ret = unsafe { dpdk_sys::rte_eth_dev_rx_intr_enable(port, number) };
                // net_tap has the descriptor of its device file, which is readable while a frame waits.
                ret == 0 || (ret == -libc::ENOTSUP && !self.counts)
            }
            // Readable while a frame waits. An error of the socket, such as the interface going down, would make it
            // readable for ever, and is cleared.
            WakeKind::Socket | WakeKind::Eventfd => {
                let (mut error, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
                // SAFETY: a place for the answer and its length.
                unsafe {
                    libc::getsockopt(
                        self.fd.as_raw_fd(),
                        libc::SOL_SOCKET,
                        libc::SO_ERROR,
                        (&raw mut error).cast(),
                        &raw mut len,
                    )
                };
                true
            }
        }
    }

    pub(super) fn disarm(&self, port: PortId, number: u16) {
        if self.kind == WakeKind::RxInterrupt {
            // A driver that cannot disable the interrupt raises it once more than needed.
            // SAFETY: the port exists and is started.
            unsafe { dpdk_sys::rte_eth_dev_rx_intr_disable(port, number) };
        }
    }
}

/// The wake source of a queue.
#[derive(Debug)]
pub(super) enum Wake {
    /// Known when the queue is made.
    Constant(Option<WakeSource>),
    /// The driver's interrupt, which exists while the port is started.
    Interrupt(Option<WakeSource>),
}

impl Wake {
    /// Returns the source, if there is one.
    pub(super) fn source(&self) -> Option<&WakeSource> {
        match self {
            Wake::Constant(source) | Wake::Interrupt(source) => source.as_ref(),
        }
    }

    /// Follows the start or stop of the port, whose driver makes and closes the descriptors of its interrupts.
    pub(super) fn set_started(&mut self, started: bool, port: PortId, number: u16) {
        if let Wake::Interrupt(source) = self {
            *source = if started { WakeSource::interrupt(port, number) } else { None };
        }
    }
}

/// Flag of preadv2: returns EAGAIN instead of blocking.
const RWF_NOWAIT: libc::c_int = 8;
