//! Access to network interfaces of the kernel, for shared ports (af_packet); ports on XDP sockets use [`Interface`]
//! only.
//!
//! The kernel continues to use the addresses of a shared port's interface, and to answer ARP, neighbour discovery and
//! ICMP echo. The device reads the configuration of the interface ([`Interface::read`]), and resolves neighbours
//! through the kernel ([`KernelNeighbours::resolve`]). A guard prevents ICMP port unreachable messages of the kernel in
//! response to RoCE packets ([`PortGuard::hold`]). Several processes may share the interface: each has a lease of its own
//! QPNs ([`Lease::any`]), and a filter passes only RoCE packets to these QPNs to the device ([`roce_filter`]).
//!
//! This module is control plane: its functions allocate memory and make system calls.

mod error;
mod filter;
mod guard;
mod interface;
mod lease;
mod neighbours;
mod netlink;
mod speed;
mod watch;

pub use error::KernelError;
pub use filter::roce_filter;
pub use guard::PortGuard;
pub use interface::Interface;
pub use lease::Lease;
pub use neighbours::KernelNeighbours;
pub(crate) use speed::speed_mbps;
pub use watch::{InterfaceChange, InterfaceWatch};

#[cfg(test)]
mod tests;
