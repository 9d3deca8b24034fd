//! Address handles (IBA 11.2.2). All queue pairs whose address vectors are equal except for the UDP source port share
//! an address handle: the header fields of packets to the peer, and the source required of packets from the peer. If a
//! neighbour changes its MAC, the engine updates the address handles of this neighbour, but no queue pair.
//!
//! ```text
//!   queue pair: dest QPN, UDP source ports, IP identification, AddressHandleId --+
//!   queue pair: ...                                            AddressHandleId --+--> AddressHandle: header template,
//!                                                                                     source MAC, addresses, VLAN
//! ```
//!
//! An address handle has two kinds of users: connected queue pairs and numbers (`AhId`). A queue pair is a user from
//! RTR until its reset or destruction. If an application creates an address handle for datagrams (`Engine::create_ah`),
//! the application gets a new number; the address handle of the address vector may exist already. Each user uses one
//! address handle, so there are at most as many address handles as users.

use std::collections::BTreeMap;

use super::source::{Source, SourceChecks};
use crate::id::{Gid, Mac, PKey};
use crate::mem::PdId;
use crate::wire::{AddressPair, AddressSpec, AddressTemplate, MixedFamilies};

/// Key of an address handle: the fields of the address vector except the MACs and the UDP source port, and whether the
/// peer is on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AddressKey {
    pub peer: Gid,
    /// Source GID of packets to the peer.
    pub own: Gid,
    /// VLAN of the GID `own`, for packets sent and received; `None` if untagged.
    pub vlan: Option<u16>,
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// Flow label of the IPv6 header, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// Whether the peer is in the subnet of an address of this port. Otherwise packets from the peer have the MAC of a
    /// gateway as source MAC.
    pub is_on_link: bool,
}

/// Headers of packets to a peer, and the source required of packets from this peer. The alignment puts the headers in
/// as few cache lines as possible.
#[derive(Clone, Debug)]
#[repr(align(64))]
pub(super) struct AddressHandle {
    pub template: AddressTemplate,
    pub source: Source,
    key: AddressKey,
    /// Number of queue pairs and of numbers (`AhId`) that use the address handle; 0 in a free slot.
    users: u32,
}

impl AddressHandle {
    /// Returns an address handle without users. `peer_mac` is the MAC of the next hop to the peer.
    pub(super) fn new(
        key: AddressKey,
        own_mac: Mac,
        peer_mac: Mac,
        checks: SourceChecks,
    ) -> Result<Self, MixedFamilies> {
        let template = AddressTemplate::new(&AddressSpec {
            src_mac: own_mac,
            dst_mac: peer_mac,
            vlan: key.vlan,
            src: key.own,
            dst: key.peer,
            tclass: key.traffic_class,
            ttl: key.hop_limit,
            flow_label: key.flow_label,
            pkey: PKey::DEFAULT,
        })?;
        let addresses = AddressPair::new(key.peer, key.own);
        let mac = (checks.mac && key.is_on_link).then_some(peer_mac);
        let source = Source { mac, addresses, vlan: key.vlan.unwrap_or(0) };
        Ok(AddressHandle { template, source, key, users: 0 })
    }

    pub(super) fn peer(&self) -> &Gid {
        &self.key.peer
    }

    /// Sets the destination MAC of packets to the peer and, if the source MAC is checked, the source MAC required of
    /// packets from the peer.
    pub(super) fn set_peer_mac(&mut self, mac: Mac) {
        self.template.set_dst_mac(mac);
        self.source.mac = self.source.mac.map(|_| mac);
    }
}

/// Index of an address handle in [`AddressHandles`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressHandleId(u32);

impl AddressHandleId {
    /// Returns the identifier of slot `slot`, which is below the sum of `max_qps` and `max_ahs`, and below 2^32.
    pub(super) fn new(slot: usize) -> Self {
        AddressHandleId(u32::try_from(slot).unwrap_or(u32::MAX))
    }
}

/// Number of random bits of an [`AhId`](crate::id::AhId).
pub(super) const AH_BITS: u32 = 32;

