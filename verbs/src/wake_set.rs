//! The wake sources of a port: descriptors that become readable when frames arrive.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_ffi::WakeKind;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::port::DpdkPort;

/// The wake sources of a port. The background thread sleeps on all of them through one descriptor, which a leader can
/// switch off without waking the background thread. A leader sleeps on the sources themselves.
pub(crate) struct WakeSet {
    kind: WakeKind,
    sources: Vec<OwnedFd>,
    epoll: OwnedFd,
    is_on: AtomicBool,
}

impl WakeSet {
    /// Returns the wake sources of `port`; `None` if a queue of the port has no wake source. Frames do not make the
    /// descriptor `epoll` readable until [`WakeSet::switch`] is called with true.
    pub(crate) fn new(port: &mut DpdkPort) -> io::Result<Option<Self>> {
        let Some(kind) = port.wake_kind() else { return Ok(None) };
        let mut sources = Vec::new();
        for queue in port.queues_mut() {
            let Some(fd) = queue.wake_fd() else { return Ok(None) };
            sources.push(fd.try_clone_to_owned()?);
        }
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        for (number, source) in sources.iter().enumerate() {
            epoll::add(&epoll, source, EventData::new_u64(number as u64), EventFlags::empty())?;
        }
        Ok(Some(WakeSet { kind, sources, epoll, is_on: AtomicBool::new(false) }))
    }

    pub(crate) fn kind(&self) -> WakeKind {
        self.kind
    }

    /// Returns the descriptor on which the background thread sleeps.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(crate) fn sources(&self) -> &[OwnedFd] {
        &self.sources
    }

    /// If `on` is true, frames make the descriptor `epoll` readable, on which the background thread sleeps. The caller
    /// has locked the engine.
    pub(crate) fn switch(&self, on: bool) {
        if self.is_on.load(Ordering::Relaxed) == on {
            return;
        }
        self.is_on.store(on, Ordering::Relaxed);
        let flags = if on { EventFlags::IN } else { EventFlags::empty() };
        for (number, source) in self.sources.iter().enumerate() {
            // Cannot fail: the source is in the epoll.
            let _ = epoll::modify(&self.epoll, source, EventData::new_u64(number as u64), flags);
        }
    }
}
