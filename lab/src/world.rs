//! Engines on a simulated network. An engine is polled only if frames were received, its deadline is due, work was
//! posted, its last poll requested another poll, or a full port has room again. An engine that reports a wrong deadline
//! therefore stalls in the simulation, as it would on a real port.
//!
//! ```text
//!   World::new   a cable or a learning switch; ARP and neighbour discovery, payload transmitted
//!   World::on    any network (`netsim::topology`); neighbours resolved or set, payload transmitted or phantom
//!
//!   step:  network runs to the next notification of a host, or the earliest due host --> due hosts are polled
//!          [`World::polled`] lists the polled hosts: only their completion queues can have changed
//! ```
//! After a change of an engine other than by a poll (work posted, a queue pair modified) [`Host::kick`] must be
//! called. The cost of a step is nearly independent of the number of hosts.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

use netsim::{HostId, LinkConfig, Network};
use roce::congestion::CongestionScheme;
use roce::engine::limits::{DeviceLimits, REORDER_BYTES};
use roce::engine::{Engine, EngineConfig, QpHandles};
use roce::id::{Gid, LKey, Mac, Qpn, RKey};
use roce::mem::{Access, Memory, PdId};
use roce::neighbour::{Mode, NeighbourConfig, Resolution};
use roce::port::{Payload, PortCaps};
use roce::psn::Psn;
use roce::qp::{AddressVector, ConnAttr, QpAttr, QpInit, ServiceType};
use roce::queue::{CqId, CqPoller, RecvPoster, SendPoster};
use roce::start;

use crate::due::DueTimes;
use crate::sim_port::{Buffers, SharedNetwork, SimPort};

/// Configuration of a small world ([`World::new`]).
#[derive(Clone, Copy, Debug)]
pub struct WorldConfig {
    /// Number of hosts: two are connected by a cable, any other number by a switch.
    pub hosts: usize,
    /// Properties of every cable.
    pub link: LinkConfig,
    /// MTU of the ports in bytes.
    pub mtu_bytes: usize,
    /// Minimum time between polls of a host; at least 1, otherwise time would not advance.
    pub poll_gap_nanos: u64,
    /// Congestion control of each queue pair.
    pub congestion: CongestionScheme,
    /// Seed of the engines' keys and numbers.
    pub seed: u64,
    /// Bytes of each host's reorder buffer.
    pub reorder_bytes: usize,
}

/// Resolution of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// Dedicated ports resolve neighbours by ARP and neighbour discovery. The network must flood broadcasts.
    Ask,
    /// Shared ports: [`World::connect`] sets the neighbours' MACs.
    Static,
}

/// Configuration of each host of a world.
#[derive(Clone, Copy, Debug)]
pub struct HostConfig {
    /// MTU of the ports in bytes.
    pub mtu_bytes: usize,
    /// Minimum time between polls of a host; at least 1, otherwise time would not advance.
    pub poll_gap_nanos: u64,
    /// Congestion control of each queue pair.
    pub congestion: CongestionScheme,
    /// Seed of the engines' keys and numbers.
    pub seed: u64,
    /// Limits of protection domains, regions and queues.
    pub limits: DeviceLimits,
    /// Resolution of neighbours.
    pub neighbours: Neighbours,
    /// Whether payload is transmitted. With [`Payload::Phantom`], registered memory should be [`Memory::phantom`].
    pub payload: Payload,
}

/// Limits for the tests; small, because the tests create thousands of engines.
const LIMITS: DeviceLimits = DeviceLimits {
    max_pds: 4,
    max_mrs: 16,
    max_cqs: 256,
    max_srqs: 1,
    max_qps: 128,
    max_ahs: 0,
    reorder_bytes: REORDER_BYTES,
};

