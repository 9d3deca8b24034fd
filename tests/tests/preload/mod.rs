//! The library that `roce run` loads into RDMA programs, in programs written in C.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::live::{Process, TIMEOUT, compile, library};

/// Compiles tests/c/NAME.c, and returns the path of the program.
fn program(name: &str) -> PathBuf {
    let name_here = format!("c-{name}-{}", std::process::id());
    compile(name, &Path::new(env!("CARGO_TARGET_TMPDIR")).join(name_here))
}

/// The checks are in tests/c/verbs.c. The port receives every frame that it sends.
#[test]
fn objects_data_and_events_are_those_of_the_header() {
    let program = program("verbs");
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library()).env("ROCE_PORT", "eal:net_ring60,ip=10.0.60.1/24");
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("verbs.c");
    assert_eq!(output.stdout.trim(), "all checks passed");
    std::fs::remove_file(program).unwrap();
}

/// Every message of tests/c/threads.c completes.
#[test]
fn eight_threads_share_queues() {
    let program = program("threads");
    let mut command = Command::new(&program);
    command.arg("1000").env("LD_PRELOAD", library()).env("ROCE_PORT", "eal:net_ring62,ip=10.0.62.1/24");
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("threads.c");
    assert_eq!(output.stdout.trim(), "all messages completed");
    std::fs::remove_file(program).unwrap();
}

/// Calls of each thread of tests/c/random.c.
const CALLS: usize = 40_000;

/// The program ends with an error at the first call whose error is none of its manual page. It prints, for each kind of
/// call, the numbers of calls that succeeded and that were refused.
#[test]
fn random_calls_of_several_threads_succeed_or_return_documented_errors() {
    let program = program("random");
    for (seed, threads) in [(1, 1), (2, 8), (3, 8)] {
        let mut command = Command::new(&program);
        command.args([seed, threads, CALLS].map(|number| number.to_string()));
        command.env("LD_PRELOAD", library()).env("ROCE_PORT", "eal:net_ring61,ip=10.0.61.1/24");
        let output = Process::start(&mut command).finish(TIMEOUT).expect_success("random.c");
        let counts: Vec<Vec<u64>> = output
            .stdout
            .lines()
            .map(|line| line.split(' ').map(|number| number.parse().expect("a number")).collect())
            .collect();
        assert_eq!(counts.len(), 15, "{output:?}");
        assert!(counts.iter().all(|kind| kind[0] > 0), "a kind of call never succeeded: {counts:?}");
        assert!(counts.iter().filter(|kind| kind[1] > 0).count() >= 11, "{counts:?}");
    }
    std::fs::remove_file(program).unwrap();
}
