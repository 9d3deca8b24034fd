//! The configuration of the devices of a process, as TOML. `roce run` reads the configuration from a file and from its
//! command-line options. An environment variable passes the configuration to the program that `roce run` executes, and
//! to the child processes of this program.

use std::env;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::process;
use std::str::FromStr;

use dpdk_ffi::EalConfig;
use roce::congestion::CongestionScheme;
use roce::id::Mac;
use roce::port::fault::{FaultConfig, FaultDirection};
use roce::port::probability::Probability;
use roce::recovery::RecoveryScheme;
use serde::{Deserialize, Serialize};

use crate::options::{DeviceOptions, ProgressPolicy};
use crate::packet_events::EventList;
use crate::port::{PortKind, PortSpec, PortSpecError};
use crate::text;

/// Environment variable with the text of a [`ProcessConfig`].
pub const CONFIG_VARIABLE: &str = "ROCE_CONFIG_TEXT";
/// Environment variable with names of ports, separated by spaces; ignored if [`CONFIG_VARIABLE`] is set.
pub const PORT_VARIABLE: &str = "ROCE_PORT";
/// Environment variable with the path of the directory to which the library rewrites the paths of the program. The
/// directory contains the tree, for example the entry `sys/class/infiniband/roce0`. The variable is not set if the tree
/// is in a mount namespace, or if the program has no tree.
pub const TREE_VARIABLE: &CStr = c"ROCE_TREE";

/// A port name, with the text from which it was parsed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct PortName {
    text: String,
    spec: PortSpec,
}

impl PortName {
    /// Returns the parsed name.
    pub fn spec(&self) -> &PortSpec {
        &self.spec
    }
}

impl FromStr for PortName {
    type Err = PortSpecError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(PortName { text: text.to_owned(), spec: text.parse()? })
    }
}

impl TryFrom<String> for PortName {
    type Error = PortSpecError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<PortName> for String {
    fn from(name: PortName) -> Self {
        name.text
    }
}

/// Configuration of the devices of a process: their ports, and settings of all devices.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessConfig {
    /// Ports of the devices roce0, roce1 and so on.
    pub ports: Vec<PortName>,
    /// Recovery scheme of reliable connections.
    #[serde(with = "text")]
    pub recovery: RecoveryScheme,
    /// Congestion control of all connections.
    #[serde(with = "text")]
    pub congestion: CongestionScheme,
    /// Which threads poll a device.
    #[serde(with = "text")]
    pub progress: ProgressPolicy,
    /// Capture file of the first device; the name of each further device is appended, as in `FILE.roce1`.
    pub pcap: Option<PathBuf>,
    /// Probability that a sent frame is dropped.
    #[serde(with = "chance")]
    pub drop_chance: Probability,
    /// Probability that a sent frame is reordered.
    #[serde(with = "chance")]
    pub reorder_chance: Probability,
    /// Probability that one random bit of a sent frame is flipped.
    #[serde(with = "chance")]
    pub corrupt_chance: Probability,
    /// Seed of the random numbers that select the frames to drop, reorder or corrupt.
    pub seed: u64,
    /// Further arguments of DPDK's `rte_eal_init`.
    pub eal: Vec<String>,
    /// Salt of the MACs of memif ports without the key `mac=` ([`ProcessConfig::devices`]); `None`: random MACs.
    pub mac_salt: Option<u32>,
    /// Packet events of each device. The last field, because in a TOML document tables follow all other keys.
    #[serde(rename = "event", skip_serializing_if = "EventList::is_empty")]
    pub events: EventList,
}

impl Default for ProcessConfig {
    fn default() -> Self {
        ProcessConfig {
            ports: Vec::new(),
            recovery: RecoveryScheme::ImprovedGoBackN,
            congestion: CongestionScheme::default(),
            progress: ProgressPolicy::default(),
            pcap: None,
            drop_chance: Probability::NEVER,
            reorder_chance: Probability::NEVER,
            corrupt_chance: Probability::NEVER,
            seed: 1,
            eal: Vec::new(),
            mac_salt: None,
            events: EventList::default(),
        }
    }
}

/// Comments of the keys, in [`ProcessConfig::to_text`].
const COMMENTS: [(&str, &str); 12] = [
    ("ports", "Ports of the devices roce0, roce1 and so on: KIND:TARGET[,key=value...]."),
    ("recovery", "go-back-n, improved-go-back-n, or, if the peer has the same, selective-repeat[:WINDOW]."),
    (
        "congestion",
        "none, window[:PKTS], dcqcn, swift or timely, with parameters as in dcqcn:rpg_ai_rate=10.",
    ),
    ("progress", "Threads that poll a device: adaptive, busy or app."),
    ("pcap", "Capture file of the frames of roce0; of roce1 with the suffix .roce1, and so on."),
    ("drop_chance", "Probability that a frame sent is dropped: a number from 0 to 1, or as \"5 %\"."),
    ("reorder_chance", "Probability that a frame sent is reordered."),
    ("corrupt_chance", "Probability that a bit of a frame sent is flipped."),
    ("seed", "Seed of the random numbers of these impairments."),
    ("eal", "Further arguments of DPDK, for example [\"--no-huge\", \"-m\", \"512\"]."),
    ("mac_salt", "Salt of the MACs of memif ports without mac=; chosen by `roce run` for each program."),
    ("[[event]]", "A packet event, as in the file of `roce ping --events`."),
];

