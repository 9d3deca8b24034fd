//! Modifies queue pairs (IBA 11.2.5.2): checks the transition and the ranges of values, creates the address handle of a
//! new address vector, and applies the change.

use super::address_handle::{AddressHandle, AddressHandleId, AddressHandles, AddressKey};
use super::limits::{FLUSHED_WRS_PER_QP, FOLLOWED_ADDRESS_HANDLES_PER_POLL, MAX_RD_ATOMIC};
use super::qp_object::{Attributes, Connection, Service};
use super::source::SourcePorts;
use super::{Engine, end_flush, schedule};
use crate::congestion::notification::ECT_0;
use crate::congestion::parameters;
use crate::id::{Gid, Qpn};
use crate::neighbour::Resolution;
use crate::port::Port;
use crate::qp::emit::QpHeaders;
use crate::qp::outstanding::Outstanding;
use crate::qp::rc::requester::{Requester, RequesterConfig};
use crate::qp::rc::responder::{Responder, ResponderConfig};
use crate::qp::rc::{Rc, Responses};
use crate::qp::state::check_transition;
use crate::qp::uc::Uc;
use crate::qp::uc::receiver::Receiver;
use crate::qp::uc::sender::Sender;
use crate::qp::ud::Ud;
use crate::qp::{AddressVector, ConnAttr, ModifyError, PathMtu, QpAttr, QpState, ServiceType};
use crate::random::Random;
use crate::recovery::RecoveryScheme;
use crate::recovery::selective_repeat::{WINDOW_PKTS_MAX, WINDOW_PKTS_MIN};
use crate::start;
use crate::wire::{flow_label_from_qpns, udp_source_port};

/// Hop limit (IPv6) or time to live (IPv4) of packets if the `hop_limit` of the address vector is 0.
const DEFAULT_HOP_LIMIT: u8 = 64;

const ECN_MASK: u8 = 3;

pub(super) const FLOW_LABEL_MASK: u32 = 0xF_FFFF;

impl<P: Port> Engine<P> {
    /// Returns the MAC of the next hop to `dgid`, if known. The first call starts to resolve the next hop.
    pub fn resolve(&mut self, dgid: Gid) -> Resolution {
        self.neighbour.resolve(dgid.ip(), self.now)
    }

