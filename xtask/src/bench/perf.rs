//! One measurement by two processes of `roce perf`.

use std::ffi::OsString;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::process::Stdio;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::cores::Cores;
use crate::process::{Process, favoured, finish_both, tied};
use crate::workspace;

/// Seconds that a measurement may take beyond its own, before its processes are taken for stuck.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// TCP ports of servers, below those that the kernel gives to clients.
const TCP_PORT_MIN: u16 = 20_000;
const TCP_PORTS: u16 = 12_000;
const _: () = assert!(u16::MAX - TCP_PORTS >= TCP_PORT_MIN);

/// Ports and addresses of the two ends.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) server_port: String,
    pub(super) client_port: String,
    /// The server's address, for the client.
    pub(super) host: &'static str,
    /// A process in the network namespace of the server, if that is another than this process's.
    pub(super) server_netns: Option<u32>,
}

impl Ends {
    /// Returns the ends of a new memif, which no other process of this machine uses.
    pub(super) fn memif() -> Ends {
        let port = format!("memif:@{}", unique_name());
        Ends { server_port: port.clone(), client_port: port, host: "localhost", server_netns: None }
    }
}

/// Returns a name for an abstract socket.
pub(super) fn unique_name() -> String {
    format!("roce-bench-{}-{:08x}", std::process::id(), random() as u32)
}

/// Returns a random number: the keys of a hasher are.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Starts measurements one after another.
#[derive(Debug)]
pub(super) struct Perf {
    seconds: u32,
    tcp_port_offset: u16,
}

impl Perf {
    /// Returns a starter of measurements that last `seconds`.
    pub(super) fn new(seconds: u32) -> Perf {
        // The remainder is below TCP_PORTS.
        Perf { seconds, tcp_port_offset: (random() % u64::from(TCP_PORTS)) as u16 }
    }

    /// Returns the seconds that a measurement lasts.
    pub(super) fn seconds(&self) -> u32 {
        self.seconds
    }

    /// Runs `roce perf` with `args`, between spaces, at both ends, and with `client_args` at the client's. Returns the client's report.
    pub(super) fn run(
        &mut self,
        ends: &Ends,
        cores: Cores,
        args: &str,
        client_args: &[String],
    ) -> anyhow::Result<PerfReport> {
        self.tcp_port_offset = (self.tcp_port_offset + 1) % TCP_PORTS;
        let tcp_port = (TCP_PORT_MIN + self.tcp_port_offset).to_string();
        let start = |end: &str, port: &str, core: usize, netns: Option<u32>, more: &[String]| {
            let core = core.to_string();
            let own = ["--port", port, "-p", &tcp_port, "--cpu", &core, "--json"].map(str::to_owned);
            let mut words = Vec::new();
            if let Some(pid) = netns {
                words.extend(["nsenter", "--target", &pid.to_string(), "--net"].map(OsString::from));
            }
            words.extend(tied(workspace::roce()));
            words.push("perf".into());
            words.extend(args.split(' ').map(OsString::from));
            words.extend([&own[..], more].concat().into_iter().map(OsString::from));
            let name = format!("the {end} of `roce perf {args}`");
            Process::start(&name, &mut favoured(&words), Stdio::null())
        };
        let server = start("server", &ends.server_port, cores.server, ends.server_netns, &[])?;
        let more = [client_args, &[ends.host.to_owned()]].concat();
        let client = start("client", &ends.client_port, cores.client, None, &more)?;
        let timeout = PATIENCE + Duration::from_secs(self.seconds.into());
        let (_, client) = finish_both(server, client, timeout)?;
        PerfReport::parse(&client.stdout, client.stderr)
    }
}

impl Perf {
    /// Runs `xtask tcp-lat` with `args`, between spaces, at both ends. Returns the client's report.
    pub(super) fn tcp(&mut self, ends: &Ends, cores: Cores, args: &str) -> anyhow::Result<PerfReport> {
        self.tcp_port_offset = (self.tcp_port_offset + 1) % TCP_PORTS;
        let address = format!("{}:{}", ends.host, TCP_PORT_MIN + self.tcp_port_offset);
        let program = std::env::current_exe().context("the path of this program")?;
        let start = |end: &str, core: usize, netns: Option<u32>, more: &[&str]| {
            let mut words = Vec::new();
            if let Some(pid) = netns {
                words.extend(["nsenter", "--target", &pid.to_string(), "--net"].map(OsString::from));
            }
            words.extend(tied("taskset"));
            words.extend(["-c", &core.to_string()].map(OsString::from));
            words.extend([program.clone().into(), "tcp-lat".into(), address.clone().into()]);
            words.extend(args.split(' ').chain(more.iter().copied()).map(OsString::from));
            Process::start(&format!("the {end} of `xtask tcp-lat`"), &mut favoured(&words), Stdio::null())
        };
        let server = start("server", cores.server, ends.server_netns, &["--listen"])?;
        let client = start("client", cores.client, None, &[])?;
        let (_, client) = finish_both(server, client, PATIENCE)?;
        PerfReport::parse(&client.stdout, client.stderr)
    }
}

