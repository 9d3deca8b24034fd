//! A path between two network namespaces through a third, which loses packets.
//!
//! ```text
//!   this namespace              the middle                       the server's namespace
//!   bench0 10.99.0.1  <---->  in0  bridge  in1  <---->  bench1 10.99.0.2
//! ```
//!
//! The middle drops packets in the ingress hooks of in0 and in1. In the hook of bench0 or bench1 a drop would be too late:
//! a packet socket has received the frame before.

use std::collections::BTreeMap;

use anyhow::Context as _;
use serde::Deserialize;

use crate::bench::perf::Ends;
use crate::bench::veth::keep_namespace;
use crate::process::{Process, run};

/// Debian's paths of programs that are not in the PATH of ordinary users.
const NFT: &str = "/usr/sbin/nft";
const ETHTOOL: &str = "/usr/sbin/ethtool";
/// Source ports of the TCP connections that lose packets.
const TCP_PORT_MIN: u16 = 10_000;
const TCP_PORTS: u16 = 1_000;
/// Number of values of which `numgen` draws one per packet.
const DRAWS: f64 = 1e9;
/// Largest socket buffers of TCP, in bytes.
const BUFFER_MAX_BYTES: u32 = 64 << 20;

/// Packets that arrived in the middle, and those of them that it dropped: to the server, and to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counts {
    arrived: [u64; 2],
    lost: [u64; 2],
}

impl Counts {
    pub(super) fn lost_to_server(&self) -> u64 {
        self.lost[0]
    }

    pub(super) fn lost(&self) -> u64 {
        self.lost.iter().sum()
    }

    /// Returns the share of the packets of both directions that was lost.
    pub(super) fn share(&self) -> anyhow::Result<f64> {
        let arrived: u64 = self.arrived.iter().sum();
        let share = self.lost() as f64 / arrived as f64;
        Some(share)
            .filter(|share| share.is_finite())
            .context("no packet of the measurement was in the middle")
    }
}

/// The path. Its namespaces end when it is dropped.
pub(super) struct Path {
    ends: Ends,
    server_pid: String,
    middle_pid: String,
    tcp_connections: u16,
    /// Holders of the two other namespaces.
    _keepers: [Process; 2],
}

impl Path {
    /// Makes the path. The process must be in a network namespace of its own.
    pub(super) fn new() -> anyhow::Result<Path> {
        let (middle, middle_pid) = keep_namespace()?;
        let (server, server_pid) = keep_namespace()?;
        let ends = Ends {
            server_port: "af_packet:bench1".to_owned(),
            client_port: "af_packet:bench0".to_owned(),
            host: "10.99.0.2",
            server_netns: Some(server_pid),
        };
        let path = Path {
            ends,
            server_pid: server_pid.to_string(),
            middle_pid: middle_pid.to_string(),
            tcp_connections: 0,
            _keepers: [middle, server],
        };
        path.connect()?;
        path.set_segmentation(false)?;
        path.enlarge_buffers()?;
        path.make_chains()?;
        Ok(path)
    }

    pub(super) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Returns the number of a process in the server's namespace.
    pub(super) fn server_pid(&self) -> &str {
        &self.server_pid
    }

    /// Returns a source port for a TCP connection that loses packets.
    pub(super) fn next_tcp_port(&mut self) -> u16 {
        let port = TCP_PORT_MIN + self.tcp_connections;
        self.tcp_connections = (self.tcp_connections + 1) % TCP_PORTS;
        port
    }

    fn in_middle(&self, words: &[&str]) -> anyhow::Result<String> {
        run(&[&["nsenter", "--target", &self.middle_pid, "--net"], words].concat())
    }

    fn at_server(&self, words: &[&str]) -> anyhow::Result<String> {
        run(&[&["nsenter", "--target", &self.server_pid, "--net"], words].concat())
    }

    fn connect(&self) -> anyhow::Result<()> {
        let words = |line: &'static str| line.split(' ').collect::<Vec<_>>();
        let here = std::process::id().to_string();
        for (interface, end, pid) in [("in0", "bench0", &here), ("in1", "bench1", &self.server_pid)] {
            let pair = ["type", "veth", "peer", "name", end, "mtu", "4200", "netns", pid];
            self.in_middle(&[&["ip", "link", "add", interface, "mtu", "4200"], &pair[..]].concat())?;
        }
        for line in [
            "ip link add bridge mtu 4200 type bridge",
            "ip link set in0 master bridge up",
            "ip link set in1 master bridge up",
            "ip link set bridge up",
        ] {
            self.in_middle(&words(line))?;
        }
        // Because bridged packets otherwise pass the hooks of iptables, too.
        let setting = "/proc/sys/net/bridge/bridge-nf-call-iptables";
        self.in_middle(&["sh", "-c", &format!("! [ -e {setting} ] || echo 0 >{setting}")])?;
        for line in ["ip link set lo up", "ip addr add 10.99.0.1/24 dev bench0", "ip link set bench0 up"] {
            run(&words(line))?;
        }
        for line in ["ip link set lo up", "ip addr add 10.99.0.2/24 dev bench1", "ip link set bench1 up"] {
            self.at_server(&words(line))?;
        }
        Ok(())
    }

