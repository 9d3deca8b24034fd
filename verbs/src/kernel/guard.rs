//! The guard of UDP port 4791 of a shared port: sockets that prevent the kernel from answering RoCE packets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::UdpGroSegment;
use roce::wire::udp::ROCE_PORT;
use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::{Interface, KernelError};

/// The classic BPF program `ret #0`: truncates every UDP datagram to 0 bytes, which drops the UDP datagram.
const DROP_ALL: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// Sockets bound to UDP port 4791 of an interface, which drop all UDP datagrams that the kernel receives at this port.
///
/// The packet socket of a shared port receives a copy of each RoCE packet that its filter accepts, and the kernel
/// processes the packet too. Without a UDP socket on port 4791, the kernel would answer every RoCE packet with an ICMP
/// port unreachable, and some peers would then end the connection. The filter `DROP_ALL` of each UDP socket drops
/// the UDP datagrams before the kernel queues them, so the UDP datagrams use no memory.
///
/// The guard covers all addresses of the interface, including addresses added later. Several processes may each have a
/// guard on one interface.
#[derive(Debug)]
pub struct PortGuard {
    _sockets: Vec<Socket>,
}

impl PortGuard {
    /// Binds UDP port 4791 of `interface`, for IPv4 and IPv6. Fails with [`KernelError::PortTaken`] if a socket without
    /// SO_REUSEADDR is bound to this port; sockets of guards have SO_REUSEADDR.
    pub fn hold(interface: &Interface) -> Result<Self, KernelError> {
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, ROCE_PORT));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, ROCE_PORT));
        let mut sockets = vec![hold_one(interface, v4)?];
        match hold_one(interface, v6) {
            Ok(socket) => sockets.push(socket),
            // If the kernel has no IPv6, no IPv6 socket is needed, because the kernel answers no IPv6 packets.
            Err(KernelError::System { source, .. }) if source.raw_os_error() == Some(libc::EAFNOSUPPORT) => {}
            Err(error) => return Err(error),
        }
        Ok(PortGuard { _sockets: sockets })
    }
}

fn hold_one(interface: &Interface, address: SocketAddr) -> Result<Socket, KernelError> {
    let failed = KernelError::system("hold RoCE's UDP port against the kernel");
    let socket =
        Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP)).map_err(&failed)?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(&failed)?;
    }
    // With SO_REUSEADDR, several guards can bind UDP port 4791. A program that does not set this option cannot bind the
    // port.
    socket.set_reuse_address(true).map_err(&failed)?;
    // The filter is attached before the bind, otherwise UDP datagrams received between bind and attachment would be
    // queued.
    socket.attach_filter(&[DROP_ALL]).map_err(&failed)?;
    // A datagram of several packets (segmentation offload) is dropped as a whole only by a socket with UDP_GRO,
    // because for other sockets the kernel first divides the datagram. Linux before 5.0 has no UDP_GRO.
    let _ = setsockopt(&socket, UdpGroSegment, &true);
    socket.set_recv_buffer_size(1).map_err(&failed)?;
    socket.bind_device(Some(interface.name.as_bytes())).map_err(&failed)?;
    socket.bind(&address.into()).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            KernelError::PortTaken { interface: interface.name.clone(), port: ROCE_PORT }
        }
        _ => failed(error),
    })?;
    Ok(socket)
}
