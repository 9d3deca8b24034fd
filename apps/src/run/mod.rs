//! `roce run`: executes an unmodified RDMA program, whose calls of libibverbs reach the devices of this stack.
//!
//! ```text
//!   options, file, environment -> configuration -> checks of ports -> tree of devices -> exec of the program with
//!                                                  (doctor)           (namespace or      LD_PRELOAD and configuration
//!                                                                      keeper)
//! ```

mod args;
mod config;
mod counters;
mod detached;
mod keeper;
mod library;
mod namespace;
mod tree;

use std::env;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::anyhow;
use verbs::config::{CONFIG_VARIABLE, ProcessConfig, TREE_VARIABLE};
use verbs::{DeviceDescription, describe};

use crate::doctor;
use crate::output;
pub(crate) use args::RunArgs;
use counters::CounterServer;
pub(crate) use counters::{ServerArgs, serve};
pub(crate) use detached::{DetachedArgs, run as detach};
pub(crate) use keeper::{KeepTreeArgs, run as keep_tree};
use namespace::Reach;
pub(crate) use namespace::{TrialArgs, try_user_namespace};
use tree::TreeDevice;

/// Exit status if the program is there, but cannot be executed, and if the program is not found, as of a shell.
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

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
    let tree_variable = OsStr::from_bytes(TREE_VARIABLE.to_bytes());
    command.env_remove(tree_variable);
    if !args.no_sysfs
        && let Some(tree) = show(&config, &devices, args.verbose)
    {
        command.env(tree_variable, tree);
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

/// Makes the devices visible to programs that look for them in the file system: in a mount namespace or, without the
/// rights to create one, in a directory of this user, to which the library rewrites the paths of the program. Returns
/// this directory. If the directory cannot be created either, the program runs without, because most programs ask
/// libibverbs only.
fn show(config: &ProcessConfig, devices: &[DeviceDescription], verbose: bool) -> Option<PathBuf> {
    let specs = config.devices();
    let kinds = specs.iter().map(|(spec, _)| spec.kind);
    let devices: Vec<TreeDevice> =
        (0..).zip(specs.iter().zip(devices)).map(|(n, ((spec, _), d))| TreeDevice::new(n, spec, d)).collect();
    let say = |text: &str| {
        if verbose {
            eprintln!("roce run: {text}");
        }
    };
    // The server must not be in the mount namespace.
    let server = CounterServer::start(devices.iter().map(TreeDevice::counted).collect());
    let shown = namespace::enter(Reach::of(kinds)).and_then(|()| tree::mount(&devices));
    let Err(obstacle) = shown else {
        say("shows the devices in /sys/class/infiniband and /dev/infiniband in a mount namespace");
        if let Err(error) = server.and_then(|server| server.show(Path::new(tree::DEVICES))) {
            say(&format!("no counters in /sys/class/infiniband: {error:#}"));
        }
        return None;
    };
    drop(server);
    match keeper::create(|root| tree::write(root, &devices)) {
        Ok(root) => {
            say(&format!(
                "rewrites paths below /sys/class/infiniband and /dev/infiniband to paths below {}, without a mount \
                 namespace: {obstacle:#}",
                root.display()
            ));
            Some(root)
        }
        Err(error) => {
            say(&format!(
                "no entries in /sys/class/infiniband and /dev/infiniband: {obstacle:#}; and no directory for rewritten \
                 paths: {error:#}"
            ));
            None
        }
    }
}
