use crate::id::Mac;
use crate::wire::AddressPair;

/// Checks of source MAC and UDP source port of received packets. Both checks are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceChecks {
    /// If set, the source MAC of a frame from a peer on the link must be the MAC to which frames to the peer are sent.
    /// Disable for a peer that sends over several interfaces (bonding by `balance-tlb`).
    pub mac: bool,
    /// If set, the UDP source port of all requests must be that of the first in-order request, and the UDP source port
    /// of all responses that of the first in-order response. Disable for a peer that changes its port while connected
    /// (`mlx5dv_modify_qp_udp_sport`, a new flow label in SQD).
    pub udp_port: bool,
}

impl Default for SourceChecks {
    fn default() -> Self {
        SourceChecks { mac: true, udp_port: true }
    }
}

/// UDP source port that the peer's requests must have, or that its responses must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourcePort {
    /// Any port, because the check is off.
    Any,
    /// Any port until the first in-order packet, whose port then becomes `Bound`.
    Unbound,
    /// The port of the first in-order packet.
    Bound(u16),
}

/// The source that packets to a queue pair must have.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Source MAC. `None` if the source MAC is not checked, or if the peer is not on the link: packets from such a peer
    /// have the MAC of a gateway, but packets to the peer may use another gateway (VRRP, asymmetric routes).
    pub mac: Option<Mac>,
    /// Source and destination IP address: those of the peer and of the queue pair.
    pub addresses: AddressPair,
    /// UDP source ports of requests and of responses; an RNIC may use a different port for each.
    request_port: SourcePort,
    response_port: SourcePort,
}

impl Source {
    pub(super) fn new(checks: SourceChecks, mac: Option<Mac>, addresses: AddressPair) -> Self {
        let port = if checks.udp_port { SourcePort::Unbound } else { SourcePort::Any };
        Source { mac: mac.filter(|_| checks.mac), addresses, request_port: port, response_port: port }
    }

    #[inline]
    pub(super) fn port(&self, is_request: bool) -> SourcePort {
        if is_request { self.request_port } else { self.response_port }
    }

    #[inline]
    pub(super) fn is_unbound(&self, is_request: bool) -> bool {
        self.port(is_request) == SourcePort::Unbound
    }

    pub(super) fn bind(&mut self, is_request: bool, port: u16) {
        let bound = if is_request { &mut self.request_port } else { &mut self.response_port };
        *bound = SourcePort::Bound(port);
    }
}