impl Perf {
    /// Runs a program of perftest with `args`, between spaces, under `roce run` at both ends. Returns the columns of the
    /// last row that the client prints.
    pub(super) fn perftest(&mut self, ends: &Ends, cores: Cores, args: &str) -> anyhow::Result<Vec<f64>> {
        self.tcp_port_offset = (self.tcp_port_offset + 1) % TCP_PORTS;
        let tcp_port = (TCP_PORT_MIN + self.tcp_port_offset).to_string();
        let start = |end: &str, port: &str, core: usize, more: &[&str]| {
            let mut words = tied("taskset");
            words.extend(["-c", &core.to_string()].map(OsString::from));
            words.push(workspace::roce().into());
            words.extend(["run", "--port", port, "--"].map(OsString::from));
            words.extend(args.split(' ').map(OsString::from));
            let own = ["-d", "roce0", "-x", "0", "-F", "-p", &tcp_port];
            words.extend(own.iter().chain(more).map(OsString::from));
            Process::start(&format!("the {end} of `{args}`"), &mut favoured(&words), Stdio::null())
        };
        let server = start("server", &ends.server_port, cores.server, &[])?;
        wait_listening(TCP_PORT_MIN + self.tcp_port_offset)?;
        let client = start("client", &ends.client_port, cores.client, &[ends.host])?;
        let timeout = PATIENCE + Duration::from_secs(self.seconds.into());
        let (_, client) = finish_both(server, client, timeout)?;
        last_row(&client.stdout).with_context(|| format!("`{args}` prints no row:\n{client}"))
    }
}

/// Waits until a program of this network namespace listens on `tcp_port`: programs of perftest do not try again.
fn wait_listening(tcp_port: u16) -> anyhow::Result<()> {
    let (address, listens) = (format!(":{tcp_port:04X}"), "0A");
    let end = Instant::now() + PATIENCE;
    let is_listener = |line: &str| {
        let columns: Vec<_> = line.split_whitespace().collect();
        columns.get(1).is_some_and(|local| local.ends_with(&address)) && columns.get(3) == Some(&listens)
    };
    while !["/proc/net/tcp", "/proc/net/tcp6"]
        .iter()
        .any(|path| fs::read_to_string(path).is_ok_and(|sockets| sockets.lines().any(is_listener)))
    {
        if Instant::now() >= end {
            bail!("no program listens on TCP port {tcp_port} within {PATIENCE:?}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Returns the columns of the last row of numbers in the output of a program of perftest.
fn last_row(printed: &str) -> Option<Vec<f64>> {
    let row = |line: &str| {
        let columns: Result<Vec<f64>, _> = line.split_whitespace().map(str::parse).collect();
        columns.ok().filter(|columns| columns.len() > 1)
    };
    printed.lines().filter_map(row).next_back()
}

/// The report of the client's `roce perf --json`.
#[derive(Debug)]
pub(super) struct PerfReport {
    json: Value,
    stderr: String,
}

impl PerfReport {
    /// Parses a report, beside which `stderr` was printed.
    pub(super) fn parse(json: &str, stderr: String) -> anyhow::Result<PerfReport> {
        let json = serde_json::from_str(json)
            .with_context(|| format!("the report of `roce perf` is no JSON:\n{json}\n{stderr}"))?;
        Ok(PerfReport { json, stderr })
    }

    /// Returns the number at a place, by its path from the root: "/results/0/rate_mpps".
    pub(super) fn number(&self, path: &str) -> anyhow::Result<f64> {
        self.json.pointer(path).and_then(Value::as_f64).with_context(|| {
            let stderr = self.stderr.trim_end();
            let note = if stderr.is_empty() { String::new() } else { format!("; it says: {stderr}") };
            format!("the report of `roce perf` has no number {path}{note}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_paths() {
        let json = r#"{"results": [{"rate_mpps": 1.5, "frames": 7}], "loss_turns": [{"kept": null}], "test": "raw"}"#;
        let report = PerfReport::parse(json, "too few turns\n".to_owned()).unwrap();
        for (path, expected) in [
            ("/results/0/rate_mpps", Some(1.5)),
            ("/results/0/frames", Some(7.0)),
            ("/results/1/rate_mpps", None),
            ("/loss_turns/0/kept", None),
            ("/test", None),
            ("/absent", None),
        ] {
            let number = report.number(path);
            assert_eq!(number.as_ref().ok().copied(), expected, "{path}");
            if let Err(error) = number {
                let expected = format!("has no number {path}; it says: too few turns");
                assert!(error.to_string().ends_with(&expected), "{error}");
            }
        }
        assert!(PerfReport::parse("Waiting", String::new()).is_err());
    }

    #[test]
    fn the_last_row_of_perftest_is_read() {
        let printed = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n \
                       2          10             0.00               0.5                1.0\n \
                       65536      49156          0.00               42.96              0.081939\n\
                       ---------------------------------------------------------------------------------------\n";
        assert_eq!(last_row(printed), Some(vec![65536.0, 49156.0, 0.0, 42.96, 0.081939]));
        assert_eq!(last_row("no row\n 7\n"), None);
    }

    #[test]
    fn names_and_ports_are_in_their_ranges() {
        assert_ne!(unique_name(), unique_name());
        assert!(Perf::new(1).tcp_port_offset < TCP_PORTS);
    }
}
