//! `cargo xtask bench-rxe`: goodput against Linux's soft-RoCE in a guest, where packets are lost.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::process::{Process, run as run_command, tied};
use crate::stats::median;
use crate::{install, namespace, workspace};

const ABOUT: &str = "\
Goodput against Linux's soft-RoCE where packets are lost, beside soft-RoCE against itself in the same guest

  rxe  - rxe    ibv_rc_pingpong at both ends, over a veth pair in the guest
  ours - rxe    `roce ping` here, ibv_rc_pingpong in the guest, over a tap; with each --recovery that
                needs nothing of the peer

Measured first without loss, then with each direction of each link losing --loss percent of its RoCE
packets. The pairs alternate; figures are medians of all runs and their ratios. A stall is a time of
50 ms or more without a packet in the capture of our runs: soft-RoCE's retransmission timer is 67 ms.
All processes run in a network namespace of their own. The guest is emulated, so figures are small,
and only their ratios have a meaning.";

/// Goodput against Linux's soft-RoCE where packets are lost, beside soft-RoCE against itself
#[derive(Args)]
#[command(long_about = ABOUT)]
pub(crate) struct BenchRxeArgs {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,

    /// Share of packets lost in each direction of each link
    #[arg(long, value_name = "PERCENT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    loss: u32,

    /// Path MTU
    #[arg(long, value_name = "BYTES", default_value = "1024", value_parser = ["256", "512", "1024", "2048", "4096"])]
    mtu: String,

    /// Size of a message
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,

    /// Number of messages in each direction
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    iters: u32,

    /// The network namespace that this program was started from; for itself
    #[arg(long, value_name = "NETNS", hide = true)]
    inside: Option<String>,
}

/// Schemes of recovery that need nothing of the peer.
const SCHEMES: [&str; 2] = ["go-back-n", "improved-go-back-n"];
/// Shortest time without a RoCE packet that counts as a stall.
const STALL_NANOS: u64 = 50_000_000;
/// Seconds that a command in the guest may take.
const GUEST_TIMEOUT_SECS: u64 = 100;
/// Time limit of the processes of this host, after which the guest's have ended by themselves.
const TIMEOUT: Duration = Duration::from_secs(GUEST_TIMEOUT_SECS + 20);
/// Interface of this host to the guest.
const TAP: &str = "gtap";

/// Measures, and prints two tables: without loss and with it.
pub(crate) fn run(args: &BenchRxeArgs) -> anyhow::Result<()> {
    let Some(outer) = &args.inside else { return start_inside(args) };
    namespace::check_inside(outer)?;
    eprintln!("Booting the guest");
    let guest = Guest::start()?;
    guest.run("rxe_up nic0 10.77.0.2/24 - 9000 && rxe_pair 10.81.0.1 10.81.0.2 9000")?;
    let bench = Bench { args, guest, capture: Capture::new()? };
    bench.measure("without loss")?;
    let loss = args.loss;
    for link in ["va in", "vb in", "nic0 in", "nic0 out"] {
        bench.guest.run(&format!("loss_random {link} {loss}"))?;
    }
    bench.measure(&format!("{loss} % of the packets lost each way"))
}

/// Builds what the network namespace has no access to, and starts this program there.
fn start_inside(args: &BenchRxeArgs) -> anyhow::Result<()> {
    install::packages("to build against DPDK", workspace::BUILD_PACKAGES)?;
    install::packages("to make network namespaces", &["iproute2", "util-linux"])?;
    workspace::build_roce()?;
    let built = Command::new("scripts/guest").arg("build").stdout(Stdio::null()).status();
    if !built.context("scripts/guest")?.success() {
        bail!("the guest's image cannot be built (see above)");
    }
    let BenchRxeArgs { runs, loss, mtu, size, iters, inside: _ } = args;
    let arguments =
        format!("bench-rxe --runs {runs} --loss {loss} --mtu {mtu} --size {size} --iters {iters}");
    let mut command = namespace::start_inside(&arguments.split(' ').collect::<Vec<_>>())?;
    let status = command.status().context("unshare (util-linux) cannot be started")?;
    if !status.success() {
        bail!("the measurement failed, see above ({status})");
    }
    Ok(())
}

/// A guest with a tap interface to this network namespace; ended when dropped, and with this process.
struct Guest {
    name: String,
}

impl Guest {
    fn start() -> anyhow::Result<Guest> {
        let commands = ["link set lo up", "tuntap add dev gtap mode tap", "link set gtap mtu 9000 up"];
        for command in commands.into_iter().chain(["address add 10.77.0.1/24 dev gtap"]) {
            run_command(&[&["ip"], &command.split(' ').collect::<Vec<_>>()[..]].concat())?;
        }
        let own = std::process::id();
        let guest = Guest { name: format!("bench-rxe.{own}") };
        let mut command = Command::new("scripts/guest");
        command.args(["start", "--name", &guest.name, "--with-pid", &own.to_string()]);
        // The guest keeps these streams.
        let status = command.args(["--nic", &format!("tap:{TAP}")]).stdin(Stdio::null()).status();
        if !status.context("scripts/guest")?.success() {
            bail!("the guest cannot be started (see above)");
        }
        Ok(guest)
    }

