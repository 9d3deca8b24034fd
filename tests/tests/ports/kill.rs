//! Processes that are killed by SIGKILL at random moments: completions at the surviving peer, use of both ports
//! afterwards, and files left behind.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

use lab::rng::SplitMix;
use roce::qp::ConnAttr;
use roce::queue::WcStatus;
use tests::protocol::{Command, Connect, Done, Load, Op, QpReply, Tally};

use super::leftovers::{files, list};
use super::links::{Side, memif_in_own_directories, veth_from, vhost_in_own_directories};
use super::run::launch;
use crate::live::{End, Namespace, Peer, Settings, TARGET, TIMEOUT, compile, connect, programs, turn};

/// Queue pairs of each process.
const QPS: usize = 3;
/// Work requests outstanding in each queue of a queue pair.
const OUTSTANDING: u64 = 16;
/// Longest message, in bytes.
const LEN_BYTES: u32 = 32 << 10;
/// For how long sends are posted, unless the connection ends.
const ENDLESS: Duration = Duration::from_secs(60);
/// Bytes of a message between a process that survived and the process after the kill.
const CHECK_BYTES: usize = 20_000;

/// Moments of a kill.
#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Of the next process on the same port, while that process opens its port.
    Open,
    /// While the queue pairs of both processes are connected.
    Connect,
    /// While both processes send.
    Load,
    /// While the process destroys its objects and closes its port.
    Close,
}

impl Moment {
    const ALL: [Moment; 4] = [Moment::Open, Moment::Connect, Moment::Load, Moment::Close];

    /// Longest time from the start of the action until the kill. `open`: the time that a process needs to open its
    /// port.
    fn longest(self, open: Duration) -> Duration {
        match self {
            Moment::Open => open,
            Moment::Connect => Duration::from_millis(10),
            Moment::Load => Duration::from_millis(60),
            Moment::Close => Duration::from_millis(40),
        }
    }
}

/// Connections under load. A process that is not scheduled for 100 ms loses its connections, which ends a load sooner.
fn impatient() -> ConnAttr {
    ConnAttr { timeout: 13, retry_count: 2, min_rnr_timer: 1, rnr_retry: 7, ..ConnAttr::default() }
}

/// Longest time from the death of the peer to the last completion: each retry takes at most four local ACK timeouts
/// (IBA 9.9.2.1.1); and time in which the process is not scheduled on a busy machine.
fn patience(conn: &ConnAttr) -> Duration {
    const BUSY: Duration = Duration::from_secs(10);
    let timeout_nanos = 4_096_u64 << conn.timeout;
    BUSY + Duration::from_nanos(4 * timeout_nanos * u64::from(conn.retry_count + 1))
}

fn from_environment(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(value) => value.parse().unwrap_or_else(|error| panic!("{name}={value}: {error}")),
        Err(_) => default,
    }
}

fn up_to(rng: &mut SplitMix, longest: Duration) -> Duration {
    Duration::from_micros(rng.up_to(longest.as_micros() as usize) as u64)
}

/// The program of both processes.
#[derive(Clone, Copy, Debug)]
enum Program {
    /// Of the interface in Rust.
    Rust,
    /// Of the C interface, under `roce run`: tests/c/peer.c.
    C,
}

/// The program of [`Program::C`], which is compiled by the first test of a run that needs it.
static C_PEER: LazyLock<PathBuf> = LazyLock::new(|| compile("peer", &programs().join("c-peer")));

impl Program {
    fn command(self, side: &Side) -> std::process::Command {
        match self {
            Program::Rust => {
                let mut command = side.command(Path::new(Peer::program()));
                command.arg(&side.port);
                command
            }
            Program::C => launch(side, "", &[side.bring(&C_PEER).to_str().expect("a path in UTF-8")]),
        }
    }

    fn start(self, side: &Side) -> End {
        End::new(Peer::start(&mut self.command(side)), side.gid_index)
    }
}

/// Names of the files that a test brings to a side.
const BROUGHT: [&str; 4] = ["/tmp/roce-peer", "/tmp/c-peer", "/tmp/roce", "/tmp/libroce_verbs.so"];

/// Two processes on two ports. A process that was killed is replaced by a new process on the same port.
struct Pair {
    program: Program,
    sides: [Side; 2],
    ends: [End; 2],
    /// Queue pairs of each process, connected to those of the other with the same index.
    qps: [Vec<QpReply>; 2],
    /// Time that a process needs to open its port.
    open: Duration,
    /// Files and sockets while two processes have their ports open.
    files: BTreeSet<String>,
    /// The process whose port is of no use after the death of the other process, if there is one.
    dependent: Option<usize>,
}

impl Pair {
    fn new(program: Program, sides: [Side; 2], dependent: Option<usize>) -> Pair {
        let began = Instant::now();
        let ends = [program.start(&sides[0]), program.start(&sides[1])];
        let open = began.elapsed() / 2;
        let (qps, files) = ([Vec::new(), Vec::new()], BTreeSet::new());
        let mut pair = Pair { program, sides, ends, qps, open, files, dependent };
        pair.check_exchange(0);
        pair.files = pair.list();
        pair
    }

