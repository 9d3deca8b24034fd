//! Unmodified RDMA programs under `roce run`: those of ibverbs-utils, infiniband-diags, perftest and UCX.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::links::{Side, memif, veth};
use super::programs::rows;
use crate::live::{Output, Process, library, roce, run, turn};

/// How long one program may take on a busy machine.
pub(super) const TIMEOUT: Duration = Duration::from_secs(120);

/// Executes the program whose command line follows, so that SIGINT ends the program, and each line is printed at once. A
/// shell without job control starts background commands with SIGINT ignored, and tests in such a command inherit this.
pub(super) const INTERRUPTIBLE: &str = "env --default-signal=INT stdbuf -oL";

/// A command that runs `program`, a program and its arguments, under `roce run` at `side`.
pub(super) fn launch(side: &Side, options: &str, program: &[&str]) -> Command {
    side.bring(&library());
    let mut command = side.command(&roce());
    command.args(["run", "--port", &side.port]).args(options.split_whitespace());
    command.arg("--").args(program);
    command
}

fn finish(command: &mut Command) -> Output {
    Process::start(command).finish(TIMEOUT)
}

/// Starts `program` at both ends, the second as the client of the first, which the second reaches as `host`.
pub(super) fn start_both(
    sides: &[Side; 2],
    host: &str,
    tcp_port: u16,
    options: &str,
    program: &str,
) -> [Process; 2] {
    let tcp_port_text = tcp_port.to_string();
    let mut words: Vec<&str> = program.split_whitespace().collect();
    words.extend(["-d", "roce0", "-p", &tcp_port_text]);
    let server = Process::start(&mut launch(&sides[0], options, &words));
    sides[0].wait_listen(tcp_port);
    words.push(host);
    [server, Process::start(&mut launch(&sides[1], options, &words))]
}

/// Runs `program` at both ends, the second as the client of the first, which the second reaches as `host`.
pub(super) fn both(
    sides: &[Side; 2],
    host: &str,
    tcp_port: u16,
    options: &str,
    program: &str,
) -> [Output; 2] {
    // Both are waited for before either is judged, as one end's failure is seldom its own fault.
    let outputs = start_both(sides, host, tcp_port, options, program).map(|end| end.finish(TIMEOUT));
    for output in &outputs {
        assert!(output.status.success(), "{program}: {outputs:?}");
    }
    outputs
}

#[test]
fn devices_are_listed_with_one_guid_by_library_and_file_system() {
    let _turn = turn();
    let [side, _] = memif("run-list");
    let outside = || [Path::new("/sys/class/infiniband"), Path::new("/dev/infiniband")].map(Path::exists);
    let before = outside();
    let output = finish(&mut launch(&side, "--port memif:@roce-tests-run-second", &["ibv_devices"]));
    assert!(output.stdout.contains("roce0") && output.stdout.contains("roce1"), "{output:?}");
    let output = finish(&mut launch(&side, "", &["ibstat", "roce0"])).expect_success("ibstat");
    assert!(output.stdout.contains("State: Active") && output.stdout.contains("Ethernet"), "{output:?}");

    // The shell is replaced by the program, whose MAC therefore is that of the tree.
    let script = "cd /sys/class/infiniband/roce0 && cat node_guid ports/1/gids/0 ports/1/gid_attrs/types/0 && \
                  test -c /dev/infiniband/uverbs_roce0 && exec ibv_devinfo -v";
    let output = finish(&mut launch(&side, "", &["sh", "-c", script])).expect_success("ibv_devinfo");
    let lines: Vec<&str> = output.stdout.lines().map(str::trim).collect();
    let value = |key: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(key));
        found.unwrap_or_else(|| panic!("no {key} {output:?}")).trim()
    };
    assert_eq!(value("node_guid:"), lines[0], "{output:?}");
    let gid = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap_or_else(|_| panic!("{text}"));
    let reported = value("GID[  0]:").split(',').next().expect("a GID");
    assert_eq!((gid(reported), lines[2]), (gid(lines[1]), "RoCE v2"), "{output:?}");
    assert_eq!(outside(), before, "nothing is left behind");
}