    /// Sets segmentation offload of TCP and UDP of all interfaces: if off, each packet in the middle has the MTU at most,
    /// otherwise TCP and `roce` send packets of up to 64 KiB.
    pub(super) fn set_segmentation(&self, is_on: bool) -> anyhow::Result<()> {
        let state = if is_on { "on" } else { "off" };
        let udp = "tx-udp-segmentation";
        let of = |end| [ETHTOOL, "-K", end, "tso", state, "gso", state, udp, state, "gro", "off"];
        run(&of("bench0"))?;
        self.in_middle(&of("in0"))?;
        self.in_middle(&of("in1"))?;
        self.at_server(&of("bench1"))?;
        Ok(())
    }

    fn enlarge_buffers(&self) -> anyhow::Result<()> {
        // Minimum, initial and largest size; the first two are the kernel's defaults.
        let script = format!(
            "echo 4096 131072 {BUFFER_MAX_BYTES} >/proc/sys/net/ipv4/tcp_rmem &&
             echo 4096 16384 {BUFFER_MAX_BYTES} >/proc/sys/net/ipv4/tcp_wmem"
        );
        run(&["sh", "-c", &script])?;
        self.at_server(&["sh", "-c", &script])?;
        Ok(())
    }

    fn make_chains(&self) -> anyhow::Result<()> {
        let last = TCP_PORT_MIN + TCP_PORTS - 1;
        let mut script = "add table netdev loss;".to_owned();
        for (end, tcp) in [(0, "sport"), (1, "dport")] {
            script += &format!(
                "add counter netdev loss arrived{end};
                 add counter netdev loss lost{end};
                 add chain netdev loss lose{end};
                 add chain netdev loss in{end} {{ type filter hook ingress device in{end} priority 0; }};
                 add rule netdev loss in{end} udp dport 4791 goto lose{end};
                 add rule netdev loss in{end} tcp {tcp} {TCP_PORT_MIN}-{last} goto lose{end};"
            );
        }
        self.in_middle(&[NFT, &script]).map(|_| ()).context(
            "packets cannot be lost by nftables, for which the kernel needs NF_TABLES_NETDEV and NFT_NUMGEN",
        )
    }

    /// Sets the probability, per direction, that a packet is lost: a RoCE packet, or one of a TCP connection from a port
    /// of [`Path::next_tcp_port`]. Other TCP connections, which set up a measurement, lose nothing.
    pub(super) fn lose(&self, probability: f64) -> anyhow::Result<()> {
        self.in_middle(&[NFT, &rules(probability)])?;
        Ok(())
    }

    /// Returns the packets since the last call.
    pub(super) fn take_counts(&self) -> anyhow::Result<Counts> {
        parse(&self.in_middle(&[NFT, "-j", "reset counters table netdev loss"])?)
    }
}

/// Returns the rules that lose packets with a probability.
fn rules(probability: f64) -> String {
    // At least 1, because nft refuses a comparison that is never true. At most DRAWS, because a probability is below 1.
    let below = (probability * DRAWS).round().max(1.0) as u64;
    let of_end = |end| {
        format!(
            "flush chain netdev loss lose{end};
             add rule netdev loss lose{end} counter name arrived{end};
             add rule netdev loss lose{end} numgen random mod {DRAWS} < {below} counter name lost{end} drop;"
        )
    };
    of_end(0) + &of_end(1)
}

/// Output of `nft -j`.
#[derive(Deserialize)]
struct Listing {
    nftables: Vec<Object>,
}

#[derive(Deserialize)]
struct Object {
    counter: Option<Counter>,
}

#[derive(Deserialize)]
struct Counter {
    name: String,
    packets: u64,
}

fn parse(printed: &str) -> anyhow::Result<Counts> {
    let listing: Listing =
        serde_json::from_str(printed).with_context(|| format!("nft has printed no counters:\n{printed}"))?;
    let counters = listing.nftables.into_iter().filter_map(|object| object.counter);
    let packets: BTreeMap<_, _> = counters.map(|counter| (counter.name, counter.packets)).collect();
    let of = |name: &str| packets.get(name).copied().with_context(|| format!("nft has no counter {name}"));
    Ok(Counts { arrived: [of("arrived0")?, of("arrived1")?], lost: [of("lost0")?, of("lost1")?] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read() {
        let counts = parse(include_str!("fixtures/counters.json")).unwrap();
        assert_eq!(counts, Counts { arrived: [9574, 3581], lost: [88, 28] });
        assert_eq!((counts.lost_to_server(), counts.lost()), (88, 116));
        assert_eq!(counts.share().unwrap(), 116.0 / 13_155.0);
        let nothing = Counts { arrived: [0; 2], lost: [0; 2] };
        assert!(nothing.share().unwrap_err().to_string().contains("no packet"));
    }

    #[test]
    fn a_listing_without_a_counter_is_an_error() {
        for (printed, expected) in [
            ("", "no counters"),
            ("{}", "no counters"),
            (r#"{"nftables": [{"metainfo": {"version": "1.0.6"}}]}"#, "no counter arrived0"),
            (r#"{"nftables": [{"counter": {"name": "arrived0", "packets": -1}}]}"#, "no counters"),
        ] {
            let error = parse(printed).unwrap_err().to_string();
            assert!(error.contains(expected), "{printed}: {error}");
        }
    }

    #[test]
    fn packets_are_drawn_with_the_probability() {
        for (probability, expected) in [
            (1e-12, "mod 1000000000 < 1 counter name lost1 drop"),
            (0.001, "mod 1000000000 < 1000000 counter name lost1 drop"),
            (0.1, "mod 1000000000 < 100000000 counter name lost1 drop"),
        ] {
            let rules = rules(probability);
            assert!(rules.contains(expected), "{rules}");
            assert_eq!(rules.matches("numgen").count(), 2);
        }
    }
}
