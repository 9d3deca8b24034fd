//! Processes that `roce run` starts for its program: the server of counters, and the keeper of the tree. They are no
//! children of the program, which may wait for all of its children, and hold no stream of the user.
//!
//! ```text
//!   roce run -------------> roce run-detached: new session, --------> roce SUBCOMMAND
//!     waits for the end <-- closes descriptors, ends                    (init is the parent)
//!   exec of the program
//! ```

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt as _;
use std::process::{self, Command, ExitCode, Stdio};

use anyhow::anyhow;
use clap::Args;
use nix::sys::signal::SigSet;
use nix::unistd::close;
use rustix::process::setsid;

/// Name of the subcommand.
const SUBCOMMAND: &str = "run-detached";
/// This program, even if its file was replaced.
pub(super) const PROGRAM: &str = "/proc/self/exe";
/// Descriptor of standard error.
const STDERR: RawFd = 2;

/// Start a command of `roce` in a session of its own, and end.
#[derive(Args)]
#[command(name = SUBCOMMAND, hide = true)]
pub(crate) struct DetachedArgs {
    /// The subcommand and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Whether a process whose parent ends becomes a child of this process, the first process of a PID namespace.
pub(super) fn adopts() -> bool {
    process::id() == 1
}

/// Starts the subcommand `args` as a process that is no child of this process, with the given standard input and output.
pub(super) fn start(args: &[OsString], stdin: Stdio, stdout: Stdio) -> anyhow::Result<()> {
    let mut first = command(&[&[SUBCOMMAND.into()], args].concat());
    let mut first = first.stdin(stdin).stdout(stdout).spawn()?;
    // A parent that ignores SIGCHLD makes the wait fail, after the process has ended.
    match first.wait() {
        Ok(status) if !status.success() => Err(anyhow!("cannot start a process: {status}")),
        _ => Ok(()),
    }
}

/// Returns the command of a process that keeps neither the pipe of standard error nor the mount of the current directory
/// in use.
fn command(args: &[OsString]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg0("roce").args(args).stderr(Stdio::null()).current_dir("/");
    command
}

/// Executes the subcommand. Signals to the session of the program, or to all processes of its service, end the program,
/// after whose end the detached process still has work. Therefore the process is in a session of its own, and inherits a
/// mask in which all signals are blocked.
pub(crate) fn run(args: &DetachedArgs) -> anyhow::Result<ExitCode> {
    setsid()?;
    close_inherited()?;
    SigSet::all().thread_block()?;
    command(&args.command).spawn()?;
    Ok(ExitCode::SUCCESS)
}

/// Closes all descriptors above standard error. The readers of pipes that the program inherits and closes would otherwise
/// wait for the detached process.
fn close_inherited() -> io::Result<()> {
    let names = fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name());
    let descriptors: Vec<RawFd> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    for descriptor in descriptors.into_iter().filter(|descriptor| *descriptor > STDERR) {
        // No value in this process owns a descriptor now; that of the list is already closed, which is the only error.
        let _ = close(descriptor);
    }
    Ok(())
}
