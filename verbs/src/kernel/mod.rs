//! Access to network interfaces of the kernel, for shared ports (af_packet). Ports on XDP sockets use only
//! [`Interface`], [`InterfaceWatch`] and [`Lease`].
//!
//! The kernel continues to use the addresses of a shared port's interface, and to answer ARP, neighbour discovery and
//! ICMP echo. The device reads the configuration of the interface ([`Interface::read`]), and resolves neighbours
//! through the kernel ([`KernelNeighbours::resolve`]). A guard prevents ICMP port unreachable messages of the kernel in
//! response to RoCE packets ([`PortGuard::hold`]), and a program drops these packets before the kernel's IP processes
//! them (`EarlyDrop`). Several processes may share the interface: each process leases QPNs of its own ([`Lease::any`]),
//! and a filter ensures that the device receives only RoCE packets to the leased QPNs ([`roce_filter`]).
//!
//! This module is control plane: its functions allocate memory and make system calls.

mod bpf;
mod early_drop;
mod error;
mod filter;
mod guard;
mod interface;
mod lease;
mod neighbours;
mod netlink;
mod speed;
mod watch;

pub(crate) use early_drop::EarlyDrop;
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