/// Reason why a configuration cannot be read, or cannot be written as TOML.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Reading fails if the text is no TOML, or has an unknown key or a value out of range. Writing fails if the path
    /// of the capture file is not UTF-8.
    #[error("{source_name}: {reason}")]
    Text {
        /// Name of the file or environment variable that was read; "configuration" if a configuration was written.
        source_name: String,
        /// If a text was read: the line and the reason why the text is refused. If a configuration was written: the
        /// reason why it cannot be written as TOML.
        reason: String,
    },
    /// [`PORT_VARIABLE`] contains a text that is no port name.
    #[error("{PORT_VARIABLE}: {0}")]
    Port(PortSpecError),
}

impl ProcessConfig {
    /// Parses the text `text`; `source_name` is the name of the file or variable, for errors.
    pub fn parse(text: &str, source_name: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| ConfigError::Text {
            source_name: source_name.to_owned(),
            reason: error.to_string().trim_end().to_owned(),
        })
    }

    /// Returns the configuration that the environment of this process gives: the text in [`CONFIG_VARIABLE`], or the
    /// default configuration with the ports of [`PORT_VARIABLE`].
    pub fn from_environment() -> Result<Self, ConfigError> {
        if let Ok(text) = env::var(CONFIG_VARIABLE) {
            return Self::parse(&text, CONFIG_VARIABLE);
        }
        let names = env::var(PORT_VARIABLE).unwrap_or_default();
        let ports = names.split_ascii_whitespace().map(|name| name.parse().map_err(ConfigError::Port));
        Ok(ProcessConfig { ports: ports.collect::<Result<_, _>>()?, ..ProcessConfig::default() })
    }

    /// Returns the configuration as TOML, with a comment before each key.
    ///
    /// # Errors
    /// The path of the capture file is not UTF-8.
    pub fn to_text(&self) -> Result<String, ConfigError> {
        let failed = |error: toml::ser::Error| ConfigError::Text {
            source_name: "configuration".to_owned(),
            reason: error.to_string(),
        };
        let plain = toml::to_string(self).map_err(failed)?;
        let mut text = String::new();
        for line in plain.lines() {
            let key = line.split(' ').next().unwrap_or_default();
            let comment = COMMENTS.iter().find(|(known, _)| *known == key);
            text.extend(comment.map(|(_, comment)| format!("# {comment}\n")));
            text.push_str(line);
            text.push('\n');
        }
        Ok(text)
    }

    /// Draws a salt for the MACs of memif ports, if [`ProcessConfig::mac_salt`] is `None`.
    pub fn draw_mac_salt(&mut self) {
        let mut salt = [0; 4];
        // If `getrandom` fails, the MACs of memif ports are unknown until the ports are opened.
        if self.mac_salt.is_none() && getrandom::fill(&mut salt).is_ok() {
            self.mac_salt = Some(u32::from_ne_bytes(salt));
        }
    }

    /// Returns port and options of each device of this process. If the configuration has a salt, the MAC of a memif
    /// port without the key `mac=` is made from the port's name, the salt and the process ID, so that the GID of the
    /// device is known before the port is opened. A program that this process executes (`exec`) has the same process
    /// ID, and therefore the same MACs; a child process has other MACs.
    pub fn devices(&self) -> Vec<(PortSpec, DeviceOptions)> {
        let device = |(number, name): (usize, &PortName)| {
            let mut spec = name.spec.clone();
            if let (PortKind::Memif, None, Some(salt)) = (spec.kind, spec.mac, self.mac_salt) {
                spec.mac = Some(name_mac(&format!("{spec} {salt} {}", process::id())));
            }
            (spec, self.options(number))
        };
        self.ports.iter().enumerate().map(device).collect()
    }

    fn options(&self, number: usize) -> DeviceOptions {
        let captured = |path: &Path| match number {
            0 => path.to_owned(),
            _ => PathBuf::from(format!("{}.roce{number}", path.display())),
        };
        DeviceOptions {
            faults: FaultConfig {
                drop_probability: self.drop_chance,
                reorder_probability: self.reorder_chance,
                corrupt_probability: self.corrupt_chance,
                duplicate_probability: Probability::NEVER,
                seed: self.seed,
                direction: FaultDirection::Tx,
            },
            pcap: self.pcap.as_deref().map(captured),
            eal: EalConfig { extra_args: self.eal.clone(), ..EalConfig::default() },
            congestion: self.congestion,
            progress: self.progress,
            events: self.events.plan().clone(),
            ..DeviceOptions::default()
        }
    }
}

