//! A program whose threads are cancelled, or exit, while they use a device (`ports::threads`). Its peer is a
//! `roce-fork PORT respond`.
//!
//!     roce-threads PORT cancel ROUNDS
//!     roce-threads PORT thread-exit ROUNDS
//!     roce-threads PORT exit MILLIS
//!
//! `cancel`: threads of the C library that write, or wait for an event, are cancelled. `thread-exit`: threads of the C
//! library end by `pthread_exit`, and destructors of their thread-local data use and destroy objects. `exit`: the
//! program ends by `exit` after MILLIS, while threads write, poll and wait.
#![allow(unsafe_code)] // the standard library has no such threads

use std::error::Error;
use std::ffi::{c_int, c_void};
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use tests::line;
use verbs::{
    Access, CompChannel, ConnAttr, ConnectOptions, Context, Cq, DeviceOptions, Mr, Notify, Pd, Qp, QpOptions,
    RKey, SendData, SendFlags, SendOp, SendRequest, WcStatus,
};

type Failure = Box<dyn Error>;
type Body = extern "C-unwind" fn(*mut c_void) -> *mut c_void;

// Declared here, because the functions unwind the stack of the thread.
unsafe extern "C-unwind" {
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attr: *const libc::pthread_attr_t,
        body: Body,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
    fn pthread_testcancel();
    fn pthread_exit(value: *mut c_void) -> !;
}

/// `PTHREAD_CANCELED` of glibc and musl.
const CANCELED: isize = -1;
/// Longest wait for a message or the link; reached only in a failure.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two tests for a cancellation request.
const SLICE: Duration = Duration::from_millis(20);
const MESSAGE_BYTES: usize = 4096;

/// The objects of a device; its queue pair writes to memory of the peer.
struct End {
    context: Context,
    channel: CompChannel,
    cq: Cq,
    /// A channel without events.
    quiet: CompChannel,
    pd: Pd,
    qp: Qp,
    region: Mr,
    remote: (u64, RKey),
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("roce-threads: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    let [port, conduct, number] = words[..] else { return Err("see the head of roce-threads.rs".into()) };
    let number = number.parse()?;
    let end = End::linked(port)?;
    match conduct {
        "cancel" => cancel(Box::leak(Box::new(end)), number),
        "thread-exit" => exit_threads(end, number),
        "exit" => exit(Box::leak(Box::new(end)), number),
        _ => Err("see the head of roce-threads.rs".into()),
    }
}

impl End {
    fn linked(port: &str) -> Result<End, Failure> {
        let context = Context::open(&port.parse()?, &DeviceOptions::default())?;
        let (channel, quiet) = (context.create_comp_channel()?, context.create_comp_channel()?);
        let (cq, pd) = (context.create_cq(64, Some(&channel))?, context.alloc_pd()?);
        let region = pd.alloc(MESSAGE_BYTES, Access::LOCAL_WRITE)?;
        let qp = pd.create_qp(&QpOptions::new(&cq))?;
        let (peer, remote) = line::exchange(&qp, &region)?;
        context.wait_link(PATIENCE)?;
        // The machine may be busy.
        let conn = ConnAttr { timeout: 18, ..ConnAttr::default() };
        qp.connect(&peer, &ConnectOptions { gid_index: 1, conn, ..ConnectOptions::default() })?;
        Ok(End { context, channel, cq, quiet, pd, qp, region, remote })
    }

    /// Writes a message to the peer, and waits for its completion by an event (`sleeps`) or by polls.
    fn write(&self, sleeps: bool) -> Result<(), Failure> {
        let op = SendOp::Write { remote_addr: self.remote.0, rkey: self.remote.1 };
        let (flags, sges) =
            (SendFlags { signaled: true, ..SendFlags::default() }, [self.region.sge(0, 4096)]);
        self.qp.post_send(&SendRequest { wr_id: 0, op, flags, data: SendData::Sges(&sges) })?;
        let end = Instant::now() + PATIENCE;
        loop {
            if sleeps {
                self.cq.request_notify(Notify::Any)?;
            }
            match self.cq.poll_one()? {
                Some(cqe) if cqe.status == WcStatus::Success => return Ok(()),
                Some(cqe) => return Err(format!("{cqe:?}").into()),
                None if Instant::now() > end => return Err("no completion".into()),
                None => {}
            }
            // The event may be of the completion of an earlier message.
            if sleeps && self.channel.wait(PATIENCE)?.is_none() {
                return Err("no completion event".into());
            }
        }
    }
}

fn expect<T>(result: Result<T, impl std::fmt::Display>) -> T {
    result.unwrap_or_else(|failure| {
        eprintln!("roce-threads: {failure}");
        std::process::abort()
    })
}

/// Starts a thread of the C library.
fn start(body: Body, argument: *mut c_void) -> Result<libc::pthread_t, Failure> {
    let mut thread = 0;
    // SAFETY: the argument is what `body` expects, and lives as long as the thread.
    match unsafe { pthread_create(&mut thread, std::ptr::null(), body, argument) } {
        0 => Ok(thread),
        error => Err(io::Error::from_raw_os_error(error).into()),
    }
}

fn join(thread: libc::pthread_t) -> isize {
    let mut value = std::ptr::null_mut();
    // SAFETY: a thread that was started and not joined, and a place for its result.
    unsafe { libc::pthread_join(thread, &mut value) };
    value as isize
}

/// The end that `argument` points to.
fn end_of(argument: *mut c_void) -> &'static End {
    // SAFETY: `cancel` passes an end that is never freed.
    unsafe { &*argument.cast::<End>() }
}