impl From<&WorldConfig> for HostConfig {
    fn from(config: &WorldConfig) -> Self {
        HostConfig {
            mtu_bytes: config.mtu_bytes,
            poll_gap_nanos: config.poll_gap_nanos,
            congestion: config.congestion,
            seed: config.seed,
            limits: DeviceLimits { reorder_bytes: config.reorder_bytes, ..LIMITS },
            neighbours: Neighbours::Ask,
            payload: Payload::Carried,
        }
    }
}

/// Sizes of a queue pair and its completion queues.
#[derive(Clone, Copy, Debug)]
pub struct QpSizes {
    /// Depth of the send queue in work requests.
    pub sends: u32,
    /// Depth of the receive queue in work requests.
    pub recvs: u32,
    /// Depths of the completion queues of sends and of receives in CQEs.
    pub cqes: [u32; 2],
    /// Largest number of entries of a scatter/gather list.
    pub sges: u32,
    /// Largest number of bytes of inline data.
    pub inline_bytes: u32,
}

/// An application's handles of a queue pair and its completion queues.
pub struct QpEnds {
    /// Queue pair number.
    pub qpn: Qpn,
    /// Posts sends.
    pub send: SendPoster,
    /// Posts receives.
    pub recv: RecvPoster,
    /// Polls the completions of sends.
    pub send_cq: CqPoller,
    /// Polls the completions of receives.
    pub recv_cq: CqPoller,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct EndAttr {
    /// Number of the host.
    pub host: usize,
    /// Queue pair number at that host.
    pub qpn: Qpn,
    /// First PSN that this end sends.
    pub first_psn: Psn,
    /// Attributes of this end. Both ends must have the same path MTU, and both or neither must have selective repeat.
    pub conn: ConnAttr,
}

/// A host: an engine on a port.
pub struct Host {
    /// The engine.
    pub engine: Engine<SimPort>,
    /// The host's only protection domain.
    pub pd: PdId,
    number: usize,
    id: HostId,
    frame_bytes_max: usize,
    refused: Rc<Cell<bool>>,
    wants_poll: bool,
    ready_nanos: u64,
    /// The world's list of hosts on which `kick` was called.
    kicked: Rc<RefCell<Vec<usize>>>,
}

/// Hosts and their network in virtual time.
pub struct World {
    /// The network.
    pub network: SharedNetwork,
    /// The hosts, by number.
    pub hosts: Vec<Host>,
    poll_gap_nanos: u64,
    neighbours: Neighbours,
    /// Polls of all hosts so far.
    pub polls: u64,
    due: DueTimes,
    /// Hosts whose due time may have changed, by number.
    kicked: Rc<RefCell<Vec<usize>>>,
    polled: Vec<usize>,
    /// The host number by [`HostId`]; `usize::MAX` for hosts without an engine.
    numbers: Vec<usize>,
    news: Vec<HostId>,
}

/// Reason for which a step of a world ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The wake time of the caller was reached.
    Woken,
    /// At least one host was polled.
    Polled,
    /// No event is scheduled and no host is due.
    Idle,
}

/// Largest number of hosts of a world: a host number takes 16 bits of an address.
pub const HOSTS_MAX: usize = 0xFFFE;

/// The last 16 bits of the addresses of host `number`.
fn suffix_of(number: usize) -> [u8; 2] {
    assert!(number < HOSTS_MAX, "host {number} exceeds the {HOSTS_MAX} hosts that addresses are for");
    (number as u16 + 1).to_be_bytes()
}

/// The Ethernet address of host `number`. Addresses differ by at least two bits; otherwise a learning switch would
/// learn a wrong port from a corrupted frame, which a real switch drops because of the FCS.
pub fn mac_of(number: usize) -> Mac {
    let [high, low] = suffix_of(number);
    Mac([0x02, high ^ low, low, high ^ low, low, low])
}

