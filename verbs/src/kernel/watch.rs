//! Changes of a network interface while its port is open.

use std::os::fd::BorrowedFd;

use netlink_packet_route::RouteNetlinkMessage;

use super::netlink::{Netlink, RTNLGRP_LINK};
use super::{Interface, KernelError};

/// Largest number of netlink datagrams (notifications of the kernel) that one call of [`InterfaceWatch::poll`] reads.
const DATAGRAMS_PER_CALL: usize = 64;

/// Change of an interface since the previous call of [`InterfaceWatch::poll`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InterfaceChange {
    /// The interface has another configuration now.
    Changed(Interface),
    /// The interface was removed, or moved to another network namespace. The name is the last name of the interface.
    Removed(String),
}

/// A network interface, its last known configuration, and a socket that receives the kernel's notifications.
pub struct InterfaceWatch {
    notifications: Netlink,
    interface: Interface,
    /// Whether the configuration may have changed since it was read.
    is_stale: bool,
}

impl InterfaceWatch {
    /// Subscribes to changes of the interface `name`, and then reads its configuration. Needs no privilege.
    pub fn open(name: &str) -> Result<Self, KernelError> {
        let notifications = Netlink::subscribe(RTNLGRP_LINK)?;
        Ok(InterfaceWatch { notifications, interface: Interface::read(name)?, is_stale: false })
    }

    /// Returns a file descriptor that is readable while [`InterfaceWatch::poll`] has a notification to process.
    pub(crate) fn notifications(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }

    /// Returns the configuration that [`InterfaceWatch::open`] or, later, [`InterfaceWatch::poll`] last read.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the change since the previous call; `None` if the configuration is the same. Does not wait. If the read
    /// of the configuration fails, the next call reads the configuration again.
    pub fn poll(&mut self) -> Result<Option<InterfaceChange>, KernelError> {
        match self.notifications.changes(DATAGRAMS_PER_CALL)? {
            Some(notifications) => {
                notifications.iter().for_each(|notification| self.on_notification(notification))
            }
            // The kernel dropped notifications, or a notification could not be parsed.
            None => self.is_stale = true,
        }
        if !self.is_stale {
            return Ok(None);
        }
        let change = match self.interface.read_again() {
            Ok(now) => {
                let changed = (now != self.interface).then(|| InterfaceChange::Changed(now.clone()));
                self.interface = now;
                changed
            }
            Err(KernelError::NoInterface(name)) => Some(InterfaceChange::Removed(name)),
            Err(error) => return Err(error),
        };
        self.is_stale = false;
        Ok(change)
    }

    /// Sets `is_stale`, so that [`InterfaceWatch::poll`] reads the configuration again, if the notification is about
    /// the link or an address of this interface, or about a default route over any interface. Other routes are
    /// ignored, because [`Interface`] contains the gateways of default routes only.
    fn on_notification(&mut self, notification: &RouteNetlinkMessage) {
        self.is_stale |= match notification {
            RouteNetlinkMessage::NewLink(link) | RouteNetlinkMessage::DelLink(link) => {
                link.header.index == self.interface.index
            }
            RouteNetlinkMessage::NewAddress(address) | RouteNetlinkMessage::DelAddress(address) => {
                address.header.index == self.interface.index
            }
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
                route.header.destination_prefix_length == 0
            }
            _ => false,
        };
    }
}
