//! The kernel's neighbour table.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use roce::id::Mac;
use roce::neighbour::Resolution;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::netlink::{Netlink, Scope};
use super::{Interface, KernelError};

/// Where the datagram goes that makes the kernel look for a neighbour (RFC 863).
const DISCARD_PORT: u16 = 9;

/// The kernel's neighbours on one interface.
pub struct KernelNeighbours {
    netlink: Netlink,
    interface: String,
    index: u32,
}

impl KernelNeighbours {
    /// Neighbours on `interface`. Needs no privilege.
    pub fn open(interface: &Interface) -> Result<Self, KernelError> {
        Ok(KernelNeighbours {
            netlink: Netlink::open()?,
            interface: interface.name.clone(),
            index: interface.index,
        })
    }

    /// What the kernel knows of its neighbour `ip`. Where it knows nothing, it is made to ask, by an
    /// empty datagram to the neighbour's discard port: call again after some milliseconds.
    /// Unreachable is an address that the kernel has no route to over the interface.
    pub fn resolve(&mut self, ip: IpAddr) -> Result<Resolution, KernelError> {
        match self.lookup(ip)? {
            Some((NeighbourState::Incomplete, _)) => Ok(Resolution::Pending),
            Some((state, Some(mac))) if state != NeighbourState::Failed => Ok(Resolution::Known(mac)),
            _ => self.provoke(ip),
        }
    }

    /// The state of the entry of `ip` and its Ethernet address, where there is one.
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

    /// Sends something to `ip`, so that the kernel has to find out where it is.
    fn provoke(&self, ip: IpAddr) -> Result<Resolution, KernelError> {
        let failed = KernelError::system("make the kernel look for a neighbour");
        let (domain, target): (Domain, SockAddr) = match ip {
            IpAddr::V4(ip) => (Domain::IPV4, SocketAddr::from((ip, DISCARD_PORT)).into()),
            IpAddr::V6(ip) => (Domain::IPV6, SocketAddrV6::new(ip, DISCARD_PORT, 0, self.index).into()),
        };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
        socket.bind_device(Some(self.interface.as_bytes())).map_err(&failed)?;
        socket.set_nonblocking(true).map_err(&failed)?;
        match socket.send_to(&[], &target) {
            Ok(_) => Ok(Resolution::Pending),
            Err(error) => match error.kind() {
                io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::AddrNotAvailable
                | io::ErrorKind::NetworkDown => Ok(Resolution::Unreachable),
                io::ErrorKind::WouldBlock => Ok(Resolution::Pending),
                _ => Err(failed(error)),
            },
        }
    }
}

fn mac_of(entry: &NeighbourMessage) -> Option<Mac> {
    entry.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::LinkLayerAddress(bytes) => bytes.as_slice().try_into().ok().map(Mac),
        _ => None,
    })
}
