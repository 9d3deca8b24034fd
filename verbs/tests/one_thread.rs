//! One background thread serves all devices of a process.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::{
    Access, CompChannel, ConnectOptions, Context, Cq, DeviceOptions, Mr, Notify, Pd, ProgressPolicy, Qp,
    QpOptions, RecvRequest, SendData, SendFlags, SendOp, SendRequest, WcStatus,
};

const THREAD_NAME: &str = "roce-progress";
/// Timeout of the waits, reached only if a test fails.
const LONG: Duration = Duration::from_secs(30);
const MESSAGES: u64 = 50;
const MESSAGE_BYTES: u32 = 64;

/// Returns the number of background threads of this process.
fn background_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.trim_end() == THREAD_NAME).count()
}

/// Waits until this process has `count` background threads. A new thread sets its name late, and a thread that has
/// ended stays listed for a moment.
fn await_threads(count: usize) {
    let end = Instant::now() + LONG;
    while background_threads() != count {
        assert!(Instant::now() < end, "{} threads, not {count}", background_threads());
        std::thread::yield_now();
    }
}

/// A device whose driver receives the frames that it sends, and two connected queue pairs of this device.
struct Looped {
    qp: Qp,
    peer: Qp,
    region: Mr,
    cq: Cq,
    channel: CompChannel,
    _pd: Pd,
    _context: Context,
}

impl Looped {
    fn new(number: u32, progress: ProgressPolicy) -> Self {
        let port = format!("eal:net_ring{number},ip=10.0.{number}.1/24");
        let options = DeviceOptions { progress, ..DeviceOptions::default() };
        let context = Context::open(&port.parse().unwrap(), &options).unwrap();
        let channel = context.create_comp_channel().unwrap();
        let cq = context.create_cq(64, Some(&channel)).unwrap();
        let pd = context.alloc_pd().unwrap();
        let region = pd.alloc(MESSAGE_BYTES as usize, Access::LOCAL_WRITE).unwrap();
        let [qp, peer] = [(); 2].map(|()| pd.create_qp(&QpOptions::new(&cq)).unwrap());
        let connect = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
        peer.connect(&qp.endpoint(1), &connect).unwrap();
        qp.connect(&peer.endpoint(1), &connect).unwrap();
        Looped { qp, peer, region, cq, channel, _pd: pd, _context: context }
    }

    /// Sends a message and sleeps until its receive has completed. Only the background thread drives the engine.
    fn exchange(&self, wr_id: u64) {
        let sge = self.region.sge(0, MESSAGE_BYTES);
        self.peer.post_recv(&RecvRequest { wr_id, sges: &[sge] }).unwrap();
        self.cq.request_notify(Notify::Any).unwrap();
        let (data, flags) = (SendData::Sges(&[sge]), SendFlags::default());
        self.qp.post_send(&SendRequest { wr_id, op: SendOp::Send, flags, data }).unwrap();
        let timeout = Timespec::try_from(LONG).unwrap();
        let mut fds = [PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&timeout)), Ok(1), "no completion event");
        assert!(self.channel.try_wait().unwrap().is_some());
        let cqe = self.cq.poll_one().unwrap().expect("a completion with the event");
        assert_eq!((cqe.wr_id, cqe.status), (wr_id, WcStatus::Success));
    }
}

#[test]
fn all_devices_have_one_thread_which_ends_with_the_last() {
    assert_eq!(background_threads(), 0);
    for _ in 0..2 {
        let policies = [ProgressPolicy::Busy, ProgressPolicy::Adaptive, ProgressPolicy::Adaptive];
        let mut devices: Vec<Looped> =
            policies.into_iter().zip(1..).map(|(policy, number)| Looped::new(number, policy)).collect();
        while !devices.is_empty() {
            await_threads(1);
            (0..MESSAGES).for_each(|wr_id| devices.iter().for_each(|device| device.exchange(wr_id)));
            devices.remove(0);
        }
        await_threads(0);
    }
}
