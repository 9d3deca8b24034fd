//! Command lines of unmodified RDMA programs under `roce run`, and their results: the tables of docs/user/programs.md.
//!
//! Each test runs the command lines of one port, and writes its table to `programs-PORT.md` in the directory for
//! temporary files of the tests (target/tmp). The command lines and the results must be those of the document; figures
//! may differ.

use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use super::links::{Side, memif, veth};
use super::run::{INTERRUPTIBLE, TIMEOUT, start_both};
use crate::live::{Output, Process, common_turn, run};

/// Command lines of both ports.
const COMMON: [&str; 41] = [
    "ibv_rc_pingpong -n 200",
    "ibv_rc_pingpong -c -n 200",
    "ibv_rc_pingpong -e -n 200",
    "ibv_rc_pingpong -e -s 1 -n 200",
    "ibv_rc_pingpong -c -m 256 -s 1023 -r 20 -n 200",
    "ibv_rc_pingpong -c -m 2048 -s 100000 -n 200",
    "ibv_rc_pingpong -c -m 4096 -s 65536 -n 200",
    "ibv_rc_pingpong -N -c -n 200",
    "ibv_rc_pingpong -t -n 200",
    "ibv_srq_pingpong -n 200",
    "ibv_uc_pingpong -n 200",
    "ibv_uc_pingpong -e -n 200",
    "ibv_ud_pingpong -n 200",
    "ibv_ud_pingpong -e -n 200",
    "ib_send_bw -n 200",
    "ib_write_bw -n 200",
    "ib_read_bw -n 200",
    "ib_send_lat -n 200",
    "ib_write_lat -n 200",
    "ib_read_lat -n 200",
    "ib_send_bw -a -n 20",
    "ib_write_bw -a -n 20",
    "ib_read_bw -a -n 20",
    "ib_send_lat -a -n 20",
    "ib_write_bw -n 200 --report_gbits",
    "ib_write_bw -c UC -n 200",
    "ib_send_lat -c UC -n 200",
    "ib_write_lat -c UC -n 200",
    "ib_send_lat -c UD -n 200",
    "ib_send_bw --use-srq -q 4 -n 200",
    "ib_send_bw -e -n 200",
    "ib_read_bw -e -n 200",
    "ib_write_bw -b -n 200",
    "ib_write_bw -b -q 8 -n 200",
    "ib_write_bw -q 8 -n 200",
    "ib_write_bw -l 8 -s 64 -n 200",
    "ib_write_bw --use_old_post_send -n 200",
    "ib_send_bw --use_old_post_send -n 200",
    "ib_write_bw -I 64 -s 64 -n 200",
    "ib_write_bw --run_infinitely -D 1",
    "ib_send_bw --run_infinitely -D 1",
];

/// These programs wait for all messages, of which af_packet loses some on a busy machine: the kernel drops frames that do
/// not fit into the buffer of the socket.
const LOSSLESS: [&str; 2] = ["ib_send_bw -c UC -r 512 -n 200", "ib_send_bw -c UD -r 512 -n 200"];

/// Rows of numbers that a program of perftest prints for its measurements.
pub(super) fn rows(stdout: &str) -> Vec<Vec<&str>> {
    let is_number = |word: &&str| word.parse::<f64>().is_ok();
    let columns =
        |line: &'_ str| line.starts_with(' ') && line.split_whitespace().all(|word| is_number(&word));
    let lines = stdout.lines().filter(|line| columns(line));
    lines
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.len() > 2)
        .collect()
}

/// A row of the table.
struct Row {
    program: &'static str,
    result: String,
    figure: String,
}

impl Row {
    fn line(&self) -> String {
        format!("| `{}` | {} | {} |", self.program, self.result, self.figure)
    }
}

/// Returns how both ends have ended.
fn result(outputs: &[Output; 2]) -> String {
    let ended = outputs.each_ref().map(|output| match (output.status.code(), output.status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, signal) => format!("signal {}", signal.unwrap_or_default()),
    });
    let [server, client] = &ended;
    if server == client { server.clone() } else { format!("server: {server}, client: {client}") }
}

