//! Checks of a packet's headers against its destination queue pair. The ICRC is computed after these checks, so that a
//! packet that is not from the peer costs no pass over its payload.
//!
//! ```text
//!   state, transport, VLAN, P_Key, addresses
//!     -> source MAC, if the peer is on the link
//!     -> UDP source port, if that of the direction (requests or responses) is bound
//!     -> PSN of a response -> ICRC -> PSN of a request
//! ```
//! The IBA does not demand the checks of source MAC and UDP source port; [`SourceChecks`] switches these two off.

use super::qp_object::Qp;
use crate::counters::DropCounters;
use crate::id::{Gid, Mac, PKey};
use crate::psn::Psn;
use crate::wire::{AddressPair, Packet, Transport};

/// Largest distance of a PSN from the expected PSN (requests), or below una (responses), at which a CE mark counts: the
/// largest window of selective repeat, so that CE marks on duplicates count too.
pub const MARKED_PSNS: u32 = 4096;

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
    addresses: AddressPair,
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

    #[inline]
    fn port(&self, is_request: bool) -> SourcePort {
        if is_request { self.request_port } else { self.response_port }
    }

    /// Returns whether the next in-order packet binds the UDP source port of its direction.
    #[inline]
    pub(super) fn is_unbound(&self, is_request: bool) -> bool {
        self.port(is_request) == SourcePort::Unbound
    }
}

/// Function that selects a drop counter.
pub(super) type DropCounter = fn(&mut DropCounters) -> &mut u64;

/// Result of the header checks.
pub(super) enum Admission {
    /// The headers are right; the ICRC is checked next.
    Pass,
    /// The packet is dropped: a response whose PSN is not in flight.
    Stale,
    /// The packet is dropped, and counted in this counter.
    Drop(DropCounter),
}

/// Checks the headers of a packet to `qp`.
#[inline(always)]
pub(super) fn admit(qp: &Qp, packet: &Packet<'_>) -> Admission {
    let Some(connection) = qp.connection.as_ref().filter(|_| qp.state.receives()) else {
        return Admission::Drop(|drops| &mut drops.qp_state);
    };
    let transport = packet.info.transport;
    if !matches!(transport, Transport::Rc | Transport::Cnp) {
        return Admission::Drop(|drops| &mut drops.wrong_transport);
    }
    if !packet.is_of_vlan(connection.vlan) {
        return Admission::Drop(|drops| &mut drops.wrong_vlan);
    }
    if !PKey::DEFAULT.accepts(packet.bth.pkey) {
        return Admission::Drop(|drops| &mut drops.wrong_pkey);
    }
    let source = &connection.source;
    if !packet.is_between(&source.addresses) {
        return Admission::Drop(wrong_address(packet, connection.peer));
    }
    if source.mac.is_some_and(|mac| mac != packet.src_mac) {
        return Admission::Drop(|drops| &mut drops.wrong_source_mac);
    }
    // CNPs skip the checks below, because an RNIC sends CNPs from a UDP source port of their own (ConnectX-4 Lx: 0),
    // and CNPs have no PSN.
    if transport == Transport::Cnp {
        return Admission::Pass;
    }
    let is_request = packet.info.is_request;
    if let SourcePort::Bound(port) = source.port(is_request)
        && port != packet.udp_source_port
    {
        return Admission::Drop(|drops| &mut drops.wrong_source_port);
    }
    if !is_request {
        // The PSN to be sent next is accepted too, because a SACK carries the first missing PSN, which may be that PSN.
        let (una, sent) = connection.requester.in_flight();
        let behind = if packet.ip.congestion_experienced() { MARKED_PSNS } else { 0 };
        if packet.bth.psn.index_in(una.minus(behind), behind + sent + 1).is_none() {
            return Admission::Stale;
        }
    }
    Admission::Pass
}

/// Returns the drop counter of a packet that is not from `peer` to the address of the queue pair.
#[cold]
fn wrong_address(packet: &Packet<'_>, peer: Gid) -> DropCounter {
    if packet.is_from(&peer) { |drops| &mut drops.wrong_destination } else { |drops| &mut drops.wrong_source }
}

/// Returns whether an admitted packet is a request with the expected PSN, or a response to a PSN in flight.
fn is_in_order(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    if packet.info.is_request {
        return packet.bth.psn == connection.responder.expected_psn();
    }
    let (una, sent) = connection.requester.in_flight();
    packet.bth.psn.index_in(una, sent).is_some()
}

/// If `packet`, whose ICRC is right, is in order, binds the UDP source port of its direction.
#[cold]
pub(super) fn bind_source_port(qp: &mut Qp, packet: &Packet<'_>) {
    if !is_in_order(qp, packet) {
        return;
    }
    let Some(connection) = &mut qp.connection else { return };
    let source = &mut connection.source;
    let port = if packet.info.is_request { &mut source.request_port } else { &mut source.response_port };
    *port = SourcePort::Bound(packet.udp_source_port);
}

/// Returns whether the CE mark of an admitted packet counts. Most forged requests with a random PSN fail this check.
#[cold]
pub(super) fn is_mark_plausible(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    let near = |psn: Psn| packet.bth.psn.index_in(psn.minus(MARKED_PSNS), 2 * MARKED_PSNS).is_some();
    // Responses need no check, because `admit` drops responses whose PSN is not near as stale.
    !packet.info.is_request || near(connection.responder.expected_psn())
}
