//! Access to network interfaces of the kernel, for shared ports (af_packet); ports on XDP sockets use [`Interface`]
//! only.
//!
//! The kernel continues to use the addresses of a shared port's interface, and to answer ARP, neighbour discovery and
//! ICMP echo. The device reads the configuration of the interface ([`Interface::read`]), and resolves neighbours
//! through the kernel ([`KernelNeighbours::resolve`]). A guard prevents ICMP port unreachable messages of the kernel in
//! response to RoCE packets ([`PortGuard::hold`]). A filter passes only RoCE packets to the device ([`ROCE_FILTER`]).
//!
//! This module is control plane: its functions allocate memory and make system calls.

mod error;
mod filter;
mod guard;
mod interface;
mod neighbours;
mod netlink;
mod speed;
mod watch;

pub use error::KernelError;
pub use filter::ROCE_FILTER;
pub use guard::PortGuard;
pub use interface::Interface;
pub use neighbours::KernelNeighbours;
pub(crate) use speed::speed_mbps;
pub use watch::{InterfaceChange, InterfaceWatch};

#[cfg(test)]
mod tests;
