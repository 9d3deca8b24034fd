//! The `roce` command.

mod device;
mod perf;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// RDMA over any Ethernet port: RoCEv2 without an RDMA NIC.
#[derive(Parser)]
#[command(name = "roce", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Perf(perf::PerfArgs),
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Perf(args) => perf::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("roce: {error:#}");
            ExitCode::FAILURE
        }
    }
}
