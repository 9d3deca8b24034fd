//! Frames between two processes of `dpdk-testpmd`.

use std::ffi::OsString;
use std::fs;
use std::io::Write as _;
use std::path::absolute;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use anyhow::Context as _;

use super::cores::Cores;
use super::perf::unique_name;
use crate::process::{Process, favoured, tied};
use crate::workspace;

pub(super) const PROGRAM: &str = "dpdk-testpmd";
/// Debian package of the program.
pub(super) const PACKAGE: &str = "dpdk-dev";
const PROMPT: &str = "testpmd>";
const START_TIMEOUT: Duration = Duration::from_secs(10);
const QUIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for frames to flow before they are counted.
const SETTLING: Duration = Duration::from_millis(500);
/// Time for the last count to be printed.
const PRINTING: Duration = Duration::from_millis(200);

/// Returns the frames of `frame_bytes` per second, in millions, over a memif.
pub(super) fn rate_mpps(frame_bytes: u32, cores: Cores, seconds: u32) -> anyhow::Result<f64> {
    let name = unique_name();
    let mut receiver =
        start("receiver", cores.server, &name, "server", &["--forward-mode=rxonly".to_owned()])?;
    let sending = ["--forward-mode=txonly".to_owned(), format!("--txpkts={frame_bytes}")];
    let mut sender = start("sender", cores.client, &name, "client", &sending)?;
    say(&mut receiver, "start")?;
    say(&mut sender, "start")?;
    thread::sleep(SETTLING);
    // Because the second count is printed with the rate since the first.
    say(&mut receiver, "show port stats 0")?;
    thread::sleep(Duration::from_secs(seconds.into()));
    say(&mut receiver, "show port stats 0")?;
    thread::sleep(PRINTING);
    say(&mut sender, "quit")?;
    say(&mut receiver, "quit")?;
    sender.finish(QUIT_TIMEOUT)?;
    let output = receiver.finish(QUIT_TIMEOUT)?;
    last_rate(&output.stdout).with_context(|| format!("{PROGRAM} prints no Rx-pps:\n{}", output.stdout))
}

/// Starts the `end` of memif `name`, and waits until it takes commands.
fn start(end: &str, core: usize, name: &str, role: &str, more: &[String]) -> anyhow::Result<Process> {
    let lcores = format!("0@{core},1@{core}");
    let device = format!("net_memif0,role={role},socket=@{name},bsize=8192");
    let prefix = format!("{name}-{role}");
    let eal = ["--lcores", &lcores, "--no-huge", "-m", "256", "--no-shconf", "--no-pci", "--no-telemetry"];
    let own = ["--file-prefix", &prefix, "--vdev", &device, "--"];
    let app = ["-i", "--nb-cores=1", "--total-num-mbufs=4095", "--mbuf-size=8320", "--no-mlockall"];
    let mut words = tied(PROGRAM);
    words.extend([&eal[..], &own, &app].concat().into_iter().map(OsString::from));
    words.extend(more.iter().map(OsString::from));
    let directory = absolute(workspace::target_dir().join("bench"))?;
    fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    let mut command = favoured(&words);
    // DPDK leaves an empty directory there.
    command.env("RUNTIME_DIRECTORY", &directory);
    let mut process = Process::start(&format!("the {end} of {PROGRAM}"), &mut command, Stdio::piped())?;
    process.wait_for(PROMPT, START_TIMEOUT)?;
    Ok(process)
}

fn say(process: &mut Process, line: &str) -> anyhow::Result<()> {
    let stdin = process.stdin.as_mut().context("a pipe")?;
    writeln!(stdin, "{line}").with_context(|| format!("{PROGRAM} has ended before `{line}`"))
}

/// Returns the last rate that was printed, in millions per second.
fn last_rate(printed: &str) -> Option<f64> {
    let rates = printed.split("Rx-pps:").skip(1);
    let rate: f64 = rates.last()?.split_whitespace().next()?.parse().ok()?;
    Some(rate / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_rate_counts() {
        let stats = "  Rx-pps:            0          Rx-bps:            0\n  Tx-pps: 5\n\
                     testpmd>   Rx-pps:      2500000          Rx-bps:   1\n";
        for (printed, expected) in [
            (stats, Some(2.5)),
            ("Rx-pps: 7", Some(7e-6)),
            ("Rx-pps:", None),
            ("Rx-pps: many", None),
            ("Tx-pps: 7", None),
        ] {
            assert_eq!(last_rate(printed), expected, "{printed:?}");
        }
    }
}
