//! What a port on an interface of the kernel (af_packet) needs of that kernel.
//!
//! The interface keeps its addresses and the kernel keeps answering for them, so the device takes the
//! interface as it finds it ([`Interface::read`]), lets the kernel find neighbours
//! ([`KernelNeighbours::resolve`]), and keeps it from refusing RoCE packets, for which it has no
//! socket ([`PortGuard::hold`]). Of the interface's frames it receives only RoCE packets ([`ROCE_FILTER`]).
//!
//! Everything here is control plane: it allocates and makes system calls.

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
