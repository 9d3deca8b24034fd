//! The `roce` command, in two processes.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use std::time::{Duration, Instant};

use super::links::{Side, memif, veth, vhost};
use crate::live::{Output, Process, is_root, roce, run, shared_dir, turn};

/// How long one command may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the same subcommand at both ends of a link, the second as the client of the first, which it
/// reaches as `host`.
fn both(sides: &[Side; 2], host: &str, tcp_port: u16, args: &str) -> [Output; 2] {
    each(sides, host, tcp_port, [args, args])
}

/// The same with arguments of each end's own.
pub(super) fn each(sides: &[Side; 2], host: &str, tcp_port: u16, args: [&str; 2]) -> [Output; 2] {
    let command = |number: usize| {
        let side = &sides[number];
        let mut command = side.command(&roce());
        command.args(args[number].split_whitespace());
        command.args(["--port", &side.port, "-p", &tcp_port.to_string()]);
        command
    };
    let server = Process::start(&mut command(0));
    sides[0].wait_listen(tcp_port);
    let client = Process::start(command(1).arg(host));
    // Both are waited for before either is judged, as one end's failure is seldom its own fault.
    let outputs = [server.finish(TIMEOUT), client.finish(TIMEOUT)];
    for output in &outputs {
        assert!(output.status.success(), "{args:?}: {outputs:?}");
    }
    outputs
}

fn ping(sides: &[Side; 2], host: &str, tcp_port: u16, options: &str) {
    let options = format!("ping -n 100 -c {options}");
    for output in both(sides, host, tcp_port, &options) {
        assert!(output.stdout.contains("100 iters in"), "{options}: {output:?}");
    }
}

#[test]
fn ping_over_memif_as_an_ordinary_user() {
    let _turn = turn();
    for (number, options) in ["-s 1", "-s 1023 -m 256", "-s 65536 -m 4096 -e"].into_iter().enumerate() {
        ping(&memif(&format!("ping{number}")), "localhost", 18601, options);
    }
}

#[test]
fn a_named_memif_is_its_users_alone_and_outlives_a_crash() {
    const TCP_PORT: u16 = 18612;
    let _turn = turn();
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o700)).expect("its mode can be set");
    if is_root() {
        chown(dir.path(), Some(65534), Some(65534)).expect("root may give it away");
    }
    let [near, far] = memif("named");
    let command = |side: &Side| {
        let mut command = side.command(&roce());
        command.env("XDG_RUNTIME_DIR", dir.path()).args(["ping", "-n", "100", "-c", "--port", "memif:wire"]);
        command.args(["-p", &TCP_PORT.to_string()]);
        command
    };
    let crashing = Process::start(&mut command(&near));
    near.wait_listen(TCP_PORT);
    let socket = dir.path().join("roce-wire.sock");
    let mode = || std::fs::metadata(&socket).expect("the socket is there").permissions().mode() & 0o777;
    assert_eq!(mode(), 0o600);
    run(Command::new("kill").args(["-9", &crashing.id().to_string()]));
    drop(crashing);
    assert_eq!(mode(), 0o600, "left behind");
    let server = Process::start(&mut command(&near));
    near.wait_listen(TCP_PORT);
    let client = Process::start(command(&far).arg("localhost"));
    for output in [server.finish(TIMEOUT), client.finish(TIMEOUT)] {
        assert!(output.stdout.contains("100 iters in"), "{output:?}");
    }
    assert!(!socket.exists(), "nothing is left behind by a server that ends");
}

#[test]
fn ping_with_faults() {
    let _turn = turn();
    let faults = "-s 65536 --drop-chance 0.03 --reorder-chance 0.03 --corrupt-chance 0.02";
    ping(&memif("ping-faults"), "localhost", 18602, faults);
}

/// Runs `roce ping` with these options of each end; returns what each says of the recovery, and on stderr.
fn ping_recovery(name: &str, tcp_port: u16, options: [&str; 2]) -> [(String, String); 2] {
    let args = options.map(|options| {
        format!("ping -n 100 -s 65536 -c --json --drop-chance 0.02 --reorder-chance 0.02 {options}")
    });
    each(&memif(name), "localhost", tcp_port, [&args[0], &args[1]]).map(|output| {
        let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("one object");
        assert_eq!(report["contents_checked"], true);
        (report["recovery"].as_str().expect("a name").to_owned(), output.stderr)
    })
}

