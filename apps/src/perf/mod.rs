//! `roce perf`: perftest over any port.

use std::process::ExitCode;

use clap::Args;

use crate::device::DeviceArgs;

/// Bandwidth and latency between two ends, with perftest's options and report.
#[derive(Args)]
pub(crate) struct PerfArgs {
    #[command(flatten)]
    device: DeviceArgs,
}

/// Runs one end of a measurement.
pub(crate) fn run(args: &PerfArgs) -> anyhow::Result<ExitCode> {
    let context = args.device.open()?;
    println!("{}", context.attr().mac);
    Ok(ExitCode::SUCCESS)
}
