//! A program that has a device open and forks, or executes other programs (`ports::fork`).
//!
//!     roce-fork PORT fork CHILD THREAD FORKS [linked]
//!     roce-fork PORT respond
//!     roce-fork PORT exec
//!     roce-fork PORT fork-first
//!
//! `fork`: CHILD is the conduct of the forked processes: return, exit, _exit, drop, call, outlive. THREAD is the thread
//! that forks: poller (the only thread, which polls), beside-poller, beside-waiter (another thread polls, or sleeps
//! while the background thread of the device drives). Without `linked`, the device is its own peer; with `linked`, a
//! program with `respond` is the peer, and the two exchange their endpoints over standard input and output.
#![allow(unsafe_code)] // fork is the subject, and the standard library has none

use std::error::Error;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tests::line;
use verbs::{
    Access, CompChannel, ConnectOptions, Context, Cq, DeviceOptions, Mr, Notify, Pd, Qp, QpOptions, RKey,
    RecvRequest, SendData, SendFlags, SendOp, SendRequest, WcStatus,
};

type Failure = Box<dyn Error>;

/// Longest wait for a message, the link or a forked process; reached only in a failure.
const PATIENCE: Duration = Duration::from_secs(30);
const MESSAGE_BYTES: usize = 4096;
/// Messages that must complete after each fork.
const MESSAGES_PER_FORK: u64 = 20;
/// Programs executed in each of two ways.
const EXECUTIONS: u32 = 20;

/// The objects of a device; its queue pair writes to memory of the peer.
struct End {
    context: Context,
    channel: CompChannel,
    cq: Cq,
    pd: Pd,
    qp: Qp,
    /// The queue pair that `qp` is connected to, if the device is its own peer.
    _peer: Option<Qp>,
    region: Mr,
    remote: (u64, RKey),
    written: AtomicU64,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("roce-fork {}: {failure}", std::process::id());
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        [port, "fork", child, thread, forks] => {
            fork_under_load(End::alone(port)?, child, thread, forks.parse()?)
        }
        [port, "fork", child, thread, forks, "linked"] => {
            fork_under_load(End::linked(port)?, child, thread, forks.parse()?)
        }
        [port, "respond"] => {
            let _end = End::linked(port)?;
            // The background thread answers until the test closes the standard input.
            io::stdin().read_line(&mut String::new())?;
            Ok(())
        }
        [port, "exec"] => execute_under_load(port),
        [port, "fork-first"] => fork_before_the_first_open(port),
        _ => Err("see the head of roce-fork.rs".into()),
    }
}

