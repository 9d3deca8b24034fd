//! Use of the kernel by a shared port (af_packet).
//!
//! The interface keeps its addresses, and the kernel continues to answer ARP, neighbour discovery and ICMP echo for
//! them. The device reads the interface's configuration ([`Interface::read`]), resolves neighbours through the kernel
//! ([`KernelNeighbours::resolve`]), and binds RoCE's UDP port, otherwise the kernel would refuse RoCE packets
//! ([`PortGuard::hold`]). Of the interface's frames the device receives RoCE packets only ([`ROCE_FILTER`]).
//!
//! This module is control plane: it allocates and makes system calls.

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
