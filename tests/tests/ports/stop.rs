//! Processes that are stopped by SIGSTOP and continued by SIGCONT: completions and retransmissions at both ends.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command as Program;
use std::thread::sleep;
use std::time::Duration;

use lab::rng::SplitMix;
use roce::qp::ConnAttr;
use roce::queue::WcStatus;
use roce::recovery::RecoveryScheme;
use tests::protocol::{Command, Connect, Done, Load, Op, QpReply, Tally};

use super::kill::check_messages;
use super::links::{Side, memif, unique, veth};
use crate::live::{End, Peer, Settings, TIMEOUT, connect, run, turn};

/// How long a process is stopped.
const STOP: Duration = Duration::from_secs(2);
/// Local ACK timeout of 1.07 s: all retries of the default retry count together take longer than [`STOP`].
const PATIENT_TIMEOUT: u8 = 18;
/// Time of load before a stop.
const BEFORE: Duration = Duration::from_millis(200);
/// Time of load after a stop.
const AFTER: Duration = Duration::from_millis(300);
/// Longest message, in bytes.
const LEN_BYTES: u32 = 32 << 10;
/// Work requests outstanding in each queue of a queue pair.
const OUTSTANDING: u64 = 16;
/// Queue pairs whose packets do not fill the ring of a memif.
const FEW: usize = 2;
/// Queue pairs whose packets fill the ring of a memif.
const MANY: usize = 32;
/// Retransmitted packets of a queue pair per stop, at most: four windows. A storm would have many more.
const RETRANSMISSIONS_MAX: u64 = 2048;
/// Probes of a queue pair per stop, at most. The waits between the probes of a stop double, so they are about 12; others
/// are sent in the half second of load without a stop, where a process waits for a processor. If the waits did not
/// double, a probe each 100 us would make 20,000.
const PROBES_MAX: u64 = 1_000;
/// Periods of a CPU quota, of 100 ms each.
const PERIODS: u32 = 20;

/// Sends a signal to the process of an end.
fn signal(end: &End, name: &str) {
    run(Program::new("kill").args([format!("-{name}"), end.peer.id().to_string()]));
}

fn stop_for(end: &End, time: Duration) {
    signal(end, "STOP");
    sleep(time);
    signal(end, "CONT");
}

fn start(sides: &[Side; 2]) -> [End; 2] {
    [0, 1].map(|number: usize| {
        let side = &sides[number];
        let mut command = side.command(Peer::program().as_ref());
        End::new(Peer::start(command.arg(&side.port)), side.gid_index)
    })
}

/// Connects `count` queue pairs of each end, and returns their numbers.
fn connect_qps(ends: &mut [End; 2], sides: &[Side; 2], conn: &ConnAttr, count: usize) -> [Vec<usize>; 2] {
    let qps: [Vec<QpReply>; 2] = [0, 1].map(|end: usize| {
        let command = Command::Qp { gid_index: sides[end].gid_index, depth: OUTSTANDING as u32 };
        (0..count).map(|_| ends[end].peer.tell(&command)).collect()
    });
    for (near, far) in qps[0].iter().zip(&qps[1]) {
        for (end, [own, other]) in [[near, far], [far, near]].into_iter().enumerate() {
            let connect = Connect::new(own.qp, other.clone(), sides[end].gid_index, conn);
            let Done {} = ends[end].peer.tell(&Command::Connect(connect));
        }
    }
    qps.map(|qps| qps.iter().map(|qp| qp.qp).collect())
}

/// Puts load on both ends.
fn give_loads(ends: &mut [End; 2], qps: &[Vec<usize>; 2], time: Duration) {
    let [near, far] = [ends[0].mr, ends[1].mr];
    for ((end, qps), (own, other)) in ends.iter_mut().zip(qps).zip([(near, far), (far, near)]) {
        end.peer.give(&Command::Load(Load {
            qps: qps.clone(),
            mr: own.mr,
            ops: vec![Op::Write, Op::Read],
            len_bytes: LEN_BYTES,
            remote_addr: other.addr,
            rkey: other.rkey,
            outstanding: OUTSTANDING,
            seed: 1,
            post_millis: time.as_millis() as u64,
            wait_millis: TIMEOUT.as_millis() as u64 / 2,
        }));
    }
}