#[test]
fn an_interface_is_listed_with_its_addresses_and_link() {
    let _turn = turn();
    let [side, _far] = veth("af_packet", 1500);
    let script = "cd /sys/class/infiniband/roce0 && cat ports/1/gids/1 ports/1/gid_attrs/ndevs/1 && exec ibv_devinfo -v";
    let output = finish(&mut launch(&side, "", &["sh", "-c", script])).expect_success("ibv_devinfo");
    let lines: Vec<&str> = output.stdout.lines().collect();
    assert_eq!(lines[..2], ["0000:0000:0000:0000:0000:ffff:0a00:0001", "v0"], "{output:?}");
    assert!(output.stdout.contains("::ffff:10.0.0.1"), "{output:?}");
}

/// The speed of a veth is 10 Gbit/s. /sys has only the interfaces of the network namespace in which it was mounted.
#[test]
fn the_rate_of_a_port_is_that_of_its_link() {
    let _turn = turn();
    let [near, _far] = veth("af_packet", 1500);
    let [local, _] = memif("run-rate");
    let inside = "cat /sys/class/infiniband/roce0/ports/1/rate && exec ibv_devinfo -v";
    let mut of_veth = near.command(Path::new("unshare"));
    let script = "mount -t sysfs sysfs /sys && exec \"$0\" run --port \"$1\" -- sh -c \"$2\"";
    of_veth.args(["--mount", "sh", "-c", script]).arg(roce()).args([&near.port, inside]);
    let of_memif = launch(&local, "", &["sh", "-c", inside]);
    for (mut command, [rate, width, speed]) in [
        (of_veth, ["10 Gb/sec (1X FDR10)", "1X (1)", "10.0 Gbps (8)"]),
        (of_memif, ["100 Gb/sec (4X EDR)", "4X (2)", "25.0 Gbps (32)"]),
    ] {
        let output = finish(&mut command).expect_success("ibv_devinfo");
        assert_eq!(output.stdout.lines().next(), Some(rate), "{output:?}");
        for (key, value) in [("active_width:", width), ("active_speed:", speed)] {
            let line = output.stdout.lines().find(|line| line.trim().starts_with(key)).unwrap_or_default();
            assert!(line.ends_with(value), "{value}: {output:?}");
        }
    }
}

#[test]
fn perftest_runs_through_losses_under_each_recovery_scheme() {
    let _turn = turn();
    let sides = memif("run-loss");
    for scheme in ["go-back-n", "selective-repeat"] {
        let options = format!("--drop-chance 0.01 --recovery {scheme} --congestion window:64");
        for program in ["ib_write_bw -s 30000", "ib_read_bw -s 30000"] {
            let program = format!("{program} -n 200 -F -x {}", sides[0].gid_index);
            let [_, client] = both(&sides, "localhost", 18644, &options, &program);
            assert_eq!(rows(&client.stdout).len(), 1, "{program}: {client:?}");
        }
    }
}

/// The protocol layer of UCX over reliable connections, which UCX sets up over TCP. With `-q`, contents are compared.
#[test]
fn io_demo_of_ucx_runs_over_memif() {
    let _turn = turn();
    let sides = memif("run-ucx");
    let words: Vec<&str> = "io_demo -p 18645 -q -d 1024:1048576".split_whitespace().collect();
    let start = |side: &Side, words: &[&str]| {
        let mut command = launch(side, "", words);
        command
            .env("UCX_TLS", "rc_verbs,tcp")
            .env("UCX_NET_DEVICES", "roce0:1,lo")
            .env("UCX_LOG_LEVEL", "info");
        Process::start(&mut command)
    };
    let server = start(&sides[0], &words);
    sides[0].wait_listen(18645);
    let client = [&words[..], &["-o", "read,write", "-i", "200", "127.0.0.1"]].concat();
    let client = start(&sides[1], &client).finish(TIMEOUT).expect_success("io_demo");
    assert!(client.stdout.contains("tag(rc_verbs/roce0:1)"), "{client:?}");
    assert!(client.stdout.contains("Client exit with status 'OK'"), "{client:?}");
    // Each line counts the operations since the line before.
    let operations = |line: &str| {
        line.split_once("] total min:")?.1.split_once(" total:")?.1.split_once(' ')?.0.parse::<u32>().ok()
    };
    assert_eq!(client.stdout.lines().filter_map(operations).sum::<u32>(), 200, "{client:?}");
    drop(server);
}

