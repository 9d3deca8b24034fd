//! `roce perf`: perftest over any port.

mod affinity;
mod args;
mod bw;
mod control;
mod lat;
mod message;
mod own;
mod params;
mod pattern;
mod perftest;
mod raw;
mod report;
mod session;
mod setup;
mod turns;

#[cfg(test)]
mod corpus;
#[cfg(test)]
#[path = "../../../fuzz/oracle/exchange.rs"]
mod oracle;

use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::json;
use verbs::Placement;

use crate::{counters, events};
use args::{BwArgs, RawArgs, TestArgs, USAGE};
use params::{Measure, Test, Verb};
use report::Row;
use setup::Bench;
use turns::TurnRow;

/// Bandwidth and latency between two ends, with perftest's options and report.
///
/// Start the same command at both ends: without a host it is the server, with the server's host it is
/// the client. An option that one end is not given is taken from the other.
#[derive(Args)]
pub(crate) struct PerfArgs {
    #[command(subcommand)]
    command: PerfCommand,
}

#[derive(Subcommand)]
enum PerfCommand {
    /// Bandwidth of SEND
    SendBw(BwArgs),
    /// Latency of SEND, half a round trip
    SendLat(TestArgs),
    /// Bandwidth of RDMA WRITE
    WriteBw(BwArgs),
    /// Latency of RDMA WRITE, half a round trip
    WriteLat(TestArgs),
    /// Bandwidth of RDMA READ
    ReadBw(BwArgs),
    /// Latency of RDMA READ, the whole round trip
    ReadLat(TestArgs),
    /// The limit of a port: frames with copied payload and a checked ICRC, without any transport
    Raw(RawArgs),
}

/// Runs one end of a measurement.
pub(crate) fn run(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        PerfCommand::SendBw(args) => run_bw(Verb::Send, args),
        PerfCommand::WriteBw(args) => run_bw(Verb::Write, args),
        PerfCommand::ReadBw(args) => run_bw(Verb::Read, args),
        PerfCommand::SendLat(args) => run_lat(Verb::Send, args),
        PerfCommand::WriteLat(args) => run_lat(Verb::Write, args),
        PerfCommand::ReadLat(args) => run_lat(Verb::Read, args),
        PerfCommand::Raw(args) => raw::run(args),
    }
}

fn run_bw(verb: Verb, args: &BwArgs) -> anyhow::Result<ExitCode> {
    let test = Test { verb, measure: Measure::Bw };
    if let Err(wrong) = args.check(test) {
        return Ok(usage(test, &wrong));
    }
    let bench = Bench::open(test, &args.test.device, &args.test.peer, args.resolve())?;
    measure(bench, args.test.peer.json, bw::run)
}

fn run_lat(verb: Verb, args: &TestArgs) -> anyhow::Result<ExitCode> {
    let test = Test { verb, measure: Measure::Lat };
    if let Err(wrong) = args.check(test) {
        return Ok(usage(test, &wrong));
    }
    let bench = Bench::open(test, &args.device, &args.peer, args.resolve_lat(test))?;
    measure(bench, args.peer.json, lat::run)
}

fn usage(test: Test, wrong: &str) -> ExitCode {
    eprintln!("roce perf {test}: {wrong}\n\nFor more information, try '--help'.");
    ExitCode::from(USAGE)
}

/// Runs all sizes and prints their figures.
fn measure(
    mut bench: Bench,
    json: bool,
    run: fn(&mut Bench, u32) -> anyhow::Result<Option<Row>>,
) -> anyhow::Result<ExitCode> {
    let result = measure_sizes(&mut bench, json, run);
    // After a failure too, because the events may have caused it.
    events::tell(&bench.context.event_outcomes(), json);
    result.map(|()| ExitCode::SUCCESS)
}

fn measure_sizes(
    bench: &mut Bench,
    json: bool,
    run: fn(&mut Bench, u32) -> anyhow::Result<Option<Row>>,
) -> anyhow::Result<()> {
    let gbits = bench.local.report_gbits;
    let attr = bench.context.attr();
    if !json {
        let sends = bench.initiates();
        report::settings(&bench.params, &bench.local, &attr.port, bench.gid_index, sends)
            .iter()
            .chain(&bench.addresses())
            .for_each(|line| println!("{line}"));
        println!("{}", report::LINE);
        println!("{}", Row::header(bench.params.test.measure, bench.params.extent, gbits));
    }
    let mut rows = Vec::new();
    for size in bench.params.sizes.clone() {
        let row = run(bench, size).map_err(|error| bench.session.give_up(error))?;
        if let Some(row) = row.filter(|_| !json) {
            println!("{}", row.line(gbits));
        }
        rows.extend(row);
        bench.session.end_run()?;
    }
    if bench.local.loss_turns.is_some() && bench.turns.is_empty() {
        eprintln!("{}", turns::NOTHING_TO_COMPARE);
    }
    // Otherwise an end could destroy its queue pairs while the peer still waits for an ACK.
    bench.session.close()?;
    if json {
        println!("{}", serde_json::to_string_pretty(&describe(bench, &attr, &rows))?);
    } else {
        println!("{}", report::LINE);
        if !bench.turns.is_empty() {
            println!("{}", TurnRow::HEADER);
            bench.turns.iter().for_each(|row| println!("{}", row.line()));
            println!("{}", report::LINE);
        }
        if bench.lost_messages > 0 {
            println!(" messages lost   : {} (UC retransmits nothing)\n{}", bench.lost_messages, report::LINE);
        }
        let (counters, _) = bench.context.counters();
        let faults = report::faults(&bench.context.fault_counters(), counters.retransmitted_pkts);
        if !faults.is_empty() {
            faults.iter().for_each(|line| println!("{line}"));
            println!("{}", report::LINE);
        }
        let counters = counters::summary(&bench.context.device_counters());
        if !counters.is_empty() {
            println!("{}", report::COUNTERS_HEADER);
            counters.iter().for_each(|line| println!("{line}"));
            println!("{}", report::LINE);
        }
    }
    if let Some(error) = bench.context.capture_error() {
        anyhow::bail!("the capture ended early: {error}");
    }
    Ok(())
}

fn describe(bench: &Bench, attr: &verbs::DeviceAttr, rows: &[Row]) -> serde_json::Value {
    let (params, local) = (&bench.params, &bench.local);
    let (counters, drops) = bench.context.counters();
    let counters: serde_json::Map<_, _> =
        counters.iter().chain(drops.iter()).map(|(name, count)| (name.to_owned(), json!(count))).collect();
    json!({
        "test": params.test.to_string(),
        "role": if bench.is_client { "client" } else { "server" },
        "version": env!("CARGO_PKG_VERSION"),
        "port": attr.port,
        "driver": attr.driver,
        "path_mtu_bytes": params.mtu.bytes(),
        "connection": params.connection,
        "srq": local.use_srq,
        "recovery": params.recovery.to_string(),
        "placement": if local.placement == Placement::Relaxed { "relaxed" } else { "in order" },
        "congestion": local.congestion.unwrap_or_default().to_string(),
        "qps": params.qps,
        "bidirectional": params.bidirectional,
        "verified": params.verify,
        "tx_depth": local.tx_depth,
        "rx_depth": local.rx_depth,
        "lost_messages": bench.lost_messages,
        "results": rows.iter().map(Row::json).collect::<Vec<_>>(),
        "loss_turns": bench.turns,
        "faults": report::faults_json(&bench.context.fault_counters()),
        "counters": counters,
        "device_counters": bench.context.device_counters(),
        "events": events::report(&bench.context.event_outcomes()),
    })
}