/// The IPv4 and IPv6 address of host `number`, GID indices 1 and 2.
pub fn addresses_of(number: usize) -> [IpAddr; 2] {
    let [high, low] = suffix_of(number);
    let last = u16::from_be_bytes([high, low]);
    [Ipv4Addr::new(10, 0, high, low).into(), Ipv6Addr::new(0xFD00, 0, 0, 0, 0, 0, 0, last).into()]
}

impl Host {
    /// Registers `memory` with virtual address `base`.
    pub fn register(&mut self, memory: &Memory, base: u64, access: Access) -> (LKey, RKey) {
        self.engine
            .objects()
            .register(self.pd, memory.clone(), base, access)
            .expect("there is room for the region")
    }

    /// Creates a queue pair with completion queues of its own.
    pub fn create_qp(&mut self, sizes: &QpSizes) -> QpEnds {
        let (send_cq, send_poller) =
            self.engine.objects().create_cq(sizes.cqes[0]).expect("there is room for the queue");
        let (recv_cq, recv_poller) =
            self.engine.objects().create_cq(sizes.cqes[1]).expect("there is room for the queue");
        let qp = self.create_qp_on(sizes, send_cq, recv_cq);
        QpEnds {
            qpn: qp.qpn,
            send: qp.send,
            recv: qp.recv.expect("no SRQ"),
            send_cq: send_poller,
            recv_cq: recv_poller,
        }
    }

    /// Creates a queue pair on existing completion queues. One completion queue for all queue pairs of a host needs
    /// less memory and fewer polls.
    pub fn create_qp_on(&mut self, sizes: &QpSizes, send_cq: CqId, recv_cq: CqId) -> QpHandles {
        let init = QpInit {
            service: ServiceType::Rc,
            srq: None,
            pd: self.pd,
            send_cq,
            recv_cq,
            max_send_wr: sizes.sends,
            max_recv_wr: sizes.recvs,
            max_send_sge: sizes.sges,
            max_recv_sge: sizes.sges,
            max_inline_bytes: sizes.inline_bytes,
            signal_all: false,
        };
        self.engine.create_qp(&init).expect("there is room for the queue pair")
    }

    /// Schedules a poll, after work was posted or the engine was changed otherwise.
    pub fn kick(&mut self) {
        self.wants_poll = true;
        self.kicked.borrow_mut().push(self.number);
    }

    /// The time at which this host is to be polled, computed at `now_nanos`; `None` if no poll is needed. As before a
    /// thread sleeps, the timers of the engine are settled.
    fn due_nanos(&mut self, network: &Network, now_nanos: u64) -> Option<u64> {
        let has_room = self.refused.get() && network.has_room(self.id, self.frame_bytes_max);
        let due_nanos = if self.wants_poll || has_room || network.waiting(self.id) > 0 {
            Some(now_nanos)
        } else {
            self.engine.settle_timers();
            self.engine.next_deadline().map(|deadline| deadline.nanos_since(start::instant()))
        };
        due_nanos.map(|due_nanos| due_nanos.max(self.ready_nanos).max(now_nanos))
    }
}

impl World {
    /// Creates a world of two hosts on a cable, or more on a learning switch, whose neighbours are resolved by ARP
    /// and neighbour discovery.
    pub fn new(config: &WorldConfig) -> World {
        let mut network = Network::new();
        let ids: Vec<HostId> = (0..config.hosts).map(|_| network.add_host()).collect();
        join(&mut network, &ids, config.link);
        World::on(network, &ids, &config.into())
    }

