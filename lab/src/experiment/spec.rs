//! What one point of an experiment is: fabric, link, loss, transport and workload, each with its
//! units in the names of the keys. Keys that do not exist are refused.

use std::fmt;
use std::str::FromStr;

use netsim::topology::{CABLES_MAX, SPINES_MAX, fat_tree_hosts};
use netsim::workload::Cdf;
use netsim::{LinkConfig, Pfc};
use roce::congestion::CongestionScheme;
use roce::mem::Access;
use roce::qp::PathMtu;
use roce::recovery::RecoveryScheme;
use serde::{Deserialize, Deserializer, de};

use crate::world::ConnAttr;

/// Everything that a run depends on but the seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Which hosts there are and how they are joined.
    pub fabric: Fabric,
    /// Every cable of the fabric.
    #[serde(default)]
    pub link: Link,
    /// Every switch of the fabric.
    #[serde(default)]
    pub switch: Switch,
    /// What gets lost.
    #[serde(default)]
    pub loss: Loss,
    /// The queue pairs.
    #[serde(default)]
    pub transport: Transport,
    /// What is sent.
    pub workload: Workload,
}

/// The hosts.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Fabric {
    /// Two hosts on a cable, in virtual time.
    Pair {},
    /// Hosts around one switch.
    Star {
        /// How many.
        hosts: usize,
    },
    /// Leaf switches with hosts, each joined to every spine switch.
    LeafSpine {
        /// Leaf switches.
        leaves: usize,
        /// Spine switches.
        spines: usize,
        /// Hosts of each leaf.
        hosts_per_leaf: usize,
    },
    /// The three-tier fat-tree of switches with `k` ports: k^3/4 hosts.
    FatTree {
        /// Ports of a switch, an even number.
        k: usize,
    },
    /// Two processes on a real port, in real time; loss comes from the port's fault decorator.
    Ports {
        /// The port of both ends, as `--port` takes it.
        #[serde(default = "default_port")]
        port: String,
        /// How the client reaches the server by TCP.
        #[serde(default = "default_host")]
        host: String,
        /// The TCP port.
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

/// A cable: the same in both directions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Link {
    /// Speed of the wire.
    pub rate_gbit_per_sec: f64,
    /// Time from the last bit sent to its arrival, in one direction.
    pub propagation_us: f64,
    /// What may wait for the wire at a host, in units of 1,000 bytes: the ring of its NIC.
    pub queue_kbytes: f64,
}

impl Default for Link {
    fn default() -> Self {
        Link { rate_gbit_per_sec: 40.0, propagation_us: 4.0, queue_kbytes: 1_000.0 }
    }
}

impl Link {
    /// As the network takes it.
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
    /// What may wait of what came by one input port, in units of 1,000 bytes.
    pub buffer_kbytes: f64,
    /// What may wait for one output port, likewise; without it only the input's bound holds.
    pub output_kbytes: Option<f64>,
    /// Which of the shortest ways a packet takes.
    pub routing: Routing,
    /// Priority flow control: a port that is nearly full pauses who sends to it, and nothing is lost.
    pub pfc: bool,
    /// Marking of packets that meet a long queue; none without it.
    pub ecn: Option<Ecn>,
}

impl Default for Switch {
    fn default() -> Self {
        Switch { buffer_kbytes: 240.0, output_kbytes: None, routing: Routing::Ecmp, pfc: false, ecn: None }
    }
}

/// How a switch chooses among the shortest ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Routing {
    /// The same for all packets of a connection.
    Ecmp,
    /// Drawn for each packet.
    Spray,
    /// In turn, packet by packet.
    SprayRoundRobin,
}

/// Marking by the queue that a packet meets: with a probability that grows from 0 at `kmin_kbytes` to
/// `pmax` at `kmax_kbytes`, and always above.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ecn {
    /// Where marking begins, in units of 1,000 bytes.
    pub kmin_kbytes: f64,
    /// Where it becomes certain.
    pub kmax_kbytes: f64,
    /// The probability just below that.
    pub pmax: Probability,
}

/// What the network loses besides what finds no room.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Probability of each packet, acknowledgements included, to be lost on a link.
    pub chance: Probability,
}