    /// Changes the state and attributes of a queue pair as the state table permits (IBA 11.2.5.2). If this function
    /// returns an error, the queue pair is unchanged. Before a transition to RESET or ERR, the responses due are sent,
    /// as far as the port and congestion control permit.
    ///
    /// If `attr` has an address vector, the next hop to its GID must be resolved before this call: [`Engine::resolve`]
    /// must have returned `Known`.
    pub fn modify_qp(&mut self, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyError> {
        let qp = self.qps.get(qpn.value()).ok_or(ModifyError::UnknownQp)?;
        let from = qp.state;
        let to = attr.state.unwrap_or(from);
        if let Some(believed) = attr.current_state
            && believed != from
        {
            return Err(ModifyError::NotInState { believed, actual: from });
        }
        check_transition(qp.init.service, from, to, attr.mask())?;
        check_ranges(attr, self.port.caps().mtu_bytes)?;
        check_fixed(attr, from, &qp.attributes().conn)?;
        let mut attributes = *qp.attributes();
        if from == QpState::Reset {
            attributes.conn.congestion = Some(self.congestion);
        }
        let attributes = updated(&attributes, attr);
        let route = match attr.path {
            Some(path) => Some(self.route_for(qpn, &attributes, &path)?),
            None => None,
        };
        let slot = self.qps.slot_of(qpn.value()).ok_or(ModifyError::UnknownQp)?;
        let Some(qp) = self.qps.at_mut(slot) else { return Err(ModifyError::UnknownQp) };
        let is_congestion_changed = attributes.conn.congestion != qp.attributes().conn.congestion;
        qp.set_attributes(attributes);
        self.carry_out(slot, (from, to), route, is_congestion_changed);
        // After a transition to RTR, RTS or SQD the address handle may be one whose MAC is out of date, because each
        // poll updates only some address handles (`follow_neighbours`). Therefore the MAC of this address handle is
        // updated now.
        let connection = self.qps.get(qpn.value()).and_then(|qp| qp.connection.as_ref());
        let address_handle = connection.map(|connection| connection.address_handle);
        if let (Some(id), QpState::Rtr | QpState::Rts | QpState::Sqd) = (address_handle, to) {
            self.update_mac(id);
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        slot: usize,
        (from, to): (QpState, QpState),
        route: Option<Route>,
        is_congestion_changed: bool,
    ) {
        if matches!(to, QpState::Reset | QpState::Err) {
            self.send_last_responses(slot);
        }
        let link_bits_per_sec = self.link_bits_per_sec;
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let attributes = *qp.attributes();
        match (from, to) {
            (_, QpState::Reset) => {
                qp.close_reorder_buffer(slot, &mut self.reorder);
                qp.discard().into_iter().for_each(|id| self.address_handles.release(id));
                end_flush(qp, &mut self.errors, slot);
            }
            (_, QpState::Err) => return self.enter_error(slot, None),
            (QpState::Init, QpState::Rtr) => self.start_receives(slot, &attributes, route),
            (QpState::Rtr, QpState::Rts) => {
                if let Some(connection) = &mut qp.connection {
                    start_sends(&mut connection.service, &mut qp.outstanding, &attributes, link_bits_per_sec);
                    set_traffic_class(connection, &attributes, &mut self.address_handles);
                }
                if let Some(ud) = &mut qp.datagrams {
                    qp.outstanding.start(attributes.sq_psn, u32::MAX);
                    ud.sender.start(attributes.sq_psn);
                }
            }
            (QpState::Sqd, QpState::Sqd) => {
                if let Some(connection) = &mut qp.connection {
                    if let Some(route) = route {
                        set_route(connection, route, &mut self.address_handles);
                    }
                    let handles = &mut self.address_handles;
                    reconfigure(connection, &attributes, is_congestion_changed, link_bits_per_sec, handles);
                }
            }
            (QpState::Sqe, QpState::Rts) => {
                // Work requests posted in SQE are flushed. The next message starts at the PSN after the last PSN sent.
                while qp.flush_sends(&mut self.cqs, FLUSHED_WRS_PER_QP) {}
                // Without this call, a later poll would flush work requests that are posted in RTS.
                end_flush(qp, &mut self.errors, slot);
                if let Some((next, _)) = qp.sent_unreliably() {
                    qp.outstanding.start(next, u32::MAX);
                }
            }
            _ => {}
        }
        let Some(qp) = self.qps.at_mut(slot) else { return };
        qp.set_state(to);
        qp.set_draining(to == QpState::Sqd);
        qp.drained &= to == QpState::Sqd;
        if to == QpState::Sqd {
            self.after_sends(slot);
        }
        schedule(&mut self.qps, &mut self.tx_ready, slot);
    }

    /// Creates the connection, or the state for datagrams, of a queue pair that enters RTR.
    fn start_receives(&mut self, slot: usize, attributes: &Attributes, route: Option<Route>) {
        let Some(qp) = self.qps.at_mut(slot) else { return };
        let Some(service) = service_of(qp.init.service, attributes, self.link_bits_per_sec) else {
            let ip_id = draw_ip_id(&mut self.random);
            qp.datagrams = Some(Box::new(Ud::new(qp.qpn, attributes.qkey, attributes.sq_psn, ip_id)));
            return;
        };
        if matches!(service, Service::Rc(_)) && attributes.conn.recovery.buffered_pkts_max().is_some() {
            self.reorder.open(slot);
        }
        qp.connection = route.map(|Route { handle, headers, source_ports }| {
            let address_handle = self.address_handles.acquire(handle);
            let access = attributes.conn.access;
            Connection { service, address_handle, headers, source_ports, access }
        });
    }

    fn route_for(
        &mut self,
        qpn: Qpn,
        attributes: &Attributes,
        path: &AddressVector,
    ) -> Result<Route, ModifyError> {
        let handle = self
            .address_handle_to(path, traffic_class(attributes))
            .map_err(|reason| ModifyError::NoPath { dgid: path.dgid, reason })?;
        let fields = handle.template.qp_fields(attributes.dest_qpn, source_port(qpn, attributes, path));
        let ip_id = draw_ip_id(&mut self.random);
        let source_ports = SourcePorts::new(self.source_checks);
        Ok(Route { handle, headers: QpHeaders { fields, ip_id }, source_ports })
    }

    /// Returns a new address handle without users for the address vector `path`. If no packet can be sent to the GID of
    /// `path`, returns cause and remedy.
    pub(super) fn address_handle_to(
        &mut self,
        path: &AddressVector,
        traffic_class: u8,
    ) -> Result<AddressHandle, String> {
        let Some(entry) = self.neighbour.gids().get(usize::from(path.sgid_index)) else {
            let count = self.neighbour.gids().len();
            return Err(format!("there is no GID index {}; this device has {count}", path.sgid_index));
        };
        let (own, vlan) = (entry.gid, entry.vlan);
        if own.is_ipv4() != path.dgid.is_ipv4() {
            return Err(format!(
                "GID index {} is {own}, of the other IP family; choose an index of the same family (index 0 is the link-local IPv6 address)",
                path.sgid_index
            ));
        }
        let peer_mac = match self.neighbour.resolve(path.dgid.ip(), self.now) {
            Resolution::Known(mac) => mac,
            Resolution::Pending => {
                return Err("its Ethernet address is not known yet; resolve it first".into());
            }
            Resolution::Unreachable => {
                return Err(
                    "no neighbour answers for it; is it up, and in the same subnet as the source GID?".into(),
                );
            }
        };
        let key = AddressKey {
            peer: path.dgid,
            own,
            vlan,
            traffic_class,
            hop_limit: if path.hop_limit == 0 { DEFAULT_HOP_LIMIT } else { path.hop_limit },
            flow_label: if own.is_ipv4() { 0 } else { path.flow_label & FLOW_LABEL_MASK },
            is_on_link: self.neighbour.is_on_link(path.dgid.ip()),
        };
        AddressHandle::new(key, self.mac, peer_mac, self.source_checks)
            .map_err(|families| families.to_string())
    }

    /// After a change of the neighbour cache, updates the MACs of the address handles, some in each poll. While the
    /// next hop of an address handle is unresolved or unreachable, the queue pairs that use the address handle continue
    /// to send to the last known MAC.
    #[inline]
    pub(super) fn follow_neighbours(&mut self) {
        let generation = self.neighbour.generation();
        if std::mem::replace(&mut self.neighbour_generation, generation) != generation {
            self.following = Some(0);
        }
        if let Some(first) = self.following {
            self.follow_from(first);
        }
    }

    #[cold]
    #[inline(never)]
    fn follow_from(&mut self, first: usize) {
        let slots = self.address_handles.slots_len();
        let end = slots.min(first + FOLLOWED_ADDRESS_HANDLES_PER_POLL);
        (first..end).for_each(|slot| self.update_mac(AddressHandleId::new(slot)));
        self.following = Some(end).filter(|end| *end < slots);
    }

    /// Sets the MAC of an address handle in use to that of the next hop, if the next hop is resolved.
    pub(super) fn update_mac(&mut self, id: AddressHandleId) {
        let Some(handle) = self.address_handles.get_mut(id) else { return };
        if let Resolution::Known(mac) = self.neighbour.resolve(handle.peer().ip(), self.now) {
            handle.set_peer_mac(mac);
        }
    }
}

fn draw_ip_id(random: &mut Random) -> u16 {
    #[expect(clippy::cast_possible_truncation, reason = "drawn below 2^16")]
    start::ip_id(random.below(1 << 16) as u16)
}

/// Returns the initial protocol state of a connection that enters RTR; `None` for datagrams, which have no connection.
fn service_of(service: ServiceType, attributes: &Attributes, link_bits_per_sec: u64) -> Option<Service> {
    let Attributes { conn, rq_psn, sq_psn, .. } = attributes;
    Some(match service {
        ServiceType::Rc => Service::Rc(Rc {
            requester: Requester::new(RequesterConfig::new(conn, *sq_psn, link_bits_per_sec)),
            responder: Responder::new(ResponderConfig::new(conn, *rq_psn)),
            responses: Responses::None,
        }),
        ServiceType::Uc => Service::Uc(Uc {
            sender: Sender::new(conn, *sq_psn, link_bits_per_sec),
            receiver: Receiver::new(*rq_psn, conn.path_mtu.bytes()),
        }),
        ServiceType::Ud => return None,
    })
}

/// Starts the requester or sender of a queue pair that enters RTS, at the first PSN `sq_psn`.
fn start_sends(
    service: &mut Service,
    outstanding: &mut Outstanding,
    attributes: &Attributes,
    link_bits_per_sec: u64,
) {
    let Attributes { conn, sq_psn, .. } = attributes;
    match service {
        Service::Rc(rc) => {
            let config = RequesterConfig::new(conn, *sq_psn, link_bits_per_sec);
            outstanding.start(*sq_psn, config.read_pkts_max());
            rc.requester = Requester::new(config);
        }
        Service::Uc(uc) => {
            outstanding.start(*sq_psn, u32::MAX);
            uc.sender = Sender::new(conn, *sq_psn, link_bits_per_sec);
        }
    }
}

/// The parts of a connection that a new address vector replaces.
struct Route {
    handle: AddressHandle,
    headers: QpHeaders,
    source_ports: SourcePorts,
}

/// Applies changed timers, retry counts and congestion control to a reliable connection in SQD.
fn reconfigure(
    connection: &mut Connection,
    attributes: &Attributes,
    is_congestion_changed: bool,
    link_bits_per_sec: u64,
    address_handles: &mut AddressHandles,
) {
    if let Service::Rc(rc) = &mut connection.service {
        let config = RequesterConfig::new(&attributes.conn, attributes.sq_psn, link_bits_per_sec);
        rc.requester.reconfigure(config, is_congestion_changed);
        set_traffic_class(connection, attributes, address_handles);
    }
}

/// Sets the traffic class of the packets of a connection to that of `attributes`, with ECT(0) if the congestion control
/// needs CE marks.
fn set_traffic_class(
    connection: &mut Connection,
    attributes: &Attributes,
    address_handles: &mut AddressHandles,
) {
    let traffic_class = traffic_class(attributes);
    connection.address_handle = address_handles.with_traffic_class(connection.address_handle, traffic_class);
}

fn set_route(connection: &mut Connection, route: Route, address_handles: &mut AddressHandles) {
    // The handle in use is released first, so that a queue pair never uses two address handles.
    address_handles.release(connection.address_handle);
    connection.address_handle = address_handles.acquire(route.handle);
    connection.headers = route.headers;
    connection.source_ports = route.source_ports;
}

/// Returns the traffic class of all packets of a queue pair: the traffic class of the address vector. If the ECN field
/// of the address vector is 0 and the congestion control needs CE marks, ECT(0) is added.
fn traffic_class(attributes: &Attributes) -> u8 {
    let given = attributes.path.map_or(0, |path| path.traffic_class);
    let wants_marks =
        attributes.conn.congestion.is_some_and(|scheme| scheme.is_ecn_capable()) && given & ECN_MASK == 0;
    if wants_marks { given | ECT_0 } else { given }
}

/// Returns the UDP source port of packets of queue pair `qpn`: derived from the flow label of `path` or, if this flow
/// label is 0, from the QPNs of both queue pairs.
fn source_port(qpn: Qpn, attributes: &Attributes, path: &AddressVector) -> u16 {
    let given = path.flow_label & FLOW_LABEL_MASK;
    udp_source_port(if path.flow_label == 0 { flow_label_from_qpns(qpn, attributes.dest_qpn) } else { given })
}

fn updated(now: &Attributes, attr: &QpAttr) -> Attributes {
    Attributes {
        conn: now.conn.updated(attr),
        path: attr.path.or(now.path),
        dest_qpn: attr.dest_qpn.unwrap_or(now.dest_qpn),
        qkey: attr.qkey.unwrap_or(now.qkey),
        rq_psn: attr.rq_psn.unwrap_or(now.rq_psn),
        sq_psn: attr.sq_psn.unwrap_or(now.sq_psn),
    }
}

/// After the transition to RTR, checks that `attr` changes neither the recovery scheme nor the placement, because the
/// responder already uses these two attributes.
fn check_fixed(attr: &QpAttr, state: QpState, now: &ConnAttr) -> Result<(), ModifyError> {
    if matches!(state, QpState::Reset | QpState::Init) {
        return Ok(());
    }
    if attr.recovery.is_some_and(|recovery| recovery != now.recovery) {
        return Err(ModifyError::Fixed { attribute: "recovery", state });
    }
    if attr.placement.is_some_and(|placement| placement != now.placement) {
        return Err(ModifyError::Fixed { attribute: "placement", state });
    }
    Ok(())
}

fn check_ranges(attr: &QpAttr, port_mtu_bytes: usize) -> Result<(), ModifyError> {
    let below = |attribute, value: Option<u64>, end: u64| match value {
        Some(value) if value >= end => {
            Err(ModifyError::OutOfRange { attribute, value, needed: format!("at most {}", end - 1) })
        }
        _ => Ok(()),
    };
    below("pkey_index", attr.pkey_index.map(u64::from), 1)?;
    below("timeout", attr.timeout.map(u64::from), 32)?;
    below("min_rnr_timer", attr.min_rnr_timer.map(u64::from), 32)?;
    below("retry_cnt", attr.retry_count.map(u64::from), 8)?;
    below("rnr_retry", attr.rnr_retry.map(u64::from), 8)?;
    let rd_atomic_end = u64::from(MAX_RD_ATOMIC) + 1;
    below("max_rd_atomic", attr.max_rd_atomic.map(u64::from), rd_atomic_end)?;
    below("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u64::from), rd_atomic_end)?;
    if let Some(window_pkts) = attr.recovery.and_then(RecoveryScheme::invalid_window_pkts) {
        let needed = format!("a power of two from {WINDOW_PKTS_MIN} to {WINDOW_PKTS_MAX}");
        let value = u64::from(window_pkts);
        return Err(ModifyError::OutOfRange { attribute: "selective repeat window", value, needed });
    }
    if let Some(scheme) = attr.congestion.filter(|scheme| !scheme.is_valid()) {
        let needed = format!("1 to {} packets", parameters::WINDOW_PKTS_MAX);
        let value = u64::from(scheme.window_pkts());
        return Err(ModifyError::OutOfRange { attribute: "congestion window", value, needed });
    }
    if let Some(port) = attr.port_num.filter(|port| *port != 1) {
        let needed = "the device has port 1 only".into();
        return Err(ModifyError::OutOfRange { attribute: "port_num", value: u64::from(port), needed });
    }
    let largest = PathMtu::largest_for(port_mtu_bytes);
    if let Some(mtu) = attr.path_mtu.filter(|mtu| Some(*mtu) > largest) {
        let needed = match largest {
            Some(largest) => format!(
                "the port's MTU of {port_mtu_bytes} carries a path MTU of at most {}; raise the port's MTU or choose that",
                largest.bytes()
            ),
            None => format!("the port's MTU of {port_mtu_bytes} is too small for any path MTU"),
        };
        return Err(ModifyError::OutOfRange { attribute: "path_mtu", value: u64::from(mtu.bytes()), needed });
    }
    Ok(())
}
