//! The setup of a point: fabric, link, switch, loss, transport and workload. The names of keys end in their
//! units. Unknown keys are refused.

use std::fmt;
use std::str::FromStr;

use netsim::topology::{CABLES_MAX, SPINES_MAX, fat_tree_hosts};
use netsim::workload::Cdf;
use netsim::{LinkConfig, Pfc};
use roce::congestion::CongestionScheme;
use roce::mem::Access;
use roce::port::impairment::Action;
use roce::port::probability::Probability;
use roce::qp::{ConnAttr, PathMtu};
use roce::recovery::RecoveryScheme;
use serde::{Deserialize, Deserializer, de};
use toml::Value;

/// All parameters of a run except the seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Hosts and topology.
    pub fabric: Fabric,
    /// Properties of every cable of the fabric.
    #[serde(default)]
    pub link: Link,
    /// Properties of every switch of the fabric.
    #[serde(default)]
    pub switch: Switch,
    /// Random loss.
    #[serde(default)]
    pub loss: Loss,
    /// Attributes of the queue pairs.
    #[serde(default)]
    pub transport: Transport,
    /// Messages to send.
    pub workload: Workload,
}

/// Hosts and topology.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fabric {
    /// Two hosts on a cable, in virtual time.
    Pair {},
    /// Hosts at one switch.
    Star {
        /// Number of hosts.
        hosts: usize,
    },
    /// Leaf switches with hosts, each connected to every spine switch.
    LeafSpine {
        /// Number of leaf switches.
        leaves: usize,
        /// Number of spine switches.
        spines: usize,
        /// Hosts per leaf switch.
        hosts_per_leaf: usize,
    },
    /// The three-tier fat-tree of switches with `k` ports: k^3/4 hosts.
    FatTree {
        /// Ports of a switch, an even number.
        k: usize,
    },
    /// Two processes on real ports, in real time; loss is an impairment of the ports.
    Ports {
        /// The port of both processes, in the syntax of `--port`.
        #[serde(default = "default_port")]
        port: String,
        /// The server's host name or address for the TCP exchange.
        #[serde(default = "default_host")]
        host: String,
        /// The server's TCP port.
        #[serde(default = "default_tcp_port")]
        tcp_port: u16,
    },
}

fn default_port() -> String {
    "memif:@roce-lab".to_owned()
}

fn default_host() -> String {
    "localhost".to_owned()
}

fn default_tcp_port() -> u16 {
    18_590
}

/// A cable, with the same properties in both directions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// Bit rate of the wire.
    pub rate_gbit_per_sec: f64,
    /// Propagation delay in one direction.
    pub propagation_us: f64,
    /// Limit of a host's output queue, in units of 1,000 bytes.
    pub queue_kbytes: f64,
}

impl Default for Link {
    fn default() -> Self {
        Link { rate_gbit_per_sec: 40.0, propagation_us: 4.0, queue_kbytes: 1_000.0 }
    }
}

impl Link {
    /// Converts to the network's units.
    pub fn config(&self) -> LinkConfig {
        LinkConfig {
            rate_bits_per_sec: (self.rate_gbit_per_sec * 1e9) as u64,
            propagation_nanos: (self.propagation_us * 1e3) as u64,
            queue_bytes_max: (self.queue_kbytes * 1e3) as usize,
        }
    }
}

/// The switches of a fabric.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Switch {
    /// Memory per input port, in units of 1,000 bytes.
    pub buffer_kbytes: f64,
    /// Limit of an output queue, in units of 1,000 bytes; `None`: only `buffer_kbytes` limits the queue.
    pub output_kbytes: Option<f64>,
    /// Selection among the shortest paths.
    pub routing: Routing,
    /// Order in which an output port sends its frames.
    pub service: Order,
    /// Priority flow control: an input port that is nearly full pauses its sender, so that no packet is dropped.
    pub pfc: bool,
    /// ECN marking by queue length; `None`: no marking.
    pub ecn: Option<Ecn>,
}

