//! Simulated Ethernet in virtual time.
//!
//! ```text
//!   host --send--> [ queue | wire at its rate ] --tape--> propagation --> host or switch --> ...
//!                    one link, one direction     drop, duplicate, delay, ...
//! ```
//!
//! A [`Network`] holds hosts and switches joined by links. Nothing happens by itself: the caller
//! moves the time with [`Network::run_until`], puts frames in with [`Network::send`] and takes them
//! out with [`Network::receive`]. Time is nanoseconds in a `u64`; events at the same time happen in
//! the order in which they were caused, so a run depends on its inputs alone.
//!
//! What goes wrong on the way is written on a [`Tape`]: plain data, so that a property test can
//! draw it and shrink it.

mod event;
mod link;
mod network;
mod tape;

pub use link::{LinkConfig, LinkCounters, WIRE_OVERHEAD_BYTES};
pub use network::{HostId, LinkId, Network, Node, Sighting, SwitchId};
pub use tape::{Action, Fault, Tape};
