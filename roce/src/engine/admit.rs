//! Checks of a packet's headers against its destination queue pair. The ICRC is computed after all other checks, except
//! the check of the PSN of a request. Therefore the payload of a packet from another source than the peer is not read.
//! Order of the checks:
//!
//! ```text
//!   state, transport, VLAN, P_Key, addresses
//!     -> source MAC, if the peer is on the link
//!     -> UDP source port: for a request, that of the first request with the expected PSN; for a response, that of the
//!        first response to a PSN in flight
//!     -> PSN of a response -> ICRC -> PSN of a request
//! ```
//! The IBA does not demand the checks of source MAC and UDP source port; [`super::SourceChecks`] can switch them off.

use super::address_handle::AddressHandles;
use super::limits::STALE_PSNS;
use super::qp_object::{Qp, Service};
use super::source::SourcePort;
use crate::counters::DropCounters;
use crate::id::{Gid, PKey};
use crate::psn::Psn;
use crate::wire::{Packet, Transport};

pub(super) type DropCounter = fn(&mut DropCounters) -> &mut u64;

pub(super) enum Admission {
    /// The headers passed all checks that precede the ICRC check.
    Pass,
    /// The packet is a response whose PSN is not accepted: dropped, and counted as stale.
    Stale,
    Drop(DropCounter),
}

#[inline(always)]
pub(super) fn admit(qp: &Qp, handles: &AddressHandles, packet: &Packet<'_>) -> Admission {
    let connection = qp.connection.as_ref().filter(|_| qp.state.receives());
    let Some((connection, handle)) = connection.and_then(|it| Some((it, handles.get(it.address_handle)?)))
    else {
        return drop_and_count(|drops| &mut drops.qp_state);
    };
    let transport = packet.info.transport;
    let accepts = match &connection.service {
        Service::Rc(rc) => rc.requester.recovery().accepts(transport),
        Service::Uc(_) => matches!(transport, Transport::Uc | Transport::Cnp),
    };
    if !accepts {
        return drop_and_count(|drops| &mut drops.wrong_transport);
    }
    let source = &handle.source;
    if !packet.is_of_vlan(source.vlan) {
        return drop_and_count(|drops| &mut drops.wrong_vlan);
    }
    if !PKey::DEFAULT.accepts(packet.bth.pkey) {
        return drop_and_count(|drops| &mut drops.wrong_pkey);
    }
    if !packet.is_between(&source.addresses) {
        return Admission::Drop(wrong_address(packet, *handle.peer()));
    }
    if source.mac.is_some_and(|mac| mac != packet.src_mac()) {
        return drop_and_count(|drops| &mut drops.wrong_source_mac);
    }
    // UDP source port and PSN of a CNP are not checked, because an RNIC may send CNPs from a different UDP source port
    // than requests (ConnectX-4 Lx: from port 0), and because the PSN of a CNP has no meaning.
    if transport == Transport::Cnp {
        return Admission::Pass;
    }
    let is_request = packet.info.is_request;
    if let SourcePort::Bound(port) = connection.source_ports.get(is_request)
        && port != packet.udp_source_port
    {
        return drop_and_count(|drops| &mut drops.wrong_source_port);
    }
    if let Service::Rc(rc) = &connection.service
        && !is_request
    {
        // A response is accepted if its PSN is from `STALE_PSNS` below una to max_sent, which is one past the highest PSN
        // sent. The PSN of a SACK is the expected PSN of the responder; this PSN is max_sent if all requests were
        // executed. A stale response postpones the probe timeout: after a retransmitted READ request, the peer may send
        // stale READ responses for many round trips, before the peer answers the next READ request. A stale ACK shows
        // that a probe was spurious, and the CE mark of a stale response is counted.
        let (una, sent) = rc.requester.in_flight();
        if packet.bth.psn.index_in(una.minus(STALE_PSNS), STALE_PSNS + sent + 1).is_none() {
            return Admission::Stale;
        }
    }
    Admission::Pass
}

/// Drops a packet. Marked `cold`, because otherwise each check would load the address of its counter before it
/// branches.
#[cold]
fn drop_and_count(counter: DropCounter) -> Admission {
    Admission::Drop(counter)
}

#[cold]
fn wrong_address(packet: &Packet<'_>, peer: Gid) -> DropCounter {
    if packet.is_from(&peer) { |drops| &mut drops.wrong_destination } else { |drops| &mut drops.wrong_source }
}

fn is_in_order(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    match &connection.service {
        Service::Rc(rc) if !packet.info.is_request => {
            let (una, sent) = rc.requester.in_flight();
            packet.bth.psn.index_in(una, sent).is_some()
        }
        service => packet.bth.psn == service.expected_psn(),
    }
}

/// If `packet` is a request with the expected PSN, or a response with a PSN from una to the highest PSN sent, stores
/// the UDP source port of `packet`. All later packets of the PSN space (requests or responses) must have this UDP
/// source port.
#[cold]
pub(super) fn bind_source_port(qp: &mut Qp, packet: &Packet<'_>) {
    if !is_in_order(qp, packet) {
        return;
    }
    let Some(connection) = &mut qp.connection else { return };
    connection.source_ports.bind(packet.info.is_request, packet.udp_source_port);
}

/// Returns whether the CE mark of an admitted packet is counted. If the PSN of a request is more than `STALE_PSNS`
/// from the expected PSN, the request is probably forged, and its CE mark is ignored.
#[cold]
pub(super) fn is_mark_plausible(qp: &Qp, packet: &Packet<'_>) -> bool {
    let Some(connection) = &qp.connection else { return false };
    let near = |psn: Psn| packet.bth.psn.index_in(psn.minus(STALE_PSNS), 2 * STALE_PSNS).is_some();
    // Responses need no check, because `admit` drops responses with a PSN more than `STALE_PSNS` below una.
    !packet.info.is_request || near(connection.service.expected_psn())
}
