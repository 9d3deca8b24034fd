//! Numbers of hosts, switches and links.

/// A host of a network, with one port and an unbounded receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub usize);

/// A switch of a network, numbered in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SwitchId(pub usize);

/// One direction of a cable, numbered in the order of [`Network::connect`](crate::Network::connect): 0 and 1 for the first
/// cable, 2 and 3 for the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(pub usize);

/// A host or a switch, at an end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A host.
    Host(HostId),
    /// A switch.
    Switch(SwitchId),
}

impl From<HostId> for Node {
    fn from(host: HostId) -> Self {
        Node::Host(host)
    }
}

impl From<SwitchId> for Node {
    fn from(switch: SwitchId) -> Self {
        Node::Switch(switch)
    }
}