/// Puts load on both ends, and stops one of them meanwhile.
fn stop_under_load(
    ends: &mut [End; 2],
    sides: &[Side; 2],
    conn: &ConnAttr,
    count: usize,
    stopped: usize,
) -> [Vec<Tally>; 2] {
    let qps = connect_qps(ends, sides, conn, count);
    give_loads(ends, &qps, BEFORE + STOP + AFTER);
    sleep(BEFORE);
    stop_for(&ends[stopped], STOP);
    let tallies = [0, 1].map(|end: usize| ends[end].peer.answer(TIMEOUT).expect("a load is answered"));
    for (end, qps) in ends.iter_mut().zip(qps) {
        for qp in qps {
            let Done {} = end.peer.tell(&Command::Destroy { qp });
        }
    }
    tallies
}

fn check_exchange(ends: &mut [End; 2]) {
    let [near, far] = ends;
    connect(near, far, &Settings::default());
    check_messages(near, far, &mut SplitMix::new(1));
    check_messages(far, near, &mut SplitMix::new(2));
}

/// Counters of a device that grow at a retransmission, or at a probe.
fn retransmissions(end: &mut End) -> u64 {
    end.peer.counter("retransmitted_pkts")
}

fn probes(end: &mut End) -> u64 {
    end.peer.counter("tail_probes") + end.peer.counter("roce_adp_retrans_to")
}

/// Stops each end under load, once for a shorter and once for a longer time than the retries take.
fn stop_each_under_load(sides: &[Side; 2], recovery: RecoveryScheme, count: usize) {
    let _turn = turn();
    let mut ends = start(sides);
    for (stopped, timeout) in [(0, PATIENT_TIMEOUT), (1, PATIENT_TIMEOUT), (0, 14), (1, 14)] {
        let conn = ConnAttr { timeout, recovery, ..ConnAttr::default() };
        let before = [0, 1].map(|end: usize| (retransmissions(&mut ends[end]), probes(&mut ends[end])));
        let tallies = stop_under_load(&mut ends, sides, &conn, count, stopped);
        for end in 0..2 {
            let retransmitted = retransmissions(&mut ends[end]) - before[end].0;
            assert!(retransmitted <= RETRANSMISSIONS_MAX * count as u64, "{retransmitted} by end {end}");
            let probes = probes(&mut ends[end]) - before[end].1;
            assert!(probes <= PROBES_MAX * count as u64, "{probes} by end {end}");
            for tally in &tallies[end] {
                let all = BTreeMap::from([(WcStatus::Success as u32, tally.sends)]);
                assert_eq!(tally.sends_outstanding(), 0, "end {end}: {tally:?}");
                if timeout == PATIENT_TIMEOUT {
                    assert_eq!(tally.sends_ended, all, "end {end} of {stopped}");
                } else if end != stopped {
                    assert_eq!(tally.sends_with(WcStatus::RetryExcErr), 1, "end {end}: {tally:?}");
                }
            }
        }
        check_exchange(&mut ends);
    }
}

#[test]
fn a_connection_over_memif_outlives_a_stop_that_the_retries_outlast() {
    stop_each_under_load(&memif("stop"), ConnAttr::default().recovery, FEW);
}

/// The ring to the process that is stopped fills up, so that queue pairs have packets to send and no room.
#[test]
fn a_connection_over_a_full_memif_outlives_a_stop_that_the_retries_outlast() {
    stop_each_under_load(&memif("stop-full"), RecoveryScheme::GoBackN, MANY);
}

