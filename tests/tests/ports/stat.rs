//! What operators see: the counters of a report, `roce stat` from another process, and lines in the log.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use roce::qp::PathMtu;
use serde_json::Value;

use super::command::each;
use super::links::{Side, memif};
use super::pairs::ends;
use crate::live::{Output, Process, Settings, roce, scenarios, shared_dir, turn};

const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs `roce stat` as the user of `side`, whose devices are listed in `runtime`.
fn stat(side: &Side, runtime: &Path, args: &[&str]) -> Output {
    let mut command = side.command(&roce());
    Process::start(command.arg("stat").args(args).env("XDG_RUNTIME_DIR", runtime)).finish(TIMEOUT)
}

fn stat_json(side: &Side, runtime: &Path, which: &str) -> Vec<Value> {
    let output = stat(side, runtime, &["--json", which]).expect_success("roce stat --json");
    serde_json::from_str(&output.stdout).expect("an array of objects")
}

/// Sockets of the process, of those that are listed in `runtime`.
fn sockets_of(pid: u32, runtime: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(runtime.join("roce")).into_iter().flatten().flatten();
    let prefix = format!("stat.{pid}.");
    let is_its = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    entries.filter(is_its).map(|entry| entry.path()).collect()
}

#[test]
fn a_waiting_server_is_listed_until_it_is_gone() {
    let _turn = turn();
    let directory = shared_dir();
    let runtime = directory.path();
    let [side, _] = memif("stat-server");
    let mut command = side.command(&roce());
    command.args(["perf", "write-bw", "-p", "18620", "--port", &side.port]).env("XDG_RUNTIME_DIR", runtime);
    let server = Process::start(&mut command);
    side.wait_listen(18620);
    let pid = server.id();

    let text = stat(&side, runtime, &[&side.port]).expect_success("roce stat").stdout;
    assert!(text.starts_with(&format!("{}: pid {pid}, ", side.port)), "{text}");
    assert!(text.contains("net_memif") && text.contains("PORT_DOWN"), "{text}");
    assert!(!text.contains("rx_icrc_errors"), "zeros are left out: {text}");
    let verbose = stat(&side, runtime, &["-v", &pid.to_string()]).expect_success("roce stat -v").stdout;
    assert!(verbose.contains("rx_icrc_errors") && verbose.contains("rx_missed"), "{verbose}");
    let [device] = &stat_json(&side, runtime, &side.port)[..] else { panic!("one device") };
    assert_eq!((&device["pid"], &device["state"]), (&pid.into(), &"PORT_DOWN".into()), "{device}");
    assert_eq!(device["counters"]["drops"]["rx_icrc_errors"], 0, "{device}");
    assert_eq!(sockets_of(pid, runtime).len(), 1);

    let mut kill = Command::new("kill");
    crate::live::run(kill.args(["-KILL", &pid.to_string()]));
    drop(server);
    assert_eq!(sockets_of(pid, runtime).len(), 1, "it could not tidy up");
    let gone = stat(&side, runtime, &[&side.port]);
    assert_eq!(gone.status.code(), Some(1), "{gone:?}");
    assert!(gone.stderr.contains("no device of"), "{gone:?}");
    assert!(sockets_of(pid, runtime).is_empty(), "`roce stat` has removed it");
}

#[test]
fn counters_of_running_processes_are_read_from_outside() {
    let _turn = turn();
    let sides = memif("stat-peers");
    let [mut near, mut far] = ends(&sides, &["corrupt=0.05"]);
    scenarios::every_op_and_len(&mut near, &mut far, &Settings::at(PathMtu::Mtu1024));
    let output = stat(&sides[0], Path::new("/nonexistent"), &["--json", &sides[0].port]);
    let devices: Vec<Value> =
        serde_json::from_str(&output.expect_success("roce stat").stdout).expect("an array of objects");
    assert_eq!(devices.len(), 2, "{devices:?}");
    let mut retransmitted_pkts = 0;
    for device in devices {
        let count = |source: &str, name: &str| {
            device["counters"][source][name].as_u64().unwrap_or_else(|| panic!("{source} {name}: {device}"))
        };
        assert_eq!(device["state"], "PORT_ACTIVE", "{device}");
        assert!(count("driver", "rx_frames") > 0, "{device}");
        assert!(count("drops", "rx_icrc_errors") > 0, "{device}");
        assert!(count("faults", "tx_corrupted") > 0, "{device}");
        retransmitted_pkts += count("queue_pairs", "retransmitted_pkts");
    }
    assert!(retransmitted_pkts > 0, "of the end that asks");
}