/// Entry of the table `Engine::ahs`, for one `AhId` that `Engine::create_ah` returned. Several entries may contain the
/// same address handle.
pub(super) struct CreatedAh {
    pub pd: PdId,
    /// Address handle of the address vector; this entry is one of its users.
    pub handle: AddressHandleId,
    /// Flow label of the address vector; 0: the UDP source port of a datagram is computed from the QPNs of its sender
    /// and receiver.
    pub flow_label: u32,
}

/// The address handles of a device, found by their [`AddressKey`], each with its number of users.
#[derive(Debug)]
pub(super) struct AddressHandles {
    max_len: usize,
    slots: Vec<AddressHandle>,
    free: Vec<AddressHandleId>,
    ids: BTreeMap<AddressKey, AddressHandleId>,
}

impl AddressHandles {
    /// Creates an empty table of at most `max_len` address handles.
    pub(super) fn new(max_len: usize) -> Self {
        AddressHandles { max_len, slots: Vec::new(), free: Vec::new(), ids: BTreeMap::new() }
    }

    /// If an address handle with the key of `new` exists, adds a user to this address handle, and does not change its
    /// MAC. Otherwise inserts `new`, with one user.
    pub(super) fn acquire(&mut self, new: AddressHandle) -> AddressHandleId {
        if let Some(id) = self.ids.get(&new.key).copied()
            && let Some(handle) = self.slot_mut(id)
        {
            handle.users += 1;
            return id;
        }
        let (key, handle) = (new.key, AddressHandle { users: 1, ..new });
        let id = self.free.pop().unwrap_or(AddressHandleId::new(self.slots.len()));
        match self.slot_mut(id) {
            Some(slot) => *slot = handle,
            None => self.slots.push(handle),
        }
        self.ids.insert(key, id);
        debug_assert!(self.slots.len() <= self.max_len, "a user uses several address handles");
        id
    }

    /// Removes a user. An address handle without users is freed.
    pub(super) fn release(&mut self, id: AddressHandleId) {
        let Some(handle) = self.slot_mut(id) else { return };
        handle.users -= 1;
        if handle.users == 0 {
            let key = handle.key;
            self.ids.remove(&key);
            self.free.push(id);
        }
    }

    /// Moves a queue pair from the address handle `id` to the address handle whose key has `traffic_class` and is
    /// otherwise equal. Returns the identifier of the new address handle, or `id` if `id` already has this traffic
    /// class.
    pub(super) fn with_traffic_class(&mut self, id: AddressHandleId, traffic_class: u8) -> AddressHandleId {
        let Some(mut handle) =
            self.get(id).filter(|handle| handle.key.traffic_class != traffic_class).cloned()
        else {
            return id;
        };
        handle.key.traffic_class = traffic_class;
        handle.template.set_tclass(traffic_class);
        self.release(id);
        self.acquire(handle)
    }

    #[inline]
    pub(super) fn get(&self, id: AddressHandleId) -> Option<&AddressHandle> {
        self.slots.get(id.0 as usize)
    }

    /// Returns the address handle `id`; `None` in a free slot.
    pub(super) fn get_mut(&mut self, id: AddressHandleId) -> Option<&mut AddressHandle> {
        self.slot_mut(id).filter(|handle| handle.users > 0)
    }

    /// Returns the number of slots that are or were occupied.
    pub(super) fn slots_len(&self) -> usize {
        self.slots.len()
    }

    fn slot_mut(&mut self, id: AddressHandleId) -> Option<&mut AddressHandle> {
        self.slots.get_mut(id.0 as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::{CongestionScheme, DcqcnParameters};
    use crate::engine::limits::FOLLOWED_ADDRESS_HANDLES_PER_POLL;
    use crate::engine::{Engine, EngineConfig};
    use crate::id::Qpn;
    use crate::neighbour::{Mode, NeighbourConfig};
    use crate::port::PortCaps;
    use crate::port::loopback::{Loopback, LoopbackPort};
    use crate::psn::Psn;
    use crate::qp::{AddressVector, ConnAttr, QpAttr, QpInit, QpState, ServiceType};
    use crate::time::Instant;
    use proptest::prelude::*;
    use std::net::{IpAddr, Ipv4Addr};

    const OWN_MAC: Mac = Mac([2, 0, 0, 0, 0, 1]);

    fn ip(host: u8) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(10, 0, 0, host))
    }

