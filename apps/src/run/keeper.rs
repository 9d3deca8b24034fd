//! The directory of the tree for programs without a mount namespace, and the keeper of this directory: a process that
//! waits for the end of the program and removes the directory.
//!
//! ```text
//!   roce run: creates and locks DIRECTORY/tree.PID.N --> first keeper: new session --> second keeper: poll(pidfd),
//!      |                       pidfd of roce run, lock         | ends                  remove DIRECTORY/tree.PID.N
//!      '-- waits for the first keeper, exec of the program
//! ```
//! The program has the process ID, and therefore the pidfd, of `roce run`. The second keeper is no child of the program,
//! which may wait for all its children. If a keeper is killed, the next run removes the directory.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::fd::RawFd;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, anyhow};
use clap::Args;
use nix::sys::signal::SigSet;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open, setsid};
use verbs::stat::private_directory;

/// Name of the subcommand.
const COMMAND: &str = "keep-tree";
/// Prefix of the names of the directories.
const PREFIX: &str = "tree.";
/// Descriptor of standard error.
const STDERR: RawFd = 2;
/// Largest number of directories with the same process ID in the name: those of other PID namespaces.
const NAMES_MAX: u32 = 1000;

/// Remove a directory of `roce run` when a process ends, whose pidfd is standard input. Standard output is the locked
/// directory.
#[derive(Args)]
#[command(name = COMMAND, hide = true)]
pub(crate) struct KeepTreeArgs {
    /// Wait in this process, not in a new one.
    #[arg(long)]
    wait: bool,

    /// The directory.
    directory: PathBuf,
}

/// Creates a directory that only this user may enter, in which `fill` writes the tree. The directory is removed when this
/// process ends. Returns its path, which has no symbolic links.
pub(super) fn create(fill: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<PathBuf> {
    let parent = private_directory().and_then(fs::canonicalize).context("no directory for run-time files")?;
    remove_stale(&parent);
    let directory =
        new_directory(&parent).with_context(|| format!("cannot write to {}", parent.display()))?;
    let kept = lock(&directory).map_err(Into::into).and_then(|locked| {
        fill(&directory)?;
        start(&directory, locked)
    });
    if let Err(error) = kept {
        remove(&directory);
        return Err(error);
    }
    Ok(directory)
}

fn new_directory(parent: &Path) -> io::Result<PathBuf> {
    for number in 0..NAMES_MAX {
        let path = parent.join(format!("{PREFIX}{}.{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            result => return result.map(|()| path),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    file.try_lock()?;
    Ok(file)
}

fn remove(directory: &Path) {
    if let Err(error) = fs::remove_dir_all(directory) {
        tracing::debug!(directory = %directory.display(), %error, "cannot remove");
    }
}

/// Removes the directories of ended processes. The process ID of such a directory is not in use, and no keeper has
/// locked the directory: a keeper may be in another PID namespace.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()) else {
            continue;
        };
        if !Path::new("/proc").join(pid).exists() && lock(&entry.path()).is_ok() {
            remove(&entry.path());
        }
    }
}

/// Starts the keeper of `directory`.
fn start(directory: &Path, locked: File) -> anyhow::Result<()> {
    let process = pidfd_open(getpid(), PidfdFlags::empty()).context("the kernel has no pidfd")?;
    let mut keeper = keep(directory)?.stdin(Stdio::from(process)).stdout(Stdio::from(locked)).spawn()?;
    // A parent that ignores SIGCHLD makes the wait fail, after the keeper has ended.
    if keeper.wait().map_or(true, |status| status.success()) {
        return Ok(());
    }
    Err(anyhow!("cannot start the process that removes {}", directory.display()))
}

/// Returns the command of a keeper, whose standard input and output are those of this process.
fn keep(directory: &Path) -> io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    // Otherwise the keeper would keep the pipe of standard error, and the mount of the current directory, in use.
    command.arg(COMMAND).arg(directory).stderr(Stdio::null()).current_dir("/");
    Ok(command)
}

/// Closes all descriptors above standard error. The readers of pipes that the program inherits and closes would otherwise
/// wait for the keeper.
fn close_inherited() -> io::Result<()> {
    let names = fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name());
    let descriptors: Vec<RawFd> = names.filter_map(|name| name.to_str()?.parse().ok()).collect();
    for descriptor in descriptors.into_iter().filter(|descriptor| *descriptor > STDERR) {
        // No value in this process owns a descriptor now; that of the list is already closed, which is the only error.
        let _ = nix::unistd::close(descriptor);
    }
    Ok(())
}

/// Runs the first keeper, or, with `--wait`, the second.
pub(crate) fn run(args: &KeepTreeArgs) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let is_named = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if !is_named || !directory.is_absolute() {
        return Err(anyhow!("{} is no directory of `roce run`", directory.display()));
    }
    if args.wait {
        let process = io::stdin();
        while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(rustix::io::Errno::INTR) {}
        remove(directory);
        return Ok(ExitCode::SUCCESS);
    }
    // A signal to the session of the program, or to all processes of its service, ends the program, after which the keeper
    // has work. A new process inherits the mask.
    setsid()?;
    close_inherited()?;
    SigSet::all().thread_block()?;
    keep(directory)?.arg("--wait").spawn()?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_of_ended_processes_are_removed() {
        let parent = std::env::temp_dir().join(format!("roce-keeper-test-{}", std::process::id()));
        fs::create_dir_all(&parent).unwrap();
        let own = new_directory(&parent).unwrap();
        assert_eq!(own, parent.join(format!("tree.{}.0", std::process::id())));
        assert_ne!(new_directory(&parent).unwrap(), own, "the name is in use");
        // No process has an ID above the largest of the kernel, 2^22.
        for name in ["tree.999999999.0", "tree.999999999.1", "other.999999999.0"] {
            fs::create_dir_all(parent.join(name).join("sys/class")).unwrap();
        }
        let locked = lock(&parent.join("tree.999999999.1")).unwrap();
        remove_stale(&parent);
        assert!(!parent.join("tree.999999999.0").exists());
        assert!(parent.join("tree.999999999.1").exists(), "its keeper is in another PID namespace");
        assert!(own.exists(), "its process is this");
        assert!(parent.join("other.999999999.0").exists());
        drop(locked);
        remove_stale(&parent);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 3);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_keeper_removes_no_directory_with_another_name() {
        for directory in ["/tmp/other", "tree.1.0", "/tree.1.0/.."] {
            let args = KeepTreeArgs { wait: false, directory: directory.into() };
            assert!(run(&args).is_err(), "{directory}");
        }
    }
}
