//! Several processes on one interface of the kernel, by af_packet.

use std::path::Path;
use std::time::Duration;

use lab::rng::SplitMix;
use roce::qp::PathMtu;
use roce::queue::WcStatus;
use tests::protocol::{Command, Load, Op, Tally};

use super::command::each;
use super::kill::check_messages;
use super::links::{Side, veth};
use super::pairs::{FAULTS, ends, impatient};
use super::programs::rows;
use super::run::both;
use crate::live::{End, Peer, Process, Settings, TIMEOUT, compile, connect, library, run, scenarios, turn};

/// Messages outstanding of each process under load.
const OUTSTANDING: u64 = 16;
/// For how long each process posts messages.
const LOAD: Duration = Duration::from_millis(500);
/// Longest time from the last post to the last completion: eight processes share the processors.
const PATIENCE: Duration = Duration::from_secs(60);

/// Two ends on one interface, and the other end of the link.
fn shared(mtu_bytes: usize) -> ([Side; 2], Side) {
    let [near, far] = veth("af_packet", mtu_bytes);
    ([near.twin(), near], far)
}

fn start(side: &Side) -> End {
    End::new(Peer::start(side.command(Path::new(Peer::program())).arg(&side.port)), side.gid_index)
}

/// Checks that no process received a packet of another.
fn check_drops<'a>(ends: impl IntoIterator<Item = &'a mut End>) {
    for end in ends {
        let counters = end.peer.counters();
        for name in ["foreign_qp", "wrong_mac", "wrong_source_mac", "not_roce"] {
            assert_eq!(counters.get(name), Some(&0), "{name}: {counters:?}");
        }
    }
}

/// The number of leases of QPN prefixes in the network namespace of `side`.
fn leases(side: &Side) -> usize {
    let sockets = run(side.command(Path::new("cat")).arg("/proc/self/net/unix"));
    sockets.lines().filter(|line| line.contains("@roce-qpn-")).count()
}

#[test]
fn two_processes_of_one_interface_exchange_messages_of_every_kind() {
    let _turn = turn();
    let (sides, _far) = shared(4200);
    let settings = Settings::at(PathMtu::Mtu4096);
    let [mut a, mut b] = ends(&sides, &[]);
    for scenario in [scenarios::every_op_and_len, scenarios::a_mix] {
        scenario(&mut a, &mut b, &settings);
        scenario(&mut b, &mut a, &settings);
    }
    check_drops([&mut a, &mut b]);
    assert_eq!(a.qp_reply().gid, b.qp_reply().gid);
    assert_ne!(a.qp_reply().qpn >> 18, b.qp_reply().qpn >> 18);
}

#[test]
fn lost_packets_between_two_processes_of_one_interface_are_retransmitted() {
    let _turn = turn();
    let (sides, _far) = shared(1500);
    let [mut a, mut b] = ends(&sides, FAULTS);
    scenarios::a_mix(&mut a, &mut b, &impatient(PathMtu::Mtu1024));
    scenarios::a_mix(&mut b, &mut a, &impatient(PathMtu::Mtu1024));
    assert!([&mut a, &mut b].into_iter().all(|end| end.peer.counter("retransmitted_pkts") > 0));
}

#[test]
fn both_ends_of_perf_run_on_one_interface() {
    let _turn = turn();
    let (sides, _far) = shared(4200);
    let tests = ["send-bw --verify", "write-bw --verify -b", "read-bw --verify", "send-lat --verify"];
    for test in tests.into_iter().chain(["send-bw -c UC", "write-lat -c UC"]) {
        // All packets of an unreliable connection fit in the receiver's ring of 512 frames.
        let args = format!("perf {test} -n 200 -s 5000 --json");
        for host in ["localhost", "10.0.0.1"] {
            for output in each(&sides, host, 18660, [&args, &args]) {
                let report: serde_json::Value = serde_json::from_str(&output.stdout).expect("it is JSON");
                assert_eq!(report["lost_messages"], 0, "{output:?}");
                assert_eq!(report["device_counters"]["drops"]["foreign_qp"], 0, "{output:?}");
            }
        }
    }
    assert_eq!(leases(&sides[0]), 0);
}

#[test]
fn both_ends_of_perftest_run_on_one_interface() {
    let _turn = turn();
    let (sides, _far) = shared(4200);
    for program in [
        "ib_write_bw",
        "ib_send_bw -e",
        "ib_read_lat",
        "ib_send_bw -c UC -r 512 -s 4096",
        "ib_send_lat -c UD",
    ] {
        let program = format!("{program} -n 200 -F -x {}", sides[0].gid_index);
        let [_, client] = both(&sides, "10.0.0.1", 18661, "", &program);
        assert!(rows(&client.stdout).iter().any(|row| row[1] == "200"), "{program}: {client:?}");
    }
}

