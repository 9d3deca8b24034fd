//! Required source of the packets of a queue pair's peer.

use crate::id::Mac;
use crate::wire::AddressPair;

/// Attributes of a packet's source that are checked besides its IP address. Both checks are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceChecks {
    /// The source MAC of a frame from a peer on the link must be the MAC to which frames to the peer are sent. Off for
    /// a peer that sends over several interfaces (bonding by `balance-tlb`).
    pub mac: bool,
    /// The UDP source port of requests must stay that of the first in-order request, and the UDP source port of
    /// responses that of the first in-order response. Off for a peer that changes its port while connected
    /// (`mlx5dv_modify_qp_udp_sport`, a new flow label in SQD).
    pub udp_port: bool,
}

impl Default for SourceChecks {
    fn default() -> Self {
        SourceChecks { mac: true, udp_port: true }
    }
}

/// UDP source port that the peer must use in one direction of a connection: requests or responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourcePort {
    /// Any port, because the check is off.
    Any,
    /// Any port until the first in-order packet.
    Unbound,
    /// The port of the first in-order packet.
    Bound(u16),
}

/// Required source of the peer's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The peer's MAC; `None` if MACs are not checked, or the peer is not on the link. A routed packet has the source
    /// MAC of a gateway; packets to the peer may need another gateway (VRRP, asymmetric routes).
    pub mac: Option<Mac>,
    /// The peer's IP address, and the IP address of the queue pair.
    pub addresses: AddressPair,
    /// UDP source ports of requests and of responses, which an RNIC may send as two flows.
    request_port: SourcePort,
    response_port: SourcePort,
}

impl Source {
    /// Creates the required source of a peer from which no packet was received yet.
    pub(super) fn new(checks: SourceChecks, mac: Option<Mac>, addresses: AddressPair) -> Self {
        let port = if checks.udp_port { SourcePort::Unbound } else { SourcePort::Any };
        Source { mac: mac.filter(|_| checks.mac), addresses, request_port: port, response_port: port }
    }

    /// The source port of requests, or of responses.
    #[inline]
    pub(super) fn port(&self, is_request: bool) -> SourcePort {
        if is_request { self.request_port } else { self.response_port }
    }

    /// Returns whether the next in-order packet binds the UDP source port of its direction.
    #[inline]
    pub(super) fn is_unbound(&self, is_request: bool) -> bool {
        self.port(is_request) == SourcePort::Unbound
    }

    /// Binds the source port of requests, or of responses.
    pub(super) fn bind(&mut self, is_request: bool, port: u16) {
        let bound = if is_request { &mut self.request_port } else { &mut self.response_port };
        *bound = SourcePort::Bound(port);
    }
}
