//! Protection of a memif port from a hostile peer. The peer is another process, and DPDK's driver trusts all
//! that it reads from the peer, on the control connection and in the shared memory. Here
//!
//! * `control` decides which users may connect, and redirects the driver's system calls;
//! * `message` enforces the order and the bounds of the control protocol;
//! * `ring` reads and writes rings and descriptors that the peer may change at any time;
//! * `event` wakes a peer that sleeps, and is woken by the peer;
//! * `burst` moves frames between rings and mbufs, and replaces the driver's bursts;
//! * `unread` lets the peer receive the frames in a ring before the connection ends.
//!
//! The driver keeps the sockets, the answers of the protocol, the memory and the state of the link.
//!
//! All of this requires DPDK to be linked statically (dpdk-ffi/sys/build.rs), because a driver in a shared library
//! cannot be redirected; its own bursts are used then.

mod burst;
mod control;
mod event;
mod message;
mod ring;
mod unread;

pub use control::MemifAccess;

pub(crate) use burst::Queue;
pub(crate) use control::{attached, detached, install, refused, starting};
pub(crate) use unread::{wait_all_received, wait_received};