    /// Starts a command of bash in the guest.
    fn spawn(&self, script: &str) -> anyhow::Result<Process> {
        let timeout = GUEST_TIMEOUT_SECS.to_string();
        let [program, options @ ..] = &tied("scripts/guest")[..] else { bail!("an empty command") };
        let mut command = Command::new(program);
        command.args(options).args(["exec", "--name", &self.name, "--timeout", &timeout, "--"]);
        let name = format!("`{script}` in the guest");
        Process::start(&name, command.args(["bash", "-c", script]), Stdio::null())
    }

    /// Runs a command of bash in the guest, and returns its standard output.
    fn run(&self, script: &str) -> anyhow::Result<String> {
        Ok(self.spawn(script)?.finish(TIMEOUT)?.stdout)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let stop = ["scripts/guest", "stop", "--name", &self.name];
        // Fails if the guest has ended by itself.
        let _ = run_command(&stop);
    }
}

/// The file of a capture, removed when dropped.
struct Capture(PathBuf);

impl Capture {
    fn new() -> anyhow::Result<Capture> {
        let directory = workspace::target_dir().join("bench-rxe");
        fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(Capture(directory.join(format!("{}.pcap", std::process::id()))))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Figures of one run of `roce ping`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Ping {
    mbit_per_sec: f64,
    retransmitted_pkts: f64,
    stalls: f64,
}

/// The report of `roce ping --json`.
#[derive(Deserialize)]
struct PingReport {
    mbit_per_sec: f64,
    retransmitted_pkts: f64,
}

struct Bench<'a> {
    args: &'a BenchRxeArgs,
    guest: Guest,
    capture: Capture,
}

impl Bench<'_> {
    fn options(&self) -> String {
        let BenchRxeArgs { mtu, size, iters, .. } = self.args;
        format!("-g 1 -m {mtu} -s {size} -n {iters} -e")
    }

    /// Runs soft-RoCE at both ends. Returns Mbit/s.
    fn rxe_rxe(&self) -> anyhow::Result<f64> {
        let pingpong = format!("ibv_rc_pingpong {}", self.options());
        let printed = self.guest.run(&format!(
            "{pingpong} -d rxe1 >/dev/null & wait_listen 18515 && {pingpong} -d rxe2 localhost && wait"
        ))?;
        mbit_per_sec(&printed).with_context(|| format!("ibv_rc_pingpong printed no Mbit/sec:\n{printed}"))
    }

    /// Runs this stack against soft-RoCE.
    fn ours_rxe(&self, scheme: &str) -> anyhow::Result<Ping> {
        let server = self.guest.spawn(&format!("ibv_rc_pingpong {} -d rxe0", self.options()))?;
        self.guest.run("wait_listen 18515")?;
        let words = tied(workspace::roce());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["ping", "--port", &format!("af_packet:{TAP}")]);
        command.args(self.options().split(' ')).args(["--recovery", scheme, "--json", "--pcap"]);
        command.arg(&self.capture.0).arg("10.77.0.2");
        let client = Process::start("`roce ping`", &mut command, Stdio::null())?;
        let printed = client.finish(TIMEOUT)?.stdout;
        server.finish(TIMEOUT)?;
        let report: PingReport = serde_json::from_str(&printed)
            .with_context(|| format!("the report of `roce ping`:\n{printed}"))?;
        let PingReport { mbit_per_sec, retransmitted_pkts } = report;
        Ok(Ping { mbit_per_sec, retransmitted_pkts, stalls: stalls_in(&self.capture.0)? as f64 })
    }

    /// Runs the three pairs in turn, and prints a table of medians.
    fn measure(&self, title: &str) -> anyhow::Result<()> {
        let BenchRxeArgs { runs, mtu, size, .. } = self.args;
        let mut base = Vec::new();
        let mut ours = SCHEMES.map(|_| Vec::new());
        for run in 1..=*runs {
            eprintln!("{title}: run {run} of {runs}");
            base.push(self.rxe_rxe()?);
            for (pings, scheme) in ours.iter_mut().zip(SCHEMES) {
                pings.push(self.ours_rxe(scheme)?);
            }
        }
        println!("\n{title}, {size} B messages both ways, path MTU {mtu}, medians of {runs}");
        print!("{}", table(&base, &ours));
        Ok(())
    }
}