/// The UCX of the distribution (1.13 in Debian 12), which sets up its reliable connections by datagrams (UD).
#[test]
fn ucx_perftest_connects_by_datagrams() {
    let _turn = turn();
    let sides = memif("run-ucx-perftest");
    for (tcp_port, (test, lane)) in (18646..).zip([
        ("tag_bw", "tag(rc_verbs/roce0:1)"),
        ("ucp_put_bw", "rma(rc_verbs/roce0:1)"),
        ("ucp_get", "rma(rc_verbs/roce0:1)"),
    ]) {
        let program = format!("ucx_perftest -p {tcp_port} -t {test} -s 65536 -n 100 -w 10");
        let words: Vec<&str> = program.split_whitespace().collect();
        let start = |side: &Side, words: &[&str]| {
            let mut command = launch(side, "", words);
            // `rc_v` stands for reliable connections, and for UD as the auxiliary transport that sets them up.
            command.env("UCX_TLS", "rc_v").env("UCX_NET_DEVICES", "roce0:1").env("UCX_LOG_LEVEL", "info");
            Process::start(&mut command)
        };
        let server = start(&sides[0], &words);
        sides[0].wait_listen(tcp_port);
        let client = start(&sides[1], &[&words[..], &["localhost"]].concat());
        let outputs = [server, client].map(|end| end.finish(TIMEOUT));
        let [_, client] = &outputs;
        assert!(outputs.iter().all(|output| output.status.success()), "{test}: {outputs:?}");
        assert!(client.stdout.contains("Final:") && client.stdout.contains(lane), "{test}: {outputs:?}");
    }
}

#[test]
fn events_impair_single_packets_of_a_program_and_are_reported() {
    let _turn = turn();
    let sides = memif("run-events");
    let directory = crate::live::shared_dir();
    let file = directory.path().join("events.toml");
    let events =
        "[[event]]\nqpn = 1\npsn = 5\naction = \"drop\"\n[[event]]\nqpn = 9\npsn = 1\naction = \"drop\"\n";
    std::fs::write(&file, events).expect("the directory is writable");
    let options = format!("--events {}", file.display());
    let [_, client] = both(&sides, "localhost", 18645, &options, "ib_write_bw -n 200 -F -x 0");
    let line = |event: &str| client.stderr.lines().find(|line| line.starts_with(event)).unwrap_or_default();
    let fired = line("roce: roce0: event 1: drop, qpn 1, request psn 5, iter 1 at ");
    assert!(fired.contains("RDMA WRITE MIDDLE") && fired.contains("retransmitted"), "{client:?}");
    let missed = line("roce: roce0: event 2: drop, qpn 9, request psn 1, iter 1 never happened");
    assert!(missed.contains("sent no such packet"), "{client:?}");

    std::fs::write(&file, events.replacen("drop", "explode", 1)).expect("the directory is writable");
    let mut here = Command::new(roce());
    let wrong = finish(here.args(["run", "--port", "memif:@x", "--events"]).arg(&file).args(["--", "true"]));
    assert!(!wrong.status.success() && wrong.stderr.contains("unknown variant `explode`"), "{wrong:?}");
}

#[test]
fn a_program_that_waits_for_events_ends_by_a_signal() {
    let _turn = turn();
    let [side, _] = memif("run-signal");
    let program = format!("{INTERRUPTIBLE} ibv_asyncwatch");
    let mut waiting = Process::start(&mut launch(&side, "", &program.split(' ').collect::<Vec<_>>()));
    let line = waiting.line(TIMEOUT);
    assert!(line.contains("roce0"), "{line}");
    run(Command::new("kill").args(["-INT", &waiting.id().to_string()]));
    let output = waiting.finish(TIMEOUT);
    assert_eq!(output.status.signal(), Some(2), "{output:?}");
}

