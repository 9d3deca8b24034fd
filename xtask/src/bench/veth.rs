//! Measurements over a veth pair, whose ends are in two network namespaces.
//!
//! ```text
//!   this process          a namespace of this program, started again      a namespace that KEEPER holds
//!   start_measuring  -->  measure: client, bench0 10.99.0.1    <---->     server, bench1 10.99.0.2
//! ```

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::figures::Figures;
use super::memif::GBIT_OF_MPPS_4096;
use super::perf::Ends;
use super::report::{Row, Target};
use super::session::{Extent, Measurement, Runs, steps};
use crate::namespace::{identity, start_inside};
use crate::process::{Process, run, tied};

/// Time in which a process must have its new namespace.
const NAMESPACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns the measurements, in the order of the report.
pub(super) fn table() -> Vec<Measurement> {
    vec![
        Measurement::perf(
            Row::new("veth_bare_4096", "bare af_packet over veth, frames of 4096 B payload", "Mpps"),
            "rate_mpps",
            "raw --bare -s 4096",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("veth_limit_4096", "limit program over it", "Gb/sec")
                .of("veth_bare_4096", GBIT_OF_MPPS_4096),
            "payload_gbit_per_sec",
            "raw -s 4096",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("veth_write_64k", "roce perf write-bw over it, 64 KiB, path MTU 4096", "Gb/sec")
                .of("veth_bare_4096", GBIT_OF_MPPS_4096)
                .target(Target::RatioAtLeast(0.8)),
            "bw_average_gbit_per_sec",
            "write-bw -s 65536 -m 4096",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("veth_send_lat_64", "roce perf send-lat over it, 64 B", "usec"),
            "t_typical_usec",
            "send-lat -s 64 -m 4096 -t 64",
            Extent::Iters(20_000),
        ),
    ]
}

/// Starts this program in a network namespace of its own, where it makes all runs, and adds the figures that it prints.
/// `options` are those beside number and length of the runs.
pub(super) fn start_measuring(runs: Runs, options: &[&str], figures: &mut Figures) -> anyhow::Result<()> {
    let (count, seconds) = (runs.count.to_string(), runs.seconds.to_string());
    let arguments = [&["bench", "--runs", &count, "--seconds", &seconds], options].concat();
    let output = start_inside(&arguments)?.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let output = output.context("unshare (util-linux) cannot be started")?;
    if !output.stdout.is_empty() {
        figures.merge(serde_json::from_slice(&output.stdout).context("the figures of the veth pair")?);
    }
    if !output.status.success() {
        bail!(
            "the measurement over a veth pair failed, see above ({}). It makes network namespaces: run it as root, or \
             where unshare(1) may make user namespaces",
            output.status
        );
    }
    Ok(())
}

/// Makes all runs of the measurements `table`. The process must be in a network namespace of its own.
pub(super) fn measure(table: &[Measurement], runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
    let (keeper, pid) = keep_namespace()?;
    make_pair(&pid.to_string())?;
    let ends = Ends {
        server_port: "af_packet:bench1".to_owned(),
        client_port: "af_packet:bench0".to_owned(),
        host: "10.99.0.2",
        server_netns: Some(pid),
    };
    let measured = runs.each("veth", steps(table), figures, |session| session.measure(table, &ends));
    drop(keeper);
    measured
}

/// Starts a process that holds a second network namespace, and returns it with its number.
pub(super) fn keep_namespace() -> anyhow::Result<(Process, u32)> {
    let mut command = Command::new("unshare");
    command.arg("--net").args(tied("sleep")).arg("infinity");
    let keeper = Process::start("the holder of a network namespace", &mut command, Stdio::null())?;
    let pid = keeper.id();
    let here = identity("self")?;
    let end = Instant::now() + NAMESPACE_TIMEOUT;
    while identity(&pid.to_string())? == here {
        if Instant::now() >= end {
            bail!("unshare has made no network namespace within {NAMESPACE_TIMEOUT:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok((keeper, pid))
}

/// Makes the pair: `bench0` here, `bench1` in the namespace of process `pid`.
fn make_pair(pid: &str) -> anyhow::Result<()> {
    let there = ["nsenter", "--target", pid, "--net"];
    let here = |line: &str| run(&line.split(' ').collect::<Vec<_>>());
    let there = |line: &str| run(&there.into_iter().chain(line.split(' ')).collect::<Vec<_>>());
    here("ip link set lo up")?;
    here(&format!("ip link add bench0 mtu 4200 type veth peer name bench1 mtu 4200 netns {pid}"))?;
    here("ip addr add 10.99.0.1/24 dev bench0")?;
    here("ip link set bench0 up")?;
    there("ip addr add 10.99.0.2/24 dev bench1")?;
    there("ip link set bench1 up")?;
    there("ip link set lo up")?;
    Ok(())
}