/// Returns the figure of the last row that the client prints.
fn figure(program: &str, client: &Output) -> String {
    if program.contains("pingpong") {
        let line = client.stdout.lines().find(|line| line.contains("usec/iter")).unwrap_or_default();
        return line.rsplit(" = ").next().unwrap_or_default().to_owned();
    }
    let rows = rows(&client.stdout);
    let Some(last) = rows.last() else { return String::new() };
    let (column, unit) = if program.contains("_lat") {
        (4, "usec")
    } else if program.contains("--report_gbits") {
        (3, "Gb/sec")
    } else {
        (3, "MiB/sec")
    };
    let (size, figure) = (last[0], last.get(column).unwrap_or(&""));
    format!(
        "{size} B: {figure} {unit}{}",
        if rows.len() > 1 { format!(", {} rows", rows.len()) } else { String::new() }
    )
}

/// Waits until the client, which never ends by itself, has reported twice, and interrupts both ends.
fn interrupt(mut ends: [Process; 2]) -> [Output; 2] {
    let mut reported = String::new();
    while rows(&reported).len() < 2 {
        reported += &(ends[1].line(TIMEOUT) + "\n");
    }
    let ids = ends.each_ref().map(|end| end.id().to_string());
    run(Command::new("kill").arg("-INT").args(ids));
    let [server, client] = ends.map(|end| end.finish(TIMEOUT));
    let stdout = reported + &client.stdout;
    [server, Output { stdout, ..client }]
}

/// Runs a command line at both ends. Programs of perftest and of ibverbs-utils name the GID by different options.
fn row(sides: &[Side; 2], host: &str, tcp_port: u16, program: &'static str) -> Row {
    let is_pingpong = program.contains("pingpong");
    let is_endless = program.contains("--run_infinitely");
    let gid = if is_pingpong { "-g" } else { "-F -x" };
    let prefix = if is_endless { INTERRUPTIBLE } else { "" };
    let line = format!("{prefix} {program} {gid} {}", sides[0].gid_index);
    let ends = start_both(sides, host, tcp_port, "", &line);
    let outputs = if is_endless { interrupt(ends) } else { ends.map(|end| end.finish(TIMEOUT)) };
    let row = Row { program, result: result(&outputs), figure: figure(program, &outputs[1]) };
    eprintln!("{}", row.line());
    // A program of perftest exits with 0 even if it has measured nothing.
    let is_success = row.result == "exit status 0" || is_endless;
    if !is_success {
        eprintln!("{outputs:?}");
    }
    assert!(!is_success || !row.figure.is_empty(), "{program}: no figure: {outputs:?}");
    let sizes = if program.contains(" -a ") { 23 } else { 1 };
    assert!(is_pingpong || !is_success || rows(&outputs[1].stdout).len() >= sizes, "{program}: {outputs:?}");
    row
}

/// Returns the command lines and results in the table of the document below the heading for `port`.
fn documented(port: &str) -> Vec<(String, String)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/user/programs.md");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let section = text.split(&format!("## Port `{port}`\n")).nth(1).expect("a heading for the port");
    let lines = section.lines().take_while(|line| !line.starts_with("## "));
    let rows = lines.filter(|line| line.starts_with("| `")).map(|line| {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        (columns[1].trim_matches('`').to_owned(), columns[2].to_owned())
    });
    rows.collect()
}

/// Runs the command lines of a port, writes the table, and compares it with the document.
fn check(port: &str, sides: &[Side; 2], host: &str, tcp_port: u16, programs: &[&'static str]) {
    let rows: Vec<_> = programs.iter().map(|program| row(sides, host, tcp_port, program)).collect();
    let table: String = rows.iter().map(|row| row.line() + "\n").collect();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("programs-{port}.md"));
    let header = "| command line | result | figure |\n|---|---|---|\n";
    fs::write(&path, format!("{header}{table}")).expect("the directory is writable");
    let ran: Vec<_> = rows.into_iter().map(|row| (row.program.to_owned(), row.result)).collect();
    assert_eq!(ran, documented(port), "docs/user/programs.md has other rows than {}", path.display());
}

#[test]
fn command_lines_over_memif() {
    let _turn = common_turn();
    let programs = [&COMMON[..], &LOSSLESS].concat();
    check("memif", &memif("programs"), "localhost", 18642, &programs);
}

#[test]
fn command_lines_over_af_packet() {
    let _turn = common_turn();
    check("af_packet", &veth("af_packet", 4200), "10.0.0.1", 18643, &COMMON);
}
