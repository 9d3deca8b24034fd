//! What one point of an experiment is: fabric, link, loss, transport and workload, each with its
//! units in the names of the keys. Keys that do not exist are refused.

use std::fmt;
use std::str::FromStr;

use netsim::LinkConfig;
use roce::congestion::CongestionScheme;
use roce::qp::PathMtu;
use roce::recovery::RecoveryScheme;
use serde::{Deserialize, Deserializer, de};

/// Everything that a run depends on but the seed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// Which hosts there are and how they are joined.
    pub fabric: Fabric,
    /// Every cable of the fabric.
    #[serde(default)]
    pub link: Link,
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
    /// What may wait for the wire at a host, in units of 1,000 bytes.
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

/// What the network loses besides what finds no room.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Chance of each packet, acknowledgements included, to be lost on a link.
    pub chance: Chance,
}

/// The queue pairs of both ends.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Transport {
    /// How losses are repaired, as `--recovery` takes it.
    #[serde(deserialize_with = "from_str")]
    pub recovery: RecoveryScheme,
    /// How fast and how much is sent, as `--congestion` takes it.
    #[serde(deserialize_with = "from_str")]
    pub congestion: CongestionScheme,
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
            congestion: CongestionScheme::default(),
            path_mtu: PathMtu::Mtu1024,
            timeout: 14,
            retry_count: 7,
        }
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
pub struct Chance(pub f64);

/// Not a probability.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("needed a chance from 0 to 1: a number such as 0.01, or text such as \"1/4096\" or \"2 %\"")]
pub struct NoChance;

impl FromStr for Chance {
    type Err = NoChance;

    fn from_str(text: &str) -> Result<Self, NoChance> {
        let number = |text: &str| text.trim().parse::<f64>().map_err(|_| NoChance);
        let chance = match (text.trim().strip_suffix('%'), text.split_once('/')) {
            (Some(percent), _) => number(percent)? / 100.0,
            (None, Some((part, whole))) => number(part)? / number(whole)?,
            (None, None) => number(text)?,
        };
        if (0.0..=1.0).contains(&chance) { Ok(Chance(chance)) } else { Err(NoChance) }
    }
}

impl<'de> Deserialize<'de> for Chance {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Chance;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{NoChance}")
            }

            fn visit_f64<E: de::Error>(self, chance: f64) -> Result<Chance, E> {
                chance.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, chance: i64) -> Result<Chance, E> {
                chance.to_string().parse().map_err(E::custom)
            }

            fn visit_str<E: de::Error>(self, chance: &str) -> Result<Chance, E> {
                chance.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

fn from_str<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| de::Error::custom(format!("`{text}`: {error}")))
}

fn path_mtu<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathMtu, D::Error> {
    let bytes = u32::deserialize(deserializer)?;
    PathMtu::from_bytes(bytes).ok_or_else(|| {
        de::Error::custom(format!("{bytes}: needed a path MTU of 256, 512, 1024, 2048 or 4096 bytes"))
    })
}

/// Longest time that a simulated run may be given.
const LIMIT_MS_MAX: u64 = 600_000;
/// Longest message, as in `roce perf`.
const MESSAGE_BYTES_MAX: u32 = 1 << 23;

impl Setup {
    /// What is wrong with the values together, beyond what each key takes.
    pub fn check(&self) -> Result<(), String> {
        let in_range = |name: &str, value: f64, min: f64, max: f64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(format!("{name} = {value}: needed a number from {min} to {max}"))
            }
        };
        in_range("link.rate_gbit_per_sec", self.link.rate_gbit_per_sec, 0.001, 10_000.0)?;
        in_range("link.propagation_us", self.link.propagation_us, 0.0, 1e6)?;
        in_range("link.queue_kbytes", self.link.queue_kbytes, 10.0, 1e6)?;
        in_range("loss.chance", self.loss.chance.0, 0.0, 0.5)?;
        in_range("transport.timeout", f64::from(self.transport.timeout), 1.0, 31.0)?;
        in_range("transport.retry_count", f64::from(self.transport.retry_count), 0.0, 7.0)?;
        match self.workload {
            Workload::Stream { message_bytes, messages, depth, limit_ms, .. } => {
                in_range("workload.message_bytes", message_bytes.into(), 1.0, MESSAGE_BYTES_MAX.into())?;
                in_range("workload.messages", messages.into(), 1.0, 1e9)?;
                in_range("workload.depth", depth.into(), 1.0, 1024.0)?;
                in_range("workload.limit_ms", limit_ms as f64, 1.0, LIMIT_MS_MAX as f64)?;
            }
            Workload::Reaction { packets, packet, .. } => {
                in_range("workload.packets", packets.into(), 1.0, 10_000.0)?;
                in_range("workload.packet", packet.into(), 1.0, packets.into())?;
            }
        }
        match (&self.fabric, &self.workload) {
            (Fabric::Ports { .. }, workload) if !matches!(workload, Workload::Stream { .. }) => Err(
                "fabric.kind = \"ports\": needed workload.kind = \"stream\"; the others need virtual time"
                    .into(),
            ),
            _ => Ok(()),
        }
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
            assert_eq!(text.parse(), Ok(Chance(chance)), "{text}");
        }
        for wrong in ["", "x", "1/0", "0/0", "101 %", "-0.1", "2", "%", "1/"] {
            assert_eq!(wrong.parse::<Chance>(), Err(NoChance), "{wrong}");
        }
    }
}