    fn key(peer: u8, traffic_class: u8) -> AddressKey {
        AddressKey {
            peer: ip(peer).into(),
            own: ip(1).into(),
            vlan: None,
            traffic_class,
            hop_limit: 64,
            flow_label: 0,
            is_on_link: true,
        }
    }

    fn handle(key: AddressKey, mac: u8) -> AddressHandle {
        AddressHandle::new(key, OWN_MAC, Mac([2, 0, 0, 0, 0, mac]), SourceChecks::default()).unwrap()
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Acquire { peer: u8, traffic_class: u8, mac: u8 },
        Release { user: usize },
        WithTrafficClass { user: usize, traffic_class: u8 },
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (2..5u8, 0..3u8, 0..4u8).prop_map(|(peer, traffic_class, mac)| Step::Acquire {
                peer,
                traffic_class,
                mac
            }),
            any::<usize>().prop_map(|user| Step::Release { user }),
            (any::<usize>(), 0..3u8)
                .prop_map(|(user, traffic_class)| Step::WithTrafficClass { user, traffic_class }),
        ]
    }

    proptest! {
        /// The model is a list of users: key and id of the address handle of each user.
        #[test]
        fn each_key_in_use_has_one_address_handle(steps in prop::collection::vec(any_step(), 1..200)) {
            let mut handles = AddressHandles::new(9);
            let mut users: Vec<(AddressKey, AddressHandleId)> = Vec::new();
            let (mut macs, mut most) = (BTreeMap::new(), 0);
            for step in steps {
                match step {
                    Step::Acquire { peer, traffic_class, mac } => {
                        let key = key(peer, traffic_class);
                        if users.iter().all(|(other, _)| *other != key) {
                            macs.insert(key, Mac([2, 0, 0, 0, 0, mac]));
                        }
                        users.push((key, handles.acquire(handle(key, mac))));
                    }
                    Step::Release { user } if !users.is_empty() => {
                        let (_, id) = users.swap_remove(user % users.len());
                        handles.release(id);
                    }
                    Step::WithTrafficClass { user, traffic_class } if !users.is_empty() => {
                        let at = user % users.len();
                        let (before, id) = users[at];
                        let key = AddressKey { traffic_class, ..before };
                        if users.iter().all(|(other, _)| *other != key) {
                            macs.insert(key, macs[&before]);
                        }
                        users[at] = (key, handles.with_traffic_class(id, traffic_class));
                    }
                    Step::Release { .. } | Step::WithTrafficClass { .. } => {}
                }
                let keys: std::collections::BTreeSet<AddressKey> = users.iter().map(|(key, _)| *key).collect();
                most = keys.len().max(most);
                let in_use = (0..handles.slots_len())
                    .filter(|at| handles.get_mut(AddressHandleId::new(*at)).is_some())
                    .count();
                prop_assert_eq!((in_use, handles.ids.len()), (keys.len(), keys.len()));
                prop_assert!(handles.slots_len() <= most, "freed slots are used again");
                for (key, id) in &users {
                    let found = handles.get(*id).unwrap();
                    prop_assert_eq!(&found.key, key);
                    prop_assert_eq!(found.users as usize, users.iter().filter(|(other, _)| other == key).count());
                    let AddressHandle { template, source, .. } = AddressHandle::new(
                        *key, OWN_MAC, macs[key], SourceChecks::default()).unwrap();
                    prop_assert_eq!((found.template, found.source.mac), (template, source.mac));
                }
            }
        }
    }

    #[test]
    fn the_source_mac_follows_only_if_it_is_checked() {
        let moved = Mac([2, 0, 0, 0, 0, 77]);
        let off = SourceChecks { mac: false, ..SourceChecks::default() };
        let routed = AddressKey { is_on_link: false, ..key(2, 0) };
        let cases = [
            (key(2, 0), SourceChecks::default(), Some(moved)),
            (key(2, 0), off, None),
            (routed, SourceChecks::default(), None),
        ];
        for (key, checks, expected) in cases {
            let mut handle = AddressHandle::new(key, OWN_MAC, OWN_MAC, checks).unwrap();
            handle.set_peer_mac(moved);
            let new = AddressHandle::new(key, OWN_MAC, moved, checks).unwrap();
            assert_eq!((handle.source.mac, handle.template), (expected, new.template));
        }
    }

    /// Returns an engine with two IP addresses, and `QPS` queue pairs in RESET.
    fn engine<const QPS: usize>() -> (Engine<LoopbackPort>, [Qpn; QPS]) {
        let caps = PortCaps { mac: OWN_MAC, mtu_bytes: 1500 };
        let (port, _) = Loopback::pair(caps, caps, 64);
        let neighbour = NeighbourConfig {
            mac: OWN_MAC,
            mode: Mode::Dedicated,
            gids: vec![(ip(1), 24), (ip(9), 24)],
            gateway_v4: None,
            gateway_v6: None,
            vlan: None,
        };
        let mut engine = Engine::new(port, EngineConfig::new([1; 32], neighbour)).unwrap();
        for peer in [2, 3] {
            engine.neighbour_mut().set_neighbour(ip(peer), Mac([2, 0, 0, 0, 0, peer]));
        }
        let pd = engine.objects().alloc_pd().unwrap();
        let (cq, _) = engine.objects().create_cq(16).unwrap();
        let init = QpInit {
            service: ServiceType::Rc,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            max_send_wr: 8,
            max_recv_wr: 8,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            signal_all: true,
        };
        let qpns = [(); QPS].map(|()| engine.create_qp(&init).unwrap().qpn);
        (engine, qpns)
    }

    fn to_rtr(engine: &mut Engine<LoopbackPort>, qpn: Qpn, path: AddressVector) {
        let conn = ConnAttr { congestion: Some(CongestionScheme::None), ..ConnAttr::default() };
        engine.modify_qp(qpn, &conn.to_init()).unwrap();
        engine.modify_qp(qpn, &conn.to_rtr(path, Qpn::new(0x1234), Psn::new(1))).unwrap();
    }

    /// Changes a queue pair to RTS and to DCQCN. Because DCQCN needs CE marks, the queue pair then sends packets as
    /// ECT(0).
    fn to_rts_with_dcqcn(engine: &mut Engine<LoopbackPort>, qpn: Qpn) {
        let congestion = Some(CongestionScheme::Dcqcn(DcqcnParameters::default()));
        let to_rts = QpAttr { congestion, ..ConnAttr::default().to_rts(Psn::new(1)) };
        engine.modify_qp(qpn, &to_rts).unwrap();
    }

    fn reset(engine: &mut Engine<LoopbackPort>, qpn: Qpn) {
        let to_reset = QpAttr { state: Some(QpState::Reset), ..QpAttr::default() };
        engine.modify_qp(qpn, &to_reset).unwrap();
    }

    #[test]
    fn queue_pairs_share_an_address_handle_exactly_if_their_address_vectors_are_equal() {
        let (mut engine, [first, second]) = engine();
        let path = AddressVector::new(ip(2).into(), 1);
        let rows = [
            (path, 1),
            (AddressVector { hop_limit: 64, ..path }, 1),
            // An IPv4 header has no flow label.
            (AddressVector { flow_label: 7, ..path }, 1),
            (AddressVector { hop_limit: 63, ..path }, 2),
            (AddressVector { traffic_class: 4, ..path }, 2),
            (AddressVector { sgid_index: 2, ..path }, 2),
            (AddressVector { dgid: ip(3).into(), ..path }, 2),
        ];
        to_rtr(&mut engine, first, path);
        for (other, expected) in rows {
            to_rtr(&mut engine, second, other);
            assert_eq!(engine.address_handles.ids.len(), expected, "{other:?}");
            reset(&mut engine, second);
            assert_eq!(engine.address_handles.ids.len(), 1, "{other:?}");
        }
    }

    #[test]
    fn the_last_queue_pair_frees_the_address_handle() {
        let (mut engine, [first, second, third]) = engine();
        let path = AddressVector::new(ip(2).into(), 1);
        [first, second, third].into_iter().for_each(|qpn| to_rtr(&mut engine, qpn, path));
        reset(&mut engine, first);
        let to_error = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        engine.modify_qp(second, &to_error).unwrap();
        engine.destroy_qp(second).unwrap();
        assert_eq!(engine.address_handles.ids.len(), 1, "the third queue pair uses it");
        engine.destroy_qp(third).unwrap();
        assert_eq!(engine.address_handles.ids.len(), 0);
        assert!(
            engine.address_handles.get_mut(AddressHandleId::new(0)).is_none(),
            "a poll does not resolve the peer of a freed slot"
        );
    }

    #[test]
    fn a_queue_pair_that_changes_its_address_vector_or_congestion_control_changes_its_address_handle() {
        let (mut engine, [first, second]) = engine();
        let path = AddressVector::new(ip(2).into(), 1);
        [first, second].into_iter().for_each(|qpn| to_rtr(&mut engine, qpn, path));
        let keys = |engine: &Engine<LoopbackPort>| {
            let users = engine.address_handles.ids.iter();
            let row = |(key, id): (&AddressKey, &AddressHandleId)| {
                (key.traffic_class, engine.address_handles.get(*id).unwrap().users)
            };
            users.map(row).collect::<Vec<_>>()
        };
        assert_eq!(keys(&engine), [(0, 2)]);
        to_rts_with_dcqcn(&mut engine, first);
        assert_eq!(keys(&engine), [(0, 1), (2, 1)]);
        let to_sqd = |path| QpAttr { state: Some(QpState::Sqd), path, ..QpAttr::default() };
        engine.modify_qp(first, &to_sqd(None)).unwrap();
        engine.modify_qp(first, &to_sqd(Some(AddressVector { traffic_class: 4, ..path }))).unwrap();
        assert_eq!(keys(&engine), [(0, 1), (6, 1)]);
        engine
            .modify_qp(first, &QpAttr { congestion: Some(CongestionScheme::None), ..to_sqd(None) })
            .unwrap();
        assert_eq!(keys(&engine), [(0, 1), (4, 1)]);
    }

    #[test]
    fn an_address_handle_made_while_others_are_updated_is_updated_too() {
        const QPS: usize = FOLLOWED_ADDRESS_HANDLES_PER_POLL + 3;
        let (mut engine, qpns) = engine::<QPS>();
        // The last two queue pairs share an address handle, which the second poll updates.
        let classes = (0..QPS as u8).map(|index| 4 * index.min(QPS as u8 - 2));
        for (qpn, traffic_class) in qpns.into_iter().zip(classes) {
            let path = AddressVector { traffic_class, ..AddressVector::new(ip(2).into(), 1) };
            to_rtr(&mut engine, qpn, path);
        }
        let moved = Mac([2, 0, 0, 0, 0, 77]);
        engine.neighbour_mut().set_neighbour(ip(2), moved);
        assert!(engine.poll(Instant::ZERO).more, "the last address handle has the old MAC");
        // The reset frees the address handle in slot 0, whose MAC the poll above has already updated. DCQCN changes the
        // traffic class of the last queue pair, so this queue pair gets a new address handle, in slot 0: a copy of its
        // previous address handle, with the old MAC.
        reset(&mut engine, qpns[0]);
        to_rts_with_dcqcn(&mut engine, qpns[QPS - 1]);
        while engine.poll(Instant::ZERO).more {}
        assert_eq!(engine.address_handles.ids.len(), QPS - 1);
        for (key, id) in &engine.address_handles.ids {
            assert_eq!(engine.address_handles.get(*id).unwrap().source.mac, Some(moved), "{key:?}");
        }
    }

    #[test]
    fn the_table_does_not_grow_over_connections_with_different_address_vectors() {
        const CONNECTIONS: u32 = 100_000;
        let (mut engine, [qpn]) = engine();
        for number in 0..CONNECTIONS {
            let [traffic_class, hop_limit, ..] = number.to_le_bytes();
            let path = AddressVector { traffic_class, hop_limit, ..AddressVector::new(ip(2).into(), 1) };
            to_rtr(&mut engine, qpn, path);
            reset(&mut engine, qpn);
        }
        let handles = &engine.address_handles;
        assert_eq!((handles.slots_len(), handles.free.len(), handles.ids.len()), (1, 1, 0));
    }
}
