//! Addresses of a device and of this host.

use std::net::{IpAddr, UdpSocket};
use std::time::Duration;

use verbs::port::PortKind;
use verbs::{Context, Gid, PortSpec};

use super::gid::Reach;

/// Time limit for the resolution of a neighbour, during which other connections wait. The kernel sends its
/// second request a second after the first.
const RESOLVE_TIMEOUT: Duration = Duration::from_millis(1500);

/// The addresses in reach of an open port.
pub(crate) struct DeviceReach<'a> {
    context: &'a Context,
    own: Vec<Gid>,
    kind: PortKind,
}

impl<'a> DeviceReach<'a> {
    pub(crate) fn new(context: &'a Context, port: &PortSpec) -> Self {
        let own = context.attr().gids.into_iter().map(|(_, gid)| gid).collect();
        DeviceReach { context, own, kind: port.kind }
    }
}

impl Reach for DeviceReach<'_> {
    fn has_kernel_addresses(&self) -> bool {
        // An XDP port has the kernel's addresses, but its program also receives the frames of TCP, so TCP uses another
        // interface.
        self.kind == PortKind::AfPacket
    }

    fn is_own(&self, gid: Gid) -> bool {
        self.own.contains(&gid)
    }

    fn is_on_link(&self, gid: Gid) -> bool {
        self.context.is_on_link(gid)
    }

    fn is_of_this_host(&self, ip: IpAddr) -> bool {
        // Only an address of this host can be bound to.
        ip.is_loopback() || UdpSocket::bind((ip, 0)).is_ok()
    }

    fn is_same_station(&self, a: Gid, b: Gid) -> bool {
        let mac = |gid| self.context.resolve(gid, 0, RESOLVE_TIMEOUT).ok();
        mac(a).is_some_and(|found| mac(b) == Some(found))
    }
}
