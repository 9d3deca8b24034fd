//! The checks of a packet's headers against the queue pair that it names, before its ICRC is computed: a
//! stranger's packet costs no look at its payload.
//!
//! ```text
//!   state, transport, VLAN, P_Key, addresses
//!     -> source MAC, of a peer on the link
//!     -> UDP source port of the direction, once it is known
//!     -> PSN of a response -> ICRC -> PSN of a request
//! ```
//! The source port and the MAC are no part of the InfiniBand Architecture; [`SourceChecks`] switches them off.

use super::qp_object::Qp;
use crate::counters::DropCounters;
use crate::id::{Gid, Mac, PKey};
use crate::psn::Psn;
use crate::wire::{AddressPair, Packet, Transport};

/// PSNs on either side of the one expected in which a "congestion experienced" mark counts: the longest window of
/// selective repeat, so that repetitions of what is in flight count too.
pub const MARKED_PSNS: u32 = 4096;

/// What of a packet's source is compared besides its IP address. Both are on by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceChecks {
    /// The source MAC of a frame from a peer on the link is the one that frames to the peer go to. A peer that
    /// spreads what it sends over several interfaces (bonding by `balance-tlb`) needs this off.
    pub mac: bool,
    /// The UDP source port of requests, and that of responses, stays that of the first packet in order. A peer that
    /// changes it while connected (`mlx5dv_modify_qp_udp_sport`, a new flow label in SQD) needs this off.
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
    /// Any, for good.
    Any,
    /// Any, until the first packet in order.
    Unbound,
    /// That of the first packet in order.
    Bound(u16),
}

/// The source of the peer's packets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// The peer's MAC, where it is on the link and MACs are compared. A routed packet has a gateway's, and of several
    /// gateways (VRRP, asymmetric routes) it may not be the one that packets to the peer take.
    pub mac: Option<Mac>,
    /// Its address, and the queue pair's own.
    addresses: AddressPair,
    /// Of its responses and of its requests: an RNIC may send them as two flows.
    ports: [SourcePort; 2],
}

impl Source {
    /// Of a peer of which no packet was received.
    pub(super) fn new(checks: SourceChecks, mac: Option<Mac>, addresses: AddressPair) -> Self {
        let port = if checks.udp_port { SourcePort::Unbound } else { SourcePort::Any };
        Source { mac: mac.filter(|_| checks.mac), addresses, ports: [port; 2] }
    }

    /// Whether the next packet in order names the port of its direction.
    #[inline]
    pub(super) fn is_unbound(&self, is_request: bool) -> bool {
        self.ports[usize::from(is_request)] == SourcePort::Unbound
    }
}

/// A counter of drops, named by its place.
pub(super) type DropCounter = fn(&mut DropCounters) -> &mut u64;

/// What becomes of a packet whose headers were looked at.
pub(super) enum Admission {
    /// Its ICRC is to be computed.
    Pass,
    /// It answers nothing that is in flight.
    Stale,
    /// It is not the peer's.
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
    // An RNIC's notifications have a source port of their own (ConnectX-4 Lx: 0), and no PSN.
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
        // One more than is in flight: a selective acknowledge names the first packet missing.
        let (una, sent) = connection.requester.in_flight();
        let behind = if packet.ip.congestion_experienced() { MARKED_PSNS } else { 0 };
        if packet.bth.psn.index_in(una.minus(behind), behind + sent + 1).is_none() {
            return Admission::Stale;
        }
    }
    Admission::Pass
}

/// The counter of a packet that is not from `peer` to the queue pair's own address.
#[cold]
fn wrong_address(packet: &Packet<'_>, peer: Gid) -> DropCounter {
    if packet.is_from(&peer) { |drops| &mut drops.wrong_destination } else { |drops| &mut drops.wrong_source }
}

/// Whether a packet that passed is the next of its direction, or answers what is in flight.
fn is_in_order(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    if packet.info.is_request {
        return packet.bth.psn == connection.responder.expected_psn();
    }
    let (una, sent) = connection.requester.in_flight();
    packet.bth.psn.index_in(una, sent).is_some()
}

/// Binds the direction of a packet, whose ICRC is right, to its source port, where the packet is in order.
#[cold]
pub(super) fn bind_source_port(qp: &mut Qp, packet: &Packet<'_>) {
    if !is_in_order(qp, packet) {
        return;
    }
    let Some(connection) = &mut qp.connection else { return };
    connection.source.ports[usize::from(packet.info.is_request)] = SourcePort::Bound(packet.udp_source_port);
}

/// Whether a mark on a packet that passed is taken for congestion: a PSN drawn at random would mostly not be.
#[cold]
pub(super) fn is_mark_plausible(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    let near = |psn: Psn| packet.bth.psn.index_in(psn.minus(MARKED_PSNS), 2 * MARKED_PSNS).is_some();
    // Of responses, those that are not near were stale.
    !packet.info.is_request || near(connection.responder.expected_psn())
}
