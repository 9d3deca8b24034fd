//! Processes that fork, or execute programs, while they have a device open (`roce-fork`).

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use super::links::veth;
use crate::live::{Process, TIMEOUT, is_root};

/// Number of forks of each process; the variable `FORKS` sets another.
const FORKS: u32 = 20;

fn forks() -> String {
    std::env::var("FORKS").unwrap_or(FORKS.to_string())
}

fn start(args: &[&str]) -> Process {
    Process::start(Command::new(env!("CARGO_BIN_EXE_roce-fork")).args(args))
}

fn send(process: &mut Process, line: &str) {
    writeln!(process.stdin.as_mut().expect("open until the end"), "{line}").expect("the process reads");
}

/// Returns a port that needs no peer: its own frames loop back.
fn alone(number: u32) -> String {
    format!("eal:net_null{number},dev.no-rx=1,ip=10.0.{number}.1/24")
}

fn fork_alone(conduct: &str, number: u32) {
    for thread in ["poller", "beside-poller", "beside-waiter"] {
        let process = start(&[&alone(number), "fork", conduct, thread, &forks()]);
        process.finish(TIMEOUT).expect_success(&format!("{conduct}, {thread}"));
    }
}

#[test]
fn children_that_return_from_main_leave_the_parent_unharmed() {
    fork_alone("return", 61);
}

#[test]
fn children_that_exit_leave_the_parent_unharmed() {
    fork_alone("exit", 62);
    fork_alone("_exit", 62);
}

#[test]
fn children_that_drop_their_objects_leave_the_parent_unharmed() {
    fork_alone("drop", 63);
}

#[test]
fn calls_in_a_child_fail_and_leave_the_parent_unharmed() {
    fork_alone("call", 64);
}

#[test]
fn a_child_may_end_after_the_parent_has_closed_the_device() {
    fork_alone("outlive", 65);
}

/// On a memif, the driver's sockets, files and shared memory are at stake, too.
#[test]
fn a_connection_over_memif_survives_the_children_of_its_processes() {
    for (conduct, thread) in [
        ("return", "poller"),
        ("return", "beside-poller"),
        ("drop", "beside-waiter"),
        ("call", "poller"),
        ("outlive", "poller"),
    ] {
        let port = |host: u32| {
            format!("memif:@roce-fork-{}-{conduct}-{thread},ip=10.0.66.{host}/24", std::process::id())
        };
        let mut peer = start(&[&port(1), "respond"]);
        let of_peer = peer.line(TIMEOUT);
        let mut process = start(&[&port(2), "fork", conduct, thread, &forks(), "linked"]);
        let of_process = process.line(TIMEOUT);
        send(&mut process, &of_peer);
        send(&mut peer, &of_process);
        process.finish(TIMEOUT).expect_success(&format!("{conduct}, {thread}"));
        peer.finish(TIMEOUT).expect_success("the peer");
    }
}

#[test]
fn executed_programs_inherit_nothing() {
    start(&[&alone(67), "exec"]).finish(TIMEOUT).expect_success("exec");
    let memif = format!("memif:@roce-fork-{}-exec,ip=10.0.68.1/24", std::process::id());
    start(&[&memif, "exec"]).finish(TIMEOUT).expect_success("exec beside a memif");
    for (kind, mtu_bytes) in [("af_packet", 1500), ("af_xdp", 1500)] {
        if kind == "af_xdp" && !is_root() {
            continue;
        }
        let [side, _far] = veth(kind, mtu_bytes);
        let mut command = side.command(Path::new(env!("CARGO_BIN_EXE_roce-fork")));
        let process = Process::start(command.args([&side.port, "exec"]));
        process.finish(TIMEOUT).expect_success(&format!("exec beside {kind}"));
    }
}

#[test]
fn a_child_forked_before_the_first_open_has_a_device_of_its_own() {
    start(&[&alone(69), "fork-first"]).finish(TIMEOUT).expect_success("fork-first");
}
