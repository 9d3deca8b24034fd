//! `roce run`: executes an unmodified RDMA program, whose calls of libibverbs reach the devices of this stack.
//!
//! ```text
//!   options, file, environment -> configuration -> checks of ports -> tree of devices -> exec of the program with
//!                                                  (doctor)           (namespace)        LD_PRELOAD and configuration
//! ```

mod config;
mod library;
mod namespace;
mod tree;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::anyhow;
use clap::Args;
use verbs::config::{CONFIG_VARIABLE, PortName, ProcessConfig};
use verbs::{DeviceDescription, describe};

use crate::device::{OptionArgs, SchemeArgs};
use crate::doctor;
use crate::output;
use namespace::Reach;
use tree::TreeDevice;

/// Exit status if the program is there, but cannot be executed, and if the program is not found, as of a shell.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

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
    ports: Vec<PortName>,

    /// Read the configuration from this file; options replace what it has.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Print the configuration as a file for --config, and run nothing.
    #[arg(long)]
    print_config: bool,

    #[command(flatten)]
    schemes: SchemeArgs,

    #[command(flatten)]
    options: OptionArgs,

    /// Argument of DPDK's environment abstraction layer, as in --eal=--no-huge; may repeat
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    eal: Vec<String>,

    /// The library libroce_verbs.so, if it is not where this command looks for it.
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,

    /// Leave /sys/class/infiniband and /dev/infiniband as they are. Programs that read them themselves, such as ibstat,
    /// then see no device of this stack.
    #[arg(long)]
    no_sysfs: bool,

    /// Say on standard error what is done before the program starts.
    #[arg(short, long)]
    verbose: bool,

    /// The program and its arguments.
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "print_config",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// Executes the program; returns only if that fails.
pub(crate) fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let mut config = config::effective(args)?;
    if args.print_config {
        output::print(&config.to_text()?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some((program, program_args)) = args.program.split_first() else {
        return Err(anyhow!("no program was given"));
    };
    let library = library::find(args.library.as_deref())?;
    config.draw_mac_salt();
    let devices = check(&config)?;
    let mut command = Command::new(program);
    command.args(program_args).env(CONFIG_VARIABLE, config.to_text()?);
    command.env(library::PRELOAD_VARIABLE, library::preload(&library)?);
    if args.verbose {
        eprintln!("roce run: loads {}", library.display());
    }
    if !args.no_sysfs {
        show(&config, &devices, args.verbose);
    }
    let error = command.exec();
    if error.kind() == ErrorKind::NotFound || !is_in_path(program) {
        eprintln!("roce run: cannot execute {}: it is not found", program.display());
        return Ok(ExitCode::from(NOT_FOUND));
    }
    eprintln!("roce run: cannot execute {}: {error}", program.display());
    Ok(ExitCode::from(NOT_EXECUTABLE))
}

/// Returns whether a directory of PATH has `program`; true for a path. The error of exec does not show this, because exec
/// fails with EACCES if a directory of PATH may not be read.
fn is_in_path(program: &OsStr) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    Path::new(program).components().count() > 1 || env::split_paths(&path).any(|at| at.join(program).exists())
}

/// Checks as far as possible without opening a port that each port can be opened, and describes the devices.
fn check(config: &ProcessConfig) -> anyhow::Result<Vec<DeviceDescription>> {
    let describe = |(spec, _)| {
        let description = describe(&spec).map_err(|error| anyhow!("port {spec}: {error}"))?;
        match doctor::obstacle(&spec, description.interface.as_ref()) {
            None => Ok(description),
            Some(obstacle) => Err(anyhow!("port {spec}: {obstacle}")),
        }
    };
    config.devices().into_iter().map(describe).collect()
}

/// Makes the devices visible to programs that look for them in the file system. Without the rights to do so, the program
/// runs without, because most programs ask libibverbs only.
fn show(config: &ProcessConfig, devices: &[DeviceDescription], verbose: bool) {
    let specs = config.devices();
    let kinds = specs.iter().map(|(spec, _)| spec.kind);
    let tree: Vec<TreeDevice> =
        (0..).zip(specs.iter().zip(devices)).map(|(n, ((spec, _), d))| TreeDevice::new(n, spec, d)).collect();
    let shown = namespace::enter(Reach::of(kinds)).and_then(|()| tree::mount(&tree));
    if let (Err(error), true) = (shown, verbose) {
        eprintln!("roce run: no entries in /sys/class/infiniband and /dev/infiniband: {error:#}");
    }
}