#[test]
fn reports_of_perf_and_ping_have_what_was_dropped() {
    let _turn = turn();
    let damaged = "-s 30000 -n 300 --corrupt-chance 0.02";
    // Both ways, because most damage to a short packet, such as an ACK, is found before its ICRC is checked.
    let args = [format!("perf write-bw -b {damaged}"), format!("perf write-bw -b {damaged} --json")];
    let [server, client] = each(&memif("stat-perf"), "localhost", 18621, [&args[0], &args[1]]);
    let line = |output: &Output, source: &str| {
        let found = output.stdout.lines().find(|line| line.starts_with(&format!(" {source} ")));
        found.unwrap_or_else(|| panic!("no line of {source}: {output:?}")).to_owned()
    };
    assert!(line(&server, "drops").contains("rx_icrc_errors "), "{server:?}");
    assert!(line(&server, "driver").contains("rx_frames "), "{server:?}");
    assert!(line(&server, "faults").contains("tx_corrupted "), "{server:?}");
    assert!(!server.stdout.contains("bad_tver"), "zeros are left out: {server:?}");
    let report: Value = serde_json::from_str(&client.stdout).expect("one object");
    let counters = &report["device_counters"];
    assert!(counters["drops"]["rx_icrc_errors"].as_u64().is_some_and(|count| count > 0), "{report}");
    assert_eq!(counters["drops"]["bad_tver"], 0, "{report}");
    for source in ["driver", "port", "neighbour", "queue_pairs", "faults", "xstats"] {
        assert!(counters[source].is_object(), "{source}: {report}");
    }

    let args = [format!("ping {damaged}"), format!("ping {damaged} --json")];
    let [server, client] = each(&memif("stat-ping"), "localhost", 18622, [&args[0], &args[1]]);
    assert!(line(&server, "drops").contains("rx_icrc_errors "), "{server:?}");
    let report: Value = serde_json::from_str(&client.stdout).expect("one object");
    let drops = &report["device_counters"]["drops"];
    assert!(drops["rx_icrc_errors"].as_u64().is_some_and(|count| count > 0), "{report}");
}

/// Waits for a process to log `text`.
fn wait_logged(stderr: impl Fn() -> String, text: &str) {
    let end = Instant::now() + TIMEOUT;
    while !stderr().contains(text) {
        assert!(Instant::now() < end, "no `{text}` in the log: {}", stderr());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_refused_key_is_logged_at_both_ends() {
    let _turn = turn();
    let [mut near, mut far] = ends(&memif("stat-rkey"), &[]);
    scenarios::wrong_rkey(&mut near, &mut far, &Settings::at(PathMtu::Mtu1024));
    wait_logged(|| far.peer.stderr(), "a peer was refused access");
    wait_logged(|| near.peer.stderr(), "a peer refused access to its memory");
}

#[test]
fn two_ends_with_one_address_are_warned_of_each_other() {
    let _turn = turn();
    let sides = memif("stat-conflict");
    // Two servers without clients, which stay.
    let [near, far] = [(0, 18623), (1, 18624)].map(|(number, tcp_port): (usize, u16)| {
        let side = &sides[number];
        let port = format!("{},ip=10.0.0.1/24", side.port);
        let mut command = side.command(&roce());
        let server = Process::start(command.args(["ping", "-p", &tcp_port.to_string(), "--port", &port]));
        side.wait_listen(tcp_port);
        server
    });
    wait_logged(|| near.stderr() + &far.stderr(), "another station claims an address of this port");
}
