//! A mount namespace of the program's own, and directories in it that can be changed without a trace outside.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, anyhow};
use clap::Args;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{getegid, geteuid};
use verbs::port::PortKind;

use super::detached::PROGRAM;

/// Rights that the ports of the program need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// No privilege: sockets and shared memory of the user.
    User,
    /// Privileges over network interfaces or NICs, which a process loses in a user namespace of its own.
    Kernel,
}

impl Reach {
    pub(super) fn of(kinds: impl IntoIterator<Item = PortKind>) -> Self {
        let is_of_user = |kind| matches!(kind, PortKind::Memif | PortKind::Vhost | PortKind::VirtioUser);
        if kinds.into_iter().all(is_of_user) { Reach::User } else { Reach::Kernel }
    }
}

/// Name of the subcommand that tries whether a user namespace can be used.
const TRIAL: &str = "run-try-namespace";

/// Try whether this user may use a user namespace.
#[derive(Args)]
#[command(name = TRIAL, hide = true)]
pub(crate) struct TrialArgs {}

/// Moves this process, which must have one thread, to a mount namespace of its own: by its privilege or else, if `reach`
/// permits, in a user namespace in which its user and group IDs are the same.
pub(super) fn enter(reach: Reach) -> anyhow::Result<()> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => keep_mounts(),
        Err(_) if reach == Reach::User => {
            // In another process first: where AppArmor restricts user namespaces (Ubuntu 24.04), the namespace is created
            // and the maps of IDs are refused, and this process would remain without its user ID.
            let mut trial = Command::new(PROGRAM);
            let tried = trial.arg(TRIAL).stdin(Stdio::null()).stdout(Stdio::null()).output()?;
            if !tried.status.success() {
                let text = String::from_utf8_lossy(&tried.stderr);
                return Err(anyhow!("{}", text.trim_end().trim_start_matches("roce: ")));
            }
            enter_by_user_namespace()
        }
        Err(error) => Err(anyhow!("a mount namespace needs root here: {error}")),
    }
}

/// Executes the trial.
pub(crate) fn try_user_namespace(_: &TrialArgs) -> anyhow::Result<ExitCode> {
    enter_by_user_namespace()?;
    Ok(ExitCode::SUCCESS)
}

fn enter_by_user_namespace() -> anyhow::Result<()> {
    let (uid, gid) = (geteuid(), getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS)
        .context("the kernel permits no user namespace here")?;
    // user_namespaces(7): an ordinary user may map groups only after it has given up setgroups.
    for (file, text) in [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{uid} {uid} 1")),
        ("gid_map", format!("{gid} {gid} 1")),
    ] {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).with_context(|| format!("cannot write to {path} in a user namespace"))?;
    }
    keep_mounts()
}

/// Mounts of the machine stay visible here, and mounts made here stay here.
fn keep_mounts() -> anyhow::Result<()> {
    let flags = MsFlags::MS_SLAVE | MsFlags::MS_REC;
    mount(None::<&str>, "/", None::<&str>, flags, None::<&str>)
        .context("cannot keep mounts of this namespace from others")
}

/// Directories of this namespace that are in memory, with the entries that they have outside.
#[derive(Default)]
pub(super) struct Overlays {
    directories: Vec<PathBuf>,
}

impl Overlays {
    /// Makes `directory` changeable. If it does not exist, it is made in a parent that is changeable then.
    pub(super) fn change(&mut self, directory: &Path) -> anyhow::Result<()> {
        if !directory.exists() {
            let parent = directory.parent().context("the root directory exists")?;
            if !self.directories.iter().any(|changed| changed == parent) {
                self.change(parent)?;
            }
            fs::create_dir(directory)?;
            self.directories.push(directory.to_owned());
            return Ok(());
        }
        // Also removed if it is only half done.
        self.directories.push(directory.to_owned());
        cover(directory).with_context(|| format!("cannot mount on {}", directory.display()))
    }

    /// Removes all overlays, the latest first.
    pub(super) fn remove(self) {
        for directory in self.directories.iter().rev() {
            // A directory that was made in another overlay is no mount point, and goes with the other.
            let _ = umount2(directory, MntFlags::MNT_DETACH);
        }
    }
}

/// Mounts a directory in memory on `directory`, with the same entries.
fn cover(directory: &Path) -> anyhow::Result<()> {
    // The hidden directory stays reachable by its descriptor.
    let hidden = File::open(directory)?;
    let entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC;
    mount(Some("roce"), directory, Some("tmpfs"), flags, Some("mode=755"))?;
    let source = PathBuf::from(format!("/proc/self/fd/{}", hidden.as_raw_fd()));
    for entry in entries {
        let (from, to) = (source.join(entry.file_name()), directory.join(entry.file_name()));
        let kind = entry.file_type()?;
        if kind.is_symlink() {
            symlink(fs::read_link(&from)?, &to)?;
            continue;
        }
        if kind.is_dir() {
            fs::create_dir(&to)?;
        } else {
            File::create(&to)?;
        }
        bind(&from, &to)?;
    }
    Ok(())
}

/// Makes the file or directory `from` visible at `to`, which exists.
pub(super) fn bind(from: &Path, to: &Path) -> anyhow::Result<()> {
    let flags = MsFlags::MS_BIND | MsFlags::MS_REC;
    mount(Some(from), to, None::<&str>, flags, None::<&str>)
        .with_context(|| format!("cannot show {} at {}", from.display(), to.display()))
}
