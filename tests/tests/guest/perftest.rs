//! The unmodified perftest in the guest and `roce perf` here, each as server and as client.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use super::boot::{Guest, PINGPONG_PORT, Wire, guest};
use super::stopped::has_stopped;
use crate::live::{Output, Process, capture_file, roce};

/// Where perftest listens, and `roce perf`.
const PORT: u16 = PINGPONG_PORT;
/// Time limit of one run on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Runs until perftest has calibrated its clock: it compares two clocks, which a busy emulated processor disturbs.
const CALIBRATIONS: usize = 5;

/// Local ACK timeout of both ends, 1 s: with two emulated processors on the two of the host, rxe may not run for more than
/// the half second in which the default, 67 ms, exceeds the retry count.
const ACK_TIMEOUT: u64 = 18;

/// Counters that are 0 unless a request failed or a packet could not be taken.
const ERRORS: [&str; 10] = [
    "retry_exceeded_err",
    "retry_rnr_exceeded_err",
    "bad_resp_err",
    "resp_invalid_request",
    "resp_remote_access_errors",
    "resp_remote_operation_errors",
    "req_remote_invalid_request",
    "req_remote_access_errors",
    "req_remote_operation_errors",
    "local_protection_err",
];

/// One test with the same options for both programs.
#[derive(Clone, Copy)]
struct Run {
    wire: Wire,
    gid_index: u8,
    /// Name of the test in `roce perf`.
    test: &'static str,
    /// Bytes of a message, and messages of both programs' reports.
    size: u64,
    iters: u64,
    qps: u64,
    /// Options beside those above.
    more: &'static str,
}

/// Runs over IPv4.
fn over_tap(test: &'static str, size: u64, iters: u64) -> Run {
    Run { wire: Wire::Tap, gid_index: 1, test, size, iters, qps: 1, more: "" }
}

impl Run {
    fn is_lat(&self) -> bool {
        self.test.ends_with("-lat")
    }

    fn has(&self, option: &str) -> bool {
        self.more.split_whitespace().any(|word| word == option)
    }

    /// Options beside the device and the peer.
    fn options(&self) -> String {
        let Run { gid_index: _, size, iters, qps, more, .. } = self;
        let size = if self.has("-a") { String::new() } else { format!("-s {size}") };
        let iters = if self.has("-D") { String::new() } else { format!("-n {iters}") };
        let qps = if self.is_lat() { String::new() } else { format!("-q {qps}") };
        format!("{size} {iters} {qps} -u {ACK_TIMEOUT} {more}")
    }

    fn guests(&self, guest: &Guest, server: &str) -> Process {
        let (device, options) = (self.wire.device(), self.options());
        let program = format!("ib_{}", self.test.replace('-', "_"));
        guest.machine.start(&format!("{program} -d {device} -x {} {options} {server}", self.gid_index))
    }

    fn ours(&self, guest: &Guest) -> Command {
        let mut command = guest.namespace.command(roce());
        command.args(["perf", self.test, "--json", "--port", &Guest::port(self.wire)]);
        command.args(self.options().split_whitespace());
        command.arg("--pcap").arg(capture_file("ours"));
        command
    }

    fn we_serve(&self, guest: &Guest) {
        self.repeat(guest, false, || {
            let server = Process::start(&mut self.ours(guest));
            guest.namespace.wait_listen(PORT);
            self.wait_active(guest);
            (server, self.guests(guest, self.wire.host_address()))
        });
    }

    fn we_join(&self, guest: &Guest) {
        self.repeat(guest, true, || {
            let server = self.guests(guest, "");
            guest.machine.run(&format!("wait_listen {PORT}"));
            let (host, tcp_port) = self.wire.guest_address();
            let mut command = self.ours(guest);
            command.args(["--peer", "perftest", "-x", &self.gid_index.to_string()]);
            command.args(["-p", &tcp_port.to_string(), host]);
            (Process::start(&mut command), server)
        });
    }

    /// Waits until the port of the guest's device is active, without which perftest ends at once.
    fn wait_active(&self, guest: &Guest) {
        if self.wire == Wire::Vhost {
            // Because the state may still be that of the process which had this side's port before: only the one that
            // has it now replies.
            guest.machine.run("wait_for 30 ping -c 1 -W 1 -q 10.78.0.1");
        }
        let state = format!("/sys/class/infiniband/{}/ports/1/state", self.wire.device());
        guest.machine.run(&format!("wait_for 30 grep ACTIVE {state}"));
    }

