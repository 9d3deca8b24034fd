//! Datagrams (UD): the address handles that applications create, and the checks of received packets, which differ from
//! those of a connection (`admit`), because a datagram may come from any source. Order of the checks:
//!
//! ```text
//!   state, transport, destination address (a GID of the port), VLAN (of this GID), P_Key, Q_Key, ICRC
//! ```

use super::Engine;
use super::address_handle::CreatedAh;
use super::admit::DropCounter;
use super::error::{CreateError, DestroyError};
use super::event::Event;
use super::ingress::rx_context;
use super::modify::FLOW_LABEL_MASK;
use super::qp_object::Qp;
use crate::id::{AhId, PKey};
use crate::mem::{Access, PdId};
use crate::neighbour::GidTable;
use crate::port::{PHANTOM_ICRC, Payload, Port};
use crate::qp::context::{RxContext, TxOutcome};
use crate::qp::inbound::Refusal;
use crate::qp::ud::receiver::receive;
use crate::qp::ud::sender::{DatagramContext, OpenAh};
use crate::qp::{AddressVector, QpState};
use crate::wire::{Packet, Transport};

const AH: &str = "address handle";

impl<P: Port> Engine<P> {
    /// Creates an address handle, by which work requests of queue pairs of UD in the protection domain `pd` name their
    /// destination. The next hop to the GID of `path` must be resolved before this call, as for [`Engine::modify_qp`].
    /// If the neighbour changes its MAC later, the address handle gets the new MAC.
    pub fn create_ah(&mut self, pd: PdId, path: &AddressVector) -> Result<AhId, CreateError> {
        let no_path = |reason| CreateError::NoPath { dgid: path.dgid, reason };
        let handle = self.address_handle_to(path, path.traffic_class).map_err(no_path)?;
        let max = self.ahs.max_len();
        if self.ahs.len() == max {
            return Err(CreateError::TooMany { what: "address handles", max });
        }
        self.objects.acquire_pd(pd)?;
        let handle = self.address_handles.acquire(handle);
        // If the address handle existed before this call, its MAC may be out of date: after a change of the neighbour
        // cache, `follow_neighbours` updates only some address handles in each poll.
        self.update_mac(handle);
        let created = CreatedAh { pd, handle, flow_label: path.flow_label & FLOW_LABEL_MASK };
        let number = self.ahs.insert_with(&mut self.random, |_| false, |_, _| created);
        number.map(AhId).ok_or(CreateError::TooMany { what: "address handles", max })
    }

    /// Destroys an address handle. A work request that names it and is not yet sent fails with
    /// [`WcStatus::LocQpOpErr`](crate::queue::WcStatus::LocQpOpErr).
    pub fn destroy_ah(&mut self, ah: AhId) -> Result<(), DestroyError> {
        let created = self.ahs.remove(ah.0).ok_or(DestroyError::Unknown(AH))?;
        self.address_handles.release(created.handle);
        self.objects.release_pd(created.pd);
        Ok(())
    }

    /// Processes a packet to a queue pair without a connection: receives a datagram that passes `admit_datagram` and
    /// the ICRC check, and drops all other packets.
    #[cold]
    #[inline(never)]
    pub(super) fn on_datagram(&mut self, slot: usize, packet: &Packet<'_>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        if let Err(counter) = admit_datagram(qp, self.neighbour.gids(), packet) {
            *counter(&mut self.drops) += 1;
            return;
        }
        let is_intact = match self.port.payload() {
            Payload::Carried => packet.icrc_ok_rare(),
            Payload::Phantom => packet.icrc() == PHANTOM_ICRC,
        };
        if !is_intact {
            self.drops.rx_icrc_errors += 1;
            return;
        }
        qp.counters.rcvd_pkts += 1;
        let mut rx = rx_context!(self, qp, Access::NONE, slot);
        if let Err(Refusal::BadReceive) = receive(packet, &mut rx) {
            let event = Event::QpFatal(qp.qpn);
            self.enter_error(slot, Some(event));
        }
    }

    /// Sends datagrams of the queue pair with index `slot`.
    #[inline(never)]
    pub(super) fn transmit_datagrams(&mut self, slot: usize, quantum: &mut u32) -> TxOutcome {
        let Some(qp) = self.qps.at_mut(slot) else { return TxOutcome::Done };
        let Some(ud) = &mut qp.datagrams else { return TxOutcome::Done };
        if !matches!(qp.state, QpState::Rts | QpState::Sqd) {
            return TxOutcome::Done;
        }
        let mut tx = DatagramContext {
            now: self.now,
            port: &mut self.port,
            budget: quantum,
            memory: &self.memory,
            pd: qp.pd,
            qkey: ud.qkey,
            counters: &mut qp.counters,
        };
        let (ahs, handles) = (&self.ahs, &self.address_handles);
        let open = |ah: AhId| {
            let CreatedAh { pd, handle, flow_label } = ahs.get(ah.0)?;
            Some(OpenAh { template: &handles.get(*handle)?.template, pd: *pd, flow_label: *flow_label })
        };
        let outcome = ud.sender.transmit(&mut qp.outstanding, &mut tx, open);
        qp.scheduled = matches!(outcome, TxOutcome::MoreToSend | TxOutcome::TxRingFull);
        self.after_sender(slot);
        outcome
    }
}

/// Checks the headers of a packet to a queue pair without a connection. If a check fails, returns the drop counter of
/// this check.
fn admit_datagram(qp: &Qp, gids: &GidTable, packet: &Packet<'_>) -> Result<(), DropCounter> {
    let Some(ud) = qp.datagrams.as_ref().filter(|_| qp.state.receives()) else {
        return Err(|drops| &mut drops.qp_state);
    };
    let Some(deth) = packet.deth().filter(|_| packet.info.transport == Transport::Ud) else {
        return Err(|drops| &mut drops.wrong_transport);
    };
    let Some((_, own)) = gids.find(packet.dst_gid().ip()) else {
        return Err(|drops| &mut drops.wrong_destination);
    };
    if !packet.is_of_vlan(own.vlan.unwrap_or(0)) {
        return Err(|drops| &mut drops.wrong_vlan);
    }
    if !PKey::DEFAULT.accepts(packet.bth.pkey) {
        return Err(|drops| &mut drops.wrong_pkey);
    }
    if deth.qkey != ud.qkey {
        return Err(|drops| &mut drops.wrong_qkey);
    }
    Ok(())
}