#[test]
fn ping_recovers_by_selective_repeat_where_both_ends_ask_for_it() {
    let _turn = turn();
    let wide = "--recovery selective-repeat:4096";
    for (recovery, stderr) in ping_recovery("ping-selective", 18610, [wide, wide]) {
        assert_eq!(recovery, "selective-repeat:4096");
        assert!(!stderr.contains("--recovery"), "{stderr}");
    }
}

#[test]
fn ping_falls_back_to_what_needs_no_consent_where_one_end_does_not_ask_for_the_same() {
    let _turn = turn();
    let (some, other) = ("--recovery selective-repeat", "--recovery selective-repeat:64");
    for (number, options) in [[some, ""], ["", some], [some, other]].into_iter().enumerate() {
        let ends = ping_recovery(&format!("ping-one-sided{number}"), 18611, options);
        for ((recovery, stderr), asked) in ends.into_iter().zip(options) {
            assert_eq!(recovery, "improved-go-back-n", "{options:?}");
            assert_eq!(
                stderr.contains("so recovery is improved-go-back-n"),
                !asked.is_empty(),
                "{options:?}: {stderr}"
            );
        }
    }
}

#[test]
fn ping_over_veth_and_vhost() {
    let _turn = turn();
    ping(&veth("af_packet", 4200), "10.0.0.1", 18603, "-s 65536 -m 4096");
    ping(&vhost("ping"), "localhost", 18604, "-s 65536 -m 4096");
}

#[test]
fn perf_verifies_what_it_moves() {
    let _turn = turn();
    for (number, test) in
        ["send-bw", "send-lat", "write-bw", "write-lat", "read-bw", "read-lat"].into_iter().enumerate()
    {
        let args = format!("perf {test} --verify -n 300 -s 30000");
        both(&memif(&format!("perf{number}")), "localhost", 18605, &args);
    }
}

#[test]
fn perf_verifies_what_it_moves_through_faults() {
    let _turn = turn();
    let faults = "--drop-chance 0.01 --reorder-chance 0.02 --corrupt-chance 0.01 --qp-timeout 12";
    for (number, test) in ["send-bw", "write-bw", "read-bw"].into_iter().enumerate() {
        let args = format!("perf {test} --verify -n 300 -s 30000 -q 2 {faults}");
        both(&memif(&format!("perf-faults{number}")), "localhost", 18606, &args);
    }
}

#[test]
fn perf_verifies_what_selective_repeat_moves_through_faults() {
    let _turn = turn();
    let faults = "--drop-chance 0.02 --reorder-chance 0.02 --corrupt-chance 0.01";
    for (number, test) in ["send-bw", "write-bw", "read-bw"].into_iter().enumerate() {
        let args = format!("perf {test} --verify -n 300 -s 30000 -q 2 --recovery selective-repeat {faults}");
        both(&memif(&format!("perf-selective{number}")), "localhost", 18608, &args);
    }
}

#[test]
fn perf_sends_over_unreliable_connections_and_to_shared_receives() {
    let _turn = turn();
    let tests = ["send-bw -c UC -s 5000", "write-bw -c UC -s 5000", "send-lat -c UC", "write-lat -c UC"];
    // UC with a receive for each message, because a message without a receive is lost, however late the receiver runs.
    let shared = [
        "send-bw --use-srq -q 3 --verify -s 5000",
        "send-bw --use-srq -c UC -q 3 -r 1024 -s 64",
        "send-lat --use-srq",
    ];
    for (number, test) in tests.into_iter().chain(shared).enumerate() {
        let args = format!("perf {test} -n 300 --json");
        let outputs = both(&memif(&format!("perf-services{number}")), "localhost", 18613, &args);
        for output in outputs {
            let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("it is JSON");
            let service = if test.contains("UC") { "UC" } else { "RC" };
            assert_eq!(report["connection"], service, "{output:?}");
            assert_eq!(report["srq"], test.contains("--use-srq"), "{output:?}");
            assert_eq!(report["lost_messages"], 0, "{output:?}");
        }
    }
}