#[test]
fn the_exit_status_is_that_of_the_program() {
    let _turn = turn();
    let [side, _] = memif("run-status");
    for (program, code) in [("exit 0", 0), ("exit 7", 7), ("exec /nonexistent/program", 127)] {
        let output = finish(&mut launch(&side, "", &["sh", "-c", program]));
        assert_eq!(output.status.code(), Some(code), "{program}: {output:?}");
    }
    for (program, code) in [("roce-tests-no-such-program", 127), ("/etc/passwd", 126)] {
        let output = finish(&mut launch(&side, "", &[program]));
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        assert!(output.stderr.contains(&format!("cannot execute {program}")), "{output:?}");
    }
    let killed = finish(&mut launch(&side, "", &["sh", "-c", "kill -KILL $$"]));
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
}

/// Runs `roce run` with `args`, which must fail with one line before the program starts.
fn refusal(command: &mut Command, args: &[&str]) -> String {
    let output = finish(command.arg("run").args(args).args(["--", "echo", "started"]));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert_eq!((output.stdout.as_str(), output.stderr.lines().count()), ("", 1), "{output:?}");
    output.stderr
}

#[test]
fn a_port_or_library_that_cannot_be_used_is_named_before_the_program_starts() {
    let _turn = turn();
    let here = || Command::new(roce());
    let missing = refusal(&mut here(), &["--port", "memif:@x", "--library", "/nonexistent/library.so"]);
    assert!(missing.contains("/nonexistent/library.so"), "{missing}");
    let missing = refusal(&mut here(), &["--port", "af_packet:nosuch0"]);
    assert!(missing.contains("there is no interface `nosuch0`"), "{missing}");
    let mut none = here();
    let none = refusal(none.env_remove("ROCE_PORT"), &[]);
    assert!(none.contains("give --port PORT"), "{none}");
    let [near, _far] = veth("af_packet", 300);
    let small = refusal(&mut near.command(&roce()), &["--port", &near.port]);
    assert!(small.contains("too small for any path MTU") && small.contains("ip link set v0 mtu"), "{small}");
    let alone = crate::live::shared_dir();
    let copy = alone.path().join("roce");
    crate::live::install(&roce(), &copy);
    let missing = refusal(&mut Command::new(copy), &["--port", "memif:@x"]);
    assert!(missing.contains("`cargo build --release` builds it"), "{missing}");
    let [side, _] = memif("run-refused");
    side.bring(&library());
    let refused = refusal(&mut side.command(&roce()), &["--port", "af_packet:lo"]);
    assert!(refused.contains("af_packet:lo") || refused.contains("cap_net_raw"), "{refused}");
}

#[test]
fn a_configuration_is_printed_read_and_inherited() {
    let _turn = turn();
    let [side, _] = memif("run-config");
    let directory = crate::live::shared_dir();
    let file = directory.path().join("roce.toml");
    let mut print = launch(&side, "--recovery go-back-n --drop-chance 5% --print-config", &[]);
    let printed = finish(&mut print).expect_success("--print-config").stdout;
    assert!(printed.contains("drop_chance = 0.05"), "{printed}");
    std::fs::write(&file, printed).expect("the directory is writable");
    let program = ["sh", "-c", "echo \"$ROCE_CONFIG_TEXT\"; echo $LD_PRELOAD"];
    let options = format!("--seed 9 --config {}", file.display());
    let mut command = launch(&side, &options, &program);
    let output = finish(command.env("LD_PRELOAD", "libc.so.6")).expect_success("sh");
    for line in [
        "recovery = \"go-back-n\"",
        "drop_chance = 0.05",
        "seed = 9",
        &format!("ports = [\"{}\"]", side.port),
    ] {
        assert!(output.stdout.lines().any(|printed| printed == line), "{line}: {output:?}");
    }
    assert!(output.stdout.trim_end().ends_with("libroce_verbs.so:libc.so.6"), "{output:?}");
}