/// The queue pairs of both ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transport {
    /// How losses are repaired, as `--recovery` takes it.
    #[serde(deserialize_with = "from_str")]
    pub recovery: RecoveryScheme,
    /// The same of the end that receives, where it differs: go-back-n is a standard peer.
    #[serde(deserialize_with = "optional_from_str")]
    pub peer_recovery: Option<RecoveryScheme>,
    /// How fast and how much is sent, as `--congestion` takes it.
    #[serde(deserialize_with = "from_str")]
    pub congestion: CongestionScheme,
    /// Packets in flight at most, whatever the congestion control says otherwise; 0: as it says.
    pub window_pkts: u32,
    /// Payload of a packet.
    #[serde(deserialize_with = "path_mtu", rename = "path_mtu_bytes")]
    pub path_mtu: PathMtu,
    /// Local ACK timeout: 4.096 us x 2^timeout.
    pub timeout: u8,
    /// Retries without progress, 0 to 7.
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
    /// What both ends of a connection have in common.
    pub fn connection(&self) -> ConnAttr {
        ConnAttr {
            ipv6: false,
            path_mtu: self.path_mtu,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: 7,
            min_rnr_timer: 1,
            access: Access::ALL,
        }
    }

    /// The scheme of the end that sends (0) or of its peer (1).
    pub fn recovery_of(&self, end: usize) -> RecoveryScheme {
        self.peer_recovery.filter(|_| end == 1).unwrap_or(self.recovery)
    }

    /// The congestion control with its bound on packets in flight.
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

    /// The longest frame of these queue pairs, without FCS: headers take 80 bytes at most.
    pub fn frame_bytes_max(&self) -> usize {
        self.path_mtu.bytes() as usize + 80
    }
}

/// What is sent.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// One queue pair with a full queue of messages; only for two hosts.
    Stream {
        /// The operation.
        #[serde(default)]
        op: Op,
        /// Bytes of a message.
        message_bytes: u32,
        /// Messages in all.
        messages: u32,
        /// Messages posted at once.
        #[serde(default = "default_depth")]
        depth: u32,
        /// The run ends after so much time whatever is left to send; virtual time in a simulation.
        #[serde(default = "default_limit_ms")]
        limit_ms: u64,
    },
    /// One message of some packets, to one of which something happens (as Lumina does, SIGCOMM'23);
    /// only for two hosts in virtual time.
    Reaction {
        /// The operation.
        #[serde(default)]
        op: Op,
        /// Packets of the message.
        packets: u32,
        /// What happens.
        action: Action,
        /// To which packet of the message: 1 is the first.
        packet: u32,
    },
    /// Messages between random pairs of hosts, at random times (a Poisson process); each is one WRITE on a
    /// connection of its own.
    Flows {
        /// Their sizes: `irn`, `web-search`, `hadoop`, `ali-storage`, or a number of bytes.
        #[serde(deserialize_with = "from_str")]
        sizes: Sizes,
        /// What they ask for in all, as a share of what the hosts' links carry.
        load: f64,
        /// How many.
        flows: usize,
        /// The run ends after so much virtual time, whatever is unfinished.
        #[serde(default = "default_limit_ms")]
        limit_ms: u64,
    },
    /// Many hosts send to one at the same time; each message is one WRITE on a connection of its own.
    Incast {
        /// Hosts that send.
        senders: usize,
        /// What they send together, in equal parts, in units of 1,000 bytes.
        total_kbytes: f64,
        /// As of `flows`.
        #[serde(default = "default_limit_ms")]
        limit_ms: u64,
    },
}

fn default_depth() -> u32 {
    16
}

fn default_limit_ms() -> u64 {
    10_000
}

/// Operations.
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

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It is lost.
    Drop,
    /// A bit of it is flipped, which its ICRC shows.
    Corrupt,
    /// It is marked "congestion experienced".
    MarkCe,
}

/// A probability: a number from 0 to 1, or as text `"1/4096"` or `"2 %"`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Probability(pub f64);

/// Not a probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needed a chance from 0 to 1: a number such as 0.01, or text such as \"1/4096\" or \"2 %\"")]
pub struct NoChance;

impl FromStr for Probability {
    type Err = NoChance;

