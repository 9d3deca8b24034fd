//! Many connected queue pairs of one device, with both ends on one core. First, the CPU time of a 64 B SEND from post
//! to completion: the queue pairs send in round-robin order, 128 SENDs at a time. Then times of control operations.
//!
//! `cargo bench -p benches --bench many_qps` prints the table.

mod flow;

use std::time::{Duration, Instant};

use flow::conn;
use flow::many::{ACTIVE_QPS, Many};
use roce::id::Mac;
use roce::mem::{Access, Memory};
use roce::qp::{ConnAttr, PathMtu, QpAttr, QpState};
use roce::recovery::RecoveryScheme;
use roce::start;

/// Connected queue pairs in each row of the table.
const ROWS: [usize; 4] = [128, 1_024, 4_096, 20_000];
/// Samples per row; the table shows the median.
const TURNS: usize = 9;
/// SENDs per sample.
const MESSAGES: usize = 1 << 16;
/// Calls per sample of a control operation.
const CALLS: u32 = 200;

fn micros_per_call(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..CALLS).for_each(|_| call());
    start.elapsed().as_secs_f64() * 1e6 / f64::from(CALLS)
}

fn turn(many: &mut Many) -> Duration {
    let start = Instant::now();
    (0..MESSAGES / ACTIVE_QPS).for_each(|_| many.round(ACTIVE_QPS));
    start.elapsed()
}

/// Prints the times of control operations; afterwards all queue pairs of `many.a` are in error.
fn print_control(many: &mut Many) {
    let end = &mut many.a.end;
    let cq = micros_per_call(|| {
        let (cq, _) = end.engine.objects().create_cq(16).expect("a completion queue");
        end.engine.objects().destroy_cq(cq).expect("no user");
    });
    let pd = micros_per_call(|| {
        let pd = end.engine.objects().alloc_pd().expect("a protection domain");
        end.engine.objects().dealloc_pd(pd).expect("no user");
    });
    let memory = Memory::alloc(64);
    let mr = micros_per_call(|| {
        let registered = end.engine.objects().register(end.pd, memory.clone(), 0, Access::NONE);
        end.engine.objects().deregister(registered.expect("a memory region").0).expect("it exists");
    });
    println!("create and destroy: CQ {cq:.2} us, PD {pd:.2} us, MR {mr:.2} us");
    let peer = many.b.end.gid.ip();
    many.a.end.engine.neighbour_mut().set_neighbour(peer, Mac([2, 0, 0, 0, 0, 9]));
    let mut polls = Vec::new();
    let mut more = true;
    while more {
        let start = Instant::now();
        more = many.poll();
        polls.push(start.elapsed().as_secs_f64() * 1e6);
    }
    polls.sort_unstable_by(f64::total_cmp);
    let at = |percent: usize| polls[(polls.len() - 1) * percent / 100];
    println!("a neighbour moved: {} polls, median {:.1} us, 99 % {:.1} us", polls.len(), at(50), at(99));
    // Each queue pair has a timer from its last SEND. Each poll handles at most 16 expired timers, so no timer runs
    // after these polls.
    for _ in 0..many.a.qps.len() / 8 {
        many.poll();
    }
    let idle = 1e3 * micros_per_call(|| assert!(!many.poll()));
    for index in 0..many.a.qps.len() {
        let attr = QpAttr { state: Some(QpState::Err), ..QpAttr::default() };
        many.a.end.engine.modify_qp(many.a.qps[index].qpn, &attr).expect("a transition");
    }
    while let Some(due) = many.a.end.engine.next_deadline() {
        many.nanos = many.nanos.max(due.nanos_since(start::instant()));
        many.poll();
    }
    let in_error = 1e3 * micros_per_call(|| assert!(!many.poll()));
    println!("idle poll: {idle:.0} ns, with all queue pairs in error {in_error:.0} ns");
}

fn main() {
    let conn = ConnAttr { recovery: RecoveryScheme::default(), ..conn(PathMtu::Mtu4096) };
    let mut rows: Vec<Box<Many>> = ROWS.iter().map(|count| Many::new(*count, &conn)).collect();
    let mut samples = vec![Vec::new(); ROWS.len()];
    for _ in 0..TURNS {
        for (many, samples) in rows.iter_mut().zip(&mut samples) {
            samples.push(turn(many));
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
    print_control(many);
}
