//! A built topology, its configuration and limits.

use std::fmt;

use crate::id::{HostId, LinkId, SwitchId};
use crate::link::LinkConfig;
use crate::network::Network;
use crate::switch::SwitchConfig;

/// Largest number of hosts of a topology.
pub const HOSTS_MAX: usize = 4096;

/// Largest number of spine switches of a leaf-spine network.
pub const SPINES_MAX: usize = 1024;

/// Largest number of cables between the switches of a leaf-spine network.
pub const CABLES_MAX: usize = 1 << 16;

/// Cables, switches and seed of a fabric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FabricConfig {
    /// The cable of each host. `queue_bytes_max` bounds the switch's output queue towards the host.
    pub host_cable: LinkConfig,
    /// Every cable between switches; `queue_bytes_max` bounds the output queues at either end.
    pub trunk: LinkConfig,
    /// Limit in bytes of a host's output queue, the frame on the wire included.
    pub host_queue_bytes_max: usize,
    /// Configuration of every switch.
    pub switch: SwitchConfig,
    /// Seed of hash salts, sprayed paths, marks and losses.
    pub seed: u64,
}

/// A built topology. Hosts are numbered switch by switch.
pub struct Fabric {
    /// The network. Hosts have no addresses until [`Network::set_address`].
    pub network: Network,
    /// The hosts, by number.
    pub hosts: Vec<HostId>,
    /// The switches by tier, from the hosts up: leaf, spine; or edge, aggregation, core.
    pub tiers: Vec<Vec<SwitchId>>,
    /// The link from each host to its switch.
    pub uplinks: Vec<LinkId>,
    /// The link to each host from its switch.
    pub downlinks: Vec<LinkId>,
}

/// Reason why a topology cannot be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyError {
    /// A fat-tree of switches with an odd number of ports, or none.
    OddPorts(usize),
    /// The named number is 0, but must be at least 1.
    Zero(&'static str),
    /// More hosts than [`HOSTS_MAX`].
    TooManyHosts(usize),
    /// More spines than [`SPINES_MAX`].
    TooManySpines(usize),
    /// More cables between switches than [`CABLES_MAX`].
    TooManyCables(usize),
}

impl fmt::Display for TopologyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let too_many = |f: &mut fmt::Formatter<'_>, count: usize, what: &str, max: usize| {
            write!(f, "{count} {what} are more than the {max} that a topology may have; make it smaller")
        };
        match *self {
            TopologyError::OddPorts(k) => {
                write!(f, "a fat-tree needs switches of an even number of ports, at least 2, and not {k}")
            }
            TopologyError::Zero(what) => write!(f, "a topology needs at least one of its {what}"),
            TopologyError::TooManyHosts(hosts) => too_many(f, hosts, "hosts", HOSTS_MAX),
            TopologyError::TooManySpines(spines) => too_many(f, spines, "spines", SPINES_MAX),
            TopologyError::TooManyCables(cables) => {
                too_many(f, cables, "cables between switches", CABLES_MAX)
            }
        }
    }
}

impl std::error::Error for TopologyError {}

impl Fabric {
    pub(super) fn new(config: &FabricConfig) -> Fabric {
        let mut network = Network::seeded(config.seed);
        network.keep_fractions();
        Fabric { network, hosts: vec![], tiers: vec![], uplinks: vec![], downlinks: vec![] }
    }

    pub(super) fn add_tier(&mut self, config: &FabricConfig, switches: usize) -> Vec<SwitchId> {
        let tier: Vec<SwitchId> =
            (0..switches).map(|_| self.network.add_switch_with(config.switch)).collect();
        self.tiers.push(tier.clone());
        tier
    }

    pub(super) fn add_host(&mut self, config: &FabricConfig, switch: SwitchId) {
        let host = self.network.add_host();
        let down = config.host_cable;
        let up = LinkConfig { queue_bytes_max: config.host_queue_bytes_max, ..down };
        let [uplink, downlink] = self.network.connect_each_way(host, switch, [up, down]);
        self.hosts.push(host);
        self.uplinks.push(uplink);
        self.downlinks.push(downlink);
    }
}

pub(super) fn check_hosts(hosts: Option<usize>) -> Result<(), TopologyError> {
    match hosts {
        Some(0) => Err(TopologyError::Zero("hosts")),
        Some(hosts) if hosts <= HOSTS_MAX => Ok(()),
        hosts => Err(TopologyError::TooManyHosts(hosts.unwrap_or(usize::MAX))),
    }
}