    /// Starts both programs, of which `start` returns this side's first, and checks their reports. Repeats a run if
    /// perftest could not calibrate its clock, and once if the guest's requester has stopped.
    fn repeat(&self, guest: &Guest, we_join: bool, start: impl Fn() -> (Process, Process)) {
        let mut may_stop = true;
        for _ in 0..CALIBRATIONS {
            let (ours, guests) = start();
            // Both are waited for before either is judged, because one end's failure is seldom its own fault. Ours ends
            // if nothing comes from the guest's, and the guest's at its time limit.
            let ours = ours.finish(2 * TIMEOUT);
            let is_stalled = ours.stderr.contains("nothing has come from the peer");
            if is_stalled && may_stop && has_stopped(guest, self.wire, &capture_file("ours")) {
                eprintln!("rxe has stopped within a message that is acknowledged so far: {ours:?}");
                may_stop = false;
                continue;
            }
            let guests = guests.finish(2 * TIMEOUT);
            if !guests.status.success() {
                eprintln!("the guest's: {guests:?}");
            }
            if !guests.stderr.contains("Can't produce a report") {
                return self.check(we_join, &ours, &guests);
            }
        }
        panic!("{}: perftest calibrated its clock in none of {CALIBRATIONS} runs", self.test);
    }

    /// Checks the reports of both programs, and the counters of ours.
    fn check(&self, we_join: bool, ours: &Output, guests: &Output) {
        let options = self.options();
        let said = format!("{} {options}: ours\n{ours:?}\nthe guest's\n{guests:?}", self.test);
        assert!(ours.status.success() && guests.status.success(), "{said}");
        let report: Value = serde_json::from_str(&ours.stdout).unwrap_or_else(|_| panic!("{said}"));
        let counter =
            |name: &str| report["counters"][name].as_u64().unwrap_or_else(|| panic!("{name}: {said}"));
        for name in ERRORS {
            assert_eq!(counter(name), 0, "{name}: {said}");
        }
        if self.has("-D") {
            assert!(report["results"][0]["iterations"].as_u64().is_some_and(|count| count > 0), "{said}");
            return;
        }
        self.check_counters(we_join, counter, &said);
        self.check_reports(we_join, &report, guests, &said);
    }

    /// Checks that no message is missing and none is surplus.
    fn check_counters(&self, we_join: bool, counter: impl Fn(&str) -> u64, said: &str) {
        let (count, bytes) = (self.iters * self.qps, self.iters * self.qps * self.size);
        let (count, bytes) =
            if self.has("-a") { (23 * count, self.iters * ((1 << 24) - 2)) } else { (count, bytes) };
        let (sends, receives) = match self.test {
            "write-lat" | "send-lat" => (false, true),
            _ if self.has("-b") => (true, true),
            _ => (we_join, !we_join),
        };
        let is_read = self.test.starts_with("read");
        if receives {
            let name = match &self.test[..4] {
                "writ" => "rx_write_requests",
                "send" => "rdma_recvs",
                _ => "rx_read_requests",
            };
            assert_eq!(counter(name), count, "{name}: {said}");
        }
        if receives != is_read || self.has("-b") {
            assert_eq!(counter("rcvd_bytes"), bytes, "{said}");
        }
        if sends && !is_read {
            assert_eq!(counter("rdma_sends"), count, "{said}");
        }
    }

    /// Checks the counts of both reports.
    fn check_reports(&self, we_join: bool, report: &Value, guests: &Output, said: &str) {
        let is_read_lat = self.test == "read-lat";
        // An end that answers has no time of its first round; the server of read-lat none at all. The server of a WRITE
        // or READ test is sent the report of the last size only.
        let answers = match self.test {
            "write-lat" => we_join,
            "send-lat" => !we_join,
            _ => false,
        };
        let count = self.iters * self.qps - u64::from(answers);
        let has_last_only =
            self.has("-a") && !self.has("-b") && !we_join && ["write-bw", "read-bw"].contains(&self.test);
        let sizes: Vec<u64> = match (self.has("-a"), has_last_only) {
            (true, false) => (1..=23).map(|log2| 1 << log2).collect(),
            (true, true) => vec![1 << 23],
            (false, _) => vec![self.size],
        };
        let expected: Vec<(u64, u64)> =
            if is_read_lat && !we_join { vec![] } else { sizes.iter().map(|size| (*size, count)).collect() };
        let results = report["results"].as_array().unwrap_or_else(|| panic!("{said}"));
        let ours: Vec<(u64, u64)> = results
            .iter()
            .map(|row| (row["bytes"].as_u64().unwrap_or(0), row["iterations"].as_u64().unwrap_or(0)))
            .collect();
        assert_eq!(ours, expected, "{said}");
        let theirs: Vec<(u64, u64)> = guests.stdout.lines().filter_map(table_row).collect();
        let (size, iters) = (*sizes.last().expect("there is a size"), self.iters * self.qps);
        if !(is_read_lat && we_join) {
            assert_eq!(theirs.last(), Some(&(size, iters)), "{said}");
        }
    }
}

