//! The `roce` command: a file or folder per subcommand.

mod device;
mod devinfo;
mod doctor;
mod dump;
mod perf;
mod ping;
mod progress;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

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

/// What `--port` takes, told at the end of the help.
pub(crate) const PORTS: &str = "\
Ports, KIND:TARGET[,key=value...]:
  memif:@NAME or memif:PATH   shared memory between two processes; the first to come serves
  af_packet:INTERFACE         a kernel interface by packet sockets, shared with the kernel
  af_xdp:INTERFACE            a kernel interface by XDP sockets, path MTU up to 2048
  vhost:PATH                  the device end of a vhost-user socket
  virtio-user:PATH            the driver end of a vhost-user socket
  tap:INTERFACE               a kernel interface made for this port
  pci:ADDRESS                 a NIC, bound to vfio-pci or with a bifurcated driver
  eal:DEVICE                  any other DPDK virtual device
Keys:
  ip=ADDRESS/PREFIX (may repeat), gw=ADDRESS, mac=ADDRESS, mtu=BYTES, queues=N,
  dev.KEY=VALUE for the DPDK driver. Without ip= a port has its link-local GID.

Environment:
  RUST_LOG=debug              what happens on the control plane, on standard error

Exit status: 0 on success, 1 on failure, 2 on wrong usage.";

#[derive(Subcommand)]
enum Command {
    Perf(perf::PerfArgs),
    Ping(ping::PingArgs),
    Devinfo(devinfo::DevinfoArgs),
    Dump(dump::DumpArgs),
    Doctor(doctor::DoctorArgs),
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let result = match Cli::parse().command {
        Command::Perf(args) => perf::run(&args),
        Command::Ping(args) => ping::run(&args),
        Command::Dump(args) => dump::run(&args),
        Command::Devinfo(args) => devinfo::run(&args),
        Command::Doctor(args) => doctor::run(&args),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("roce: {error:#}");
            ExitCode::FAILURE
        }
    }
}
