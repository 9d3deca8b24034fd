//! Ethernet ports: control of a port, and its queues.

mod builder;
mod counters;
mod error;
mod info;
mod interrupt;
mod open_port;
mod port;
mod queue;
mod queue_set;
mod vhost;
mod wake;

pub use builder::{DEFAULT_DESCRIPTORS, PortBuilder};
pub use counters::PortCounters;
pub use error::PortError;
pub use info::{Link, PortInfo, PortStats};
pub use port::EthPort;
pub use queue::{EthQueue, HELD_MBUFS, TX_QUEUE_FRAMES};
pub use queue_set::QueueSet;
pub use wake::WakeKind;