impl Default for Switch {
    fn default() -> Self {
        Switch {
            buffer_kbytes: 240.0,
            output_kbytes: None,
            routing: Routing::Ecmp,
            service: Order::Fifo,
            pfc: false,
            ecn: None,
        }
    }
}

/// Selection among the shortest paths by a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// One path for all packets of a flow, by hash.
    Ecmp,
    /// A random path for each packet.
    Spray,
    /// The paths in turn, packet by packet.
    SprayRoundRobin,
}

/// Order in which an output port of a switch sends its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// In the order of their arrival.
    Fifo,
    /// One frame of each input port in turn.
    RoundRobin,
}

/// ECN marking by the length of the output queue: with a probability that increases from 0 at `kmin_kbytes` to `pmax`
/// at `kmax_kbytes`, and always above `kmax_kbytes`.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// Queue length above which marking begins, in units of 1,000 bytes.
    pub kmin_kbytes: f64,
    /// Queue length above which every packet is marked, in units of 1,000 bytes.
    pub kmax_kbytes: f64,
    /// Marking probability at `kmax_kbytes`.
    #[serde(deserialize_with = "probability")]
    pub pmax: Probability,
}

/// Random loss, in addition to drops of full queues.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Probability that a packet is lost on a link, for each packet and link, ACKs included.
    #[serde(deserialize_with = "probability")]
    pub chance: Probability,
}

/// Attributes of the queue pairs of both ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transport {
    /// Recovery scheme, in the syntax of `--recovery`.
    #[serde(deserialize_with = "from_str")]
    pub recovery: RecoveryScheme,
    /// Recovery scheme of the peer, if it differs; `go-back-n` stands for a standard peer.
    #[serde(deserialize_with = "optional_from_str")]
    pub peer_recovery: Option<RecoveryScheme>,
    /// Congestion control, in the syntax of `--congestion`.
    #[serde(deserialize_with = "from_str")]
    pub congestion: CongestionScheme,
    /// Limit of packets in flight that replaces the limit of the congestion control; 0: no replacement.
    pub window_pkts: u32,
    /// Path MTU: payload bytes of a packet, 256 to 4096.
    #[serde(deserialize_with = "path_mtu", rename = "path_mtu_bytes")]
    pub path_mtu: PathMtu,
    /// Local ACK timeout: 4.096 us * 2^timeout.
    pub timeout: u8,
    /// Retry count, 0 to 7.
    pub retry_count: u8,
}

impl Default for Transport {
    fn default() -> Self {
        Transport {
            recovery: RecoveryScheme::GoBackN,
            peer_recovery: None,
            congestion: CongestionScheme::default(),
            window_pkts: 0,
            path_mtu: PathMtu::Mtu1024,
            timeout: 14,
            retry_count: 7,
        }
    }
}

impl Transport {
    /// The connection attributes of the sender (0) or of its peer (1), with `rd_atomic` READs at once.
    pub fn conn(&self, end: usize, rd_atomic: u8) -> ConnAttr {
        ConnAttr {
            path_mtu: self.path_mtu,
            access: Access::ALL,
            max_rd_atomic: rd_atomic,
            max_dest_rd_atomic: rd_atomic,
            timeout: self.timeout,
            retry_count: self.retry_count,
            min_rnr_timer: 1,
            recovery: self.recovery_of(end),
            // The first probe timeouts are those of IRN: the simulated peers answer at once.
            initial_rtt_nanos: 0,
            ..ConnAttr::default()
        }
    }

    /// The recovery scheme of the sender (0) or of its peer (1).
    pub fn recovery_of(&self, end: usize) -> RecoveryScheme {
        self.peer_recovery.filter(|_| end == 1).unwrap_or(self.recovery)
    }

