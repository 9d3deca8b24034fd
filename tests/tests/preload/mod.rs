//! The library that `roce run` loads into RDMA programs, in programs written in C.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::live::{Process, TIMEOUT, compile, library, run};

/// Compiles tests/c/NAME.c, and returns the path of the program.
fn program(name: &str) -> PathBuf {
    let name_here = format!("c-{name}-{}", std::process::id());
    compile(name, &Path::new(env!("CARGO_TARGET_TMPDIR")).join(name_here))
}

/// Runs tests/c/NAME.c with the library, on the port `net_ring{ring}`, which receives every frame that it sends. The
/// program must succeed and print `wanted`.
fn expect_output(name: &str, args: &[&str], ring: u8, wanted: &str) {
    let program = program(name);
    let mut command = Command::new(&program);
    command.args(args).env("LD_PRELOAD", library());
    command.env("ROCE_PORT", format!("eal:net_ring{ring},ip=10.0.{ring}.1/24"));
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success(name);
    assert_eq!(output.stdout.trim(), wanted);
    fs::remove_file(program).unwrap();
}

/// The compiler checks the sizes and offsets in tests/c/layout.c.
#[test]
fn programs_compiled_against_other_headers_find_the_functions() {
    expect_output("layout", &[], 58, "all checks passed");
}

/// The checks are in tests/c/verbs.c. The port receives every frame that it sends.
#[test]
fn objects_data_and_events_are_those_of_the_header() {
    expect_output("verbs", &[], 60, "all checks passed");
}

/// Every message of tests/c/threads.c completes.
#[test]
fn eight_threads_share_queues() {
    expect_output("threads", &["1000"], 62, "all messages completed");
}

/// A handler without SA_RESTART ends `ibv_get_cq_event` and `ibv_get_async_event`, another handler does not, and a thread
/// that is cancelled unwinds its stack.
#[test]
fn signals_and_cancellation_end_the_calls_that_wait() {
    expect_output("interrupt", &[], 63, "all checks passed");
}

/// The checks are in tests/c/files.c, which calls each function on paths that are rewritten and on other paths.
#[test]
fn file_functions_find_rewritten_paths_in_the_tree_and_leave_others() {
    let program = program("files");
    let directory = crate::live::shared_dir();
    let path = directory.path().canonicalize().expect("the directory exists");
    let [tree, other] = ["tree", "other"].map(|name| path.join(name));
    let [devices, verbs, nodes] =
        ["sys/class/infiniband/roce0", "sys/class/infiniband_verbs", "dev/infiniband"]
            .map(|below| tree.join(below));
    for made in [&devices, &verbs, &nodes, &other] {
        fs::create_dir_all(made).expect("the directory is writable");
    }
    for file in
        [devices.join("node_guid"), verbs.join("abi_version"), nodes.join("uverbs_roce0"), other.join("file")]
    {
        fs::write(file, "1\n").expect("the directory is writable");
    }
    symlink("node_guid", devices.join("link")).expect("the directory is writable");
    symlink("file", other.join("link")).expect("the directory is writable");
    for tree in [Some(&tree), None] {
        let mut command = Command::new(&program);
        command.arg(tree.map_or(Path::new(""), |tree| tree)).arg(&other).env("LD_PRELOAD", library());
        command.envs(tree.map(|tree| ("ROCE_TREE", tree)));
        let output = Process::start(&mut command).finish(TIMEOUT).expect_success("files.c");
        assert_eq!(output.stdout.trim(), "all checks passed", "{tree:?}");
    }
    fs::remove_file(program).unwrap();
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
        assert_eq!(counts.len(), 16, "{output:?}");
        assert!(counts.iter().all(|kind| kind[0] > 0), "a kind of call never succeeded: {counts:?}");
        assert!(counts.iter().filter(|kind| kind[1] > 0).count() >= 12, "{counts:?}");
    }
    fs::remove_file(program).unwrap();
}

/// The program is not linked with libibverbs. Two libraries of its own, one of them found by its RUNPATH, show that all
/// other calls of dlopen and dlvsym behave as without the library of `roce run`.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_program_that_loads_libibverbs_with_dlopen_finds_the_device() {
    let directory = crate::live::shared_dir();
    let path = directory.path();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("c");
    fs::write(path.join("other.map"), "OTHER_1 { global: *; };\n").expect("the directory is writable");
    let build = |name: &str| {
        let mut command = Command::new("cc");
        command
            .args(["-shared", "-fPIC", "-O1", "-Wl,--version-script"])
            .arg(path.join("other.map"))
            .arg("-o");
        run(command.arg(path.join(name)).arg(sources.join("dlopen_other.c")));
    };
    build("libdlopen_other.so");
    build("libdlopen_plugin.so");
    let program = path.join("dlopen");
    let mut command = Command::new("cc");
    command.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-O1",
        "-Wl,--enable-new-dtags,-rpath,$ORIGIN",
        "-o",
    ]);
    run(command.arg(&program).arg(sources.join("dlopen.c")).arg("-L").arg(path).arg("-ldlopen_other"));
    let mut command = Command::new(&program);
    command.env("LD_PRELOAD", library()).env("ROCE_PORT", "eal:net_ring62,ip=10.0.62.1/24");
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("dlopen.c");
    assert_eq!(output.stdout.trim(), "all checks passed");
}