#[test]
fn perf_counts_the_messages_that_an_unreliable_connection_lost() {
    let _turn = turn();
    let args = ["perf send-bw -r 2000 --json", "perf send-bw -c UC -s 30000 -n 2000 --drop-chance 0.01"];
    let [server, client] = each(&memif("perf-lost"), "localhost", 18614, args);
    let report: serde_json::Value = serde_json::from_str(&server.stdout).expect("it is JSON");
    assert_eq!(report["rx_depth"], 2000, "{server:?}");
    // With a receive for each message no message is lost for want of one. Each message has 8 packets: 7.7 % are lost,
    // 154 with a standard deviation of 12.
    let lost = report["lost_messages"].as_u64().expect("a number");
    assert!((94..214).contains(&lost), "{lost}: {server:?} {client:?}");
    assert_eq!(report["counters"]["rdma_recvs"], 2000 - lost, "{server:?}");
}

#[test]
fn perf_loses_in_turns_and_says_what_each_chance_left() {
    let _turn = turn();
    let args = "perf write-bw -s 30000 --recovery selective-repeat -D 1";
    let args = [args.to_owned(), format!("{args} --loss-turns 0,0.02 --json")];
    let [_, client] = each(&memif("perf-turns"), "localhost", 18610, [&args[0], &args[1]]);
    let report: serde_json::Value = serde_json::from_str(&client.stdout).expect("one object");
    let turns = report["loss_turns"].as_array().expect("a list");
    let chances: Vec<_> = turns.iter().map(|row| row["chance"].as_f64().expect("a number")).collect();
    assert_eq!(chances, [0.0, 0.02]);
    for row in turns {
        assert!(row["turns"].as_u64().is_some_and(|turns| turns >= 1), "{row}");
        assert!(row["gbit_per_sec"].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
    }
    assert_eq!(turns[0]["kept"], 1.0, "compared with itself");
    let count = |name: &str| report["faults"]["sent"][name].as_u64().expect("a count");
    let (frames, dropped) = (count("frames"), count("dropped"));
    // One in 50 of the frames of every second turn: one in 55 would mean that the turns without loss sent nearly nothing.
    assert!(dropped > 0 && dropped * 55 < frames, "{dropped} of {frames}");
}

#[test]
fn perf_drops_the_packets_that_a_file_names_and_says_so() {
    let _turn = turn();
    let directory = shared_dir();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).expect("the directory is writable");
        path.display().to_string()
    };
    let event = |psn: &str, iter: u32, action: &str| {
        format!("[[event]]\nqpn = 1\npsn = {psn}\niter = {iter}\naction = \"{action}\"\n")
    };
    let requests =
        [event("5", 1, "drop"), event("5", 2, "drop"), event("44", 1, "corrupt"), event("9999", 1, "drop")];
    let requests = write("requests.toml", &requests.concat());
    let responses = event("\"any\"", 2, "drop") + "opcode = \"acknowledge\"\n";
    let responses = write("responses.toml", &responses);
    for (number, recovery) in ["go-back-n", "selective-repeat"].into_iter().enumerate() {
        // 300 messages of 8 packets: the fifth and the forty-fourth are in the middle of one.
        let args = format!("perf write-bw --verify -n 300 -s 30000 -m 4096 --recovery {recovery} --events");
        let args = [format!("{args} {responses}"), format!("{args} {requests} --json")];
        let sides = memif(&format!("perf-events{number}"));
        let [server, client] = each(&sides, "localhost", 18609, [&args[0], &args[1]]);
        assert!(
            server.stdout.contains("event 1: drop, qpn 1, response psn any, iter 2 at ")
                && server.stdout.contains("RC ACKNOWLEDGE"),
            "{server:?}"
        );
        let report: serde_json::Value = serde_json::from_str(&client.stdout).expect("one object");
        assert_eq!(report["verified"], true);
        assert!(report["counters"]["retransmitted_pkts"].as_u64().is_some_and(|pkts| pkts >= 3), "{report}");
        let events = report["events"].as_array().expect("a list");
        assert_eq!(events.len(), 4);
        for event in &events[..3] {
            assert_eq!(event["fired"]["opcode"], "RC RDMA WRITE MIDDLE", "{event}");
            assert!(event["fired"]["retransmitted_after_usec"].is_number(), "{event}");
        }
        assert_eq!(events[0]["fired"]["psn"], events[1]["fired"]["psn"]);
        assert!(events[3]["fired"].is_null(), "{}", events[3]);
        assert!(
            client.stderr.contains("event 4: ") && client.stderr.contains("never happened"),
            "{client:?}"
        );
        assert!(!client.stderr.contains("event 3: "), "{client:?}");
    }
}

#[test]
fn perf_over_veth() {
    let _turn = turn();
    both(&veth("af_packet", 4200), "10.0.0.1", 18607, "perf write-bw --verify -n 300 -s 65536 -b");
}

