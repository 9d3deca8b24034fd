//! A stream on real ports: two processes of `roce perf`, each with the fault decorator on its port.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use super::plan::Point;
use super::results::{self, PointResult};
use super::spec::{Fabric, Op, Workload};

/// Runs both ends and collects the client's figures.
///
/// # Errors
/// Where a process cannot be started or fails: what it wrote to standard error.
pub(super) fn run(point: &Point, program: &Path) -> Result<PointResult, String> {
    let (Fabric::Ports { host, .. }, Workload::Stream { .. }) = (&point.setup.fabric, &point.setup.workload)
    else {
        return Err("a stream on real ports was expected".to_owned());
    };
    let args = arguments(point);
    // A server whose client fails would wait for another for ever.
    let mut server = Killed(Some(start(program, &args, None)?));
    let client = finish(start(program, &args, Some(host))?, "client")?;
    if let Some(server) = server.0.take() {
        finish(server, "server")?;
    }
    let report: Value = serde_json::from_slice(&client)
        .map_err(|error| format!("the client's report is not JSON: {error}"))?;
    collect(point, &report)
}

/// A process that is ended when nobody waited for it.
struct Killed(Option<Child>);

impl Drop for Killed {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What both ends are told.
fn arguments(point: &Point) -> Vec<String> {
    let setup = &point.setup;
    let (Fabric::Ports { port, tcp_port, .. }, Workload::Stream { op, message_bytes, messages, depth, .. }) =
        (&setup.fabric, &setup.workload)
    else {
        return Vec::new();
    };
    let test = match op {
        Op::Send => "send-bw",
        Op::Write => "write-bw",
        Op::Read => "read-bw",
    };
    let mut args = vec!["perf".to_owned(), test.to_owned(), "--json".to_owned(), "--noPeak".to_owned()];
    for (option, value) in [
        ("--port", port.clone()),
        ("--tcp-port", tcp_port.to_string()),
        ("--mtu", setup.transport.path_mtu.bytes().to_string()),
        ("--size", message_bytes.to_string()),
        ("--iters", messages.to_string()),
        ("--tx-depth", depth.to_string()),
        ("--qp-timeout", setup.transport.timeout.to_string()),
        ("--recovery", setup.transport.recovery.to_string()),
        ("--congestion", setup.transport.congestion().to_string()),
        ("--drop-chance", setup.loss.chance.0.to_string()),
        ("--seed", point.seed.to_string()),
    ] {
        args.extend([option.to_owned(), value]);
    }
    args
}

fn start(program: &Path, args: &[String], host: Option<&str>) -> Result<Child, String> {
    let mut command = Command::new(program);
    command.args(args).args(host).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))
}

fn finish(child: Child, role: &str) -> Result<Vec<u8>, String> {
    let output = child.wait_with_output().map_err(|error| format!("cannot wait for the {role}: {error}"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("the {role} ended with {}: {}", output.status, said.trim()))
    }
}

fn collect(point: &Point, report: &Value) -> Result<PointResult, String> {
    let mut result = PointResult::of(point);
    let row = &report["results"][0];
    let number = |value: &Value, name: &str| {
        value[name].as_f64().ok_or_else(|| format!("the client's report has no `{name}`: {report}"))
    };
    result.set(results::GOODPUT, number(row, "bw_average_gbit_per_sec")?);
    result.set(results::COMPLETED, number(row, "iterations")?);
    let counters = &report["counters"];
    let sum = |names: &[&str]| names.iter().map(|name| number(counters, name)).sum::<Result<f64, String>>();
    for (figure, names) in [
        (results::SENT, &["sent_pkts"][..]),
        (results::RESENT, &["retransmitted_pkts"]),
        (results::NAKS, &["packet_seq_err", "implied_nak_seq_err", "sacks_received"]),
        (results::TIMEOUTS, &["local_ack_timeout_err", "adaptive_retrans"]),
        (results::PROBES, &["tail_probes"]),
    ] {
        result.set(figure, sum(names)?);
    }
    Ok(result)
}