/// Returns a locally administered unicast address from `name`.
fn name_mac(name: &str) -> Mac {
    // The hash function FNV-1a.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let [_, _, b, c, d, e, f, g] = hash.to_be_bytes();
    Mac([b & 0xfc | 2, c, d, e, f, g])
}

/// Returns the node GUID of the device on `port`: the EUI-64 (RFC 4291 appendix A) of `mac`, the port's MAC, in network
/// byte order. If the MAC is not known before the port is opened, the GUID is made from the port's name.
pub fn node_guid(port: &PortSpec, mac: Option<Mac>) -> [u8; 8] {
    let Mac([a, b, c, d, e, f]) = mac.unwrap_or_else(|| name_mac(&port.to_string()));
    [a ^ 2, b, c, 0xff, 0xfe, d, e, f]
}

/// TOML values of probabilities: read from a number (0.05) or a text ("5 %"), always written as a number.
mod chance {
    use super::{Deserialize, Probability};
    use serde::de::Error as _;
    use serde::{Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged, expecting = "needed a number from 0 to 1, or text as \"5 %\"")]
    enum Written {
        Number(f64),
        Text(String),
    }

    pub(super) fn serialize<S: Serializer>(value: &Probability, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.value())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Probability, D::Error> {
        let text = match Written::deserialize(from)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<ProcessConfig, String> {
        ProcessConfig::parse(text, "file.toml").map_err(|error| error.to_string())
    }

    #[test]
    fn a_configuration_is_read_as_it_was_written_with_a_comment_for_each_key() {
        let text = "ports = [\"memif:@a,ip=10.0.0.1/24\", \"af_packet:eth1\"]\nrecovery = \"selective-repeat:128\"\n\
                    congestion = \"dcqcn\"\nprogress = \"app\"\npcap = \"/tmp/x\"\ndrop_chance = \"5 %\"\n\
                    reorder_chance = 1\nseed = 7\neal = [\"--no-huge\"]\nmac_salt = 4294967295\n\
                    [[event]]\nqpn = 1\npsn = \"any\"\naction = \"delay\"\nmicros = 5\nopcode = \"acknowledge\"\n";
        let config = parse(text).unwrap();
        assert_eq!((config.drop_chance.value(), config.reorder_chance.value()), (0.05, 1.0));
        let written = config.to_text().unwrap();
        assert_eq!(parse(&written), Ok(config));
        let lines: Vec<&str> = written.lines().collect();
        let events = lines.iter().position(|line| line.is_empty()).unwrap();
        let (keys, event) = (&lines[..events], &lines[events + 1..]);
        assert_eq!(keys.len(), 2 * (COMMENTS.len() - 1), "{written}");
        assert!(keys.chunks(2).all(|pair| pair[0].starts_with("# ")), "{written}");
        assert!(event[0].starts_with("# A packet event") && event[1] == "[[event]]", "{written}");
        assert_eq!(parse(""), Ok(ProcessConfig::default()));
    }

    #[test]
    fn defects_of_a_configuration_are_named() {
        for (text, said) in [
            ("prots = []", "unknown field `prots`"),
            ("ports = [\"eth0\"]", "names no port"),
            ("recovery = \"tcp\"", "needed go-back-n"),
            ("progress = \"idle\"", "adaptive, busy or app"),
            ("drop_chance = 2", "from 0 (never) to 1"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said) && error.contains("file.toml"), "{text}: {error}");
        }
    }

    #[test]
    fn each_device_has_its_options_and_a_memif_its_mac() {
        let mut config = parse(
            "ports = [\"memif:@a\", \"memif:@b\", \"memif:@c,mac=2:0:0:0:0:1\", \"tap:t\"]\npcap = \"/x\"",
        )
        .unwrap();
        let macs =
            |config: &ProcessConfig| config.devices().iter().map(|(spec, _)| spec.mac).collect::<Vec<_>>();
        assert_eq!(macs(&config), [None, None, Some(Mac([2, 0, 0, 0, 0, 1])), None]);
        config.mac_salt = Some(1);
        let [Some(a), Some(b), Some(_), None] = macs(&config)[..] else { panic!("{:?}", macs(&config)) };
        assert!(a != b && [a, b].iter().all(|mac| mac.0[0] & 3 == 2), "{a} {b}");
        assert_eq!(macs(&config)[0], Some(a));
        config.mac_salt = Some(2);
        assert_ne!(macs(&config)[0], Some(a));
        let files: Vec<_> = config.devices().into_iter().map(|(_, options)| options.pcap.unwrap()).collect();
        assert_eq!(files[..2], [PathBuf::from("/x"), PathBuf::from("/x.roce1")]);
    }

    #[test]
    fn a_guid_is_the_eui_64_of_the_mac() {
        let spec: PortSpec = "memif:@a".parse().unwrap();
        let mac = Mac([2, 0, 0, 0, 0, 1]);
        assert_eq!(node_guid(&spec, Some(mac)), mac.link_local().octets()[8..]);
        assert_eq!(node_guid(&spec, None), node_guid(&spec, None));
    }
}