    /// Creates an engine on each host of `ids` of `network`. Hosts are numbered in the order of `ids`.
    pub fn on(mut network: Network, ids: &[HostId], config: &HostConfig) -> World {
        assert!(config.poll_gap_nanos > 0, "a poll takes time");
        let mut numbers = vec![usize::MAX; ids.iter().map(|id| id.0 + 1).max().unwrap_or(0)];
        for (number, id) in ids.iter().enumerate() {
            numbers[id.0] = number;
            network.set_address(*id, mac_of(number).0);
        }
        let network: SharedNetwork = Rc::new(RefCell::new(network));
        let kicked = Rc::new(RefCell::new((0..ids.len()).collect()));
        let mut world = World {
            network,
            hosts: Vec::with_capacity(ids.len()),
            poll_gap_nanos: config.poll_gap_nanos,
            neighbours: config.neighbours,
            polls: 0,
            due: DueTimes::new(ids.len()),
            kicked,
            polled: Vec::new(),
            numbers,
            news: Vec::new(),
        };
        let buffers = Buffers::default();
        ids.iter().for_each(|id| world.add_host(*id, config, &buffers));
        world
    }

    fn add_host(&mut self, id: HostId, config: &HostConfig, buffers: &Buffers) {
        let number = self.hosts.len();
        let caps = PortCaps { mac: mac_of(number), mtu_bytes: config.mtu_bytes };
        let (port, refused) = SimPort::new(self.network.clone(), id, caps, config.payload, buffers.clone());
        let link_bits_per_sec = self.network.borrow().host_link_config(id).rate_bits_per_sec;
        let engine_config = engine_config(number, link_bits_per_sec, config);
        let engine = Engine::new(port, engine_config).expect("the addresses are good");
        let pd = engine.objects().alloc_pd().expect("there is room for one");
        self.hosts.push(Host {
            engine,
            pd,
            number,
            id,
            frame_bytes_max: caps.frame_bytes_max(),
            refused,
            wants_poll: true,
            ready_nanos: 0,
            kicked: self.kicked.clone(),
        });
    }

    /// The virtual time in nanoseconds since the start. The engines see the start as [`start::instant()`].
    pub fn now_nanos(&self) -> u64 {
        self.network.borrow().now_nanos()
    }

    /// Advances the time to the next poll of a host, or to `wake_nanos` if that is earlier, and polls the hosts that
    /// are due.
    pub fn step(&mut self, wake_nanos: Option<u64>) -> Step {
        self.polled.clear();
        loop {
            self.look_at_kicked();
            let mut network = self.network.borrow_mut();
            let now_nanos = network.now_nanos();
            let until_nanos = self.due.next_nanos().into_iter().chain(wake_nanos).min();
            let Some(until_nanos) = until_nanos.or(network.next_event_nanos()) else { return Step::Idle };
            network.run_until_news(until_nanos.max(now_nanos));
            let now_nanos = network.now_nanos();
            network.take_news(&mut self.news);
            for id in self.news.drain(..) {
                if let Some(host) = self.numbers.get(id.0).and_then(|number| self.hosts.get_mut(*number)) {
                    self.due.set(host.number, host.due_nanos(&network, now_nanos));
                }
            }
            drop(network);
            if self.poll_due(now_nanos) {
                return Step::Polled;
            }
            if wake_nanos.is_some_and(|wake_nanos| wake_nanos <= now_nanos) {
                return Step::Woken;
            }
        }
    }

    /// The numbers of the hosts that the last step polled, in ascending order.
    pub fn polled(&self) -> &[usize] {
        &self.polled
    }

    fn look_at_kicked(&mut self) {
        let network = self.network.borrow();
        for number in self.kicked.borrow_mut().drain(..) {
            self.due.set(number, self.hosts[number].due_nanos(&network, network.now_nanos()));
        }
    }

    /// Steps until no event is scheduled and no host is due.
    pub fn settle(&mut self) {
        while self.step(None) != Step::Idle {}
    }

