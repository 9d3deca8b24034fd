//! `roce doctor`: obstacles to RDMA on this machine, and the commands that remove them.

mod checks;
mod finding;
mod pci;
pub(crate) mod system;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use verbs::kernel::Interface;
use verbs::port::PortKind;
use verbs::{Context, DeviceOptions, PathMtu, PortSpec};

use crate::output;
use finding::{Finding, Severity};
use system::System;

/// Look for what on this machine stands in the way of RDMA, and say how to mend it.
///
/// Looks at the CPU, hugepages, DPDK's drivers, permissions, limits, interfaces (MTU against path MTU, GIDs), the kernel's
/// soft-RoCE, who holds UDP port 4791, VFIO and the IOMMU, and NICs that keep RoCE packets to themselves. With --port only
/// what matters for that port can block. Changes nothing.
#[derive(Args)]
#[command(after_help = "\
Severities:
  ok      as it should be
  note    works, but could be better or faster
  warning works only in part, or surprises
  BLOCKS  does not work until it is mended

Examples:
      roce doctor
      roce doctor --port af_packet:eth1
      roce doctor --port pci:0000:3b:00.0 --open

Exit status: 0 when nothing blocks, 1 when something does, 2 on wrong usage.")]
pub(crate) struct DoctorArgs {
    /// The port that is wanted: KIND:TARGET[,key=value...].
    #[arg(long, value_name = "PORT")]
    port: Option<PortSpec>,

    /// Open the port for a moment too, which takes its traffic meanwhile.
    #[arg(long, requires = "port")]
    open: bool,

    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// The result, as `--json` prints it.
#[derive(Serialize)]
struct Report {
    blocks: bool,
    findings: Vec<Finding>,
}

/// Runs the checks and prints their findings.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let mut findings = examine(&System::live(), args.port.as_ref());
    if args.open
        && let Some(port) = &args.port
    {
        findings.push(open(port));
    }
    let blocks = findings.iter().any(|finding| finding.severity == Severity::Blocks);
    if args.json {
        output::print_json(&Report { blocks, findings })?;
    } else {
        let mut text: String = findings.iter().map(describe).collect();
        text.push_str(&format!("\n{}\n", verdict(&findings, args.port.as_ref())));
        output::print(&text)?;
    }
    Ok(if blocks { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn examine(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    let mut findings = examine_machine(system, port);
    findings.extend(checks::interfaces(system, port));
    findings
}

/// Examines everything but the kernel's interfaces.
fn examine_machine(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    let mut findings = vec![checks::cpu(system), checks::hugepages(system)];
    findings.extend(checks::drivers(system, port));
    findings.extend(checks::permissions(system, port));
    findings.push(checks::memlock(system, port));
    findings.extend([checks::open_files(system), checks::cpu_quota(system)]);
    findings.push(checks::udp_port(system, port));
    findings.extend(pci::vfio(system, port));
    findings.extend(pci::nics(system, port));
    findings
}

/// Returns the first finding that blocks `port`, in one line. `interface` is the kernel's interface of the port, because
/// the directory of the system's interfaces may be that of another network namespace.
pub(crate) fn obstacle(port: &PortSpec, interface: Option<&Interface>) -> Option<String> {
    let mut findings = examine_machine(&System::live(), Some(port));
    findings.extend(
        interface
            .into_iter()
            .flat_map(|interface| checks::interface(&interface.into(), port.kind == PortKind::AfXdp)),
    );
    let found = findings.into_iter().find(|finding| finding.severity == Severity::Blocks)?;
    // File capabilities of `roce` do not reach a program that it executes.
    let mend: Vec<_> = found.mend.into_iter().filter(|command| !command.contains("setcap")).collect();
    Some(if mend.is_empty() { found.what } else { format!("{}. Remedy: {}", found.what, mend.join("; ")) })
}

fn open(port: &PortSpec) -> Finding {
    const TOPIC: &str = "open";
    match Context::open(port, &DeviceOptions::default()) {
        Ok(context) => {
            let attr = context.attr();
            let mtu = attr.active_mtu.map_or(0, PathMtu::bytes);
            let gids: Vec<String> = attr.gids.iter().map(|(index, gid)| format!("{index} = {gid}")).collect();
            let gids = gids.join(", ");
            Finding::ok(TOPIC, format!("{port} opens: path MTU up to {mtu}, GIDs {gids}"))
        }
        Err(error) => Finding::new(TOPIC, Severity::Blocks, format!("{port} does not open: {error}")),
    }
}

fn describe(finding: &Finding) -> String {
    let mut text = format!("{:<8} {:<12} {}\n", finding.severity.text(), finding.topic, finding.what);
    for command in &finding.mend {
        text.push_str(&format!("{:<8} {:<12}   $ {command}\n", "", ""));
    }
    text
}

fn verdict(findings: &[Finding], port: Option<&PortSpec>) -> String {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (blocks, warnings) = (count(Severity::Blocks), count(Severity::Warning));
    let whom = port.map_or_else(|| "every port kind".to_owned(), |port| port.to_string());
    match blocks {
        0 if port.is_none() => {
            format!("Nothing blocks; warnings: {warnings}. `--port PORT` looks at what one port needs.")
        }
        0 => format!("Nothing blocks {whom}; warnings: {warnings}."),
        blocks => format!("Findings that block {whom}: {blocks}; warnings: {warnings}."),
    }
}