    fn list(&self) -> BTreeSet<String> {
        list(&self.sides, &[0, 1].map(|end: usize| self.ends[end].peer.id()))
    }

    /// Kills a process, and checks the surviving process and the next process on the same port.
    fn kill(&mut self, number: u64, rng: &mut SplitMix) {
        let victim = rng.up_to(1);
        let survivor = 1 - victim;
        let moment = match Moment::ALL[rng.up_to(Moment::ALL.len() - 1)] {
            // The surviving process would wait for a link that does not come up again.
            Moment::Connect if self.dependent == Some(survivor) => Moment::Load,
            moment => moment,
        };
        let delay = up_to(rng, moment.longest(self.open));
        eprintln!("kill {number}: {moment:?} of end {victim}, after {delay:?}");
        self.create_qps();
        self.give_connects();
        if let Moment::Connect = moment {
            sleep(delay);
            self.ends[victim].peer.kill();
            // Now, because a memif has no link until the next process has opened its port.
            self.ends[victim] = self.program.start(&self.sides[victim]);
            let connected = self.connected(survivor);
            self.give_load(survivor, connected, rng, ENDLESS);
            self.check_completions(survivor);
        } else {
            self.kill_under_load(victim, moment, delay, rng);
            self.check_completions(survivor);
            if let Moment::Open = moment {
                let mut opening = Peer::start(&mut self.program.command(&self.sides[victim]));
                sleep(delay);
                opening.kill();
            }
            self.ends[victim] = self.program.start(&self.sides[victim]);
        }
        for qp in &self.qps[survivor] {
            let Done {} = self.ends[survivor].peer.tell(&Command::Destroy { qp: qp.qp });
        }
        if self.dependent == Some(survivor) {
            self.ends[survivor].peer.end();
            self.ends[survivor] = self.program.start(&self.sides[survivor]);
        }
        let now = self.list();
        let left: Vec<_> = now.symmetric_difference(&self.files).collect();
        assert!(left.is_empty(), "left behind, or missing: {left:?}");
        self.check_exchange(number);
    }

    fn create_qps(&mut self) {
        self.qps = [0, 1].map(|end: usize| {
            let command = Command::Qp { gid_index: self.sides[end].gid_index, depth: OUTSTANDING as u32 };
            (0..QPS).map(|_| self.ends[end].peer.tell(&command)).collect()
        });
    }

    fn give_connects(&mut self) {
        for number in 0..QPS {
            for end in 0..2 {
                let [own, other] = [end, 1 - end].map(|end| &self.qps[end][number]);
                let gid_index = self.sides[end].gid_index;
                let connect = Connect::new(own.qp, other.clone(), gid_index, &impatient());
                self.ends[end].peer.give(&Command::Connect(connect));
            }
        }
    }

    /// Returns which queue pairs of `end` are connected.
    fn connected(&mut self, end: usize) -> Vec<usize> {
        let mut connected = Vec::new();
        for qp in &self.qps[end] {
            match self.ends[end].peer.answer(TIMEOUT) {
                Ok(Done {}) => connected.push(qp.qp),
                Err(reason) => assert!(reason.contains("no neighbour answers"), "{reason}"),
            }
        }
        connected
    }

    fn give_load(&mut self, end: usize, qps: Vec<usize>, rng: &mut SplitMix, duration: Duration) {
        let (own, other) = (self.ends[end].mr, self.ends[1 - end].mr);
        self.ends[end].peer.give(&Command::Load(Load {
            qps,
            mr: own.mr,
            ops: Op::ALL.to_vec(),
            len_bytes: LEN_BYTES,
            remote_addr: other.addr,
            rkey: other.rkey,
            outstanding: OUTSTANDING,
            seed: rng.bits(),
            post_millis: duration.as_millis() as u64,
            wait_millis: patience(&impatient()).as_millis() as u64,
        }));
    }

    /// Puts load on both processes, and kills one of them.
    fn kill_under_load(&mut self, victim: usize, moment: Moment, delay: Duration, rng: &mut SplitMix) {
        let is_closing = matches!(moment, Moment::Close);
        for end in 0..2 {
            let qps = self.connected(end);
            assert_eq!(qps.len(), QPS, "both processes run");
            let duration = if is_closing && end == victim { delay } else { ENDLESS };
            self.give_load(end, qps, rng, duration);
        }
        let peer = &mut self.ends[victim].peer;
        if is_closing {
            let _: Vec<Tally> = peer.answer(TIMEOUT).expect("a load is answered");
            peer.close();
        }
        sleep(delay);
        peer.kill();
    }

