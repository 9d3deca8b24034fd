//! Ethernet ports.

mod builder;
mod info;
mod port;

pub use builder::{PortBuilder, PortError};
pub use info::{Link, PortInfo, PortStats};
pub use port::{Port, PortCounters, TX_QUEUE_FRAMES};