    /// The congestion control with `window_pkts` applied.
    pub fn congestion(&self) -> CongestionScheme {
        let window_pkts = self.window_pkts;
        match self.congestion {
            congestion if window_pkts == 0 => congestion,
            CongestionScheme::None | CongestionScheme::Window { .. } => {
                CongestionScheme::Window { window_pkts }
            }
            CongestionScheme::Dcqcn(mut parameters) => {
                parameters.window_pkts = window_pkts;
                CongestionScheme::Dcqcn(parameters)
            }
            CongestionScheme::Swift(mut parameters) => {
                parameters.window_pkts = window_pkts;
                CongestionScheme::Swift(parameters)
            }
            CongestionScheme::Timely(mut parameters) => {
                parameters.window_pkts = window_pkts;
                CongestionScheme::Timely(parameters)
            }
        }
    }

    /// Bytes of the longest frame of these queue pairs, without FCS; headers take 80 bytes at most.
    pub fn frame_bytes_max(&self) -> usize {
        self.path_mtu.bytes() as usize + 80
    }
}

/// Messages to send.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// One queue pair whose send queue is kept full; only for two hosts.
    Stream {
        /// The operation.
        #[serde(default)]
        op: Op,
        /// Bytes of a message.
        message_bytes: u32,
        /// Number of messages.
        messages: u32,
        /// Largest number of outstanding messages.
        #[serde(default = "default_depth")]
        depth: u32,
        /// Time limit of the run; virtual time in a simulation.
        #[serde(default = "default_limit_ms")]
        limit_ms: u64,
    },
    /// One message with an impairment of one of its packets (as in Lumina, SIGCOMM 2023); only for two hosts in
    /// virtual time.
    Reaction {
        /// The operation.
        #[serde(default)]
        op: Op,
        /// Packets of the message.
        packets: u32,
        /// The kind of impairment.
        #[serde(deserialize_with = "from_str")]
        action: Action,
        /// The delay in microseconds; for `delay` only.
        micros: Option<u64>,
        /// Number of later packets that overtake the packet; for `reorder` only.
        behind: Option<u32>,
        /// The packet of the message that is impaired; 1 is the first.
        packet: u32,
    },
    /// Messages between random pairs of hosts, with Poisson arrivals; each is a WRITE on a connection of its own.
    Flows {
        /// Distribution of sizes: `irn`, `web-search`, `hadoop`, `ali-storage`, or a number of bytes as text.
        #[serde(deserialize_with = "from_str")]
        sizes: Sizes,
        /// Offered load, as a share of the capacity of the hosts' links.
        load: f64,
        /// Number of flows.
        flows: usize,
        /// Virtual time limit of the run.
        #[serde(default = "default_limit_ms")]
        limit_ms: u64,
    },
    /// Long flows through one bottleneck: connections between one host and the others in turn, whose send queues are
    /// kept full. The payload goes to host 0, whose link is the bottleneck. Only for a fabric of switches.
    LongFlows {
        /// The operation. Host 0 is the requester of READs.
        #[serde(default)]
        op: Op,
        /// Number of connections.
        flows: usize,
        /// Bytes of a message.
        message_bytes: u32,
        /// Messages outstanding at most, per connection.
        #[serde(default = "default_depth")]
        depth: u32,
        /// READs outstanding at most, per connection.
        #[serde(default = "default_depth_reads")]
        max_rd_atomic: u8,
        /// Virtual time before the measurement. Connections start at random times in its first quarter.
        warm_up_ms: u64,
        /// Virtual time of the measurement.
        measured_ms: u64,
    },
    /// Many hosts send to one at the same time; each message is a WRITE on a connection of its own.
    Incast {
        /// Number of sending hosts.
        senders: usize,
        /// Sum of the messages, all of one size, in units of 1,000 bytes.
        total_kbytes: f64,
        /// Virtual time limit of the run.
        #[serde(default = "default_limit_ms")]
        limit_ms: u64,
    },
}

fn default_depth() -> u32 {
    16
}

fn default_depth_reads() -> u8 {
    16
}

fn default_limit_ms() -> u64 {
    10_000
}

/// The operation of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// SEND.
    Send,
    /// RDMA WRITE.
    #[default]
    Write,
    /// RDMA READ.
    Read,
}

/// The distribution of flow sizes.
#[derive(Clone, Debug)]
pub struct Sizes(pub Cdf);

