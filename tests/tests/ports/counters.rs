//! Counters of devices in /sys/class/infiniband under `roce run`. scripts/check.sh skips these tests by the name of this
//! module if the machine has no /dev/fuse.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use roce::counters::{DropCounters, QpCounters};

use super::links::{Side, memif, veth};
use super::run::{TIMEOUT, both, launch};
use crate::live::{Output, Process, library, roce, run, turn};

/// Messages, and bytes in each message, of the measured program.
const MESSAGES: u64 = 500;
const MESSAGE_BYTES: u64 = 65_536;
const DEVICE: &str = "/sys/class/infiniband/roce0/ports/1";

/// A function of a shell that waits until its argument, a command, succeeds, but for less than `TIMEOUT`. The shell then
/// goes on to kill the processes that it has started.
const WAIT: &str =
    "wait_until() { n=0; until eval \"$1\" || [ $((n += 1)) -gt 200 ]; do sleep 0.05; done; };";

/// Returns the growth of a counter, as a program of perftest prints it.
fn growth(output: &Output, name: &str) -> u64 {
    let lines = output.stdout.lines().map(str::trim);
    let value = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix('=')).next();
    value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name}: {output:?}"))
}

/// Returns the processes that serve the counters of the device roce0 on the port of `side`.
fn servers(side: &Side) -> Vec<PathBuf> {
    let command = format!("roce\0run-counters\0roce0={}\0", side.port);
    let processes = fs::read_dir("/proc").expect("a directory").flatten().map(|entry| entry.path());
    // Of a process that has ended, the kernel returns no command line.
    processes.filter(|at| fs::read(at.join("cmdline")).is_ok_and(|line| line == command.as_bytes())).collect()
}