/// The receiver of the datagram has no address handle, and so far no connection to its own GID.
#[test]
fn a_process_receives_datagrams_of_another_process_of_its_interface() {
    let _turn = turn();
    let (sides, _far) = shared(1500);
    let directory = crate::live::shared_dir();
    let program = compile("datagram", &directory.path().join("datagram"));
    let start = |side: &Side, args: &[&str]| {
        let mut command = side.command(&program);
        command.args(args).env("LD_PRELOAD", library()).env("ROCE_PORT", &side.port);
        Process::start(&mut command)
    };
    let mut receiver = start(&sides[0], &["receive"]);
    let qpn = receiver.line(TIMEOUT);
    start(&sides[1], &["send", &qpn]).finish(TIMEOUT).expect_success("datagram send");
    receiver.finish(TIMEOUT).expect_success("datagram receive");
}

#[test]
fn an_interface_is_not_opened_by_xdp_sockets_while_another_process_has_it_open() {
    let _turn = turn();
    let (sides, _far) = shared(1500);
    let _open = start(&sides[0]);
    let mut command = sides[1].command(Path::new(Peer::program()));
    let refused = Process::start(command.arg("af_xdp:v0")).finish(TIMEOUT);
    assert!(!refused.status.success() && refused.stderr.contains("as af_packet:v0 in each"), "{refused:?}");
}

/// Eight processes: 0 to 5 on one interface, 6 and 7 on the far end of its link.
struct Eight {
    sides: Vec<Side>,
    ends: Vec<End>,
}

/// Connected processes: two pairs on one interface, two with the far end.
const PAIRS: [(usize, usize); 4] = [(0, 1), (2, 3), (4, 6), (5, 7)];

impl Eight {
    fn new() -> Eight {
        let ([near, _], far) = shared(4200);
        let sides: Vec<Side> = (0..8).map(|end| if end < 6 { near.twin() } else { far.twin() }).collect();
        let ends = sides.iter().map(start).collect();
        let mut eight = Eight { sides, ends };
        PAIRS.into_iter().for_each(|pair| eight.with_pair(pair, |a, b| connect(a, b, &Settings::default())));
        eight
    }

    fn with_pair(&mut self, (a, b): (usize, usize), act: impl FnOnce(&mut End, &mut End)) {
        let [a, b] = self.ends.get_disjoint_mut([a, b]).expect("two ends");
        act(a, b);
    }

    /// Makes both processes of each pair write to and read from the other at once. The peer of a process in `victims`,
    /// which will be killed, posts until its connection fails.
    fn give_load(&mut self, victims: &[usize]) {
        for (a, b) in PAIRS.into_iter().flat_map(|(a, b)| [(a, b), (b, a)]) {
            let time = if victims.contains(&b) { PATIENCE } else { LOAD };
            self.with_pair((a, b), |own, other| {
                own.peer.give(&Command::Load(Load {
                    qps: vec![own.qp_reply().qp],
                    mr: own.mr.mr,
                    ops: vec![Op::Write, Op::Read],
                    len_bytes: 32 << 10,
                    remote_addr: other.mr.addr,
                    rkey: other.mr.rkey,
                    outstanding: OUTSTANDING,
                    seed: a as u64,
                    post_millis: time.as_millis() as u64,
                    wait_millis: PATIENCE.as_millis() as u64,
                }));
            });
        }
    }

    fn tally(&mut self, end: usize) -> Tally {
        let tallies: Vec<Tally> = self.ends[end].peer.answer(2 * PATIENCE).expect("a load is answered");
        tallies.into_iter().next().expect("a queue pair")
    }

    fn check_tally(&mut self, end: usize) {
        let tally = self.tally(end);
        let done = tally.sends_with(WcStatus::Success);
        assert!(!tally.has_failed() && done == tally.sends && done > OUTSTANDING, "{end}: {tally:?}");
    }

    fn check_exchange(&mut self, pair: (usize, usize)) {
        self.with_pair(pair, |a, b| {
            connect(a, b, &Settings::default());
            let mut rng = SplitMix::new(1);
            check_messages(a, b, &mut rng);
            check_messages(b, a, &mut rng);
        });
    }
}

#[test]
fn eight_processes_send_at_once() {
    let _turn = turn();
    let mut eight = Eight::new();
    assert_eq!((leases(&eight.sides[0]), leases(&eight.sides[7])), (6, 2));
    eight.give_load(&[]);
    (0..8).for_each(|end| eight.check_tally(end));
    PAIRS.into_iter().for_each(|pair| eight.check_exchange(pair));
    check_drops(&mut eight.ends);
}

#[test]
fn processes_of_one_interface_outlive_the_kill_of_another() {
    let _turn = turn();
    let mut eight = Eight::new();
    let victims = [0, 4];
    eight.give_load(&victims);
    std::thread::sleep(LOAD / 4);
    for victim in victims {
        eight.ends[victim].peer.kill();
    }
    for end in [2, 3, 5, 7] {
        eight.check_tally(end);
    }
    for end in [1, 6] {
        assert_eq!(eight.tally(end).sends_with(WcStatus::RetryExcErr), 1, "the peer of {end} was killed");
    }
    assert_eq!(leases(&eight.sides[0]), 4, "the kernel frees the lease of a process that is killed");
    for victim in victims {
        eight.ends[victim] = start(&eight.sides[victim]);
    }
    assert_eq!(leases(&eight.sides[0]), 6);
    for pair in PAIRS.into_iter().chain([(0, 4), (4, 7), (2, 6)]) {
        eight.check_exchange(pair);
    }
}
