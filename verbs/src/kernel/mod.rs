//! Access to network interfaces of the kernel, for shared ports (af_packet); ports on XDP sockets use [`Interface`]
//! only.
//!
//! The interface of a shared port keeps its addresses, for which the kernel continues to answer ARP, neighbour
//! discovery and ICMP echo. The device reads the configuration of the interface ([`Interface::read`]), resolves
//! neighbours through the kernel ([`KernelNeighbours::resolve`]), keeps the kernel from answering RoCE packets with
//! ICMP port unreachable ([`PortGuard::hold`]), and receives RoCE packets only ([`ROCE_FILTER`]).
//!
//! This module is control plane: its functions allocate memory and make system calls.

mod error;
mod filter;
mod guard;
mod interface;
mod neighbours;
mod netlink;

pub use error::KernelError;
pub use filter::ROCE_FILTER;
pub use guard::PortGuard;
pub use interface::Interface;
pub use neighbours::KernelNeighbours;

#[cfg(test)]
mod tests;
