//! Unmodified RDMA programs under `roce run`: those of ibverbs-utils, infiniband-diags and perftest.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::links::{Side, memif, veth};
use crate::live::{Output, Process, programs, roce, run, turn};

/// How long one program may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The library that `roce run` loads into programs.
fn library() -> PathBuf {
    let path = programs().join("libroce_verbs.so");
    assert!(path.exists(), "{} is not there: run `cargo build -p preload` first", path.display());
    path
}

/// A command that runs `program`, a program and its arguments, under `roce run` at `side`.
fn launch(side: &Side, options: &str, program: &[&str]) -> Command {
    side.bring(&library());
    let mut command = side.command(&roce());
    command.args(["run", "--port", &side.port]).args(options.split_whitespace());
    command.arg("--").args(program);
    command
}

fn finish(command: &mut Command) -> Output {
    Process::start(command).finish(TIMEOUT)
}

/// Runs `program` at both ends, the second as the client of the first, which the second reaches as `host`.
fn both(sides: &[Side; 2], host: &str, tcp_port: u16, options: &str, program: &str) -> [Output; 2] {
    let tcp_port_text = tcp_port.to_string();
    let mut words: Vec<&str> = program.split_whitespace().collect();
    words.extend(["-d", "roce0", "-p", &tcp_port_text]);
    let server = Process::start(&mut launch(&sides[0], options, &words));
    sides[0].wait_listen(tcp_port);
    words.push(host);
    let client = Process::start(&mut launch(&sides[1], options, &words));
    // Both are waited for before either is judged, as one end's failure is seldom its own fault.
    let outputs = [server.finish(TIMEOUT), client.finish(TIMEOUT)];
    for output in &outputs {
        assert!(output.status.success(), "{program}: {outputs:?}");
    }
    outputs
}

/// Runs pingpong programs of ibverbs-utils. Contents are compared with `-c`, which the programs for unreliable connections
/// and shared receive queues lack.
fn pingpongs(sides: &[Side; 2], host: &str, tcp_port: u16, programs: &[&str]) {
    for program in programs {
        let program = format!("{program} -g {} -n 200", sides[0].gid_index);
        for output in both(sides, host, tcp_port, "", &program) {
            assert!(output.stdout.contains("200 iters in"), "{program}: {output:?}");
        }
    }
}

/// Runs programs of perftest. Both ends report a line with as many iterations as were requested.
pub(super) fn perftests(sides: &[Side; 2], host: &str, tcp_port: u16, options: &str, programs: &[&str]) {
    for program in programs {
        let program = format!("{program} -n 200 -F -x {}", sides[0].gid_index);
        let [_, client] = both(sides, host, tcp_port, options, &program);
        // With several queue pairs or both directions, the iterations of all are added.
        let iters = |line: &str| line.split_whitespace().nth(1)?.parse::<u32>().ok();
        let is_row = |line: &&str| {
            line.starts_with(' ') && iters(line).is_some_and(|iters| iters >= 200 && iters % 200 == 0)
        };
        let rows = client.stdout.lines().filter(is_row).count();
        let wanted = if program.contains(" -a ") { 23 } else { 1 };
        assert!(rows >= wanted, "{program}: {rows} rows: {client:?}");
    }
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

#[test]
fn pingpongs_of_ibverbs_utils_run_over_veth() {
    let _turn = turn();
    let programs = [
        "ibv_rc_pingpong -c",
        "ibv_rc_pingpong -e -s 1",
        "ibv_rc_pingpong -c -m 4096 -s 65536",
        "ibv_rc_pingpong -c -m 256 -s 1023 -r 20",
        "ibv_uc_pingpong",
        "ibv_uc_pingpong -e",
        "ibv_srq_pingpong",
    ];
    pingpongs(&veth("af_packet", 4200), "10.0.0.1", 18641, &programs);
}

#[test]
fn a_pingpong_of_ibverbs_utils_runs_over_memif() {
    let _turn = turn();
    // Unreliable connections, because a memif loses the last ACK if its peer's process ends before the ACK is read.
    pingpongs(&memif("run-pingpong"), "localhost", 18640, &["ibv_uc_pingpong", "ibv_uc_pingpong -e"]);
}

#[test]
fn perftest_runs_over_memif() {
    let _turn = turn();
    let programs = [
        "ib_send_bw",
        "ib_write_bw",
        "ib_read_bw",
        "ib_send_lat",
        "ib_write_lat",
        "ib_read_lat",
        "ib_send_bw -c UC -r 512",
        "ib_write_bw -c UC",
        "ib_send_lat -c UC",
        "ib_write_lat -c UC",
        "ib_send_bw --use-srq -q 4",
        "ib_send_bw -e",
        "ib_write_bw -b -q 8",
        "ib_send_bw -a ",
        "ib_write_bw -l 8 -s 64",
        "ib_write_bw --use_old_post_send",
        "ib_write_bw -I 64 -s 64",
    ];
    perftests(&memif("run-perftest"), "localhost", 18642, "", &programs);
}

#[test]
fn perftest_runs_over_veth() {
    let _turn = turn();
    let programs = ["ib_send_lat", "ib_write_bw -b", "ib_read_bw -e"];
    perftests(&veth("af_packet", 4200), "10.0.0.1", 18643, "", &programs);
}

#[test]
fn perftest_runs_through_losses_under_each_recovery_scheme() {
    let _turn = turn();
    let sides = memif("run-loss");
    for scheme in ["go-back-n", "selective-repeat"] {
        let options = format!("--drop-chance 0.01 --recovery {scheme} --congestion window:64");
        perftests(&sides, "localhost", 18644, &options, &["ib_write_bw -s 30000", "ib_read_bw -s 30000"]);
    }
}

#[test]
fn a_program_that_waits_for_events_ends_by_a_signal() {
    let _turn = turn();
    let [side, _] = memif("run-signal");
    let mut waiting = Process::start(&mut launch(&side, "", &["stdbuf", "-oL", "ibv_asyncwatch"]));
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
    std::fs::copy(roce(), &copy).expect("a program can be copied");
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
