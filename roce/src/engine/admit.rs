//! Checks of a packet's headers against its destination queue pair. The ICRC is computed after them, so that a packet
//! of a stranger costs no pass over its payload.
//!
//! ```text
//!   state, transport, VLAN, P_Key, addresses
//!     -> source MAC, of a peer on the link
//!     -> UDP source port of the direction, once it is known
//!     -> PSN of a response -> ICRC -> PSN of a request
//! ```
//! The checks of source MAC and source port are not of the IBA; [`SourceChecks`] switches them off.

use super::qp_object::Qp;
use crate::counters::DropCounters;
use crate::id::{Gid, Mac, PKey};
use crate::psn::Psn;
use crate::wire::{AddressPair, Packet, Transport};

/// Largest distance of a PSN from the expected one, or below una, at which a CE mark counts: the largest window of
/// selective repeat, so that marks on duplicates of packets in flight count too.
pub const MARKED_PSNS: u32 = 4096;

/// Attributes of a packet's source that are checked besides its IP address. Both are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceChecks {
    /// A frame from a peer on the link must have the source MAC that frames to the peer have as destination. Off for
    /// a peer that sends over several interfaces (bonding by `balance-tlb`).
    pub mac: bool,
    /// The UDP source port of requests, and that of responses, must stay that of the first packet in order. Off for a
    /// peer that changes it while connected (`mlx5dv_modify_qp_udp_sport`, a new flow label in SQD).
    pub udp_port: bool,
}

impl Default for SourceChecks {
    fn default() -> Self {
        SourceChecks { mac: true, udp_port: true }
    }
}

/// The UDP source port of one direction of a connection: requests or responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SourcePort {
    /// Any, because the check is off.
    Any,
    /// Any until the first packet in order.
    Unbound,
    /// The port of the first packet in order.
    Bound(u16),
}

/// Required source of the peer's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The peer's MAC, where the peer is on the link and MACs are checked. A routed packet has the MAC of a gateway,
    /// and with several gateways (VRRP, asymmetric routes) not necessarily that of the one to the peer.
    pub mac: Option<Mac>,
    /// The peer's address, and the queue pair's own.
    addresses: AddressPair,
    /// UDP source ports, of responses and of requests: an RNIC may send them as two flows.
    ports: [SourcePort; 2],
}

impl Source {
    /// The source of a peer from which no packet was received yet.
    pub(super) fn new(checks: SourceChecks, mac: Option<Mac>, addresses: AddressPair) -> Self {
        let port = if checks.udp_port { SourcePort::Unbound } else { SourcePort::Any };
        Source { mac: mac.filter(|_| checks.mac), addresses, ports: [port; 2] }
    }

    /// Whether the next packet in order binds the source port of its direction.
    #[inline]
    pub(super) fn is_unbound(&self, is_request: bool) -> bool {
        self.ports[usize::from(is_request)] == SourcePort::Unbound
    }
}

/// Selects a counter of drops.
pub(super) type DropCounter = fn(&mut DropCounters) -> &mut u64;

/// Result of the header checks.
pub(super) enum Admission {
    /// The ICRC is to be computed.
    Pass,
    /// A response whose PSN is not in flight: dropped.
    Stale,
    /// Dropped, and counted here.
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
    // Passes any source port, because an RNIC's CNPs have one of their own (ConnectX-4 Lx: 0), and no PSN.
    if transport == Transport::Cnp {
        return Admission::Pass;
    }
    let is_request = packet.info.is_request;
    if let SourcePort::Bound(port) = source.ports[usize::from(is_request)]
        && port != packet.udp_source_port
    {
        return Admission::Drop(|drops| &mut drops.wrong_source_port);
    }
    if !is_request {
        // Up to the PSN to be sent next, because a SACK carries the first missing PSN, which may be that one.
        let (una, sent) = connection.requester.in_flight();
        let behind = if packet.ip.congestion_experienced() { MARKED_PSNS } else { 0 };
        if packet.bth.psn.index_in(una.minus(behind), behind + sent + 1).is_none() {
            return Admission::Stale;
        }
    }
    Admission::Pass
}

/// The counter of a packet that is not from `peer` to the address of the queue pair.
#[cold]
fn wrong_address(packet: &Packet<'_>, peer: Gid) -> DropCounter {
    if packet.is_from(&peer) { |drops| &mut drops.wrong_destination } else { |drops| &mut drops.wrong_source }
}

/// Whether an admitted packet has the expected PSN of requests, or is a response to a PSN in flight.
fn is_in_order(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    if packet.info.is_request {
        return packet.bth.psn == connection.responder.expected_psn();
    }
    let (una, sent) = connection.requester.in_flight();
    packet.bth.psn.index_in(una, sent).is_some()
}

/// Binds the source port of the direction of `packet`, whose ICRC is right, if the packet is in order.
#[cold]
pub(super) fn bind_source_port(qp: &mut Qp, packet: &Packet<'_>) {
    if !is_in_order(qp, packet) {
        return;
    }
    let Some(connection) = &mut qp.connection else { return };
    connection.source.ports[usize::from(packet.info.is_request)] = SourcePort::Bound(packet.udp_source_port);
}

/// Whether the CE mark of an admitted packet counts: a forged request with a random PSN mostly fails this check.
#[cold]
pub(super) fn is_mark_plausible(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    let near = |psn: Psn| packet.bth.psn.index_in(psn.minus(MARKED_PSNS), 2 * MARKED_PSNS).is_some();
    // Responses need no check, because `admit` drops those that are not near as stale.
    !packet.info.is_request || near(connection.responder.expected_psn())
}
