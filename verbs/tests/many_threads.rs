//! More threads than DPDK can number (`RTE_MAX_LCORE`, 128 on Debian) use one device. No thread is registered with
//! DPDK.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use verbs::{
    Access, ConnectOptions, Context, Cq, Cqe, DeviceOptions, Error, Mr, Pd, Qp, QpOptions, RecvRequest,
    SendData, SendFlags, SendOp, SendRequest, Sge, WcStatus,
};

const THREADS: usize = 200;
/// Number of times that all threads are started and end.
const LIVES: usize = 3;
/// SENDs of each thread on each of its connections.
const MESSAGES: u64 = 200;
/// Completions of each connection: of the SENDs and of their receives.
const COMPLETIONS: u64 = 2 * MESSAGES;
const MESSAGE_BYTES: u32 = 2048;
/// Messages in flight per connection.
const DEPTH: u64 = 4;
/// Polls without a completion after which the test fails; the other threads of the process run in between.
const IDLE_POLLS_MAX: u64 = 50_000_000;

/// Two connected queue pairs of the device; `a` sends to `b`. In each completion of the pair, `wr_id` is `number`.
struct Pair {
    a: Qp,
    b: Qp,
    number: u64,
    posted: u64,
}

impl Pair {
    fn new(pd: &Pd, cq: &Cq, number: usize) -> Result<Pair, Error> {
        let options = QpOptions { signal_all: true, ..QpOptions::new(cq) };
        let connect = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
        let (a, b) = (pd.create_qp(&options)?, pd.create_qp(&options)?);
        b.connect(&a.endpoint(1), &connect)?;
        a.connect(&b.endpoint(1), &connect)?;
        Ok(Pair { a, b, number: number as u64, posted: 0 })
    }

    /// Posts messages until `DEPTH` are in flight or all are posted. `completed`: number of completions so far.
    fn post(&mut self, completed: u64, sge: Sge) -> Result<(), Error> {
        while self.posted < MESSAGES && self.posted < completed / 2 + DEPTH {
            let (wr_id, flags) = (self.number, SendFlags::default());
            self.b.post_recv(&RecvRequest { wr_id, sges: &[sge] })?;
            let data = SendData::Sges(&[sge]);
            self.a.post_send(&SendRequest { wr_id, op: SendOp::Send, flags, data })?;
            self.posted += 1;
        }
        Ok(())
    }
}

/// Polls the completion queue `cq`, which all threads may poll, and counts its completions by connection.
fn poll(cq: &Cq, completed: &[AtomicU64], cqes: &mut Vec<Cqe>) -> Result<usize, Error> {
    let count = cq.poll(cqes, 64)?;
    for cqe in cqes.drain(..) {
        assert_eq!(cqe.status, WcStatus::Success);
        completed[cqe.wr_id as usize].fetch_add(1, Ordering::Relaxed);
    }
    Ok(count)
}

/// The life of a thread: it transfers messages over two connections. One connection has a completion queue that only
/// this thread uses, the other connection has the completion queue of all threads.
fn live(
    context: &Context,
    shared: &Cq,
    shared_completed: &[AtomicU64],
    (shared_pd, region): (&Pd, &Mr),
    (number, barrier): (usize, &Barrier),
) -> Result<(), Error> {
    let pd = context.alloc_pd()?;
    let own_region = pd.alloc(MESSAGE_BYTES as usize, Access::LOCAL_WRITE)?;
    let own = context.create_cq(4 * DEPTH as u32, None)?;
    let mut own_pair = Pair::new(&pd, &own, 0)?;
    let mut shared_pair = Pair::new(shared_pd, shared, number)?;
    let own_completed = [AtomicU64::new(0)];
    barrier.wait();
    let (mut cqes, mut idle) = (Vec::new(), 0);
    loop {
        let done = [&own_completed[0], &shared_completed[number]].map(|count| count.load(Ordering::Relaxed));
        if done == [COMPLETIONS; 2] {
            return Ok(());
        }
        own_pair.post(done[0], own_region.sge(0, MESSAGE_BYTES))?;
        shared_pair.post(done[1], region.sge(0, MESSAGE_BYTES))?;
        let polled = poll(&own, &own_completed, &mut cqes)? + poll(shared, shared_completed, &mut cqes)?;
        idle = if polled == 0 { idle + 1 } else { 0 };
        assert!(idle < IDLE_POLLS_MAX, "thread {number}: {done:?} of {COMPLETIONS} completions");
    }
}

#[test]
fn more_threads_than_dpdk_numbers_share_a_device_and_end() {
    let context =
        Context::open(&"eal:net_ring0,ip=10.0.0.1/24".parse().unwrap(), &DeviceOptions::default()).unwrap();
    let pd = context.alloc_pd().unwrap();
    let region = pd.alloc(MESSAGE_BYTES as usize, Access::LOCAL_WRITE).unwrap();
    for _ in 0..LIVES {
        let shared = context.create_cq(THREADS as u32 * 4 * DEPTH as u32, None).unwrap();
        let completed: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
        let barrier = Barrier::new(THREADS);
        thread::scope(|scope| {
            let live =
                |number| live(&context, &shared, &completed, (&pd, &region), (number, &barrier)).unwrap();
            (0..THREADS).for_each(|number| drop(scope.spawn(move || live(number))));
        });
        assert!(completed.iter().all(|count| count.load(Ordering::Relaxed) == COMPLETIONS));
    }
    assert_eq!(context.device_counters().port.get("tx_no_mbuf"), Some(&0), "a thread that ended kept mbufs");
}
