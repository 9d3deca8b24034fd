//! Real ports. EAL exists once in a process, so each test runs its parts in child processes: this binary,
//! with an environment variable that names the part. None of the tests needs hugepages.
//!
//! With DPDK as shared libraries four of the memif tests fail now and then: those of ports that open, close
//! and lose their peers. The faults are the driver's, and only a static build can be guarded against them.

#![allow(unsafe_code)]

mod hostile;
mod parts;

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use parts::pairs::{FLOWING, KILLS};

const PART: &str = "DPDK_FFI_TEST_PART";

/// Entry of the child processes. Ignored by a test run, because without a part it has nothing to do.
#[test]
#[ignore = "runs in child processes of the other tests"]
fn part() {
    let part = env::var(PART).expect("only the other tests run this");
    // SAFETY: sets a timer. A part that hangs ends by SIGALRM, and its test fails.
    unsafe { libc::alarm(60) };
    parts::play(&part);
}

/// A process that will play `part`.
fn command(part: &str) -> Command {
    by(Command::new(env::current_exe().expect("this binary has a path")), part)
}

fn by(mut command: Command, part: &str) -> Command {
    command.args(["--exact", "part", "--ignored", "--nocapture"]).env(PART, part);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The name of a memif socket of this test run, in the abstract name space.
fn socket(test: &str) -> String {
    format!("@dpdk-ffi-{test}-{}", std::process::id())
}

fn start(mut command: Command) -> Child {
    command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"))
}

/// Waits for all of `children` before it judges any: when one fails, its peers fail in consequence.
#[track_caller]
fn finish<const N: usize>(children: [Child; N]) {
    let outputs = children.map(|child| child.wait_with_output().expect("the child can be waited for"));
    let mut failures = String::new();
    for (index, Output { status, stdout, stderr }) in outputs.iter().enumerate() {
        let (stdout, stderr) = (String::from_utf8_lossy(stdout), String::from_utf8_lossy(stderr));
        if !status.success() || !stdout.contains("1 passed") {
            failures += &format!("--- part {index} failed: {status}\n{stdout}\n{stderr}\n");
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

#[track_caller]
fn play_alone(part: &str) {
    finish([start(command(part))]);
}

/// Two processes that know the name of one memif socket.
#[track_caller]
fn play_memif(test: &str, server: &str, client: &str) {
    finish([server, client].map(|part| start(memif(test, part))));
}

fn memif(test: &str, part: &str) -> Command {
    let mut command = command(part);
    command.env("MEMIF_SOCKET", socket(test));
    command
}

#[test]
fn mistakes_are_error_values() {
    play_alone("mistakes");
}

#[test]
fn eal_refuses_arguments_by_an_error_value() {
    play_alone("eal_refuses");
}

#[test]
fn a_null_port_counts_what_it_is_given() {
    play_alone("null");
}

#[test]
fn a_ring_port_keeps_content_and_chains() {
    play_alone("ring");
}

#[test]
fn frames_for_a_receiver_that_is_stopped_are_discarded() {
    play_alone("stalled");
}

#[test]
fn an_exhausted_pool_is_no_disaster() {
    play_alone("exhaustion");
}

#[test]
fn a_packed_pool_leaves_no_gaps() {
    play_alone("packed");
}

#[test]
fn threads_attach_and_detach_devices_at_the_same_time() {
    play_alone("hotplug");
}

#[test]
fn ports_and_mbufs_change_threads() {
    play_alone("threads");
}

#[test]
fn queues_of_a_port_run_on_two_threads_beside_its_control() {
    play_alone("queue_threads");
}

#[test]
fn a_set_of_queues_receives_from_each_in_turn() {
    play_alone("queues_in_turn");
}

#[test]
fn control_and_queues_of_a_port_are_dropped_in_any_order() {
    play_alone("queue_owners");
}

#[test]
fn queues_of_a_memif_run_on_two_threads_while_its_peer_comes_and_goes() {
    play_alone("queue_memif");
}

#[test]
fn memif_ports_open_and_close_in_one_process() {
    play_alone("reopen");
}

#[test]
fn memif_carries_frames_between_processes() {
    play_memif("frames", "memif_echo", "memif_frames");
}

#[test]
fn memif_carries_chains_between_processes() {
    play_memif("chains", "memif_small_echo", "memif_small_frames");
}

#[test]
fn a_memif_client_finds_a_server_that_comes_back() {
    let client = start(memif("restart", "memif_client_restarts"));
    let mut first = start(memif("restart", "memif_small_echo"));
    // Whether it went well is judged below, from its output.
    let _status = first.wait();
    let second = start(memif("restart", "memif_small_echo"));
    finish([client, first, second]);
}

#[test]
fn a_memif_client_survives_servers_that_are_killed() {
    survive("memif_surviving_client", "memif_dying_server");
}

#[test]
fn a_memif_server_survives_clients_that_are_killed() {
    survive("memif_surviving_server", "memif_dying_client");
}

/// Kills one victim after the other in the middle of traffic.
#[track_caller]
fn survive(survivor: &str, victim: &str) {
    let mut living = start(memif(survivor, survivor));
    let stdout = living.stdout.take().expect("its output is a pipe");
    let mut lines = BufReader::new(stdout).lines();
    for _kill in 0..KILLS {
        let mut dying = start(memif(survivor, victim));
        // Ends without a match where the survivor is dead; that is judged below.
        let _flowing = lines.by_ref().map_while(Result::ok).find(|line| line.contains(FLOWING));
        dying.kill().expect("it can be killed");
        dying.wait().expect("it can be waited for");
    }
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    let Output { status, stderr, .. } = living.wait_with_output().expect("the child can be waited for");
    assert!(
        status.success(),
        "the survivor did not: {status}\n{}\n{}",
        rest.join("\n"),
        String::from_utf8_lossy(&stderr)
    );
}

#[test]
fn the_last_frames_of_a_memif_that_closes_are_received() {
    play_memif("closes-client", "memif_slow_server", "memif_client_closes");
    play_memif("closes-server", "memif_server_closes", "memif_slow_client");
}

#[test]
fn the_last_frames_of_a_process_that_exits_are_received() {
    play_memif("exits-client", "memif_slow_server", "memif_client_exits");
    play_memif("exits-server", "memif_server_exits", "memif_slow_client");
}

#[test]
fn actions_run_at_the_exit() {
    play_alone("exit_actions");
}

/// A process that waited for the peer without a limit would end by the alarm of the part.
#[test]
fn a_memif_peer_that_is_stopped_does_not_keep_a_process_from_its_end() {
    for part in ["memif_fills_and_closes", "memif_fills_and_exits"] {
        let stopped = start(memif("stopped", "memif_stops"));
        let mut ending = start(memif("stopped", part));
        // Whether it went well is judged below, from its output.
        let _status = ending.wait();
        let pid = libc::pid_t::try_from(stopped.id()).expect("the ID of a process");
        // SAFETY: the process was not waited for, so the ID is its own.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        finish([stopped, ending]);
    }
}

/// An ordinary user: another one where the tests run as root.
#[test]
fn memif_works_for_an_ordinary_user() {
    use std::os::unix::process::CommandExt;
    const NOBODY: u32 = 65534;
    let [server, client] = ["memif_echo", "memif_frames"].map(|part| {
        let mut command = memif("user", part);
        command.env_remove("XDG_RUNTIME_DIR").env("EXPECT_ORDINARY_USER", "1");
        // SAFETY: always succeeds.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(NOBODY).gid(NOBODY).current_dir("/");
        }
        start(command)
    });
    finish([server, client]);
}

#[test]
fn both_ends_of_a_memif_sleep_between_frames() {
    play_memif("asleep", "memif_asleep_echo", "memif_asleep_frames");
}

#[test]
fn virtio_user_and_vhost_reach_each_other_and_wake_sleepers() {
    let path = env::temp_dir().join(format!("dpdk-ffi-vhost-{}", std::process::id()));
    let [vhost, virtio] = ["vhost_echo", "virtio_user_frames"].map(|part| {
        let mut command = command(part);
        command.env("VHOST_SOCKET", &path);
        start(command)
    });
    finish([vhost, virtio]);
}

#[test]
fn a_virtio_user_port_closes_while_its_peer_does() {
    let mut command = command("virtio_user_closes");
    command.env("VHOST_SOCKET", env::temp_dir().join(format!("dpdk-ffi-closes-{}", std::process::id())));
    finish([start(command)]);
}

/// Starts `part` in a network name space of its own. Needs root, or the right to make user name spaces.
fn play_apart(part: &str) {
    let mut unshare = Command::new("unshare");
    // SAFETY: always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        unshare.arg("-n");
    } else {
        unshare.args(["-Un", "--map-current-user", "--keep-caps"]);
    }
    unshare.arg(env::current_exe().expect("this binary has a path"));
    finish([start(by(unshare, part))]);
}

#[test]
fn af_packet_carries_frames_over_veth() {
    play_apart("af_packet");
}

#[test]
fn a_packet_socket_carries_the_frames_of_a_flow_as_one_datagram() {
    play_apart("packet_socket");
}
