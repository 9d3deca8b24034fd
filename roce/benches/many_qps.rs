//! Many connected queue pairs of one device: CPU time of a 64 B SEND from post to completion, both ends on one core,
//! with 128 queue pairs active in turn over all of them; times of control operations beside them.
//!
//! `cargo bench -p roce --bench many_qps` prints the table.

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::{Duration, Instant};

use common::{End, conn};
use roce::engine::EngineConfig;
use roce::id::{Mac, Qpn};
use roce::mem::{Access, Memory};
use roce::port::loopback::LoopbackPort;
use roce::qp::{AddressVector, ConnAttr, PathMtu, QpAttr, QpInit, QpState};
use roce::queue::{
    CqPoller, RecvPoster, RecvRequest, SendData, SendFlags, SendOp, SendPoster, SendRequest, Sge,
};
use roce::recovery::RecoveryScheme;
use roce::start;

/// Queue pairs with a SEND in flight.
const ACTIVE_QPS: usize = 128;
/// Numbers of connected queue pairs of the rows.
const ROWS: [usize; 4] = [128, 1_024, 4_096, 20_000];
/// Rounds of the turns, of which the table shows the median.
const TURNS: usize = 9;
/// SENDs of one turn.
const MESSAGES: usize = 1 << 16;
const MESSAGE_BYTES: u32 = 64;
/// Depth of both queues of each queue pair: the default of the verbs API.
const DEPTH: u32 = 128;
/// Advance of the clock per poll, in nanoseconds.
const POLL_NANOS: u64 = 100;

struct Queues {
    qpn: Qpn,
    send: SendPoster,
    recv: RecvPoster,
}

struct Host {
    end: End<LoopbackPort>,
    poller: CqPoller,
    qps: Vec<Queues>,
    sge: Sge,
}

impl Host {
    fn new(mut end: End<LoopbackPort>, count: usize) -> Self {
        let (cq, poller) = end.engine.create_cq(4 * ACTIVE_QPS as u32).expect("a completion queue");
        let init = QpInit {
            pd: end.pd,
            send_cq: cq,
            recv_cq: cq,
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_bytes: 0,
            signal_all: true,
        };
        let memory = Memory::alloc(4096);
        let (lkey, _) = end
            .engine
            .register(end.pd, memory.clone(), memory.addr(), Access::LOCAL_WRITE)
            .expect("a memory region");
        let sge = Sge { addr: memory.addr(), len_bytes: MESSAGE_BYTES, lkey };
        let create = |_| {
            let handles = end.engine.create_qp(&init).expect("a queue pair");
            Queues { qpn: handles.qpn, send: handles.send, recv: handles.recv }
        };
        let qps = (0..count).map(create).collect();
        Host { end, poller, qps, sge }
    }

    fn connect(&mut self, peer: &Host, conn: &ConnAttr) {
        let path = AddressVector::new(peer.end.gid, 1);
        for (own, peer) in self.qps.iter().zip(&peer.qps) {
            for attr in
                [conn.to_init(), conn.to_rtr(path, peer.qpn, start::psn(7)), conn.to_rts(start::psn(7))]
            {
                self.end.engine.modify_qp(own.qpn, &attr).expect("a transition");
            }
        }
    }
}

struct Many {
    a: Host,
    b: Host,
    next: usize,
    nanos: u64,
}

impl Many {
    fn new(count: usize, conn: &ConnAttr) -> Self {
        let change = |config: &mut EngineConfig| config.limits.max_qps = 20_001;
        let (a, b) = common::pair_of(PathMtu::Mtu4096, 4096, change);
        let (mut a, mut b) = (Host::new(a, count), Host::new(b, count));
        a.connect(&b, conn);
        b.connect(&a, conn);
        let mut many = Many { a, b, next: 0, nanos: 0 };
        // Each queue pair has carried a message, so all memory that a message needs is allocated.
        (0..count.div_ceil(ACTIVE_QPS)).for_each(|_| many.round());
        many
    }

    /// A SEND on each of the next `ACTIVE_QPS` queue pairs, from post to completion.
    fn round(&mut self) {
        for _ in 0..ACTIVE_QPS {
            let index = self.next;
            self.next = (index + 1) % self.a.qps.len();
            let wr_id = index as u64;
            self.b.qps[index].recv.post(&RecvRequest { wr_id, sges: &[self.b.sge] }).expect("room");
            let data = SendData::Sges(&[self.a.sge]);
            let send = SendRequest { wr_id, op: SendOp::Send, flags: SendFlags::default(), data };
            self.a.qps[index].send.post(&send).expect("room");
        }
        let mut left = [ACTIVE_QPS; 2];
        while left != [0; 2] {
            for (host, left) in [&mut self.a, &mut self.b].into_iter().zip(&mut left) {
                self.nanos += POLL_NANOS;
                host.end.poll(self.nanos);
                while host.poller.pop().is_some() {
                    *left -= 1;
                }
            }
        }
    }

