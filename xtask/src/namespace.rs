//! Network namespaces of this program's own, as root or in a user namespace.

use std::env;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, bail};

use crate::process::tied;

/// Returns the identity of the network namespace of process `pid`, or of this one: "self".
pub(crate) fn identity(pid: &str) -> anyhow::Result<String> {
    let path = format!("/proc/{pid}/ns/net");
    Ok(fs::read_link(&path).with_context(|| path)?.display().to_string())
}

/// Returns a command that starts this program in a new network namespace, with `arguments` and `--inside OUTER`, where
/// OUTER is the identity of the present namespace. The program ends with this one.
pub(crate) fn start_inside(arguments: &[&str]) -> anyhow::Result<Command> {
    let program = env::current_exe().context("the path of this program")?;
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-current-user", "--keep-caps"]);
    }
    command.arg("--net").args(tied(&program)).args(arguments).args(["--inside", &identity("self")?]);
    Ok(command)
}

/// Checks that this process has left the namespace `outer`, whose interfaces must not be changed.
pub(crate) fn check_inside(outer: &str) -> anyhow::Result<()> {
    if identity("self")? == outer {
        bail!("--inside is for this program itself, in a network namespace of its own; leave it out");
    }
    Ok(())
}