    /// Checks that all work requests of the surviving process have completed, and how.
    fn check_completions(&mut self, survivor: usize) {
        let killed_at = Instant::now();
        let tallies: Vec<Tally> = self.ends[survivor].peer.answer(TIMEOUT).expect("a load is answered");
        let elapsed = killed_at.elapsed();
        assert!(elapsed <= patience(&impatient()), "{elapsed:?} after the kill: {tallies:?}");
        for tally in tallies {
            assert_eq!((tally.sends_outstanding(), tally.recvs_outstanding()), (0, 0), "{tally:?}");
            assert_eq!(tally.sends_with(WcStatus::RetryExcErr), 1, "the oldest send: {tally:?}");
            let only = |ended: &BTreeMap<u32, u64>, known: &[WcStatus]| {
                ended.keys().all(|status| known.iter().any(|known| *known as u32 == *status))
            };
            let [success, retry, flush] = [WcStatus::Success, WcStatus::RetryExcErr, WcStatus::WrFlushErr];
            assert!(only(&tally.sends_ended, &[success, retry, flush]), "{tally:?}");
            assert!(only(&tally.recvs_ended, &[success, flush]), "{tally:?}");
        }
    }

    /// Moves a message of each operation in each direction, over new queue pairs.
    fn check_exchange(&mut self, seed: u64) {
        let [near, far] = &mut self.ends;
        connect(near, far, &Settings::default());
        let mut rng = SplitMix::new(seed);
        check_messages(near, far, &mut rng);
        check_messages(far, near, &mut rng);
    }

    /// Ends both processes, and checks that no file and no socket is left.
    fn end(mut self) {
        for end in &mut self.ends {
            end.peer.end();
        }
        let left = files(&self.list());
        let expected = files(&self.files).into_iter().filter(|name| BROUGHT.contains(&&**name)).collect();
        assert_eq!(left, expected, "left behind when both processes have ended");
    }
}

/// One message of each operation from `from` to `to`, for a READ in the other direction.
pub(super) fn check_messages(from: &mut End, to: &mut End, rng: &mut SplitMix) {
    for op in Op::ALL {
        let bytes = rng.bytes(CHECK_BYTES);
        let (source, target) = if op == Op::Read { (&mut *to, &mut *from) } else { (&mut *from, &mut *to) };
        source.write(0, &bytes);
        target.write(TARGET, &vec![0; CHECK_BYTES]);
        if op.takes_receive() {
            to.post_recv(1, TARGET, CHECK_BYTES);
        }
        let (local, remote) = if op == Op::Read { (TARGET, 0) } else { (0, TARGET) };
        let request = from.request(2, op, local, CHECK_BYTES, to, remote);
        from.post_send(vec![request]);
        let sent = from.poll_one();
        assert!(sent.is(WcStatus::Success), "{op:?}: {sent:?}");
        if op.takes_receive() {
            let received = to.poll_one();
            assert!(received.is(WcStatus::Success), "{op:?}: {received:?}");
        }
        let target = if op == Op::Read { &mut *from } else { &mut *to };
        assert!(target.read(TARGET, CHECK_BYTES) == bytes, "{op:?}: other bytes than were sent");
    }
}

/// Kills processes: as many as the environment variable `ROCE_KILLS` demands, or `kills` if it is unset.
fn kill_repeatedly(program: Program, kills: u64, sides: [Side; 2], dependent: Option<usize>) {
    let _turn = turn();
    let kills = from_environment("ROCE_KILLS", kills);
    let seed = from_environment("ROCE_KILL_SEED", 1);
    eprintln!("{kills} kills over {}; ROCE_KILL_SEED={seed} repeats them", sides[0].port);
    let mut pair = Pair::new(program, sides, dependent);
    for number in 1..=kills {
        pair.kill(number, &mut SplitMix::stream(seed, number));
    }
    pair.end();
}

#[test]
fn memif_with_an_abstract_socket() {
    kill_repeatedly(Program::Rust, 20, memif_in_own_directories("@kill"), None);
}

#[test]
fn memif_with_a_socket_in_the_runtime_directory() {
    kill_repeatedly(Program::Rust, 10, memif_in_own_directories("kill"), None);
}

#[test]
fn memif_with_a_socket_at_a_path() {
    kill_repeatedly(Program::Rust, 10, memif_in_own_directories("/tmp/kill.sock"), None);
}

#[test]
fn af_packet() {
    kill_repeatedly(Program::Rust, 20, veth_from(Namespace::with_own_directories(), "af_packet", 4200), None);
}

#[test]
fn memif_with_an_abstract_socket_through_the_c_interface() {
    kill_repeatedly(Program::C, 10, memif_in_own_directories("@kill-c"), None);
}

#[test]
fn af_packet_through_the_c_interface() {
    kill_repeatedly(Program::C, 10, veth_from(Namespace::with_own_directories(), "af_packet", 4200), None);
}

/// A vhost port is of use after the death of its peer, but DPDK's virtio-user driver does not connect again.
#[test]
fn vhost() {
    const VIRTIO_USER: usize = 1;
    kill_repeatedly(Program::Rust, 10, vhost_in_own_directories(), Some(VIRTIO_USER));
}
