//! Ethernet ports.

mod builder;
mod info;
mod port;

pub use builder::{DEFAULT_DESCRIPTORS, PortBuilder, PortError};
pub use info::{Link, PortInfo, PortStats};
pub use port::{HELD_MBUFS, Port, PortCounters, TX_QUEUE_FRAMES};
