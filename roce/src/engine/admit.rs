//! Checks of a packet's headers against its destination queue pair. The ICRC is computed after these checks, so that
//! the payload of a packet that is not from the peer is not read.
//!
//! ```text
//!   state, transport, VLAN, P_Key, addresses
//!     -> source MAC, if the peer is on the link
//!     -> UDP source port: that of the first in-order packet, separately for requests and for responses
//!     -> PSN of a response -> ICRC -> PSN of a request
//! ```
//! The IBA does not demand the checks of source MAC and UDP source port; [`super::SourceChecks`] switches these two off.

use super::limits::MARKED_PSNS;
use super::qp_object::Qp;
use super::source::SourcePort;
use crate::counters::DropCounters;
use crate::id::{Gid, PKey};
use crate::psn::Psn;
use crate::wire::{Packet, Transport};

/// Function that selects a drop counter.
pub(super) type DropCounter = fn(&mut DropCounters) -> &mut u64;

/// Result of the header checks.
pub(super) enum Admission {
    /// The headers passed all checks; the ICRC is checked next.
    Pass,
    /// The packet is a response whose PSN is not in flight: dropped, and counted as stale.
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
    let is_agreed = transport == Transport::Manufacturer && connection.requester.recovery().log().is_some();
    if !matches!(transport, Transport::Rc | Transport::Cnp) && !is_agreed {
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
    // An RNIC may send CNPs from another UDP source port (ConnectX-4 Lx: 0), and CNPs have no PSN: skip these checks.
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
        // The PSN to be sent next is accepted too, because a SACK has the first missing PSN, which may be that PSN.
        // With a CE mark, PSNs below una are accepted, because the mark counts.
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

/// If `packet` is in order, requires its UDP source port of all later requests or, if it is a response, responses.
#[cold]
pub(super) fn bind_source_port(qp: &mut Qp, packet: &Packet<'_>) {
    if !is_in_order(qp, packet) {
        return;
    }
    let Some(connection) = &mut qp.connection else { return };
    connection.source.bind(packet.info.is_request, packet.udp_source_port);
}

/// Returns whether the CE mark of an admitted packet counts: false for a request with a PSN far from the expected PSN,
/// as most forged requests have.
#[cold]
pub(super) fn is_mark_plausible(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    let near = |psn: Psn| packet.bth.psn.index_in(psn.minus(MARKED_PSNS), 2 * MARKED_PSNS).is_some();
    // Responses need no check, because `admit` drops responses whose PSN is not near as stale.
    !packet.info.is_request || near(connection.responder.expected_psn())
}
