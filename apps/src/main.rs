//! The `roce` command: a file or folder per subcommand.

mod counters;
mod device;
mod devinfo;
mod doctor;
mod dump;
mod events;
mod exchange;
mod lab;
mod manual;
mod output;
mod perf;
mod ping;
mod progress;
mod run;
mod stat;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// RDMA over any Ethernet port: RoCEv2 without an RDMA NIC.
///
/// Every command that talks to a peer takes a port by its name, KIND:TARGET[,key=value...], and needs
/// neither a kernel module nor an RDMA NIC.
#[derive(Parser)]
#[command(name = "roce", version, max_term_width = 100, after_help = PORTS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Help on `--port`, at the end of a command's help.
pub(crate) const PORTS: &str = "\
Ports:
  memif:NAME, @NAME or PATH   shared memory between two processes; the first to come serves
  af_packet:INTERFACE         a kernel interface by packet sockets, shared with the kernel
  af_xdp:INTERFACE            a kernel interface by XDP sockets, path MTU up to 2048
  vhost:PATH                  the device end of a vhost-user socket
  virtio-user:PATH            the driver end of a vhost-user socket
  tap:INTERFACE               a kernel interface made for this port
  pci:ADDRESS                 a NIC, bound to vfio-pci or with a bifurcated driver
  eal:DEVICE                  any other DPDK virtual device
Keys:
  ip=ADDRESS/PREFIX (may repeat), gw=ADDRESS, mac=ADDRESS, vlan=ID, mtu=BYTES, queues=N,
  secret=TEXT (or @FILE) and uid=N (may repeat) for memif: who may be the other end,
  dev.KEY=VALUE for the DPDK driver. Without ip= a port has its link-local GID.

Environment:
  RUST_LOG=debug              what happens on the control plane, on standard error [default: warn]

Exit status: 0 on success, 1 on failure, 2 on wrong usage.";

#[derive(Subcommand)]
enum Command {
    Perf(Box<perf::PerfArgs>),
    Ping(ping::PingArgs),
    Run(run::RunArgs),
    RunDetached(run::DetachedArgs),
    RunTryNamespace(run::TrialArgs),
    RunCounters(run::ServerArgs),
    KeepTree(run::KeepTreeArgs),
    Devinfo(devinfo::DevinfoArgs),
    Stat(stat::StatArgs),
    Dump(dump::DumpArgs),
    Doctor(doctor::DoctorArgs),
    Lab(lab::LabArgs),
    Completions(manual::CompletionsArgs),
    ManPages(manual::ManPagesArgs),
}

fn main() -> ExitCode {
    // Warnings are on by default, because operators need them and do not ask for them.
    let filter = EnvFilter::builder().with_default_directive(LevelFilter::WARN.into()).from_env_lossy();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let result = match Cli::parse().command {
        Command::Perf(args) => perf::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Run(args) => run::run(&args),
        Command::RunTryNamespace(args) => run::try_user_namespace(&args),
        Command::RunDetached(args) => run::detach(&args),
        Command::RunCounters(args) => run::serve(&args),
        Command::KeepTree(args) => run::keep_tree(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Devinfo(args) => devinfo::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Lab(args) => lab::run(&args),
        Command::Completions(args) => manual::completions(&args, &mut Cli::command()),
        Command::ManPages(args) => manual::man_pages(&args, Cli::command()),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("roce: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error text for wrong usage; its exit status is clap's, 2.
    fn refusal(line: &str) -> String {
        match Cli::try_parse_from(line.split_whitespace()) {
            Ok(_) => panic!("`{line}` was accepted"),
            Err(error) => {
                assert_eq!(error.exit_code(), 2, "{line}");
                error.to_string()
            }
        }
    }

    #[test]
    fn the_options_do_not_contradict_each_other() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_usage_says_what_is_wrong() {
        for (line, said) in [
            ("roce", "Usage: roce"),
            ("roce pong", "unrecognized subcommand"),
            ("roce ping", "--port <PORT>"),
            ("roce ping --port eth1", "names no port"),
            ("roce ping --port memif:@a,ip=10.0.0.1", "prefix length"),
            ("roce ping --port memif:@a -m 1500", "256, 512, 1024, 2048 or 4096"),
            ("roce ping --port memif:@a -n 0", "0 is not in 1.."),
            ("roce ping --port memif:@a -l 8", "8 is not in 0..=7"),
            ("roce ping --port memif:@a --drop-chance 5", "from 0 (never) to 1"),
            ("roce ping --port memif:@a --events", "a value is required for '--events <FILE>'"),
            ("roce ping --port memif:@a host1 host2", "unexpected argument"),
            ("roce perf send-bw --port memif:@a -D 1 --loss-turns 0,0.1", "<HOST>"),
            ("roce perf send-bw --port memif:@a --loss-turns 0,0.1 host", "--duration <SECONDS>"),
            ("roce perf send-bw --port memif:@a -D 1 --loss-turns 0.1 host", "2 to 12 chances"),
            ("roce perf send-bw --port memif:@a -D 1 -b --loss-turns 0,0.1 host", "cannot be used with"),
            ("roce perf write-bw --port memif:@a -c UD", "possible values: RC"),
            ("roce perf write-bw --port memif:@a --peer perftest", "<HOST>"),
            ("roce devinfo --port nic:1", "names no port"),
            ("roce devinfo --describe", "--port <PORT>"),
            ("roce run", "<PROGRAM>"),
            ("roce run --port eth1 true", "names no port"),
            ("roce run --port memif:@a --progress idle true", "adaptive, busy or app"),
            ("roce stat 1 2", "unexpected argument"),
            ("roce doctor --open", "--port <PORT>"),
            ("roce lab show nothing", "possible values: goodput-vs-loss"),
            ("roce lab run", "<NAME|FILE.toml>"),
            ("roce lab run reactions --seeds 0", "0 is not in 1.."),
            ("roce lab run reactions --jobs 0", "--jobs <N>"),
        ] {
            let error = refusal(line);
            assert!(error.contains(said), "`{line}` says: {error}");
        }
    }

    #[test]
    fn the_arguments_of_a_program_are_its_own() {
        for line in [
            "roce run ib_write_bw -d roce0 --port 1",
            "roce run --port memif:@a -- ls --help",
            "roce run --print-config",
        ] {
            assert!(Cli::try_parse_from(line.split_whitespace()).is_ok(), "{line}");
        }
    }

    #[test]
    fn ping_takes_the_letters_of_ibv_rc_pingpong() {
        let line = "roce ping --port memif:@a -p 18516 -s 1023 -m 4096 -r 10 -n 7 -l 3 -e -g 1 -c 10.0.0.1";
        assert!(Cli::try_parse_from(line.split_whitespace()).is_ok());
    }
}
