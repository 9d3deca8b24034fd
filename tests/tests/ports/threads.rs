//! Threads that are cancelled or exit, and processes that exit, while threads use a device (`roce-threads`).

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::links::{unique, veth};
use crate::live::{Process, TIMEOUT};

/// Rounds of each process; the process exits after as many ms.
const ROUNDS: u32 = 20;

fn program(name: &str) -> &'static Path {
    Path::new(match name {
        "peer" => env!("CARGO_BIN_EXE_roce-fork"),
        _ => env!("CARGO_BIN_EXE_roce-threads"),
    })
}

/// Gives each of two processes the line of the other; `line`: that of the first.
fn exchange([first, second]: [&mut Process; 2], line: String) {
    let answer = second.line(TIMEOUT);
    for (process, line) in [(second, line), (first, answer)] {
        writeln!(process.stdin.as_mut().expect("open until the end"), "{line}").expect("the process reads");
    }
}

/// Starts a process and its peer, lets the two exchange their endpoints, and waits until both have ended.
fn play(mut peer: Command, mut command: Command, ports: [&str; 2], conduct: &str) {
    let mut peer = Process::start(peer.args([ports[0], "respond"]));
    let line = peer.line(TIMEOUT);
    let mut process = Process::start(command.args([ports[1], conduct, &ROUNDS.to_string()]));
    exchange([&mut peer, &mut process], line);
    process.finish(TIMEOUT).expect_success(conduct);
    peer.finish(TIMEOUT).expect_success("the peer");
}

fn play_over_memif(conduct: &str) {
    let port = |host: u32| format!("memif:@{},ip=10.0.71.{host}/24", unique(conduct));
    let [peer, command] = ["peer", "threads"].map(|name| Command::new(program(name)));
    play(peer, command, [&port(1), &port(2)], conduct);
}

#[test]
fn threads_that_are_cancelled_over_memif_leave_no_lock_behind() {
    play_over_memif("cancel");
}

#[test]
fn threads_that_are_cancelled_over_a_veth_pair_leave_no_lock_behind() {
    let [near, far] = veth("af_packet", 1500);
    let (peer, command) = (near.command(program("peer")), far.command(program("threads")));
    play(peer, command, [&near.port, &far.port], "cancel");
}

#[test]
fn destructors_of_threads_use_and_close_a_device() {
    play_over_memif("thread-exit");
}

/// The process that exits listens on the socket of the memif. Its peer may see no link, and is killed.
#[test]
fn a_process_that_exits_beside_its_threads_leaves_no_file() {
    let [own, of_peer] = [(); 2].map(|()| tempfile::tempdir().expect("the temporary directory is writable"));
    let socket = own.path().join("wire.sock");
    let start = |name, directory: &TempDir, host: u32, words: &[&str]| {
        let port = format!("memif:{},ip=10.0.72.{host}/24", socket.display());
        let mut command = Command::new(program(name));
        Process::start(command.env("XDG_RUNTIME_DIR", directory.path()).arg(port).args(words))
    };
    for millis in 0..ROUNDS {
        let mut process = start("threads", &own, 2, &["exit", &millis.to_string()]);
        let line = process.line(TIMEOUT);
        let mut peer = start("peer", &of_peer, 1, &["respond"]);
        exchange([&mut process, &mut peer], line);
        process.finish(TIMEOUT).expect_success("exit");
        peer.kill();
        let files = std::fs::read_dir(own.path().join("roce")).expect("made by the first process");
        let left: Vec<_> = files.flatten().map(|entry| entry.file_name()).collect();
        assert!(left.is_empty() && !socket.exists(), "left behind: {left:?}");
    }
}
