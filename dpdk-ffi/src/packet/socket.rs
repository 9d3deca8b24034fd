//! The packet socket of a port.

use std::ffi::CStr;
use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use super::ring::{Map, RING};
use crate::sockets::{PACKET_IGNORE_OUTGOING, set};

/// Bytes of frames that the kernel has not sent yet, at most: a queue of the interface may hold many datagrams.
const SEND_BUFFER_BYTES: libc::c_int = 4 << 20;
const ETH_P_ALL: u16 = libc::ETH_P_ALL as u16;

/// A packet socket bound to an interface, and its receive ring. Receives no frames that the interface sends, until
/// [`crate::EthQueue::exchange_sent`].
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    /// Frames that found no room in the receive ring. The kernel's counter is set to 0 whenever it is read.
    missed: AtomicU64,
}

impl Socket {
    /// Opens a socket on `interface` that receives only frames which the classic BPF program `filter` accepts. If
    /// `bypasses_qdisc`, frames that the socket sends bypass the queueing discipline of the interface. Returns the socket
    /// and its ring.
    ///
    /// # Errors
    /// The error of a system call: EPERM without CAP_NET_RAW, ENODEV without such an interface, ENOMEM without memory
    /// for the ring.
    pub(crate) fn open(
        interface: &CStr,
        filter: &[libc::sock_filter],
        bypasses_qdisc: bool,
    ) -> io::Result<(Self, Map)> {
        // Protocol 0: receives nothing until the socket is bound.
        // SAFETY: plain numbers.
        let raw = check(unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) })?;
        // SAFETY: just created, with no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        let program = libc::sock_fprog {
            len: u16::try_from(filter.len()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?,
            filter: filter.as_ptr().cast_mut(),
        };
        let packet = libc::SOL_PACKET;
        set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        set(fd.as_fd(), packet, libc::PACKET_VERSION, &(libc::tpacket_versions::TPACKET_V2 as libc::c_int))?;
        set(fd.as_fd(), packet, libc::PACKET_VNET_HDR, &1_i32)?;
        set(fd.as_fd(), packet, libc::PACKET_RX_RING, &RING)?;
        // Linux before 4.20 has no such option; there `filter` must drop the frames that the interface sends.
        let _ = set(fd.as_fd(), packet, PACKET_IGNORE_OUTGOING, &1_i32);
        if bypasses_qdisc {
            set(fd.as_fd(), packet, libc::PACKET_QDISC_BYPASS, &1_i32)?;
        }
        // The first needs CAP_NET_ADMIN; the second is limited by net.core.wmem_max.
        set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &SEND_BUFFER_BYTES)
            .or_else(|_| set(fd.as_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, &SEND_BUFFER_BYTES))?;
        let map = Map::new(fd.as_fd())?;
        bind(&fd, interface)?;
        Ok((Self { fd, missed: AtomicU64::new(0) }, map))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Makes frames that the socket sends from now on go through the queueing discipline of the interface.
    pub(super) fn use_qdisc(&self) {
        // The kernel refuses this option for no socket of this kind.
        let _ = set(self.fd(), libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &0_i32);
    }

    /// Returns the number of frames that found no room in the receive ring.
    pub(crate) fn missed(&self) -> u64 {
        // SAFETY: plain numbers.
        let mut stats: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&stats) as libc::socklen_t;
        let place = (&raw mut stats).cast();
        // SAFETY: a place for the answer and its length. If the call fails, the statistics stay 0.
        unsafe {
            libc::getsockopt(
                self.fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                place,
                &raw mut len,
            );
        }
        let new = u64::from(stats.tp_drops);
        self.missed.fetch_add(new, Ordering::Relaxed) + new
    }

    /// Sets the number of [`Socket::missed`] to 0.
    pub(crate) fn reset_missed(&self) {
        self.missed();
        self.missed.store(0, Ordering::Relaxed);
    }
}

fn bind(fd: &OwnedFd, interface: &CStr) -> io::Result<()> {
    // SAFETY: a C string, only read.
    let index = unsafe { libc::if_nametoindex(interface.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: plain numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ETH_P_ALL.to_be();
    address.sll_ifindex = index as libc::c_int;
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: an address and its length.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) }).map(drop)
}

fn check(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}
