//! Ethernet ports.

mod builder;
mod error;
mod info;
mod interrupt;
mod port;

pub use builder::{DEFAULT_DESCRIPTORS, PortBuilder};
pub use error::PortError;
pub use info::{Link, PortInfo, PortStats};
pub use port::{HELD_MBUFS, Port, PortCounters, TX_QUEUE_FRAMES};
