//! The neighbour table and the routes of the kernel.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteFlags, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use roce::id::Mac;
use roce::neighbour::Resolution;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::interface::gateway_of;
use super::netlink::{Netlink, RTNLGRP_NEIGH, Scope};
use super::{Interface, KernelError};

/// UDP destination port of the UDP datagram that makes the kernel resolve a neighbour: discard (RFC 863).
const DISCARD_PORT: u16 = 9;

/// Largest number of netlink datagrams (notifications of the kernel) that one call of [`KernelNeighbours::due`] reads.
const CHANGES_PER_CALL: usize = 64;
/// Largest number of destinations that one call of [`KernelNeighbours::due`] returns.
const DUE_PER_CALL: usize = 32;
/// Interval at which each destination is resolved again, even if the kernel has notified no change.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

/// A destination IP address for which [`KernelNeighbours::resolve`] was called.
struct Followed {
    /// The next hop: the neighbour to which frames for the destination are sent.
    hop: IpAddr,
    /// Time of the last resolution; `None` if the next hop or its MAC may have changed since.
    resolved_at: Option<Instant>,
}

/// The kernel's routes and neighbours over an interface.
pub struct KernelNeighbours {
    netlink: Netlink,
    changes: Netlink,
    interface: String,
    index: u32,
    followed: BTreeMap<IpAddr, Followed>,
}

impl KernelNeighbours {
    /// Opens routing sockets for the neighbours on `interface`. Needs no privilege.
    pub fn open(interface: &Interface) -> Result<Self, KernelError> {
        Ok(KernelNeighbours {
            netlink: Netlink::open()?,
            changes: Netlink::subscribe(RTNLGRP_NEIGH)?,
            interface: interface.name.clone(),
            index: interface.index,
            followed: BTreeMap::new(),
        })
    }

    /// Sets the name of the interface, which may have been renamed.
    pub(crate) fn set_name(&mut self, interface: &str) {
        interface.clone_into(&mut self.interface);
    }

