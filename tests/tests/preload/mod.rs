//! The library that `roce run` loads into RDMA programs, in programs written in C.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::live::{Process, TIMEOUT, programs, run};

/// Returns the library, built from this workspace.
fn library() -> PathBuf {
    let path = programs().join("libroce_verbs.so");
    assert!(path.exists(), "{} is not there: run `cargo build -p preload` first", path.display());
    path
}

/// Compiles tests/c/NAME.c against the installed headers of libibverbs.
fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("c/{name}.c"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("c-{name}-{}", std::process::id()));
    let flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o"];
    run(Command::new("cc").args(flags).arg(&program).arg(&source).args(["-libverbs", "-lpthread"]));
    program
}

/// The checks are in tests/c/verbs.c. The port receives every frame that it sends.
#[test]
fn objects_data_and_events_are_those_of_the_header() {
    let program = compile("verbs");
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library()).env("ROCE_PORT", "eal:net_ring60,ip=10.0.60.1/24");
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("verbs.c");
    assert_eq!(output.stdout.trim(), "all checks passed");
    std::fs::remove_file(program).unwrap();
}
