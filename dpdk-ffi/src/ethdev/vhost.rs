//! The wake source of a vhost queue: the eventfd by which the peer notifies that it has filled buffers (kick).
//!
//! The peer passes a new eventfd with each connection. Begin and end of connections make the source readable too; when the
//! queue is armed the next time, it watches the eventfd of the new connection.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::sync::Arc;

use crate::eventfd::{Event, RingWake, Watched, own};
use crate::port_id::PortId;
use crate::process;

/// The driver of vhost ports.
pub(super) const VHOST: &str = "net_vhost";

#[derive(Debug)]
pub(super) struct VhostWake {
    port: PortId,
    number: u16,
    wake: Arc<RingWake>,
    /// The eventfd of the present connection; `None` if the queue has not been armed since the connection began.
    kick: Option<Watched>,
}

impl VhostWake {
    /// The source of queue `number` of a vhost port. `None` if DPDK is linked as shared libraries.
    ///
    /// # Errors
    /// Those of the system calls that make descriptors.
    pub(super) fn new(port: PortId, number: u16) -> io::Result<Option<Self>> {
        if !dpdk_sys::STATIC {
            return Ok(None);
        }
        let wake = RingWake::new().ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the port exists. The driver's thread writes to the eventfd until the drop.
        let ret = unsafe { dpdk_sys::shim_vhost_watch(port, wake.link().as_raw_fd()) };
        if ret < 0 {
            return Err(io::Error::from_raw_os_error(-ret));
        }
        Ok(Some(Self { port, number, wake, kick: None }))
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.wake.fd()
    }

    /// Makes the descriptor readable at the next kick, or when a connection begins or ends. False if the connection's
    /// eventfd cannot be watched.
    pub(super) fn arm(&mut self) -> bool {
        if self.wake.clear_link_change() {
            self.kick = None;
        }
        if let Some(kick) = &self.kick {
            // SAFETY: the port exists, and this thread, which has the queue as `&mut`, is in no burst.
            unsafe { dpdk_sys::shim_vhost_notify(self.port, self.number, true, ptr::null_mut()) };
            kick.clear();
            return true;
        }
        let mut fd = -1;
        // SAFETY: as above; a place for the descriptor.
        let is_connected = unsafe { dpdk_sys::shim_vhost_notify(self.port, self.number, true, &raw mut fd) };
        let event = own(fd).and_then(Event::new);
        self.kick = event.and_then(|event| Watched::new(event, self.wake.clone()));
        self.kick.as_ref().inspect(|kick| kick.clear());
        self.kick.is_some() || !is_connected
    }

    pub(super) fn disarm(&mut self) {
        // SAFETY: as in `arm`.
        unsafe { dpdk_sys::shim_vhost_notify(self.port, self.number, false, ptr::null_mut()) };
    }
}

impl Drop for VhostWake {
    fn drop(&mut self) {
        if process::owns_eal() {
            // SAFETY: the port exists, because the queue that owns `self` also owns the port.
            unsafe { dpdk_sys::shim_vhost_unwatch(self.port, self.wake.link().as_raw_fd()) };
        }
    }
}