fn wait_until_no_server(side: &Side) {
    let end = Instant::now() + TIMEOUT;
    while !servers(side).is_empty() {
        assert!(Instant::now() < end, "{:?} still serve counters of {}", servers(side), side.port);
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Measures at both ends with `path_mtu_bytes`, and compares the counters with each other and with the data sent.
fn measure(sides: &[Side; 2], host: &str, tcp_port: u16, path_mtu_bytes: u64) {
    let names = [
        "counters/port_xmit_data",
        "counters/port_rcv_data",
        "counters/port_xmit_packets",
        "counters/port_rcv_packets",
        "counters/port_xmit_discards",
        "hw_counters/sent_pkts",
        "hw_counters/rcvd_pkts",
        "hw_counters/sent_bytes",
        "hw_counters/rcvd_bytes",
    ];
    let program = format!(
        "ib_write_bw -F -x {} -s {MESSAGE_BYTES} -n {MESSAGES} -W {}",
        sides[0].gid_index,
        names.join(",")
    );
    let [server, client] = both(sides, host, tcp_port, "", &program);
    let (sent, received) = (|name| growth(&client, name), |name| growth(&server, name));
    let data_bytes = MESSAGES * MESSAGE_BYTES;
    for (output, name) in [(&client, "counters/port_xmit_data"), (&server, "counters/port_rcv_data")] {
        let frames_bytes = 4 * growth(output, name);
        assert!((data_bytes..2 * data_bytes).contains(&frames_bytes), "{name}: {client:?}");
    }
    let pkts = data_bytes / path_mtu_bytes;
    for [near, far] in [
        ["hw_counters/sent_pkts", "hw_counters/rcvd_pkts"],
        ["counters/port_xmit_packets", "counters/port_rcv_packets"],
    ] {
        let (sent, received) = (sent(near), received(far));
        // Packets may be lost and retransmitted. The two ends do not read their counters at the same time.
        assert!(sent >= pkts && received >= pkts, "{near} {sent}, {far} {received}: {client:?} {server:?}");
        assert!(received <= sent + sent / 10, "{near} {sent}, {far} {received}: {client:?} {server:?}");
    }
    assert!(sent("hw_counters/sent_bytes") >= data_bytes, "{client:?}");
    assert_eq!(received("hw_counters/rcvd_bytes"), data_bytes, "{server:?}");
    // The ports of both ends may have one name; the counters are of the devices of one run.
    for (output, name) in [(&client, "hw_counters/rcvd_bytes"), (&server, "hw_counters/sent_bytes")] {
        assert_eq!(growth(output, name), 0, "{name}: {output:?}");
    }
    sides.iter().for_each(wait_until_no_server);
}

#[test]
fn perftest_reports_the_growth_of_counters_to_an_ordinary_user() {
    let _turn = turn();
    measure(&memif("counters"), "localhost", 18671, 4096);
}

#[test]
fn perftest_reports_the_growth_of_counters_to_root() {
    let _turn = turn();
    measure(&veth("af_packet", 4200), "10.0.0.1", 18672, 4096);
}

/// The server belongs to no stream and no process of the user, and stays as long as a process of the run.
#[test]
fn counters_are_served_as_long_as_a_process_of_the_run_exists() {
    let _turn = turn();
    let [local, _] = memif("counters-end");
    let [shared, _far] = veth("af_packet", 1500);
    for side in [local, shared] {
        side.bring(&library());
        // The process that stays closes all streams, so only the server could keep them open.
        let inside = format!(
            "cat {DEVICE}/hw_counters/sent_pkts {DEVICE}/counters/port_xmit_data && \
             {{ sleep 100 <&- >&- 2>&- 7>&- & echo $!; }}"
        );
        let script = "exec \"$0\" run --port \"$1\" -- sh -c \"$2\" 7>&1";
        let mut command = side.command("/bin/sh".as_ref());
        command.args(["-c", script]).arg(side.bring(&roce())).args([&side.port, &inside]);
        let program = Process::start(&mut command);
        let id = program.id();
        let output = program.finish(TIMEOUT).expect_success("cat");
        let lines: Vec<&str> = output.stdout.lines().collect();
        let [sent_pkts, xmit_data, sleeper] = lines[..] else { panic!("{output:?}") };
        assert_eq!((sent_pkts, xmit_data), ("0", "0"), "no device is open");

        let running = servers(&side);
        let [server] = &running[..] else { panic!("{running:?}") };
        let status = fs::read_to_string(server.join("status")).expect("a process");
        assert!(!status.contains(&format!("PPid:\t{id}\n")), "{status}");
        run(Command::new("kill").arg(sleeper));
        wait_until_no_server(&side);
    }
}

#[test]
fn each_device_has_a_file_for_each_counter() {
    let _turn = turn();
    let [side, _] = memif("counters-files");
    let counters = QpCounters::default().iter().chain(DropCounters::default().iter());
    let mut expected: Vec<&str> = counters.map(|(name, _)| name).collect();
    expected.sort();
    let script = "cd /sys/class/infiniband && LC_ALL=C ls roce1/ports/1/hw_counters && \
                  cat roce[01]/ports/1/counters/* roce[01]/ports/1/hw_counters/* | sort | uniq -c";
    let mut command = launch(&side, "--port memif:@roce-tests-counters-second", &["sh", "-c", script]);
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("cat");
    let mut lines: Vec<&str> = output.stdout.lines().collect();
    let values = lines.pop().expect("the values");
    assert_eq!(lines, expected, "{output:?}");
    // Six files in each directory `counters`.
    assert_eq!(values.trim(), format!("{} 0", 2 * (6 + expected.len())), "{output:?}");
}

/// The client receives no payload, and the server sends none.
#[test]
fn values_are_sums_over_the_processes_of_a_run() {
    let _turn = turn();
    let [side, _far] = veth("af_packet", 4200);
    let script = format!(
        "cd {DEVICE}/hw_counters; endless='ib_send_bw -d roce0 -x 1 -F -p 18674 --run_infinitely -D 1'; \
         {WAIT} $endless >&2 & server=$!; wait_until \"grep -q ':48F2 ' /proc/net/tcp*\"; \
         $endless 10.0.0.1 >&2 & client=$!; \
         wait_until '[ $(cat sent_bytes) -gt 0 ] && [ $(cat rcvd_bytes) -gt 0 ] && echo both'; \
         kill -KILL $server $client; wait; cat sent_bytes rcvd_bytes"
    );
    let output = Process::start(&mut launch(&side, "", &["sh", "-c", &script])).finish(TIMEOUT);
    assert_eq!(output.stdout, "both\n0\n0\n", "{output:?}");
}

/// A process that does not answer has counters that are unknown, not 0.
#[test]
fn counters_of_a_stopped_process_are_an_error() {
    let _turn = turn();
    let [side, _] = memif("counters-stopped");
    // The signal stops one thread, which then has the others stop.
    let script = format!(
        "{WAIT} ib_send_bw -d roce0 -x 0 -F -p 18673 >&2 & wait_until \"grep -q ':48F1 ' /proc/net/tcp*\"; \
         cat {DEVICE}/hw_counters/sent_pkts; kill -STOP $!; \
         wait_until \"! grep -h State /proc/$!/task/*/status | grep -qv stopped\"; \
         cat {DEVICE}/hw_counters/sent_pkts; kill -KILL $!; wait $!; cat {DEVICE}/hw_counters/sent_pkts"
    );
    let output = Process::start(&mut launch(&side, "", &["sh", "-c", &script])).finish(TIMEOUT);
    assert_eq!(output.stdout, "0\n0\n", "{output:?}");
    assert_eq!(output.stderr.matches("Input/output error").count(), 1, "{output:?}");
    wait_until_no_server(&side);
}

/// The first process of a PID namespace would get the server as a child.
#[test]
fn the_first_process_has_no_counters_and_says_so() {
    let _turn = turn();
    let [side, _far] = veth("af_packet", 1500);
    let mut command = side.command("unshare".as_ref());
    command.args(["--pid", "--fork", "--mount-proc"]).arg(roce());
    command.args(["run", "--verbose", "--port", &side.port, "--", "ls", DEVICE]);
    let output = Process::start(&mut command).finish(TIMEOUT).expect_success("ls");
    assert!(output.stdout.contains("gids\n") && !output.stdout.contains("counters"), "{output:?}");
    assert!(output.stderr.contains("no counters in /sys/class/infiniband: "), "{output:?}");
}
