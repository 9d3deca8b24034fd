//! Message rates of one device that several threads use, compared with the rates of one thread. Both queue pairs of
//! each connection are on the device, whose port loops all frames back.
//!
//! `cargo bench -p verbs --bench threads` prints the table.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use verbs::{
    Access, ConnectOptions, Context, Cq, DeviceOptions, Mr, Qp, QpOptions, RecvRequest, SendData, SendFlags,
    SendOp, SendRequest, WcStatus,
};

const THREADS: usize = 8;
/// Number of SENDs in flight per queue pair, unless the row of the table states another number.
const DEPTH: usize = 32;
const MESSAGE_BYTES: u32 = 64;
/// Duration of one sample.
const SAMPLE: Duration = Duration::from_millis(400);
/// Number of samples of each row; the rows are sampled in turn. The table shows the median of each row.
const SAMPLES: usize = 7;

/// Two connected queue pairs; `a` sends to `b`.
struct Pair {
    a: Qp,
    b: Qp,
}

/// Completion queue, queue pairs and memory region of one thread.
struct Worker {
    cq: Cq,
    pairs: Vec<Pair>,
    region: Mr,
    /// Number of SENDs in flight, over all queue pairs.
    depth: usize,
}

impl Worker {
    fn new(context: &Context, qps: usize, depth: usize) -> Result<Worker, Box<dyn std::error::Error>> {
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(4 * depth as u32, None)?;
        let options = QpOptions { signal_all: true, ..QpOptions::new(&cq) };
        let connect = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
        let mut pairs = Vec::new();
        for _ in 0..qps {
            let (a, b) = (pd.create_qp(&options)?, pd.create_qp(&options)?);
            b.connect(&a.endpoint(1), &connect)?;
            a.connect(&b.endpoint(1), &connect)?;
            pairs.push(Pair { a, b });
        }
        let region = pd.alloc(MESSAGE_BYTES as usize, Access::LOCAL_WRITE)?;
        Ok(Worker { cq, pairs, region, depth })
    }

    /// Sends messages on the queue pairs in turn until `end`, and returns the number of messages completed.
    fn run(&self, end: Instant) -> Result<u64, verbs::Error> {
        let sge = self.region.sge(0, MESSAGE_BYTES);
        let mut completions = Vec::with_capacity(2 * self.depth);
        let (mut posted, mut completed) = (0, 0);
        while completed < posted || Instant::now() < end {
            while posted < completed + 2 * self.depth as u64 && Instant::now() < end {
                let pair = &self.pairs[(posted / 2) as usize % self.pairs.len()];
                pair.b.post_recv(&RecvRequest { wr_id: 0, sges: &[sge] })?;
                let data = SendData::Sges(&[sge]);
                let flags = SendFlags::default();
                pair.a.post_send(&SendRequest { wr_id: 1, op: SendOp::Send, flags, data })?;
                posted += 2;
            }
            completions.clear();
            completed += self.cq.poll(&mut completions, 2 * self.depth)? as u64;
            assert!(completions.iter().all(|cqe| cqe.status == WcStatus::Success));
        }
        Ok(completed / 2)
    }
}

/// Runs all workers at the same time, each on a thread, and returns the sum of their rates, in messages per second.
fn rate(workers: &[Worker]) -> f64 {
    let (barrier, messages) = (Barrier::new(workers.len()), AtomicU64::new(0));
    thread::scope(|scope| {
        for worker in workers {
            scope.spawn(|| {
                barrier.wait();
                let done = worker.run(Instant::now() + SAMPLE).expect("the device works");
                messages.fetch_add(done, Ordering::Relaxed);
            });
        }
    });
    messages.into_inner() as f64 / SAMPLE.as_secs_f64()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let context = Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse()?, &DeviceOptions::default())?;
    let one = vec![Worker::new(&context, 1, DEPTH)?];
    let alternating = vec![Worker::new(&context, THREADS, THREADS * DEPTH)?];
    let shallow = vec![Worker::new(&context, THREADS, DEPTH)?];
    let many = (0..THREADS).map(|_| Worker::new(&context, 1, DEPTH)).collect::<Result<Vec<_>, _>>()?;
    let rows = [
        ("1 thread, 1 queue pair", &one),
        ("1 thread, 8 queue pairs in turn", &alternating),
        ("  4 SENDs in flight each", &shallow),
        ("8 threads, 1 queue pair each", &many),
    ];
    let mut samples = [const { Vec::new() }; 4];
    for _ in 0..SAMPLES {
        for ((_, workers), samples) in rows.iter().zip(&mut samples) {
            samples.push(rate(workers));
        }
    }
    let rates = samples.map(|mut samples| {
        samples.sort_unstable_by(f64::total_cmp);
        samples[SAMPLES / 2]
    });
    println!("{:34} {:>12} {:>8}", "", "messages/s", "share");
    for ((name, _), rate) in rows.iter().zip(rates) {
        println!("{name:34} {rate:>12.0} {:>8.2}", rate / rates[0]);
    }
    Ok(())
}
