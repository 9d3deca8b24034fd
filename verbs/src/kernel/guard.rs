//! Keeping the kernel quiet about RoCE packets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, SockFilter, Socket, Type};

use super::{Interface, KernelError};

/// RoCE v2's UDP port.
pub(super) const ROCE_UDP_PORT: u16 = 4791;

/// The classic BPF program `ret #0`: of every packet keep no byte, which is to drop it.
const DROP_ALL: SockFilter = SockFilter::new(0x06, 0, 0, 0);

/// Owns UDP port 4791 on an interface, and throws away what arrives there.
///
/// A packet socket sees a copy of each frame and the kernel goes on with its own: finding no socket on
/// UDP port 4791, it would answer every RoCE packet with an ICMP port unreachable, a second packet per
/// packet that some peers take for the end of the connection. With this guard it finds a socket. The
/// socket's filter drops everything before it is queued, so the kernel's copy costs little and no
/// memory; the receive buffer is at the kernel's minimum all the same.
///
/// The guard holds while it lives, on all addresses of the interface, those added later included.
/// Several guards may share an interface, so that several processes can.
#[derive(Debug)]
pub struct PortGuard {
    _sockets: Vec<Socket>,
}

impl PortGuard {
    /// Takes UDP port 4791 of `interface`.
    pub fn hold(interface: &Interface) -> Result<Self, KernelError> {
        let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, ROCE_UDP_PORT));
        let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, ROCE_UDP_PORT));
        let mut sockets = vec![hold_one(interface, v4)?];
        match hold_one(interface, v6) {
            Ok(socket) => sockets.push(socket),
            // A kernel without IPv6 has nothing to refuse it with.
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
    // Every guard says so, hence guards can share the port among them and with nobody else.
    socket.set_reuse_address(true).map_err(&failed)?;
    // The filter and the buffer come before the address: nothing is ever queued.
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