    fn from_str(text: &str) -> Result<Self, NoChance> {
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| NoChance);
        let chance = match (text.trim().strip_suffix('%'), text.split_once('/')) {
            (Some(percent), _) => number(percent)? / 100.0,
            (None, Some((part, whole))) => number(part)? / number(whole)?,
            (None, None) => number(text)?,
        };
        if (0.0..=1.0).contains(&chance) { Ok(Probability(chance)) } else { Err(NoChance) }
    }
}

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Probability;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{NoChance}")
            }

            fn visit_f64<E: de::Error>(self, chance: f64) -> Result<Probability, E> {
                chance.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, chance: i64) -> Result<Probability, E> {
                chance.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, chance: &str) -> Result<Probability, E> {
                chance.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Sizes of flows.
#[derive(Clone, Debug)]
pub struct Sizes(pub Cdf);

/// Not sizes of flows.
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

fn path_mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathMtu, D::Error> {
    let bytes = u32::deserialize(deserializer)?;
    PathMtu::from_bytes(bytes).ok_or_else(|| {
        de::Error::custom(format!("{bytes}: needed a path MTU of 256, 512, 1024, 2048 or 4096 bytes"))
    })
}

/// Longest time that a simulated run may be given.
const LIMIT_MS_MAX: u64 = 600_000;
/// Most flows of one run: each is in the report.
const FLOWS_MAX: usize = 1_000_000;
/// Longest flow: well below the 2 GiB that a message may have.
const FLOW_BYTES_MAX: u32 = 1_000_000_000;
/// Most messages of a stream.
const MESSAGES_MAX: u32 = 1_000_000_000;
/// Most messages posted at once.
const DEPTH_MAX: u32 = 1024;
/// Most packets of the message of a reaction: each is recorded.
const REACTION_PACKETS_MAX: u32 = 10_000;
/// Most hosts of a fabric.
const HOSTS_MAX: usize = 1024;
/// Slowest and fastest wire.
const RATE_GBIT_PER_SEC: [f64; 2] = [0.001, 10_000.0];
/// Longest propagation: a second.
const PROPAGATION_US_MAX: f64 = 1e6;
/// Smallest and largest bound of a queue or of a switch's memory: a gigabyte.
const QUEUE_KBYTES: [f64; 2] = [10.0, 1e6];
/// Highest chance of loss.
const LOSS_MAX: f64 = 0.5;
/// Longest name of a port or of a host; every point has its own copy.
const NAME_BYTES_MAX: usize = 256;
/// Room for a path MTU of 4096.
pub(super) const PORT_MTU_BYTES: usize = 4_200;
/// Longest message, as in `roce perf`.
const MESSAGE_BYTES_MAX: u32 = 1 << 23;

impl Setup {
    /// What is wrong with the values together, beyond what each key takes.
    pub fn check(&self) -> Result<(), String> {
        let [rate_min, rate_max] = RATE_GBIT_PER_SEC;
        in_range("link.rate_gbit_per_sec", self.link.rate_gbit_per_sec, rate_min, rate_max)?;
        in_range("link.propagation_us", self.link.propagation_us, 0.0, PROPAGATION_US_MAX)?;
        let [queue_min, queue_max] = QUEUE_KBYTES;
        in_range("link.queue_kbytes", self.link.queue_kbytes, queue_min, queue_max)?;
        in_range("loss.chance", self.loss.chance.0, 0.0, LOSS_MAX)?;
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
            (_, Workload::Incast { .. } | Workload::Flows { .. }) => Ok(()),
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
            Workload::Reaction { packets, packet, .. } => {
                in_range("workload.packets", (*packets).into(), 1.0, REACTION_PACKETS_MAX.into())?;
                in_range("workload.packet", (*packet).into(), 1.0, (*packets).into())
            }
            Workload::Flows { load, flows, limit_ms, .. } => {
                in_range("workload.load", *load, 0.001, 2.0)?;
                in_range("workload.flows", *flows as f64, 1.0, FLOWS_MAX as f64)?;
                in_time(*limit_ms)
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
    /// How many hosts it has.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_numbers_fractions_and_percents() {
        for (text, chance) in
            [("0", 0.0), ("1/4096", 1.0 / 4096.0), ("2%", 0.02), ("2 %", 0.02), ("0.5", 0.5)]
        {
            assert_eq!(text.parse(), Ok(Probability(chance)), "{text}");
        }
        for wrong in ["", "x", "1/0", "0/0", "101 %", "-0.1", "2", "%", "1/"] {
            assert_eq!(wrong.parse::<Probability>(), Err(NoChance), "{wrong}");
        }
    }
}