#[test]
fn a_connection_over_a_veth_pair_outlives_a_stop_that_the_retries_outlast() {
    stop_each_under_load(&veth("af_packet", 1500), ConnAttr::default().recovery, MANY);
}

/// Stops each end of a connection without outstanding work requests.
fn stop_each_idle(sides: &[Side; 2]) {
    let _turn = turn();
    let mut ends = start(sides);
    check_exchange(&mut ends);
    for stopped in 0..2 {
        let before = ends.each_mut().map(|end| retransmissions(end) + probes(end));
        stop_for(&ends[stopped], STOP);
        assert_eq!(ends.each_mut().map(|end| retransmissions(end) + probes(end)), before, "nothing was sent");
        let [near, far] = &mut ends;
        check_messages(near, far, &mut SplitMix::new(3));
        check_messages(far, near, &mut SplitMix::new(4));
    }
}

#[test]
fn an_idle_connection_over_memif_outlives_a_stop() {
    stop_each_idle(&memif("stop-idle"));
}

#[test]
fn an_idle_connection_over_a_veth_pair_outlives_a_stop() {
    stop_each_idle(&veth("af_packet", 1500));
}

/// Load on a few queue pairs of each end, for as many periods of 100 ms, while `stop` stops a process.
fn load_for_periods(ends: &mut [End; 2], sides: &[Side; 2], stop: impl FnOnce(&End)) {
    let qps = connect_qps(ends, sides, &ConnAttr::default(), FEW);
    give_loads(ends, &qps, PERIODS * Duration::from_millis(100));
    stop(&ends[0]);
    for end in ends {
        let tallies: Vec<Tally> = end.peer.answer(TIMEOUT).expect("a load is answered");
        for tally in tallies {
            assert_eq!(tally.sends_ended, BTreeMap::from([(WcStatus::Success as u32, tally.sends)]));
        }
    }
}

/// Stops a process for 80 ms of each 100 ms, as the kernel does with the processes of a cgroup whose CPU quota is 20 %.
#[test]
fn a_connection_outlives_stops_of_80_of_each_100_ms() {
    let _turn = turn();
    let sides = memif("stops");
    load_for_periods(&mut start(&sides), &sides, |end| {
        for _ in 0..PERIODS {
            stop_for(end, Duration::from_millis(80));
            sleep(Duration::from_millis(20));
        }
    });
}

/// A cgroup with a CPU quota of 20 %; removed when dropped, after its processes have ended.
struct Quota(PathBuf);

impl Quota {
    fn new() -> Quota {
        let is_version_2 = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
        let (root, file, quota) = match is_version_2 {
            true => ("/sys/fs/cgroup", "cpu.max", "20000 100000"),
            false => ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "20000"),
        };
        if is_version_2 {
            // If this fails, the file of the quota is missing.
            let _ = fs::write(format!("{root}/cgroup.subtree_control"), "+cpu");
        }
        let path = Path::new(root).join(unique("quota"));
        let made = fs::create_dir(&path).and_then(|()| fs::write(path.join(file), quota));
        let quota = Quota(path);
        made.unwrap_or_else(|error| {
            panic!("{error}: this test needs root, and the cgroup controller cpu below {root}")
        });
        quota
    }

    fn add(&self, end: &End) {
        fs::write(self.0.join("cgroup.procs"), end.peer.id().to_string()).expect("root may move a process");
    }

    /// Returns how often the kernel has stopped the processes.
    fn throttled(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("cpu.stat")).expect("of a controller cpu");
        let number = text.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        number.and_then(|number| number.parse().ok()).expect("a number")
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        // If this fails, a process has not ended, and an empty cgroup is left.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_connection_outlives_the_stops_of_a_cpu_quota() {
    let _turn = turn();
    let quota = Quota::new();
    let sides = memif("quota");
    let mut ends = start(&sides);
    load_for_periods(&mut ends, &sides, |end| quota.add(end));
    assert!(quota.throttled() >= u64::from(PERIODS) / 4, "the quota had no effect");
}
