//! Errors of network interfaces of the kernel, and their remedies.

use std::io;
use std::net::IpAddr;

use crate::limits::TooFewDescriptors;

/// Reason why a network interface of the kernel cannot be used as a port, or why a destination cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No interface has this name in the calling thread's network namespace.
    #[error(
        "there is no interface `{0}` here; `ip link` lists those that are (each network namespace has its own)"
    )]
    NoInterface(String),
    /// The interface is not an Ethernet interface.
    #[error(
        "interface `{0}` is not Ethernet, and RoCE needs Ethernet frames; choose another (`ip -d link` tells)"
    )]
    NotEthernet(String),
    /// The interface is administratively down.
    #[error("interface `{0}` is down; bring it up with `ip link set {0} up`")]
    Down(String),
    /// The kernel has no route to the destination over this interface.
    #[error(
        "the kernel has no route to {destination} by `{interface}` (`ip route get {destination} oif {interface}` \
         shows what it would do); give the interface an address in the peer's subnet, or add a route: \
         `ip route add {destination} via GATEWAY dev {interface}`"
    )]
    NoRoute {
        /// Name of the interface.
        interface: String,
        /// Address of the destination.
        destination: IpAddr,
    },
    /// Another program, or soft-RoCE of the kernel, has bound UDP port 4791 (RoCE v2) on the interface.
    #[error(
        "UDP port {port} of `{interface}` is taken, most likely by the kernel's own soft-RoCE; \
         `rdma link` lists its devices and `rdma link delete NAME` removes one"
    )]
    PortTaken {
        /// Name of the interface.
        interface: String,
        /// Number of the UDP port.
        port: u16,
    },
    /// All QPN prefixes of the interface are leased.
    #[error(
        "no QPN prefix of interface `{interface}` is free: there are 63, of which a process with an af_packet port \
         leases one, and a process with an af_xdp port all; `ss -xap | grep roce-qpn-{index}-` lists the processes: \
         end one"
    )]
    NoPrefix {
        /// Name of the interface.
        interface: String,
        /// Index of the interface.
        index: u32,
    },
    /// Another process has leased a QPN prefix that this process needs.
    #[error(
        "another process has interface `{interface}` open as a port, with the QPN prefix {number} that this process \
         needs; `ss -xap | grep roce-qpn-{index}-{number}` shows the process: end it, or leave out the prefix"
    )]
    PrefixTaken {
        /// Name of the interface.
        interface: String,
        /// Index of the interface.
        index: u32,
        /// The QPN prefix, of 6 bits, that another process has leased.
        number: u8,
    },
    /// The limit of open files (RLIMIT_NOFILE) does not permit the file descriptors that the lease of QPNs needs.
    #[error(transparent)]
    TooFewDescriptors(#[from] TooFewDescriptors),
    /// The process lacks a privilege that the system call requires.
    #[error("not permitted to {doing}: {source}; run as root or with the capability CAP_NET_RAW")]
    Permission {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {doing}: {source}")]
    System {
        /// Operation that failed.
        doing: &'static str,
        /// Error of the system call.
        source: io::Error,
    },
    /// The kernel's answer could not be parsed, or lacks a required attribute.
    #[error(
        "cannot {doing}: the kernel's answer is not understood ({detail}); please report it with `uname -r`"
    )]
    Answer {
        /// Operation that failed.
        doing: &'static str,
        /// Error of parsing the kernel's answer, or name of the attribute that the answer lacks.
        detail: String,
    },
}

impl KernelError {
    /// Returns a function that converts the error of a system call to a [`KernelError`]; `doing` names the failed
    /// operation.
    pub(super) fn system(doing: &'static str) -> impl Fn(io::Error) -> KernelError {
        move |source| match source.kind() {
            io::ErrorKind::PermissionDenied => KernelError::Permission { doing, source },
            _ => KernelError::System { doing, source },
        }
    }
}
