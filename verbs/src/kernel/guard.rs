//! The guard that keeps the kernel from refusing RoCE packets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::{Interface, KernelError};

/// RoCE v2's UDP port.
pub(super) const ROCE_UDP_PORT: u16 = 4791;

/// The classic BPF program `ret #0`: truncates every packet to 0 bytes, which drops it.
const DROP_ALL: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// Binds UDP port 4791 on an interface, and drops what the kernel receives there.
///
/// A packet socket receives a copy of each frame, while the kernel processes its own. Without a socket on UDP
/// port 4791 the kernel would answer every RoCE packet with an ICMP port unreachable, which some peers take
/// for the end of the connection. The guard's socket prevents that. Its filter drops everything before it is
/// queued, so the kernel's copy takes no memory; the receive buffer is the kernel's minimum all the same.
///
/// The guard covers all addresses of the interface, including those added later, until dropped. Several
/// processes may each have a guard on one interface.
#[derive(Debug)]
pub struct PortGuard {
    _sockets: Vec<Socket>,
}

impl PortGuard {
    /// Binds UDP port 4791 of `interface`. [`KernelError::PortTaken`] if a socket that is no guard has it.
    pub fn hold(interface: &Interface) -> Result<Self, KernelError> {
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, ROCE_UDP_PORT));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, ROCE_UDP_PORT));
        let mut sockets = vec![hold_one(interface, v4)?];
        match hold_one(interface, v6) {
            Ok(socket) => sockets.push(socket),
            // Because a kernel without IPv6 does not refuse IPv6 packets either.
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
    // Because every guard sets this, guards can share the port; a socket that does not is refused.
    socket.set_reuse_address(true).map_err(&failed)?;
    // Set before the address, otherwise packets could be queued in between.
    socket.attach_filter(&[DROP_ALL]).map_err(&failed)?;
    socket.set_recv_buffer_size(1).map_err(&failed)?;
    socket.bind_device(Some(interface.name.as_bytes())).map_err(&failed)?;
    socket.bind(&address.into()).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            KernelError::PortTaken { interface: interface.name.clone(), port: ROCE_UDP_PORT }
        }
        _ => failed(error),
    })?;
    Ok(socket)
}
