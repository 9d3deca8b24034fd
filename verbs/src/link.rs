//! The link of a port while the port is open. On a port of a network interface of the kernel, also the addresses, the
//! gateways and the MTU of this interface.

use std::os::fd::BorrowedFd;

use crate::device::Shared;
use crate::kernel::{InterfaceChange, InterfaceWatch};

/// The last known state of a port's link. The background thread calls [`LinkWatch::follow`] at intervals.
pub(crate) struct LinkWatch {
    is_up: bool,
    /// The interface of the kernel on which the port is; `None` on other ports, and after the interface was removed.
    interface: Option<InterfaceWatch>,
}

impl LinkWatch {
    pub(crate) fn new(shared: &Shared, interface: Option<InterfaceWatch>) -> Self {
        LinkWatch { is_up: shared.control().is_up(), interface }
    }

    /// Returns a file descriptor that is readable while the kernel has notified a change that `follow` has not
    /// processed; `None` if the port is not on a network interface of the kernel.
    pub(crate) fn notifications(&self) -> Option<BorrowedFd<'_>> {
        self.interface.as_ref().map(InterfaceWatch::notifications)
    }

    /// If link, addresses, gateways or MTU have changed since the previous call of `follow`, updates the device, and
    /// delivers asynchronous events of the device for a new link state or new GIDs. If the interface was removed,
    /// puts the device in a fatal error.
    pub(crate) fn follow(&mut self, shared: &Shared) {
        if let Some(interface) = &mut self.interface {
            match interface.poll() {
                Ok(None) => {}
                Ok(Some(InterfaceChange::Changed(now))) => shared.set_interface(&now),
                Ok(Some(InterfaceChange::Removed(name))) => {
                    self.interface = None;
                    return shared.interface_removed(&name);
                }
                Err(error) => tracing::warn!(%error, "cannot follow the network interface"),
            }
        }
        let is_up = shared.control().is_up();
        if is_up != self.is_up {
            self.is_up = is_up;
            shared.link_changed(is_up);
        }
    }
}