    /// Connects two queue pairs over IPv6 or IPv4, and moves both from RESET to RTS.
    pub fn connect(&mut self, ipv6: bool, ends: [EndAttr; 2]) {
        for (end, peer) in [(&ends[0], &ends[1]), (&ends[1], &ends[0])] {
            let address = addresses_of(peer.host)[usize::from(ipv6)];
            let dgid = Gid::from(address);
            if self.neighbours == Neighbours::Static {
                let known =
                    self.hosts[end.host].engine.neighbour_mut().set_neighbour(address, mac_of(peer.host));
                assert!(known, "host {} knows too many neighbours", end.host);
            }
            self.resolve(end.host, dgid);
            let path = AddressVector::new(dgid, if ipv6 { 2 } else { 1 });
            let to_rtr = end.conn.to_rtr(path, peer.qpn, peer.first_psn);
            let qp = self.hosts[end.host].engine.query_qp(end.qpn);
            let service = qp.expect("the queue pair exists").2.service;
            for attr in [end.conn.to_init(), to_rtr, end.conn.to_rts(end.first_psn)] {
                self.modify_qp(end.host, end.qpn, &attr.of_service(service));
            }
        }
    }

    /// Modifies a queue pair of `host`, and schedules a poll. Panics if the engine refuses `attr`.
    pub fn modify_qp(&mut self, host: usize, qpn: Qpn, attr: &QpAttr) {
        self.hosts[host].engine.modify_qp(qpn, attr).expect("the attributes are right");
        self.hosts[host].kick();
    }

    fn resolve(&mut self, host: usize, dgid: Gid) {
        while !matches!(self.hosts[host].engine.resolve(dgid), Resolution::Known(_)) {
            self.hosts[host].kick();
            assert_ne!(self.step(None), Step::Idle, "host {host} finds no way to {dgid}");
        }
    }

    fn poll_due(&mut self, now_nanos: u64) -> bool {
        self.due.due(now_nanos, &mut self.polled);
        for &number in &self.polled {
            let host = &mut self.hosts[number];
            host.refused.set(false);
            host.wants_poll = host.engine.poll(start::instant().plus_nanos(now_nanos)).more;
            host.ready_nanos = now_nanos + self.poll_gap_nanos;
            self.due.set(number, host.due_nanos(&self.network.borrow(), now_nanos));
            self.polls += 1;
        }
        !self.polled.is_empty()
    }
}

fn engine_config(number: usize, link_bits_per_sec: u64, config: &HostConfig) -> EngineConfig {
    let [high, low] = (number as u16).to_be_bytes(); // `mac_of` asserts the range
    let mut seed = [low; 32];
    seed[..8].copy_from_slice(&config.seed.to_le_bytes());
    seed[31] ^= high;
    let neighbour = NeighbourConfig {
        mac: mac_of(number),
        mode: match config.neighbours {
            Neighbours::Ask => Mode::Dedicated,
            Neighbours::Static => Mode::Shared,
        },
        gids: addresses_of(number).into_iter().zip([16, 64]).collect(),
        gateway_v4: None,
        gateway_v6: None,
        vlan: None,
    };
    let limits = config.limits;
    EngineConfig {
        limits,
        congestion: config.congestion,
        link_bits_per_sec,
        ..EngineConfig::new(seed, neighbour)
    }
}

fn join(network: &mut Network, ids: &[HostId], link: LinkConfig) {
    if let [a, b] = ids {
        network.connect(*a, *b, link);
        return;
    }
    let switch = network.add_switch();
    for id in ids {
        network.connect(*id, switch, link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn addresses_differ_by_more_than_a_bit() {
        let numbers: Vec<usize> = (0..600).chain([HOSTS_MAX - 1]).collect();
        let macs: HashSet<[u8; 6]> = numbers.iter().map(|number| mac_of(*number).0).collect();
        assert_eq!(macs.len(), numbers.len());
        for mac in &macs {
            assert_eq!(mac[0] & 1, 0, "one host's own");
            for bit in 0..48 {
                let mut flipped = *mac;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert!(!macs.contains(&flipped), "{mac:?}");
            }
        }
        let ips: HashSet<IpAddr> = numbers.iter().flat_map(|number| addresses_of(*number)).collect();
        assert_eq!(ips.len(), 2 * numbers.len());
    }
}
