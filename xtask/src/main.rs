//! `cargo xtask`: measurements of the workspace between processes, and counts of instructions.

mod bench;
mod bench_rxe;
mod install;
mod instructions;
mod namespace;
mod process;
mod progress;
mod stats;
mod tcp_lat;
mod workspace;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser, Subcommand};

/// Measurements of the workspace.
#[derive(Parser)]
#[command(name = "xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bench(bench::BenchArgs),
    BenchRxe(bench_rxe::BenchRxeArgs),
    Instructions(instructions::InstructionsArgs),
    #[command(hide = true)]
    TcpLat(tcp_lat::TcpLatArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if let Command::Bench(args) = &command
        && let Err(error) = args.check()
    {
        Cli::command().error(ErrorKind::ArgumentConflict, error).exit();
    }
    let result = workspace::enter().and_then(|()| match command {
        Command::Bench(args) => bench::run(&args),
        Command::BenchRxe(args) => bench_rxe::run(&args),
        Command::Instructions(args) => instructions::run(&args),
        Command::TcpLat(args) => tcp_lat::run(&args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cargo xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_says_what_is_wrong() {
        for (line, said) in [
            ("xtask", "Usage: cargo xtask <COMMAND>"),
            ("xtask bunch", "unrecognized subcommand"),
            ("xtask bench --runs 0", "0 is not in 1.."),
            ("xtask bench --seconds", "a value is required"),
            ("xtask bench --seconds 1.5", "invalid digit"),
            ("xtask bench --port tap", "possible values: memif, veth, loss, veth-loss, sleep, verbs, all"),
            ("xtask bench --op atomic", "possible values: send, write, read"),
            ("xtask bench --size 64,0", "0 is not in 1..="),
            ("xtask bench --qps 4097", "4097 is not in 1..=4096"),
            ("xtask bench --loss 1", "no probability above 0 and below 1"),
            ("xtask bench-rxe --loss 0", "0 is not in 1..=100"),
            ("xtask bench-rxe --mtu 1500", "possible values: 256, 512, 1024, 2048, 4096"),
            ("xtask instructions --blest", "unexpected argument"),
        ] {
            match Cli::try_parse_from(line.split(' ')) {
                Ok(_) => panic!("`{line}` was accepted"),
                Err(error) => assert!(error.to_string().contains(said), "`{line}` says: {error}"),
            }
        }
    }

    #[test]
    fn options_of_the_tables_of_losses_need_them() {
        for (line, is_right) in [
            ("xtask bench", true),
            ("xtask bench --qps 1,4,16 --size 64,8388608 --loss 0.001,0.05 --op read", true),
            ("xtask bench --port loss --op send,read", true),
            ("xtask bench --port memif", true),
            ("xtask bench --port memif --qps 1", false),
            ("xtask bench --port veth --loss 0.01", false),
            ("xtask bench --port veth-loss --op send,write --loss 0.001,0.01,0.02,0.05,0.1", true),
            ("xtask bench --port veth-loss --size 65536", false),
            ("xtask bench --port veth-loss --qps 4", false),
            ("xtask bench --port veth --op write", false),
            ("xtask bench --port veth-loss --loss .01,.02,.03,.04,.05,.06,.07,.08,.09,.1,.11,.12", true),
            ("xtask bench --loss .01,.02,.03,.04,.05,.06,.07,.08,.09,.1,.11,.12", false),
        ] {
            let Ok(Cli { command: Command::Bench(args) }) = Cli::try_parse_from(line.split(' ')) else {
                panic!("`{line}` is not understood")
            };
            assert_eq!(args.check().is_ok(), is_right, "{line}");
        }
    }
}
