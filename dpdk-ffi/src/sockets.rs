//! The kernel's sockets behind the ports of kernel interfaces, whose drivers tell nobody their sockets.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, RawFd};

/// Returns the sockets of this process whose address family is `domain` and that are bound to an interface.
fn sockets(domain: libc::c_int) -> Vec<RawFd> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let fds = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    fds.filter(|fd| is_bound(*fd, domain)).collect()
}

fn is_bound(fd: RawFd, domain: libc::c_int) -> bool {
    // SAFETY: plain numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: a place for the answer and its length; fails if `fd` is no socket.
    if unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut len) } != 0 {
        // AF_XDP sockets have no name that could be read.
        return domain == libc::AF_XDP && domain_of(fd) == Some(domain);
    }
    libc::c_int::from(address.sll_family) == domain && address.sll_ifindex != 0
}

fn domain_of(fd: RawFd) -> Option<libc::c_int> {
    let (mut domain, mut len) = (0_i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: a place for the answer and its length.
    let ret = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut len)
    };
    (ret == 0).then_some(domain)
}

/// Runs `make` and returns the sockets of family `domain` that it has bound, by which the drivers of kernel interfaces
/// are known: none tells its sockets.
pub(crate) fn new_sockets<T>(domain: libc::c_int, make: impl FnOnce() -> T) -> (T, Vec<RawFd>) {
    let before = sockets(domain);
    let made = make();
    let mut new = sockets(domain);
    new.retain(|fd| !before.contains(fd));
    (made, new)
}

/// Makes the packet socket `fd` pass the frames that it sends to the other packet sockets of its interface, and receive
/// the frames that these send, as far as its filter accepts them. Has no effect on another socket.
pub(crate) fn exchange_sent(fd: BorrowedFd<'_>) {
    // A frame that bypasses the queueing discipline is passed to no packet socket.
    for option in [libc::PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING] {
        // Linux before 4.20 refuses `PACKET_IGNORE_OUTGOING`, and does not need it.
        let _ = set(fd, libc::SOL_PACKET, option, &0_i32);
    }
}

/// Sets an option of the socket `fd`.
pub(crate) fn set<T>(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: a value and its size; the kernel copies the program behind a `sock_fprog` meanwhile.
    let ret =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) };
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Option of packet sockets: receive no frames that the interface sends (linux/if_packet.h).
pub(crate) const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
