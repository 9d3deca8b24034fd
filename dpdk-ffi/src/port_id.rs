//! Numbers of Ethernet ports.

/// Number of an Ethernet port within this process.
pub type PortId = u16;
