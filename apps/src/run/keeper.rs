//! The directory of the tree for programs without a mount namespace, and the keeper of this directory: a process that
//! waits for the end of the program and removes the directory.
//!
//! ```text
//!   roce run: creates and locks DIRECTORY/tree.PID.N ---> keeper: poll(pidfd), removes DIRECTORY/tree.PID.N
//!      |                       pidfd of roce run, lock
//!   exec of the program
//! ```
//! The program has the process ID, and therefore the pidfd, of `roce run`. If the keeper is killed, the next run removes
//! the directory. The first process of a PID namespace has no keeper, which would become a child of the program: the
//! program then inherits the lock, and a later run removes the directory.

use std::ffi::CStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, anyhow};
use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use verbs::stat::private_directory;

use super::detached;

/// Name of the subcommand.
const COMMAND: &str = "keep-tree";
/// Prefix of the names of the directories.
const PREFIX: &str = "tree.";
/// Name of the process.
const PROCESS_NAME: &CStr = c"roce-keep-tree";
/// Largest number of directories with the same process ID in the name: those of other PID namespaces.
const NAMES_MAX: u32 = 1000;

/// Remove a directory of `roce run` when a process ends, whose pidfd is standard input. Standard output is the locked
/// directory.
#[derive(Args)]
#[command(name = COMMAND, hide = true)]
pub(crate) struct KeepTreeArgs {
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

/// Removes the directories of ended processes. The process ID of such a directory is not in use, or is that of this
/// process, and nobody has locked the directory: a keeper, or a program without a keeper, may be in another PID
/// namespace.
fn remove_stale(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('.').next()) else {
            continue;
        };
        let is_used = Path::new("/proc").join(pid).exists() && pid != std::process::id().to_string();
        if !is_used && lock(&entry.path()).is_ok() {
            remove(&entry.path());
        }
    }
}

/// Starts the keeper of `directory`.
fn start(directory: &Path, locked: File) -> anyhow::Result<()> {
    if detached::adopts() {
        // The program inherits the descriptor, and with it the lock.
        fcntl_setfd(&locked, FdFlags::empty())?;
        std::mem::forget(locked);
        return Ok(());
    }
    let process = pidfd_open(getpid(), PidfdFlags::empty()).context("the kernel has no pidfd")?;
    detached::start(&[COMMAND.into(), directory.into()], process.into(), locked.into())
}

/// Runs the keeper.
pub(crate) fn run(args: &KeepTreeArgs) -> anyhow::Result<ExitCode> {
    let directory = &args.directory;
    let is_named = directory.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
    if !is_named || !directory.is_absolute() {
        return Err(anyhow!("{} is no directory of `roce run`", directory.display()));
    }
    rustix::thread::set_name(PROCESS_NAME)?;
    let process = io::stdin();
    while poll(&mut [PollFd::new(&process, PollFlags::IN)], None) == Err(Errno::INTR) {}
    remove(directory);
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
        let _held = lock(&own).unwrap();
        let left = new_directory(&parent).unwrap();
        assert_ne!(left, own, "the name is in use");
        // No process has an ID above the largest of the kernel, 2^22.
        for name in ["tree.999999999.0", "tree.999999999.1", "other.999999999.0"] {
            fs::create_dir_all(parent.join(name).join("sys/class")).unwrap();
        }
        let locked = lock(&parent.join("tree.999999999.1")).unwrap();
        remove_stale(&parent);
        assert!(!parent.join("tree.999999999.0").exists());
        assert!(parent.join("tree.999999999.1").exists(), "its keeper is in another PID namespace");
        assert!(own.exists() && !left.exists(), "of an earlier process with this ID, if it is not locked");
        assert!(parent.join("other.999999999.0").exists());
        drop(locked);
        remove_stale(&parent);
        assert_eq!(fs::read_dir(&parent).unwrap().count(), 2);
        fs::remove_dir_all(parent).unwrap();
    }

    #[test]
    fn a_keeper_removes_no_directory_with_another_name() {
        for directory in ["/tmp/other", "tree.1.0", "/tree.1.0/.."] {
            let args = KeepTreeArgs { directory: directory.into() };
            assert!(run(&args).is_err(), "{directory}");
        }
    }
}