/// The text is neither the name of a distribution nor a valid size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "needed irn, web-search, hadoop, ali-storage, or a number of bytes as text, 1 to {max}",
    max = FLOW_BYTES_MAX
)]
pub struct NoSizes;

impl FromStr for Sizes {
    type Err = NoSizes;

    fn from_str(text: &str) -> Result<Self, NoSizes> {
        let fixed = || text.parse().ok().filter(|bytes| (1..=FLOW_BYTES_MAX).contains(bytes)).map(Cdf::fixed);
        Cdf::by_name(text).or_else(fixed).map(Sizes).ok_or(NoSizes)
    }
}

fn from_str<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| de::Error::custom(format!("`{text}`: {error}")))
}

fn optional_from_str<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    from_str(deserializer).map(Some)
}

/// Reads a number, or text such as `"1/4096"` or `"2 %"`.
fn probability<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Probability, D::Error> {
    let text = match Value::deserialize(deserializer)? {
        Value::String(text) => text,
        value => value.to_string(),
    };
    text.parse().map_err(de::Error::custom)
}

fn path_mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathMtu, D::Error> {
    let bytes = u32::deserialize(deserializer)?;
    PathMtu::from_bytes(bytes).ok_or_else(|| {
        de::Error::custom(format!("{bytes}: needed a path MTU of 256, 512, 1024, 2048 or 4096 bytes"))
    })
}

/// Longest time limit of a simulated run.
const LIMIT_MS_MAX: u64 = 600_000;
/// Largest number of flows of one run; each flow is a row of the report.
const FLOWS_MAX: usize = 1_000_000;
/// Longest flow, below the 2^31 bytes of the longest message.
const FLOW_BYTES_MAX: u32 = 1_000_000_000;
/// Largest number of long flows of one run.
const LONG_FLOWS_MAX: usize = 1024;
/// Largest number of READs outstanding on one connection.
const MAX_RD_ATOMIC: u8 = 128;
/// Largest number of messages of a stream.
const MESSAGES_MAX: u32 = 1_000_000_000;
/// Most messages outstanding.
const DEPTH_MAX: u32 = 1024;
/// Largest number of packets of the message of a reaction, all of which are recorded.
const REACTION_PACKETS_MAX: u32 = 10_000;
/// Largest number of hosts of a fabric.
const HOSTS_MAX: usize = 1024;
/// Slowest and fastest wire.
const RATE_GBIT_PER_SEC: [f64; 2] = [0.001, 10_000.0];
/// Longest propagation delay: a second.
const PROPAGATION_US_MAX: f64 = 1e6;
/// Smallest and largest limit of a queue or of a switch's memory: 10 kB and 1 GB.
const QUEUE_KBYTES: [f64; 2] = [10.0, 1e6];
/// Highest probability of loss.
const LOSS_MAX: f64 = 0.5;
/// Longest name of a port or a host, in bytes.
const NAME_BYTES_MAX: usize = 256;
/// MTU of the simulated ports; allows a path MTU of 4096.
pub(super) const PORT_MTU_BYTES: usize = 4_200;
/// Longest message in bytes, as in `roce perf`.
pub(super) const MESSAGE_BYTES_MAX: u32 = 1 << 23;

