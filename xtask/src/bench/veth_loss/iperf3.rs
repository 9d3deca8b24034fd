//! One measurement of the kernel's TCP by iperf3.

use std::ffi::OsString;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::path::Path;
use crate::bench::cores::Cores;
use crate::bench::perf::PATIENCE;
use crate::process::{Process, favoured, tied};

const PROGRAM: &str = "iperf3";
const START_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Tcp {
    pub(super) gbit_per_sec: f64,
    pub(super) retransmitted_pkts: u64,
}

/// Sends over one TCP connection for `seconds`.
pub(super) fn measure(path: &mut Path, cores: Cores, congestion: &str, seconds: u32) -> anyhow::Result<Tcp> {
    let server = ["--server", "--one-off", "--forceflush"];
    let netns = ["nsenter", "--target", path.server_pid(), "--net"].map(OsString::from);
    let mut server = start("server", &netns, cores.server, &server)?;
    server.wait_for("Server listening", START_TIMEOUT)?;
    let (host, port, seconds_text) =
        (path.ends().host, path.next_tcp_port().to_string(), seconds.to_string());
    let client = ["--client", host, "--cport", &port, "--time", &seconds_text, "--length", "64K"];
    let client = [&client[..], &["--congestion", congestion, "--json"]].concat();
    let client = start("client", &[], cores.client, &client)?;
    let output = client.finish(PATIENCE + Duration::from_secs(seconds.into()))?;
    let tcp = parse(&output.stdout, congestion)?;
    server.finish(PATIENCE)?;
    Ok(tcp)
}

fn start(end: &str, prefix: &[OsString], core: usize, arguments: &[&str]) -> anyhow::Result<Process> {
    let mut words = prefix.to_vec();
    words.extend(tied("taskset"));
    words.extend(["--cpu-list", &core.to_string(), PROGRAM].map(OsString::from));
    words.extend(arguments.iter().map(OsString::from));
    let name = format!("the {end} of `iperf3 {}`", arguments.join(" "));
    Process::start(&name, &mut favoured(&words), Stdio::null())
}

/// Output of `iperf3 --json`, in part.
#[derive(Deserialize)]
struct Report {
    end: End,
    /// Present if the measurement failed; the exit status is 0 even then.
    error: Option<String>,
}

#[derive(Deserialize)]
struct End {
    sum_sent: Option<Sent>,
    sum_received: Option<Received>,
    sender_tcp_congestion: Option<String>,
}

#[derive(Deserialize)]
struct Sent {
    retransmits: u64,
}

#[derive(Deserialize)]
struct Received {
    bits_per_second: f64,
}

fn parse(printed: &str, congestion: &str) -> anyhow::Result<Tcp> {
    let report: Report =
        serde_json::from_str(printed).with_context(|| format!("the report of iperf3:\n{printed}"))?;
    if let Some(error) = report.error {
        bail!("iperf3: {error}");
    }
    let End { sum_sent: Some(sent), sum_received: Some(received), sender_tcp_congestion } = report.end else {
        bail!("the report of iperf3 has no sums:\n{printed}")
    };
    if sender_tcp_congestion.as_deref() != Some(congestion) {
        bail!("iperf3 has sent by {sender_tcp_congestion:?} instead of {congestion}");
    }
    Ok(Tcp { gbit_per_sec: received.bits_per_second / 1e9, retransmitted_pkts: sent.retransmits })
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = include_str!("fixtures/iperf3.json");

    #[test]
    fn the_receiver_has_the_goodput() {
        let tcp = parse(REPORT, "cubic").unwrap();
        assert_eq!(tcp, Tcp { gbit_per_sec: 0.313_388_764_476_294, retransmitted_pkts: 119 });
    }

    #[test]
    fn a_report_without_a_measurement_is_an_error() {
        let refused = r#"{"start": {}, "intervals": [], "end": {}, "error": "Connection refused"}"#;
        for (printed, congestion, expected) in [
            (refused, "bbr", "iperf3: Connection refused"),
            (r#"{"end": {}}"#, "bbr", "no sums"),
            (REPORT, "bbr", "instead of bbr"),
            ("iperf3: error", "bbr", "the report of iperf3"),
        ] {
            let error = parse(printed, congestion).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