    /// Returns a file descriptor that is readable while [`KernelNeighbours::due`] has netlink notifications to read.
    pub(crate) fn changes_fd(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Returns the MAC of the next hop to `ip`, which is `ip` itself or a gateway. If the kernel has not resolved this
    /// MAC, returns `Pending`, and makes the kernel resolve the MAC. The caller calls `resolve` again when
    /// [`KernelNeighbours::due`] returns `ip`. If the kernel has no route to `ip` over the interface, returns
    /// `Unreachable`. From this call on until [`KernelNeighbours::forget`], `due` checks whether the next hop or its
    /// MAC changed.
    pub fn resolve(&mut self, ip: IpAddr) -> Result<Resolution, KernelError> {
        let hop = match self.next_hop(ip) {
            Err(KernelError::NoRoute { .. }) => {
                self.followed.insert(ip, Followed { hop: ip, resolved_at: Some(Instant::now()) });
                return Ok(Resolution::Unreachable);
            }
            other => other?,
        };
        self.followed.insert(ip, Followed { hop, resolved_at: Some(Instant::now()) });
        match self.lookup(hop)? {
            Some((NeighbourState::Incomplete, _)) => Ok(Resolution::Pending),
            Some((NeighbourState::Stale, Some(mac))) => {
                // The kernel verifies a stale entry only when the kernel sends a packet to the neighbour (RFC 4861
                // section 7.3.3), so `provoke` sends a UDP datagram. Meanwhile, the MAC is usable.
                self.provoke(ip)?;
                Ok(Resolution::Known(mac))
            }
            Some((state, Some(mac))) if state != NeighbourState::Failed => Ok(Resolution::Known(mac)),
            _ => {
                self.provoke(ip)?;
                Ok(Resolution::Pending)
            }
        }
    }

    /// Returns the next hop to `ip`: `ip` itself, or the gateway of the kernel's route.
    ///
    /// # Errors
    /// [`KernelError::NoRoute`] if the kernel has no route to `ip` over the interface.
    pub fn next_hop(&mut self, ip: IpAddr) -> Result<IpAddr, KernelError> {
        let no_route = || KernelError::NoRoute { interface: self.interface.clone(), destination: ip };
        let mut question = RouteMessage::default();
        let (family, prefix_bits, destination) = match ip {
            IpAddr::V4(ip) => (AddressFamily::Inet, 32, RouteAddress::Inet(ip)),
            IpAddr::V6(ip) => (AddressFamily::Inet6, 128, RouteAddress::Inet6(ip)),
        };
        question.header.address_family = family;
        question.header.destination_prefix_length = prefix_bits;
        // Requests the matching route of the routing table. Without `FibMatch`, the kernel would treat an IPv4 address
        // without a route as a neighbour on the interface.
        question.header.flags = RouteFlags::FibMatch;
        question
            .attributes
            .extend([RouteAttribute::Destination(destination), RouteAttribute::Oif(self.index)]);
        let question = RouteNetlinkMessage::GetRoute(question);
        let answers = match self.netlink.ask("ask the kernel for a route", question, Scope::One) {
            Err(KernelError::System { source, .. }) if is_no_route(&source) => return Err(no_route()),
            other => other?,
        };
        let route = answers.iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => route_by(route, self.index),
            _ => None,
        });
        route.map(|gateway| gateway.unwrap_or(ip)).ok_or_else(no_route)
    }

    /// Returns at most `DUE_PER_CALL` destinations that the caller must resolve again: the next hop or its MAC may have
    /// changed, or the last resolution is older than `RECHECK_INTERVAL`.
    pub fn due(&mut self) -> Result<Vec<IpAddr>, KernelError> {
        match self.changes.changes(CHANGES_PER_CALL)? {
            None => self.followed.values_mut().for_each(|followed| followed.resolved_at = None),
            Some(changes) => changes.iter().for_each(|change| self.on_change(change)),
        }
        let is_due = |followed: &Followed| {
            followed.resolved_at.is_none_or(|resolved_at| resolved_at.elapsed() >= RECHECK_INTERVAL)
        };
        let due = self.followed.iter().filter(|(_, followed)| is_due(followed));
        Ok(due.map(|(&ip, _)| ip).take(DUE_PER_CALL).collect())
    }

    fn on_change(&mut self, change: &RouteNetlinkMessage) {
        let hop = match change {
            RouteNetlinkMessage::NewNeighbour(entry) | RouteNetlinkMessage::DelNeighbour(entry) => {
                if entry.header.ifindex != self.index {
                    return;
                }
                neighbour_of(entry)
            }
            // A route or an address of the kernel changed, so the next hop of every destination may have changed.
            _ => None,
        };
        for followed in
            self.followed.values_mut().filter(|followed| hop.is_none_or(|hop| hop == followed.hop))
        {
            followed.resolved_at = None;
        }
    }

    /// Removes the destination `ip`. [`KernelNeighbours::due`] does not return `ip` until the next `resolve` of `ip`.
    pub fn forget(&mut self, ip: IpAddr) {
        self.followed.remove(&ip);
    }

    fn lookup(&mut self, ip: IpAddr) -> Result<Option<(NeighbourState, Option<Mac>)>, KernelError> {
        let mut question = NeighbourMessage::default();
        question.header.ifindex = self.index;
        question.header.family = if ip.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        question.attributes.push(NeighbourAttribute::Destination(match ip {
            IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
            IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
        }));
        let question = RouteNetlinkMessage::GetNeighbour(question);
        let answers = match self.netlink.ask("read the kernel's neighbours", question, Scope::One) {
            Err(KernelError::System { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(None);
            }
            other => other?,
        };
        Ok(answers.into_iter().find_map(|answer| match answer {
            RouteNetlinkMessage::NewNeighbour(entry) => Some((entry.header.state, mac_of(&entry))),
            _ => None,
        }))
    }

    /// Sends an empty UDP datagram to `ip`, so that the kernel resolves the next hop to `ip`.
    fn provoke(&self, ip: IpAddr) -> Result<(), KernelError> {
        let failed = KernelError::system("make the kernel look for a neighbour");
        let (domain, target): (Domain, SockAddr) = match ip {
            IpAddr::V4(ip) => (Domain::IPV4, SocketAddr::from((ip, DISCARD_PORT)).into()),
            IpAddr::V6(ip) => (Domain::IPV6, SocketAddrV6::new(ip, DISCARD_PORT, 0, self.index).into()),
        };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
        socket.bind_device(Some(self.interface.as_bytes())).map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        match socket.send_to(&[], &target) {
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                // Errors with a transient cause are ignored: a tentative address, a full send buffer of `socket`, a
                // change of a route, or an interface that is down.
                io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::AddrNotAvailable
                | io::ErrorKind::NetworkDown
                | io::ErrorKind::WouldBlock => Ok(()),
                _ => Err(failed(error)),
            },
        }
    }
}

/// Returns whether `error` means that the kernel has no route, or has a route that refuses packets.
fn is_no_route(error: &io::Error) -> bool {
    let codes = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL, libc::ENETDOWN];
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

/// Returns the gateway of `route`, or `Some(None)` if `route` has no gateway; `None` if `route` is no unicast route
/// over the interface `index`.
fn route_by(route: &RouteMessage, index: u32) -> Option<Option<IpAddr>> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let hops = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    if let Some(hops) = hops {
        let hop = hops.iter().find(|hop| hop.interface_index == index)?;
        return Some(gateway_of(&hop.attributes));
    }
    let is_ours = route.attributes.contains(&RouteAttribute::Oif(index));
    is_ours.then(|| gateway_of(&route.attributes))
}

fn neighbour_of(entry: &NeighbourMessage) -> Option<IpAddr> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })
}

fn mac_of(entry: &NeighbourMessage) -> Option<Mac> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    })
}
