//! The `roce` command, in two processes.

use std::process::Command;
use std::time::{Duration, Instant};

use super::links::{Side, memif, veth, vhost};
use crate::live::{Output, Process, roce, run, turn};

/// How long one command may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the same subcommand at both ends of a link, the second as the client of the first, which it
/// reaches as `host`.
fn both(sides: &[Side; 2], host: &str, tcp_port: u16, args: &str) -> [Output; 2] {
    let command = |side: &Side| {
        let mut command = side.command(&roce());
        command.args(args.split_whitespace());
        command.args(["--port", &side.port, "-p", &tcp_port.to_string()]);
        command
    };
    let server = Process::start(&mut command(&sides[0]));
    sides[0].wait_listen(tcp_port);
    let client = Process::start(command(&sides[1]).arg(host));
    // Both are waited for before either is judged, as one end's failure is seldom its own fault.
    let outputs = [server.finish(TIMEOUT), client.finish(TIMEOUT)];
    for output in &outputs {
        assert!(output.status.success(), "{args}: {outputs:?}");
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
fn ping_with_faults() {
    let _turn = turn();
    let faults = "-s 65536 --drop-chance 0.03 --reorder-chance 0.03 --corrupt-chance 0.02";
    ping(&memif("ping-faults"), "localhost", 18602, faults);
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
    assert!(figure(1, "retransmitted_pkts") > 0.0, "what was lost was sent again");
    assert!(dir.join("report.html").exists());
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