/// Returns the table of soft-RoCE against itself, and of this stack by schemes of recovery.
fn table(base: &[f64], ours: &[Vec<Ping>; 2]) -> String {
    let of = |figures: &[f64]| median(figures).unwrap_or(f64::NAN);
    let base = of(base);
    let mut table =
        format!("{:<28} {:>10} {:>8} {:>14} {:>10}\n", "", "Mbit/s", "ratio", "pkts again", "stalls");
    table += &format!("{:<28} {base:>10.2} {:>8.2}\n", "rxe - rxe", 1.0);
    for (scheme, pings) in SCHEMES.into_iter().zip(ours) {
        let of = |figure: fn(&Ping) -> f64| of(&pings.iter().map(figure).collect::<Vec<_>>());
        let mbits = of(|ping| ping.mbit_per_sec);
        let (again, stalls) = (of(|ping| ping.retransmitted_pkts), of(|ping| ping.stalls));
        let ratio = mbits / base;
        table += &format!(
            "{:<28} {mbits:>10.2} {ratio:>8.2} {again:>14} {stalls:>10}\n",
            format!("{scheme} - rxe")
        );
    }
    table
}

/// Returns the figure of the line `... = 12.34 Mbit/sec`.
fn mbit_per_sec(printed: &str) -> Option<f64> {
    let (before, _) = printed.split_once(" Mbit/sec")?;
    before.rsplit_once("= ")?.1.parse().ok()
}

/// Returns the number of stalls in a capture.
fn stalls_in(capture: &Path) -> anyhow::Result<usize> {
    let mut command = Command::new(workspace::roce());
    command.args(["dump", "--json"]).arg(capture).stdout(Stdio::piped());
    let mut child = command.spawn().context("`roce dump` cannot be started")?;
    let stdout = child.stdout.take().context("a pipe")?;
    let stalls = stalls(BufReader::new(stdout));
    let status = child.wait()?;
    if !status.success() {
        bail!("`roce dump --json {}` failed, see above ({status})", capture.display());
    }
    stalls
}

/// A line of `roce dump --json`: a frame, or the summary at the end.
#[derive(Deserialize)]
struct Line {
    unix_nanos: Option<String>,
    /// Present in RoCE packets.
    bth: Option<IgnoredAny>,
}

/// Returns the number of stalls between RoCE packets, of which each line describes one.
fn stalls(lines: impl BufRead) -> anyhow::Result<usize> {
    let (mut stalls, mut last_nanos) = (0, None);
    for line in lines.lines() {
        let line = line?;
        let Line { unix_nanos, bth } =
            serde_json::from_str(&line).with_context(|| format!("`roce dump` printed no JSON: {line}"))?;
        if bth.is_none() {
            continue;
        }
        let nanos = unix_nanos.and_then(|nanos| nanos.parse::<u64>().ok());
        let nanos =
            nanos.with_context(|| format!("`roce dump` printed a packet without its time: {line}"))?;
        stalls += usize::from(last_nanos.is_some_and(|last| nanos.saturating_sub(last) >= STALL_NANOS));
        last_nanos = Some(nanos);
    }
    Ok(stalls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read() {
        let printed = "  local address: LID 0x0000\n16777216 bytes in 0.52 seconds = 257.10 Mbit/sec\n\
                       8 iters in 0.52 seconds = 65253.62 usec/iter\n";
        for (printed, expected) in [
            (printed, Some(257.1)),
            ("= 1 Mbit/sec", Some(1.0)),
            ("257.10 Mbit/sec", None),
            ("= fast Mbit/sec", None),
            ("", None),
        ] {
            assert_eq!(mbit_per_sec(printed), expected, "{printed}");
        }
    }

    #[test]
    fn stalls_are_between_packets_of_roce() {
        let line = |millis: u64, is_roce| {
            let bth = if is_roce { r#","bth":{"psn":1}"# } else { "" };
            format!("{{\"frame\":1,\"unix_nanos\":\"{}\"{bth}}}\n", millis * 1_000_000)
        };
        let summary = "{\"summary\":{\"frames\":5}}\n".to_owned();
        let capture =
            [line(0, true), line(49, true), line(90, false), line(99, true), line(160, true), summary]
                .concat();
        assert_eq!(stalls(capture.as_bytes()).unwrap(), 2);
        assert_eq!(stalls(&b""[..]).unwrap(), 0);
        for (line, expected) in [("{\"bth\":{}}", "a packet without its time"), ("frame 1", "no JSON")] {
            let error = stalls(line.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn the_table_compares_medians() {
        let ping =
            |mbit_per_sec, retransmitted_pkts, stalls| Ping { mbit_per_sec, retransmitted_pkts, stalls };
        let ours = [
            vec![ping(10.0, 7.0, 1.0), ping(30.0, 9.0, 0.0), ping(20.0, 8.0, 2.0)],
            vec![ping(40.0, 0.0, 0.0)],
        ];
        let expected = [
            "                                 Mbit/s    ratio     pkts again     stalls",
            "rxe - rxe                         40.00     1.00",
            "go-back-n - rxe                   20.00     0.50              8          1",
            "improved-go-back-n - rxe          40.00     1.00              0          0",
        ];
        assert_eq!(table(&[50.0, 40.0, 30.0], &ours).lines().collect::<Vec<_>>(), expected);
    }
}