impl Setup {
    /// Checks the ranges of the values, and their combination.
    ///
    /// # Errors
    /// A message that names the key, its value and the valid values.
    pub fn check(&self) -> Result<(), String> {
        let [rate_min, rate_max] = RATE_GBIT_PER_SEC;
        in_range("link.rate_gbit_per_sec", self.link.rate_gbit_per_sec, rate_min, rate_max)?;
        in_range("link.propagation_us", self.link.propagation_us, 0.0, PROPAGATION_US_MAX)?;
        let [queue_min, queue_max] = QUEUE_KBYTES;
        in_range("link.queue_kbytes", self.link.queue_kbytes, queue_min, queue_max)?;
        in_range("loss.chance", self.loss.chance.value(), 0.0, LOSS_MAX)?;
        if !self.transport.congestion().is_valid() {
            let window = self.transport.window_pkts;
            return Err(format!(
                "transport.window_pkts = {window}: too many packets for that congestion control"
            ));
        }
        in_range("transport.timeout", f64::from(self.transport.timeout), 1.0, 31.0)?;
        in_range("transport.retry_count", f64::from(self.transport.retry_count), 0.0, 7.0)?;
        self.check_switch()?;
        self.check_workload()?;
        let schemes = [0, 1].map(|end| self.transport.recovery_of(end));
        if schemes[0] != schemes[1]
            && schemes.iter().any(|scheme| matches!(scheme, RecoveryScheme::SelectiveRepeat { .. }))
        {
            return Err(format!(
                "transport.recovery = \"{}\", transport.peer_recovery = \"{}\": selective repeat needs both ends to have it",
                schemes[0], schemes[1]
            ));
        }
        self.fabric.check()?;
        match (&self.fabric, &self.workload) {
            (Fabric::Ports { .. }, Workload::Stream { .. }) => Ok(()),
            (Fabric::Ports { .. }, _) => Err(
                "fabric.kind = \"ports\": needed workload.kind = \"stream\"; the others need virtual time"
                    .to_owned(),
            ),
            (Fabric::Pair {}, Workload::Stream { .. } | Workload::Reaction { .. }) => Ok(()),
            (_, Workload::Stream { .. } | Workload::Reaction { .. }) => {
                Err("workload.kind = \"stream\" and \"reaction\": needed fabric.kind = \"pair\"".to_owned())
            }
            (fabric, Workload::Incast { senders, .. }) if *senders >= fabric.hosts() => Err(format!(
                "workload.senders = {senders}: needed a fabric of more hosts than that, and this one has {}",
                fabric.hosts()
            )),
            (_, Workload::Incast { .. } | Workload::Flows { .. } | Workload::LongFlows { .. }) => Ok(()),
        }
    }

    fn check_switch(&self) -> Result<(), String> {
        let Switch { buffer_kbytes, output_kbytes, ecn, pfc, .. } = &self.switch;
        let [min, max] = QUEUE_KBYTES;
        in_range("switch.buffer_kbytes", *buffer_kbytes, min, max)?;
        if let Some(output_kbytes) = output_kbytes {
            in_range("switch.output_kbytes", *output_kbytes, min, max)?;
        }
        if let Some(Ecn { kmin_kbytes, kmax_kbytes, .. }) = ecn {
            in_range("switch.ecn.kmin_kbytes", *kmin_kbytes, 0.0, max)?;
            in_range("switch.ecn.kmax_kbytes", *kmax_kbytes, *kmin_kbytes, max)?;
        }
        let frame_bytes = self.transport.frame_bytes_max();
        let needed_bytes = Pfc::headroom_bytes(&self.link.config(), frame_bytes) + 2 * frame_bytes;
        if *pfc && (buffer_kbytes * 1e3) < needed_bytes as f64 {
            return Err(format!(
                "switch.buffer_kbytes = {buffer_kbytes}: needed at least {} for pauses on such links to lose nothing",
                needed_bytes.div_ceil(1000)
            ));
        }
        Ok(())
    }

