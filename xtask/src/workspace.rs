//! The workspace: its root, its cargo, and what cargo builds.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// Packages that a build against DPDK needs.
pub(crate) const BUILD_PACKAGES: &[&str] =
    &["build-essential", "pkg-config", "libdpdk-dev", "dpdk", "libclang-dev"];

/// Makes the root of the workspace the working directory: all paths of this program are relative to it.
pub(crate) fn enter() -> anyhow::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    env::set_current_dir(&root)
        .with_context(|| format!("the workspace that this program was built in, {}", root.display()))
}

/// Returns the cargo that runs this program, or else the first in PATH.
pub(crate) fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Returns the directory that cargo builds in.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from)
}

/// Returns the path of the `roce` command, which [`build_roce`] writes.
pub(crate) fn roce() -> PathBuf {
    target_dir().join("release/roce")
}

/// Builds the `roce` command for speed.
pub(crate) fn build_roce() -> anyhow::Result<()> {
    build("apps", "the `roce` command")
}

/// Builds libroce_verbs.so, the C interface, for speed.
pub(crate) fn build_library() -> anyhow::Result<()> {
    build("preload", "libroce_verbs.so")
}

fn build(package: &str, product: &str) -> anyhow::Result<()> {
    let status = cargo().args(["build", "--release", "--locked", "--quiet", "--package", package]).status();
    if !status.context("cargo cannot be started")?.success() {
        bail!("{product} cannot be built (see above)");
    }
    Ok(())
}

/// Returns whether PATH has a program of this name.
pub(crate) fn is_in_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
