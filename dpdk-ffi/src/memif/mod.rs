//! What stands between a memif port and a peer that means harm. The other end of a memif is another process, and
//! all that the driver of DPDK reads of it, on the control connection and in the memory that both have mapped, it
//! takes for true. Here
//!
//! * `control` decides who may connect, and redirects the driver's system calls;
//! * `message` holds the control protocol to its order and bounds;
//! * `ring` reads and writes rings and descriptors that may change under its hands;
//! * `burst` moves frames between them and mbufs, in place of the driver's bursts.
//!
//! The driver keeps what is left: the sockets, the protocol's answers, the memory, the link's state.
//!
//! All of it needs DPDK to be linked statically (dpdk-sys/build.rs): a driver in a shared library cannot be
//! redirected, and its bursts are used then.

mod burst;
mod control;
mod message;
mod ring;

pub use control::MemifAccess;

pub(crate) use burst::{Counts, rx, tx};
pub(crate) use control::{attached, detached, install, refused, starting};