    fn check_workload(&self) -> Result<(), String> {
        let in_time =
            |limit_ms: u64| in_range("workload.limit_ms", limit_ms as f64, 1.0, LIMIT_MS_MAX as f64);
        match &self.workload {
            Workload::Stream { message_bytes, messages, depth, limit_ms, .. } => {
                in_range("workload.message_bytes", (*message_bytes).into(), 1.0, MESSAGE_BYTES_MAX.into())?;
                in_range("workload.messages", (*messages).into(), 1.0, MESSAGES_MAX.into())?;
                in_range("workload.depth", (*depth).into(), 1.0, DEPTH_MAX.into())?;
                in_time(*limit_ms)
            }
            Workload::Reaction { packets, packet, action, micros, behind, .. } => {
                action.impairment(*micros, *behind).map_err(|reason| format!("workload: {reason}"))?;
                in_range("workload.packets", (*packets).into(), 1.0, REACTION_PACKETS_MAX.into())?;
                in_range("workload.packet", (*packet).into(), 1.0, (*packets).into())
            }
            Workload::Flows { load, flows, limit_ms, .. } => {
                in_range("workload.load", *load, 0.001, 2.0)?;
                in_range("workload.flows", *flows as f64, 1.0, FLOWS_MAX as f64)?;
                in_time(*limit_ms)
            }
            Workload::LongFlows {
                flows,
                message_bytes,
                depth,
                warm_up_ms,
                measured_ms,
                max_rd_atomic,
                op,
            } => {
                if *op == Op::Send {
                    return Err("workload.op = \"send\": needed \"write\" or \"read\"".to_owned());
                }
                in_range("workload.flows", *flows as f64, 1.0, LONG_FLOWS_MAX as f64)?;
                in_range("workload.message_bytes", (*message_bytes).into(), 1.0, MESSAGE_BYTES_MAX.into())?;
                in_range("workload.depth", (*depth).into(), 1.0, DEPTH_MAX.into())?;
                in_range("workload.max_rd_atomic", (*max_rd_atomic).into(), 1.0, MAX_RD_ATOMIC.into())?;
                in_range("workload.warm_up_ms", *warm_up_ms as f64, 0.0, LIMIT_MS_MAX as f64)?;
                in_range("workload.measured_ms", *measured_ms as f64, 1.0, LIMIT_MS_MAX as f64)
            }
            Workload::Incast { senders, total_kbytes, limit_ms } => {
                in_range("workload.senders", *senders as f64, 1.0, (HOSTS_MAX - 1) as f64)?;
                let total_max = f64::from(FLOW_BYTES_MAX) / 1e3;
                in_range("workload.total_kbytes", *total_kbytes, 0.001 * *senders as f64, total_max)?;
                in_time(*limit_ms)
            }
        }
    }
}

impl Fabric {
    /// Number of hosts of the fabric.
    pub fn hosts(&self) -> usize {
        match *self {
            Fabric::Pair {} | Fabric::Ports { .. } => 2,
            Fabric::Star { hosts } => hosts,
            Fabric::LeafSpine { leaves, hosts_per_leaf, .. } => leaves.saturating_mul(hosts_per_leaf),
            Fabric::FatTree { k } => fat_tree_hosts(k).unwrap_or(usize::MAX),
        }
    }

    fn check(&self) -> Result<(), String> {
        in_range("the fabric's number of hosts", self.hosts() as f64, 2.0, HOSTS_MAX as f64)?;
        match self {
            Fabric::LeafSpine { leaves, spines: 0, .. } if *leaves > 1 => {
                Err("fabric.spines = 0: needed at least one to join the leaves".to_owned())
            }
            Fabric::LeafSpine { leaves, spines, .. } => {
                in_range("fabric.spines", *spines as f64, 0.0, SPINES_MAX as f64)?;
                let cables = leaves * spines; // no more than hosts, and bounded just above
                if cables <= CABLES_MAX {
                    return Ok(());
                }
                Err(format!(
                    "fabric: {leaves} leaves and {spines} spines make {cables} cables: needed at most {CABLES_MAX}, take fewer of either"
                ))
            }
            Fabric::FatTree { k } if k % 2 != 0 => {
                Err(format!("fabric.k = {k}: needed switches with an even number of ports"))
            }
            Fabric::Ports { port, host, .. } => {
                in_bytes("fabric.port", port)?;
                in_bytes("fabric.host", host)
            }
            _ => Ok(()),
        }
    }
}

fn in_bytes(name: &str, text: &str) -> Result<(), String> {
    if text.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(format!("{name} has {} bytes: needed at most {NAME_BYTES_MAX}", text.len()))
}

fn in_range(name: &str, value: f64, min: f64, max: f64) -> Result<(), String> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(format!("{name} = {value}: needed a number from {min} to {max}"))
    }
}
