//! Builds the world of a setup: the network of its fabric with an engine on each host.

use netsim::topology::{Fabric as Topology, FabricConfig, LeafSpine, fat_tree, leaf_spine, star};
use netsim::{Forwarding, HostId, LinkConfig, LinkId, Pfc, Red, Service, SwitchConfig};
use roce::engine::limits::{DeviceLimits, REORDER_BYTES};
use roce::id::{LKey, RKey};
use roce::mem::{Access, Memory};
use roce::port::Payload;
use roce::psn::Psn;
use roce::queue::{CqId, CqPoller};
use roce::start;

use super::spec::{Ecn, Fabric, Order, PORT_MTU_BYTES, Routing, Setup, Switch};
use crate::world::{Host, HostConfig, Neighbours, World};

/// Minimum time between polls of a host.
pub(super) const POLL_GAP_NANOS: u64 = 100;
/// Limits of a host: a queue pair per unfinished flow.
const LIMITS: DeviceLimits = DeviceLimits {
    max_pds: 1,
    max_mrs: 1,
    max_cqs: 2,
    max_srqs: 0,
    max_qps: QPS_MAX,
    max_ahs: 0,
    reorder_bytes: REORDER_BYTES,
};
/// Largest number of unfinished flows from and to one host.
const QPS_MAX: usize = 8192;
/// Address of the first byte of every host's memory.
pub(super) const BASE: u64 = 0x1_0000_0000;
/// First PSNs of the two ends of each connection.
pub(super) fn first_psns() -> [Psn; 2] {
    [start::psn(0x10_0000), start::psn(0x20_0000)]
}
/// Limit of an output queue that is bounded by the input ports' memory only.
const UNBOUNDED_BYTES: usize = 1 << 40;

/// A world on a fabric, and its links between hosts and switches.
pub(super) struct Hosts {
    pub(super) world: World,
    /// The network's identifiers of the hosts, by number.
    pub(super) ids: Vec<HostId>,
    pub(super) uplinks: Vec<LinkId>,
    pub(super) downlinks: Vec<LinkId>,
}

impl Hosts {
    /// Number of links of the shortest path between two hosts.
    pub(super) fn path(&mut self, from: usize, to: usize) -> usize {
        self.world.network.borrow_mut().routes().path(self.ids[from], self.ids[to]).len()
    }

    /// Creates the objects of each host, with a memory region of `memory_bytes`.
    pub(super) fn create_objects(&mut self, memory_bytes: usize) -> Vec<HostObjects> {
        let create = |host: &mut Host| {
            let cqes = u32::try_from(QPS_MAX).expect("a few thousand");
            let (send_cq, completions) =
                host.engine.objects().create_cq(cqes).expect("there is room for two");
            let (recv_cq, _) = host.engine.objects().create_cq(1).expect("there is room for two");
            let (lkey, rkey) = host.register(&Memory::phantom(memory_bytes), BASE, Access::ALL);
            HostObjects { send_cq, recv_cq, completions, lkey, rkey }
        };
        self.world.hosts.iter_mut().map(create).collect()
    }
}

/// The completion queues and memory region of a host.
pub(super) struct HostObjects {
    pub(super) send_cq: CqId,
    pub(super) recv_cq: CqId,
    pub(super) completions: CqPoller,
    pub(super) lkey: LKey,
    pub(super) rkey: RKey,
}

/// Builds the fabric of `setup`, with phantom payload and without neighbour discovery.
pub(super) fn build(setup: &Setup, seed: u64) -> Result<Hosts, String> {
    let config = config(setup, seed);
    let topology: Result<Topology, _> = match setup.fabric {
        Fabric::Pair {} | Fabric::Ports { .. } => star(2, &config),
        Fabric::Star { hosts } => star(hosts, &config),
        Fabric::LeafSpine { leaves, spines, hosts_per_leaf } => {
            leaf_spine(LeafSpine { hosts_per_leaf, leaves, spines }, &config)
        }
        Fabric::FatTree { k } => fat_tree(k, &config),
    };
    let mut topology = topology.map_err(|error| error.to_string())?;
    for link in (0..topology.network.links()).map(LinkId) {
        topology.network.set_loss(link, setup.loss.chance.value());
    }
    let hosts = HostConfig {
        mtu_bytes: PORT_MTU_BYTES,
        poll_gap_nanos: POLL_GAP_NANOS,
        congestion: setup.transport.congestion(),
        seed,
        limits: LIMITS,
        neighbours: Neighbours::Static,
        payload: Payload::Phantom,
    };
    let world = World::on(topology.network, &topology.hosts, &hosts);
    Ok(Hosts { world, ids: topology.hosts, uplinks: topology.uplinks, downlinks: topology.downlinks })
}

fn config(setup: &Setup, seed: u64) -> FabricConfig {
    let Switch { buffer_kbytes, output_kbytes, routing, service, pfc, ecn } = &setup.switch;
    let link = setup.link.config();
    let bytes = |kbytes: f64| (kbytes * 1e3) as usize;
    let cable = LinkConfig { queue_bytes_max: output_kbytes.map_or(UNBOUNDED_BYTES, bytes), ..link };
    let input_bytes_max = bytes(*buffer_kbytes);
    let red = |ecn: &Ecn| Red {
        kmin_bytes: bytes(ecn.kmin_kbytes),
        kmax_bytes: bytes(ecn.kmax_kbytes),
        pmax: ecn.pmax.value(),
    };
    FabricConfig {
        host_cable: cable,
        trunk: cable,
        host_queue_bytes_max: link.queue_bytes_max,
        switch: SwitchConfig {
            forwarding: match routing {
                Routing::Ecmp => Forwarding::Ecmp,
                Routing::Spray => Forwarding::SprayRandom,
                Routing::SprayRoundRobin => Forwarding::SprayRoundRobin,
            },
            service: match service {
                Order::Fifo => Service::Fifo,
                Order::RoundRobin => Service::RoundRobin,
            },
            input_bytes_max,
            shared_bytes_max: usize::MAX,
            ecn: ecn.as_ref().map(red),
            pfc: pfc.then(|| Pfc::lossless(input_bytes_max, &link, setup.transport.frame_bytes_max())),
        },
        seed,
    }
}