/// Writes until the thread is cancelled. At the test for cancellation, no frame of this thread has a value to drop.
extern "C-unwind" fn write_for_ever(argument: *mut c_void) -> *mut c_void {
    let end = end_of(argument);
    loop {
        expect(end.write(false));
        // SAFETY: as the doc says.
        unsafe { pthread_testcancel() };
    }
}

/// Waits for an event until the thread is cancelled, as `write_for_ever` writes.
extern "C-unwind" fn wait_for_ever(argument: *mut c_void) -> *mut c_void {
    let end = end_of(argument);
    loop {
        expect(end.quiet.wait(SLICE));
        // SAFETY: as the doc says.
        unsafe { pthread_testcancel() };
    }
}

fn cancel(end: &'static End, rounds: u64) -> Result<(), Failure> {
    for round in 0..rounds {
        let argument = std::ptr::from_ref(end).cast_mut().cast();
        let threads = [start(write_for_ever, argument)?, start(wait_for_ever, argument)?];
        thread::sleep(Duration::from_micros(200 * round));
        for thread in threads {
            // SAFETY: a thread that was started and not joined.
            unsafe { pthread_cancel(thread) };
        }
        if threads.map(join) != [CANCELED; 2] {
            return Err("a thread returned".into());
        }
        // No lock is held.
        end.write(false)?;
        end.write(true)?;
    }
    Ok(())
}

/// The objects of a thread, used and destroyed when the thread ends.
struct Local {
    end: Option<Box<End>>,
    own: (Qp, Cq, CompChannel),
}

/// A destructor of thread-local data of the C library.
extern "C" fn destroy(local: *mut c_void) {
    // SAFETY: made by `exit_thread` for this destructor.
    let Local { end, own } = *unsafe { Box::from_raw(local.cast::<Local>()) };
    if let Some(end) = &end {
        expect(end.write(true));
    }
    let (qp, cq, channel) = own;
    expect(cq.request_notify(Notify::Any));
    expect(cq.poll_one());
    expect(channel.wait(Duration::from_micros(300)));
    drop((qp, cq, channel, end));
}

extern "C-unwind" fn exit_thread(argument: *mut c_void) -> *mut c_void {
    keep(argument);
    // SAFETY: no frame of this thread has a value to drop.
    unsafe { pthread_exit(std::ptr::null_mut()) }
}

/// Makes `argument` thread-local data whose destructor is `destroy`.
fn keep(argument: *mut c_void) {
    let mut key = 0;
    // SAFETY: a place for the key; `destroy` takes the value that is set here.
    let failed = unsafe { libc::pthread_key_create(&mut key, Some(destroy)) != 0 }
        // SAFETY: a key that was just made.
        || unsafe { libc::pthread_setspecific(key, argument) != 0 };
    assert!(!failed, "no key for thread-local data");
}

fn exit_threads(end: End, rounds: u64) -> Result<(), Failure> {
    let mut end = Some(Box::new(end));
    for round in 1..=rounds {
        let last = round == rounds;
        let own = {
            let end = end.as_ref().ok_or("only the last thread closes the device")?;
            let channel = end.context.create_comp_channel()?;
            let cq = end.context.create_cq(8, Some(&channel))?;
            (end.pd.create_qp(&QpOptions::new(&cq))?, cq, channel)
        };
        let local = Box::new(Local { end: if last { end.take() } else { None }, own });
        join(start(exit_thread, Box::into_raw(local).cast())?);
        if let Some(end) = &end {
            end.write(false)?;
        }
    }
    Ok(())
}

/// Ends the process while threads write, wait and destroy objects.
fn exit(end: &'static End, millis: u64) -> Result<(), Failure> {
    thread::spawn(|| {
        loop {
            expect(end.write(true));
        }
    });
    thread::spawn(|| {
        loop {
            expect(end.quiet.wait(PATIENCE));
        }
    });
    thread::spawn(|| {
        loop {
            let cq = expect(end.context.create_cq(8, None));
            drop(expect(end.pd.create_qp(&QpOptions::new(&cq))));
        }
    });
    thread::sleep(Duration::from_millis(millis));
    std::process::exit(0)
}
