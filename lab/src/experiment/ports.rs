//! A stream on real ports: two processes of `roce perf`, each with impairments on its port.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::plan::Point;
use super::results::{self, PointResult};
use super::spec::{Fabric, Op, Workload};

/// Interval at which the client is checked for its end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Runs server and client, and collects the client's figures. A run that exceeds its time limit is ended. An error
/// contains the standard error of the process that failed.
pub(super) fn run(point: &Point, program: &Path) -> Result<PointResult, String> {
    let (Fabric::Ports { host, .. }, Workload::Stream { limit_ms, .. }) =
        (&point.setup.fabric, &point.setup.workload)
    else {
        return Err("a stream on real ports was expected".to_owned());
    };
    let args = arguments(point);
    let server = Running::start("server", program, &args, None)?;
    let mut client = Running::start("client", program, &args, Some(host))?;
    if !client.ends_within(Duration::from_millis(*limit_ms))? {
        let ended_early = Some(format!("not done after {limit_ms} ms"));
        return Ok(PointResult { ended_early, ..PointResult::of(point) });
    }
    let report = client.finish()?;
    server.finish()?;
    let report: Value = serde_json::from_slice(&report)
        .map_err(|error| format!("the client's report is not JSON: {error}"))?;
    collect(point, &report)
}

/// A process that is killed on drop, because a server whose client failed would wait forever.
struct Running {
    role: &'static str,
    child: Option<Child>,
}

impl Running {
    fn start(
        role: &'static str,
        program: &Path,
        args: &[String],
        host: Option<&str>,
    ) -> Result<Self, String> {
        let mut command = Command::new(program);
        command.args(args).args(host).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        Ok(Running { role, child: Some(child) })
    }

    /// Waits at most `limit` for the end of the process; returns whether it has ended. The output must fit a pipe.
    fn ends_within(&mut self, limit: Duration) -> Result<bool, String> {
        let end = Instant::now() + limit;
        loop {
            let child = self.child.as_mut().ok_or("it was waited for before")?;
            let status =
                child.try_wait().map_err(|error| format!("cannot wait for the {}: {error}", self.role))?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status.is_some());
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits for the end of the process and returns its standard output; if it failed, its exit status and standard
    /// error.
    fn finish(mut self) -> Result<Vec<u8>, String> {
        let role = self.role;
        let child = self.child.take().ok_or("it was waited for before")?;
        let output =
            child.wait_with_output().map_err(|error| format!("cannot wait for the {role}: {error}"))?;
        if output.status.success() {
            return Ok(output.stdout);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("the {role} ended with {}: {}", output.status, said.trim()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            // `kill` fails if the process has ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The arguments of both processes.
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
        ("--drop-chance", setup.loss.chance.value().to_string()),
        ("--seed", point.seed.to_string()),
    ] {
        args.extend([option.to_owned(), value]);
    }
    args
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
        (results::RETRANSMITTED, &["retransmitted_pkts"]),
        (results::NAKS, &["packet_seq_err", "implied_nak_seq_err", "sacks_received"]),
        (results::TIMEOUTS, &["local_ack_timeout_err", "roce_adp_retrans_to"]),
        (results::PROBES, &["tail_probes"]),
    ] {
        result.set(figure, sum(names)?);
    }
    Ok(result)
}