impl End {
    fn open(port: &str) -> Result<(Context, CompChannel, Cq, Pd, Mr), Failure> {
        let context = Context::open(&port.parse()?, &DeviceOptions::default())?;
        let channel = context.create_comp_channel()?;
        let (cq, pd) = (context.create_cq(64, Some(&channel))?, context.alloc_pd()?);
        let region = pd.alloc(2 * MESSAGE_BYTES, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok((context, channel, cq, pd, region))
    }

    fn alone(port: &str) -> Result<End, Failure> {
        let (context, channel, cq, pd, region) = Self::open(port)?;
        let (qp, peer) = (pd.create_qp(&QpOptions::new(&cq))?, pd.create_qp(&QpOptions::new(&cq))?);
        let options = ConnectOptions { gid_index: 1, ..ConnectOptions::default() };
        peer.connect(&qp.endpoint(1), &options)?;
        qp.connect(&peer.endpoint(1), &options)?;
        let remote = (region.addr(), region.rkey());
        Ok(End {
            context,
            channel,
            cq,
            pd,
            qp,
            _peer: Some(peer),
            region,
            remote,
            written: AtomicU64::new(0),
        })
    }

    fn linked(port: &str) -> Result<End, Failure> {
        let (context, channel, cq, pd, region) = Self::open(port)?;
        let qp = pd.create_qp(&QpOptions::new(&cq))?;
        let (peer, remote) = line::exchange(&qp, &region)?;
        context.wait_link(PATIENCE)?;
        qp.connect(&peer, &ConnectOptions { gid_index: 1, ..ConnectOptions::default() })?;
        Ok(End { context, channel, cq, pd, qp, _peer: None, region, remote, written: AtomicU64::new(0) })
    }

    fn write_request(&self) -> (SendOp, SendFlags, [verbs::Sge; 1]) {
        let op = SendOp::Write { remote_addr: self.remote.0 + MESSAGE_BYTES as u64, rkey: self.remote.1 };
        let flags = SendFlags { signaled: true, ..SendFlags::default() };
        (op, flags, [self.region.sge(0, MESSAGE_BYTES as u32)])
    }

    /// Writes a message to the peer, and waits for its completion.
    fn write(&self, sleeps: bool) -> Result<(), Failure> {
        let round = self.written.load(Ordering::Relaxed);
        let pattern = [round as u8; MESSAGE_BYTES];
        self.region.write(0, &pattern)?;
        if sleeps {
            self.cq.request_notify(Notify::Any)?;
        }
        let (op, flags, sges) = self.write_request();
        self.qp.post_send(&SendRequest { wr_id: round, op, flags, data: SendData::Sges(&sges) })?;
        let end = Instant::now() + PATIENCE;
        let cqe = loop {
            if sleeps && self.channel.wait(PATIENCE)?.is_none() {
                return Err("no completion event".into());
            }
            if let Some(cqe) = self.cq.poll_one()? {
                break cqe;
            }
            if Instant::now() > end {
                return Err("no completion".into());
            }
        };
        if (cqe.wr_id, cqe.status) != (round, WcStatus::Success) {
            return Err(format!("message {round} completed as {cqe:?}").into());
        }
        if self.remote.1 == self.region.rkey() {
            let mut received = [0; MESSAGE_BYTES];
            self.region.read(MESSAGE_BYTES, &mut received)?;
            if received != pattern {
                return Err(format!("message {round} was received with other bytes").into());
            }
        }
        self.written.store(round + 1, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until `count` further messages are written; writes them if no other thread does.
    fn progress(&self, count: u64, has_writer: bool) -> Result<(), Failure> {
        let (goal, end) = (self.written.load(Ordering::Relaxed) + count, Instant::now() + PATIENCE);
        while self.written.load(Ordering::Relaxed) < goal {
            if has_writer {
                thread::sleep(Duration::from_millis(1))
            } else {
                self.write(false)?
            }
            if Instant::now() > end {
                return Err("the load stands still".into());
            }
        }
        Ok(())
    }
}

/// Starts a thread that writes until the process ends.
fn start_writer(end: &Arc<End>, sleeps: bool) {
    let end = end.clone();
    thread::spawn(move || {
        loop {
            if let Err(failure) = end.write(sleeps) {
                eprintln!("roce-fork: the writer: {failure}");
                std::process::exit(1);
            }
            if sleeps {
                thread::sleep(Duration::from_micros(300));
            }
        }
    });
}

/// Forks. The child is killed by an alarm if it hangs.
fn fork() -> Result<libc::pid_t, Failure> {
    // SAFETY: the child uses the C library, as any child of a program with threads may not; this is what is tested.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            // SAFETY: no memory is touched.
            unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
            Ok(0)
        }
        child => Ok(child),
    }
}

fn expect_success(child: libc::pid_t) -> Result<(), Failure> {
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    if unsafe { libc::waitpid(child, &mut status, 0) } != child {
        return Err(io::Error::last_os_error().into());
    }
    if status == 0 { Ok(()) } else { Err(format!("a forked process ended with status {status:#x}").into()) }
}

fn fork_under_load(end: End, conduct: &str, forker: &str, forks: u32) -> Result<(), Failure> {
    let has_writer = forker != "poller";
    let end = Arc::new(end);
    // Objects that no other thread has, so that their drops run in the child.
    let own_cq = end.context.create_cq(8, None)?;
    let own_qp = end.pd.create_qp(&QpOptions::new(&own_cq))?;
    let own_region = end.pd.alloc(64, Access::NONE)?;
    if has_writer {
        start_writer(&end, forker == "beside-waiter");
    }
    for _ in 0..forks {
        end.progress(MESSAGES_PER_FORK, has_writer)?;
        // Both ends of the pipe are open in the child, too.
        let (mut closed, closing) = io::pipe()?;
        let child = fork()?;
        if child == 0 {
            match conduct {
                "exit" => std::process::exit(0),
                // SAFETY: ends the process.
                "_exit" => unsafe { libc::_exit(0) },
                "drop" => drop((own_qp, own_cq, own_region, end)),
                "call" => call_all(&end)?,
                "outlive" => {
                    drop(closing);
                    io::Read::read(&mut closed, &mut [0])?;
                }
                _ => {}
            }
            return Ok(());
        }
        if conduct == "outlive" {
            end.progress(MESSAGES_PER_FORK, has_writer)?;
            drop((own_qp, own_cq, own_region, end));
            drop((closed, closing));
            return expect_success(child);
        }
        expect_success(child)?;
    }
    end.progress(MESSAGES_PER_FORK, has_writer)?;
    // The background thread still answers, and the device can be closed.
    end.context.progress()?;
    Ok(())
}

fn expect_forked<T>(what: &str, result: Result<T, verbs::Error>) -> Result<(), Failure> {
    match result {
        Err(verbs::Error::Forked { pid, .. }) if pid != std::process::id() => Ok(()),
        Err(other) => Err(format!("{what}: {other}").into()),
        Ok(_) => Err(format!("{what} succeeded").into()),
    }
}

/// Calls functions of all objects in a forked process.
fn call_all(end: &End) -> Result<(), Failure> {
    let (op, flags, sges) = end.write_request();
    let send = SendRequest { wr_id: 0, op, flags, data: SendData::Sges(&sges) };
    expect_forked("post_send", end.qp.post_send(&send))?;
    expect_forked("post_sends", end.qp.post_sends(&[send]).1)?;
    expect_forked("post_recv", end.qp.post_recv(&RecvRequest { wr_id: 0, sges: &[] }))?;
    expect_forked("poll", end.cq.poll(&mut Vec::new(), 8))?;
    expect_forked("poll_one", end.cq.poll_one())?;
    expect_forked("request_notify", end.cq.request_notify(Notify::Any))?;
    expect_forked("try_wait", end.channel.try_wait())?;
    expect_forked("wait", end.channel.wait(PATIENCE))?;
    expect_forked("progress", end.context.progress())?;
    expect_forked("wait_link", end.context.wait_link(PATIENCE))?;
    expect_forked("alloc_pd", end.context.alloc_pd())?;
    expect_forked("create_cq", end.context.create_cq(8, None))?;
    expect_forked("create_comp_channel", end.context.create_comp_channel())?;
    expect_forked("alloc", end.pd.alloc(64, Access::NONE))?;
    expect_forked("create_qp", end.pd.create_qp(&QpOptions::new(&end.cq)))?;
    expect_forked("modify", end.qp.modify(&verbs::QpAttr::default()))?;
    let dgid = end.qp.endpoint(1).gid;
    expect_forked("resolve", end.context.resolve(dgid, 1, PATIENCE))?;
    expect_forked("gid_index_for", end.context.gid_index_for(dgid))?;
    let attr = end.context.attr();
    let is_empty = end.qp.query().is_none()
        && end.context.gid(0).is_none()
        && end.context.poll_async_event().is_none()
        && end.context.counters().0.sent_pkts == 0
        && end.qp.counters().sent_pkts == 0
        && end.context.device_counters().port.is_empty()
        && !attr.is_up;
    if !is_empty {
        return Err("a query shows the parent's device".into());
    }
    for port in [attr.port.as_str(), "eal:net_null99,dev.no-rx=1"] {
        let refused = Context::open(&port.parse()?, &DeviceOptions::default()).err();
        let text = refused.map(|error| error.to_string()).unwrap_or_default();
        if !(text.contains("fork before the first port is opened") && text.contains("exec")) {
            return Err(format!("open of {port}: {text:?}").into());
        }
    }
    Ok(())
}

/// Returns the lines of `ls` about the file descriptors that a program inherits, without standard input, output and
/// error.
fn inherited() -> Result<Vec<String>, Failure> {
    let listed = Command::new("ls").args(["-l", "/proc/self/fd"]).output()?;
    let text = String::from_utf8(listed.stdout)?;
    let targets: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(" -> ")).collect();
    if !listed.status.success() || targets.len() < 4 {
        return Err(format!("ls ended with {}: {text}", listed.status).into());
    }
    let number = |name: &str| name.rsplit(' ').next().and_then(|number| number.parse::<u32>().ok());
    let is_own =
        |name: &str, target: &str| target.starts_with("/proc/") || number(name).is_some_and(|fd| fd < 3);
    let others = targets.into_iter().filter(|(name, target)| !is_own(name, target));
    Ok(others.map(|(name, target)| format!("{:?} -> {target}", number(name))).collect())
}

/// Executes programs under load, by the standard library and by fork and exec.
fn execute_under_load(port: &str) -> Result<(), Failure> {
    let before = inherited()?;
    let end = Arc::new(End::alone(port)?);
    start_writer(&end, false);
    for _ in 0..EXECUTIONS {
        end.progress(MESSAGES_PER_FORK, true)?;
        let now = inherited()?;
        if now != before {
            return Err(format!("a program inherits {now:#?}, and without the device {before:#?}").into());
        }
        let child = fork()?;
        if child == 0 {
            return Err(Command::new("true").exec().into());
        }
        expect_success(child)?;
    }
    end.progress(MESSAGES_PER_FORK, true)
}

/// Opens a device in a process that was forked before, then one in the process that forked.
fn fork_before_the_first_open(port: &str) -> Result<(), Failure> {
    verbs::describe(&port.parse()?)?;
    let child = fork()?;
    if child == 0 {
        return End::alone(port)?.progress(MESSAGES_PER_FORK, false);
    }
    expect_success(child)?;
    End::alone(port)?.progress(MESSAGES_PER_FORK, false)
}
