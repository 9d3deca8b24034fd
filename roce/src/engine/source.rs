use crate::id::Mac;
use crate::wire::AddressPair;

/// Checks of source MAC and UDP source port of received packets. Both checks are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceChecks {
    /// If set, the source MAC of a frame from a peer on the link must be the MAC to which frames to the peer are sent.
    /// Disable this check if the peer sends over several interfaces (bonding by `balance-tlb`).
    pub mac: bool,
    /// If set, all requests must have the UDP source port of the first in-order request, and all responses must have
    /// that of the first response to a PSN in flight. Disable this check if the peer changes its UDP source port while
    /// connected (`mlx5dv_modify_qp_udp_sport`, a new flow label in SQD).
    pub udp_port: bool,
}

impl Default for SourceChecks {
    fn default() -> Self {
        SourceChecks { mac: true, udp_port: true }
    }
}

/// UDP source port required of the peer's requests, or of the peer's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourcePort {
    /// Any UDP source port, because `SourceChecks::udp_port` is false.
    Any,
    /// Any UDP source port. A request with the expected PSN, or a response to a PSN in flight, changes the state to
    /// `Bound`.
    Unbound,
    /// The UDP source port of the packet that changed the state from `Unbound`.
    Bound(u16),
}

/// MAC, IP addresses and VLAN required of packets from a peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Required source MAC. `None` if the source MAC is not checked, or if the peer is not on the link. If the peer is
    /// not on the link, the source MAC of its packets is the MAC of a gateway. This gateway is unknown, because packets
    /// to the peer may use another gateway (VRRP, asymmetric routes).
    pub mac: Option<Mac>,
    /// Required source and destination IP address: the addresses of the peer and of the queue pair.
    pub addresses: AddressPair,
    /// Required VLAN identifier; 0: untagged.
    pub vlan: u16,
}

/// UDP source ports required of packets to a queue pair. An RNIC may send requests and responses from different UDP
/// source ports.
#[derive(Clone, Copy, Debug)]
pub(super) struct SourcePorts {
    request: SourcePort,
    response: SourcePort,
}

impl SourcePorts {
    pub(super) fn new(checks: SourceChecks) -> Self {
        let port = if checks.udp_port { SourcePort::Unbound } else { SourcePort::Any };
        SourcePorts { request: port, response: port }
    }

    #[inline]
    pub(super) fn get(&self, is_request: bool) -> SourcePort {
        if is_request { self.request } else { self.response }
    }

    #[inline]
    pub(super) fn is_unbound(&self, is_request: bool) -> bool {
        self.get(is_request) == SourcePort::Unbound
    }

    pub(super) fn bind(&mut self, is_request: bool, port: u16) {
        let bound = if is_request { &mut self.request } else { &mut self.response };
        *bound = SourcePort::Bound(port);
    }
}