    fn turn(&mut self) -> Duration {
        let start = Instant::now();
        (0..MESSAGES / ACTIVE_QPS).for_each(|_| self.round());
        start.elapsed()
    }
}

/// Calls per sample of a control operation.
const CALLS: u32 = 200;

fn micros_per_call(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
}

impl Many {
    fn poll(&mut self) -> bool {
        self.nanos += POLL_NANOS;
        self.a.end.poll(self.nanos).more
    }

    /// Prints the times of control operations; afterwards all queue pairs of `a` are in error.
    fn print_control(&mut self) {
        let end = &mut self.a.end;
        let cq = micros_per_call(|| {
            let (cq, _) = end.engine.create_cq(16).expect("a completion queue");
            end.engine.destroy_cq(cq).expect("no user");
        });
        let pd = micros_per_call(|| {
            let pd = end.engine.alloc_pd().expect("a protection domain");
            end.engine.dealloc_pd(pd).expect("no user");
        });
        let memory = Memory::alloc(64);
        let mr = micros_per_call(|| {
            let registered = end.engine.register(end.pd, memory.clone(), 0, Access::NONE);
            end.engine.deregister(registered.expect("a memory region").0).expect("it exists");
        });
        println!("create and destroy: CQ {cq:.2} us, PD {pd:.2} us, MR {mr:.2} us");
        let peer = self.b.end.gid.ip();
        self.a.end.engine.neighbour_mut().set_neighbour(peer, Mac([2, 0, 0, 0, 0, 9]));
        let mut polls = Vec::new();
        let mut more = true;
        while more {
            let start = Instant::now();
            more = self.poll();
            polls.push(start.elapsed().as_secs_f64() * 1e6);
        }
        polls.sort_unstable_by(f64::total_cmp);
        let at = |percent: usize| polls[(polls.len() - 1) * percent / 100];
        println!("a neighbour moved: {} polls, median {:.1} us, 99 % {:.1} us", polls.len(), at(50), at(99));
        let idle = 1e3 * micros_per_call(|| assert!(!self.poll()));
        for index in 0..self.a.qps.len() {
            let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
            self.a.end.engine.modify_qp(self.a.qps[index].qpn, &attr).expect("a transition");
        }
        while let Some(due) = self.a.end.engine.next_deadline() {
            self.nanos = self.nanos.max(due.nanos_since(start::INSTANT));
            self.poll();
        }
        let in_error = 1e3 * micros_per_call(|| assert!(!self.poll()));
        println!("idle poll: {idle:.0} ns, with all queue pairs in error {in_error:.0} ns");
    }
}

fn main() {
    let recovery = match std::env::var("RECOVERY").as_deref() {
        Ok("selective") => RecoveryScheme::SelectiveRepeat { window_pkts: 256 },
        Ok("go-back-n") => RecoveryScheme::GoBackN,
        _ => RecoveryScheme::default(),
    };
    let conn = ConnAttr { recovery, ..conn(PathMtu::Mtu4096) };
    let mut rows: Vec<Many> = ROWS.iter().map(|count| Many::new(*count, &conn)).collect();
    let mut samples = vec![Vec::new(); ROWS.len()];
    for _ in 0..TURNS {
        for (many, samples) in rows.iter_mut().zip(&mut samples) {
            samples.push(many.turn());
        }
    }
    let nanos: Vec<f64> = samples
        .iter_mut()
        .map(|samples| {
            samples.sort_unstable();
            samples[TURNS / 2].as_nanos() as f64 / MESSAGES as f64
        })
        .collect();
    println!("{:>10} {:>12} {:>10}", "QPs", "ns/message", "share");
    for (count, nanos_each) in ROWS.iter().zip(&nanos) {
        println!("{count:>10} {nanos_each:>12.0} {:>10.2}", nanos[0] / nanos_each);
    }
    let (many, count) = (rows.last_mut().expect("a row"), ROWS[ROWS.len() - 1]);
    println!("\nbeside {count} queue pairs");
    many.print_control();
}