/// Returns size and iterations of a line of perftest's table.
fn table_row(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_whitespace();
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

/// Runs each test with `roce perf` as the server, and as the client.
fn run_all(runs: &[Run]) {
    let guest = guest();
    for run in runs {
        run.we_serve(&guest);
        run.we_join(&guest);
    }
}

#[test]
fn write_bw_counts_each_message() {
    run_all(&[
        over_tap("write-bw", 65_536, 100),
        Run { qps: 3, ..over_tap("write-bw", 1000, 300) },
        Run { gid_index: 2, more: "-m 1024", ..over_tap("write-bw", 65_536, 50) },
        Run { more: "-I 64 -t 16", ..over_tap("write-bw", 64, 200) },
    ]);
}

#[test]
fn read_bw_counts_each_message() {
    run_all(&[
        over_tap("read-bw", 65_536, 100),
        Run { qps: 2, more: "-o 1", ..over_tap("read-bw", 1000, 100) },
        Run { gid_index: 2, ..over_tap("read-bw", 5000, 100) },
    ]);
}

#[test]
fn send_bw_counts_each_message() {
    run_all(&[
        over_tap("send-bw", 65_536, 100),
        Run { qps: 2, more: "-r 16", ..over_tap("send-bw", 1000, 300) },
        Run { gid_index: 2, ..over_tap("send-bw", 5000, 100) },
    ]);
}

#[test]
fn both_ends_send_at_once() {
    run_all(&[
        Run { more: "-b", ..over_tap("write-bw", 65_536, 100) },
        Run { more: "-b", qps: 2, ..over_tap("read-bw", 4096, 100) },
        Run { more: "-b", ..over_tap("send-bw", 65_536, 100) },
    ]);
}

#[test]
fn all_sizes_run() {
    run_all(&[
        Run { more: "-a", ..over_tap("read-bw", 0, 5) },
        Run { more: "-a -b", ..over_tap("send-bw", 0, 5) },
        Run { more: "-a", ..over_tap("write-lat", 0, 5) },
    ]);
}

#[test]
fn latency_is_measured_at_both_ends() {
    run_all(&[
        over_tap("write-lat", 2, 300),
        over_tap("send-lat", 2, 300),
        over_tap("send-lat", 5000, 100),
        over_tap("read-lat", 5000, 100),
    ]);
}

/// Few and short messages, because nothing keeps the sender of an unreliable connection from overrunning the emulated
/// receiver.
#[test]
fn unreliable_connections_carry_each_message() {
    run_all(&[
        Run { more: "-c UC", ..over_tap("send-bw", 1000, 100) },
        Run { more: "-c UC", ..over_tap("write-bw", 4096, 50) },
        Run { more: "-c UC", gid_index: 2, ..over_tap("send-lat", 5000, 100) },
        Run { more: "-c UC", ..over_tap("write-lat", 2, 300) },
    ]);
}

/// UC with one queue pair: perftest posts -n receives to the shared queue, whatever -q is, because a message of UC
/// without a receive is dropped, otherwise the run never ends.
#[test]
fn queue_pairs_share_receives() {
    run_all(&[
        Run { more: "--use-srq -r 64", qps: 4, ..over_tap("send-bw", 5000, 100) },
        Run { more: "--use-srq -c UC", ..over_tap("send-bw", 1000, 50) },
        Run { more: "--use-srq", ..over_tap("send-lat", 2, 300) },
    ]);
}

#[test]
fn tests_end_by_time() {
    run_all(&[
        Run { more: "-D 2", ..over_tap("write-bw", 65_536, 0) },
        Run { more: "-D 2", ..over_tap("send-bw", 65_536, 0) },
        Run { more: "-D 2 -b", ..over_tap("send-bw", 65_536, 0) },
        Run { more: "-D 2", ..over_tap("write-lat", 2, 0) },
        Run { more: "-D 2", ..over_tap("send-lat", 2, 0) },
    ]);
}

#[test]
fn tests_run_over_vhost_user() {
    let guest = guest();
    // Not as the client: the guest's link is up only while this side has its port open, and perftest's server needs the
    // link before it listens.
    for test in ["write-bw", "read-bw", "send-bw", "write-lat", "read-lat"] {
        Run { wire: Wire::Vhost, ..over_tap(test, 65_536, 100) }.we_serve(&guest);
    }
}

/// Runs a server here and a client there that contradict each other. Returns the output of the server.
fn contradict(ours: Run, guests: Run) -> String {
    let guest = guest();
    let server = Process::start(ours.ours(&guest).args(["--peer-timeout", "3"]));
    guest.namespace.wait_listen(PORT);
    let client = guests.guests(&guest, guests.wire.host_address());
    let server = server.finish(TIMEOUT);
    // Its own fate is its own matter.
    drop(client);
    assert!(!server.status.success(), "{server:?}");
    server.stderr
}

#[test]
fn options_that_differ_are_named() {
    let run = over_tap("write-bw", 4096, 50);
    let said = contradict(run, Run { qps: 2, ..run });
    assert!(said.contains("another one than before") && said.contains("the same test, -s or -a"), "{said}");
    let said =
        contradict(over_tap("send-bw", 4096, 50), Run { more: "-c UD", ..over_tap("send-bw", 1024, 50) });
    assert!(said.contains("nothing has come") && said.contains("leave out its -c"), "{said}");
}
