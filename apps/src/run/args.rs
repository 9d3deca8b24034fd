//! The options of `roce run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use verbs::config::PortName;

use crate::device::{OptionArgs, SchemeArgs};

/// Run an unmodified RDMA program on this stack: its libibverbs finds the devices roce0, roce1 and so on.
///
/// The program sees one device for each --port, beside the RDMA devices of this machine. Its children see them too. The
/// program is executed in place of this command, so its exit status and its signals are its own.
#[derive(Args)]
#[command(after_help = "\
Examples:
  Two processes on this machine, no privileges, no set-up:
      roce run --port memif:wire -- ib_write_bw -d roce0 -x 0 -F
      roce run --port memif:wire -- ib_write_bw -d roce0 -x 0 -F localhost

  Over a network interface, where GID 1 is the interface's IPv4 address:
      sudo roce run --port af_packet:eth1 -- ibv_rc_pingpong -d roce0 -g 1 10.0.0.1

  With a configuration file:
      roce run --port memif:wire --recovery selective-repeat --print-config > roce.toml
      roce run --config roce.toml -- ibv_devinfo

Environment:
  ROCE_PORT                   ports, separated by spaces, where neither --port nor --config has any
  ROCE_LIBRARY                the library that is loaded into the program, as --library

Exit status: that of the program; 126 if it cannot be executed, 127 if it is not found, 1 if a port cannot be used,
2 on wrong usage.")]
pub(crate) struct RunArgs {
    /// A port, as the device roce0; repeat the option for roce1 and so on: KIND:TARGET[,key=value...]
    #[arg(long = "port", value_name = "PORT")]
    pub(super) ports: Vec<PortName>,

    /// Read the configuration from this file; options replace what it has.
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Print the configuration as a file for --config, and run nothing.
    #[arg(long)]
    pub(super) print_config: bool,

    #[command(flatten)]
    pub(super) schemes: SchemeArgs,

    #[command(flatten)]
    pub(super) options: OptionArgs,

    /// Argument of DPDK's environment abstraction layer, as in --eal=--no-huge; may repeat
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub(super) eal: Vec<String>,

    /// The library libroce_verbs.so, if it is not where this command looks for it.
    #[arg(long, value_name = "FILE")]
    pub(super) library: Option<PathBuf>,

    /// Leave /sys/class/infiniband and /dev/infiniband as they are, and rewrite no paths. Programs that read these
    /// directories themselves, such as ibstat, then see no device of this stack.
    #[arg(long)]
    pub(super) no_sysfs: bool,

    /// Say on standard error what is done before the program starts.
    #[arg(short, long)]
    pub(super) verbose: bool,

    /// The program and its arguments.
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "print_config",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(super) program: Vec<OsString>,
}
