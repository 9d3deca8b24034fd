//! What the scripts that tests start must not do.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::live::install_script;

/// A directory for the front of PATH, in which each package tool says that it was called, and fails.
fn package_tools(directory: &Path) {
    for tool in ["apt-get", "apt", "dpkg-query", "sudo"] {
        let path = directory.join(tool);
        let script =
            format!("#!/bin/sh\necho {tool} \"$@\" >>'{}'\nexit 1\n", directory.join("called").display());
        install_script(&script, &path);
    }
}

#[test]
fn starting_a_guest_that_was_not_built_installs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    package_tools(directory.path());
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest"))
        .args(["start", "--name", "absent"])
        .env("PATH", path)
        .env("XDG_CACHE_HOME", directory.path())
        .env("XDG_RUNTIME_DIR", directory.path())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{stderr}");
    let called = fs::read_to_string(directory.path().join("called")).unwrap_or_default();
    assert_eq!(called, "", "calls of the package manager; stderr: {stderr}");
    assert!(stderr.contains("run scripts/guest build first"), "{stderr}");
}