/// An experiment on a real port: two processes for each of two points.
const EXPERIMENT: &str = r#"
name = "port"
title = "A port"
description = "For a test."
fabric = { kind = "ports", port = "memif:@roce-lab-test", tcp_port = 18609 }
workload = { kind = "stream", message_bytes = 30000, messages = 300 }
transport.recovery = "selective-repeat:256"
[[sweep]]
key = "loss.chance"
label = "loss"
values = [0, "1 %"]
"#;

#[test]
fn an_experiment_runs_on_a_port() {
    let _turn = turn();
    let dir = std::env::temp_dir().join(format!("roce-lab-port-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("port.toml");
    std::fs::write(&file, EXPERIMENT).unwrap();
    let lab =
        Process::start(Command::new(roce()).args(["lab", "run", "--json", "--out"]).args([&dir, &file]));
    let output = lab.finish(TIMEOUT);
    assert!(output.status.success(), "{output:?}");
    let results: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    let figure = |point: usize, name: &str| results["points"][point]["figures"][name].as_f64().unwrap();
    for point in 0..2 {
        assert_eq!(figure(point, "completed_messages"), 300.0);
        assert!(figure(point, "goodput_gbit_per_sec") > 0.0);
    }
    assert!(figure(1, "retransmitted_pkts") > 0.0, "lost packets were retransmitted");
    assert!(dir.join("report.html").exists());
    std::fs::write(&file, EXPERIMENT.replace("messages = 300", "messages = 1000000000, limit_ms = 500"))
        .unwrap();
    let lab =
        Process::start(Command::new(roce()).args(["lab", "run", "--json", "--out"]).args([&dir, &file]));
    let output = lab.finish(TIMEOUT);
    assert!(output.stdout.contains("not done after 500 ms"), "{output:?}");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_pci_device_that_is_not_there_is_named() {
    let refused = Process::start(Command::new(roce()).args(["devinfo", "--port", "pci:0000:ff:1f.7"]));
    let refused = refused.finish(TIMEOUT);
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("0000:ff:1f.7"), "{refused:?}");
    assert!(!refused.stderr.contains("panicked"), "{refused:?}");
}

#[test]
fn a_port_is_described_without_being_opened() {
    // DPDK has no such driver, so only a description succeeds.
    const PORT: &str = "eal:net_nosuch0,ip=10.0.0.1/24";
    let devinfo = |options: &[&str]| {
        let command = Process::start(Command::new(roce()).args(["devinfo", "--port", PORT]).args(options));
        command.finish(TIMEOUT)
    };
    let refused = devinfo(&["--json"]);
    assert!(!refused.status.success() && refused.stderr.contains("cannot open port"), "{refused:?}");
    let output = devinfo(&["--describe", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let device: serde_json::Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!((&device["mac"], &device["mtu_bytes"]), (&serde_json::Value::Null, &8128.into()), "{device}");
    assert_eq!(device["active_path_mtu_bytes"], 4096, "{device}");
    assert_eq!(device["gids"][0]["gid"], serde_json::Value::Null, "{device}");
    assert_eq!(device["gids"][1]["gid"], "::ffff:10.0.0.1", "{device}");
    assert_eq!(device["limits"]["max_qp"], 16_384, "{device}");
    let text = devinfo(&["--describe", "-v"]).stdout;
    assert!(text.contains("mac              unknown until the port is opened"), "{text}");
    assert!(text.contains("GID[  0]         unknown") && text.contains("max_qp_wr        32768"), "{text}");
}

#[test]
fn a_tap_port_answers_the_kernel() {
    let _turn = turn();
    let namespace = crate::live::Namespace::new();
    let server = ["ping", "--port", "tap:rdma0,ip=10.9.0.2/24"];
    let _server = Process::start(namespace.command(roce()).args(server));
    namespace.wait_listen(18515);
    namespace.ip("address add 10.9.0.1/24 dev rdma0");
    namespace.ip("link set rdma0 up");
    // A datagram, no matter which, makes the kernel ask for the port's Ethernet address.
    run(namespace.command("bash").args(["-c", "echo hello >/dev/udp/10.9.0.2/9"]));
    let end = Instant::now() + TIMEOUT;
    while !run(namespace.command("ip").args(["neighbour"])).contains("REACHABLE") {
        assert!(Instant::now() < end, "the kernel got no answer for 10.9.0.2 within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}
