//! CPU time of the engine with hot caches. First, criterion measures each phase. Then a table shows ns per packet
//! at requester and responder: in total, for payload copy with ICRC, and for all other work.

mod flow;

use criterion::{Bencher, Criterion, Throughput, criterion_group};
use flow::{BATCH_PKTS, Case, Flow, Least};
use roce::id::RKey;
use roce::qp::segment;
use roce::queue::SendOp;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Number of batches measured; the table shows the median of their times.
const TABLE_BATCHES: usize = 4001;

type Phase = fn(&mut Flow);

/// Measures one phase of every batch; the times of the other phases are ignored.
fn phase(b: &mut Bencher<'_>, case: Case, index: usize) {
    let mut flow = Flow::new(case);
    b.iter_custom(|batches| {
        let mut total = Duration::ZERO;
        for _ in 0..batches {
            total += times(&mut flow)[index];
        }
        total
    });
}

/// Runs one batch, and returns the times of its three phases.
fn times(flow: &mut Flow) -> [Duration; 3] {
    let phases: [Phase; 3] = [Flow::post_to_wire, Flow::wire_to_completion, Flow::completion];
    phases.map(|phase| {
        let start = Instant::now();
        phase(flow);
        start.elapsed()
    })
}

fn bench(c: &mut Criterion) {
    c.bench_function("segment", |b| {
        let op = SendOp::Write { remote_addr: 0x1000, rkey: RKey(7) };
        b.iter(|| {
            segment(black_box(&op), black_box(65_536), black_box(7), black_box(4096), black_box(false))
        });
    });
    c.bench_function("idle_poll", |b| {
        let mut flow = Flow::new(Case::Send64);
        b.iter(|| flow.idle_poll());
    });
    for case in Case::ALL {
        let mut group = c.benchmark_group(case.name());
        group.throughput(Throughput::Elements(u64::from(BATCH_PKTS)));
        for (index, name) in ["post_to_wire", "wire_to_completion", "completion"].into_iter().enumerate() {
            group.bench_function(name, |b| phase(b, case, index));
        }
        group.finish();
    }
}

fn median_per_pkt(mut samples: Vec<Duration>) -> f64 {
    samples.sort_unstable();
    samples[samples.len() / 2].as_nanos() as f64 / f64::from(BATCH_PKTS)
}

fn least(case: Case, batch: fn(&mut Least)) -> f64 {
    let mut least = Least::new(case);
    let time = |_| {
        let start = Instant::now();
        batch(&mut least);
        start.elapsed()
    };
    median_per_pkt((0..TABLE_BATCHES).map(time).collect())
}

/// Prints the table. `own` is the total time minus the time of payload copy and ICRC.
fn table() {
    println!("\nns per data packet, median of {TABLE_BATCHES} batches of {BATCH_PKTS}, path MTU 4096");
    println!("{:28}| {:^24} | {:^24}", "", "requester", "responder");
    println!(
        "{:10}{:>8} {:>8} | {:>6} {:>10} {:>6} | {:>6} {:>10} {:>6}",
        "", "post", "complete", "total", "copy+ICRC", "own", "total", "copy+ICRC", "own"
    );
    for case in Case::ALL {
        let mut flow = Flow::new(case);
        let mut samples: [Vec<Duration>; 3] = Default::default();
        for _ in 0..TABLE_BATCHES {
            let taken = times(&mut flow);
            samples.iter_mut().zip(taken).for_each(|(samples, time)| samples.push(time));
        }
        let [post, responder, complete] = samples.map(median_per_pkt);
        let (sends, receives) = (least(case, Least::send), least(case, Least::receive));
        // The requester sends the payload of a SEND or WRITE and receives that of a READ; the responder does the
        // opposite.
        let is_read = case.is_read();
        let (least_a, least_b) = if is_read { (receives, sends) } else { (sends, receives) };
        let requester = post + complete;
        println!(
            "{:10}{post:>8.1} {complete:>8.1} | {requester:>6.1} {least_a:>10.1} {:>6.1} | {responder:>6.1} {least_b:>10.1} {:>6.1}",
            case.name(),
            requester - least_a,
            responder - least_b,
        );
    }
}

criterion_group!(benches, bench);

fn main() {
    benches();
    table();
    Criterion::default().configure_from_args().final_summary();
}
