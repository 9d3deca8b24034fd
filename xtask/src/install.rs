//! Installation of missing packages and tools, by the functions of `scripts/install.sh`.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Installs the Debian packages that are missing; `purpose` completes "Installing ...:".
pub(crate) fn packages(purpose: &str, packages: &[&str]) -> anyhow::Result<()> {
    let arguments = [&["need_packages", purpose], packages].concat();
    call("\"$@\" >&2", &arguments).map(|_| ())
}

/// Installs `version` of a tool of cargo whose command has the name of its crate, unless it is present. Returns the
/// path of the command.
pub(crate) fn tool(name: &str, version: &str) -> anyhow::Result<String> {
    let path = call("\"$@\" >&2; command -v \"$2\"", &["need_tool", name, version, name])?;
    Ok(path.trim_end().to_owned())
}

/// Runs a script after the definitions of `scripts/install.sh`, and returns its standard output.
fn call(script: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let script = format!("set -euo pipefail; . scripts/install.sh; {script}");
    let mut command = Command::new("bash");
    command.args(["-c", &script, "install"]).args(arguments).stderr(Stdio::inherit());
    let output = command.output().context("bash cannot be started")?;
    if !output.status.success() {
        bail!("`{}` of scripts/install.sh failed (see above)", arguments.join(" "));
    }
    Ok(String::from_utf8(output.stdout)?)
}
