//! How a receive queue wakes a thread that sleeps until frames arrive.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use super::vhost::VhostWake;
use crate::eventfd::{clear, is_eventfd, own};
use crate::port_id::PortId;

/// Kind of the descriptor by which a port wakes a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeKind {
    /// A receive interrupt of the driver.
    RxInterrupt,
    /// The eventfd of a memif ring or of a vhost queue.
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
    kind: WakeKind,
    /// A duplicate, so that the descriptor stays valid whatever the driver does.
    fd: OwnedFd,
    /// Whether a read is needed until the descriptor is unreadable again: it is an eventfd.
    counts: bool,
}

impl WakeSource {
    fn new(kind: WakeKind, fd: RawFd) -> Option<Self> {
        // SAFETY: plain numbers. The driver keeps the descriptor open; if it did not, the call would fail.
        let fd = own(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })?;
        let counts = is_eventfd(fd.as_fd());
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

    fn arm(&self, port: PortId, number: u16) -> bool {
        match self.kind {
            WakeKind::RxInterrupt => {
                if self.counts {
                    clear(self.fd.as_fd());
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

    fn disarm(&self, port: PortId, number: u16) {
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
    /// The kicks of a vhost queue's peer.
    Kick(VhostWake),
}

impl Wake {
    fn source(&self) -> Option<&WakeSource> {
        match self {
            Wake::Constant(source) | Wake::Interrupt(source) => source.as_ref(),
            Wake::Kick(_) => None,
        }
    }

    /// Returns the kind of the source, if there is one.
    pub(super) fn kind(&self) -> Option<WakeKind> {
        match self {
            Wake::Kick(_) => Some(WakeKind::Eventfd),
            _ => self.source().map(|source| source.kind),
        }
    }

    /// Returns the descriptor of the source, if there is one.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Wake::Kick(kick) => Some(kick.fd()),
            _ => self.source().map(|source| source.fd.as_fd()),
        }
    }

    /// Makes the descriptor readable at the next frame. False if there is no source, or the driver refuses.
    pub(super) fn arm(&mut self, port: PortId, number: u16) -> bool {
        match self {
            Wake::Kick(kick) => kick.arm(),
            _ => self.source().is_some_and(|source| source.arm(port, number)),
        }
    }

    pub(super) fn disarm(&mut self, port: PortId, number: u16) {
        match self {
            Wake::Kick(kick) => kick.disarm(),
            _ => self.source().iter().for_each(|source| source.disarm(port, number)),
        }
    }

    /// Follows the start or stop of the port, whose driver makes and closes the descriptors of its interrupts.
    pub(super) fn set_started(&mut self, started: bool, port: PortId, number: u16) {
        if let Wake::Interrupt(source) = self {
            *source = if started { WakeSource::interrupt(port, number) } else { None };
        }
    }
}
