//! The background thread, which runs the background servers (`background.rs`) of all open devices of a process. The
//! thread starts when the first device is opened, and ends when the last device is closed.
//!
//! ```text
//!   background thread                                 open, close of a device
//!   moves the servers in `joining` to its slots     adds a server to `joining`, rings the thread's bell
//!   drops the servers of devices that are closed    sets `stopping`, rings the device's bell, waits until the
//!   calls `turn` of each server that does not rest    server is dropped
//!   if each server rests: sleeps until a rest ends,
//!     or a descriptor of a server is readable
//!   resumes the servers whose rest has ended
//! ```

use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use dpdk_ffi::PerProcess;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use crate::background::{BackgroundServer, Mark, Rest, Woken};
use crate::inbox::Semaphore;
use crate::memory;
use crate::sleep::timespec;
use crate::slice;

pub(crate) const THREAD_NAME: &str = "roce-progress";

/// Longest time for which a call of [`BackgroundServer::turn`] drives an engine while the process has several devices.
/// One device in use delays another device by at most this time.
const TURN_MAX: Duration = Duration::from_micros(20);
/// Number of panics of a background server after which the background thread drops this background server.
const PANICS_MAX: u32 = 2;

/// The background thread of this process.
static THREAD: PerProcess<BackgroundThread> = PerProcess::new();

#[derive(Default)]
struct BackgroundThread {
    members: Mutex<Members>,
    /// Notified after a background server was dropped, and removed from `Members::serving` (the background servers
    /// that exist).
    left: Condvar,
    /// Whether `Members::joining`, the background servers that the background thread has yet to take up, is not empty.
    has_joining: AtomicBool,
}

/// Number of a background server, unique in the process.
type ServerId = u64;

#[derive(Default)]
struct Members {
    /// Background servers that the background thread has not yet moved to its list of [`Slot`]s.
    joining: Vec<(ServerId, BackgroundServer)>,
    /// All background servers that exist, including those that the background thread has yet to take up (`joining`).
    serving: Vec<ServerId>,
    last_id: ServerId,
    /// The background thread, and the descriptor that wakes this thread; `None` if no background thread runs.
    running: Option<(JoinHandle<()>, Arc<OwnedFd>)>,
    /// A background thread that ends, because its last background server was dropped.
    ending: Option<JoinHandle<()>>,
}

/// The entry of a device's background server among the background servers of the process.
pub(crate) struct Membership {
    id: ServerId,
}

/// Adds `server` to the background servers of the process, and starts the background thread if it does not run.
pub(crate) fn join(server: BackgroundServer) -> io::Result<Membership> {
    let progress = THREAD.get();
    let mut members = progress.lock();
    if members.running.is_none() {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let rung = bell.clone();
        let handle = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
            memory::prepare_thread();
            slice::shorten();
            progress.run(&rung);
        })?;
        members.running = Some((handle, bell));
    }
    members.last_id += 1;
    let id = members.last_id;
    members.joining.push((id, server));
    members.serving.push(id);
    progress.has_joining.store(true, Ordering::Release);
    members.running.iter().for_each(|(_, bell)| bell.add());
    Ok(Membership { id })
}

impl Membership {
    /// Waits until the background thread has dropped the device's background server. So that the background thread
    /// drops it, the caller sets `Shared::stopping` and then rings the bell of the device before the call. If the
    /// background thread itself is the caller, does not wait.
    pub(crate) fn leave(&self) {
        let progress = THREAD.get();
        let mut members = progress.lock();
        let is_this = |handle: &JoinHandle<()>| handle.thread().id() == thread::current().id();
        if members.running.as_ref().is_some_and(|(handle, _)| is_this(handle)) {
            return;
        }
        while members.serving.contains(&self.id) {
            members = progress.left.wait(members).unwrap_or_else(PoisonError::into_inner);
        }
        let ending = members.ending.take();
        drop(members);
        if let Some(handle) = ending {
            // The background thread catches the panics of its background servers, and no other code of the background
            // thread panics. Therefore no panic ends the background thread, and `join` returns no error.
            let _ = handle.join();
        }
    }
}

/// A background server, as the background thread runs it.
struct Slot {
    id: ServerId,
    server: BackgroundServer,
    /// End and reason of the period in which the background server rests; `None` while the background server does not
    /// rest, and the background thread therefore calls [`BackgroundServer::turn`] in its loop.
    rest: Option<Rest>,
    panics: u32,
}

impl Slot {
    /// Calls `step` on the background server, and stores the [`Rest`] that `step` returns. A panic puts the device in a
    /// fatal error; the background server then continues without driving the engine, to send counters to processes
    /// connected to the statistics socket.
    fn step(&mut self, step: impl FnOnce(&mut BackgroundServer) -> Option<Rest>) {
        match catch_unwind(AssertUnwindSafe(|| step(&mut self.server))) {
            Ok(rest) => self.rest = rest,
            Err(panic) => {
                self.rest = None;
                self.panics += 1;
                let (what, shared) = (text_of(&*panic), self.server.shared());
                tracing::error!(
                    port = %shared.port,
                    "the background thread panicked, the device is in a fatal error: {what}"
                );
                shared
                    .inspect()
                    .raise_fatal(format!("the background thread panicked (please report it): {what}"));
            }
        }
    }

    fn has_ended(&self) -> bool {
        self.server.is_stopping() || self.panics >= PANICS_MAX
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

impl BackgroundThread {
    fn lock(&self) -> MutexGuard<'_, Members> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs the background servers until none is left.
    fn run(&self, bell: &OwnedFd) {
        let mut slots = Vec::new();
        while self.update(&mut slots) {
            let longest = (slots.len() > 1).then_some(TURN_MAX);
            for slot in slots.iter_mut().filter(|slot| slot.rest.is_none()) {
                slot.step(|server| server.turn(longest));
            }
            rest(&mut slots, bell);
        }
    }

    /// Drops the background servers in `slots` whose device is being closed, or that panicked `PANICS_MAX` times; then
    /// moves the new background servers (`joining`) to `slots`. Returns false if no background server is left; the
    /// background thread then ends.
    fn update(&self, slots: &mut Vec<Slot>) -> bool {
        let has_joining = self.has_joining.load(Ordering::Acquire);
        if !has_joining && !slots.is_empty() && !slots.iter().any(Slot::has_ended) {
            return true;
        }
        // Each background server is dropped before its entry in `serving` is removed, because `Membership::leave` waits
        // for the removal of the entry.
        let ended: Vec<ServerId> = slots.iter().filter(|slot| slot.has_ended()).map(|slot| slot.id).collect();
        slots.retain(|slot| !ended.contains(&slot.id));
        let mut members = self.lock();
        members.serving.retain(|id| !ended.contains(id));
        self.has_joining.store(false, Ordering::Relaxed);
        slots.extend(members.joining.drain(..).map(|(id, server)| Slot {
            id,
            server,
            rest: None,
            panics: 0,
        }));
        self.left.notify_all();
        if slots.is_empty() {
            members.ending = members.running.take().map(|(handle, _)| handle);
        }
        !slots.is_empty()
    }
}

/// Resumes each background server whose rest has ended: the time `Rest::until` has passed, or a descriptor of the
/// background server is readable. If all background servers rest, first sleeps until a rest ends or `bell` is rung.
fn rest(slots: &mut [Slot], bell: &OwnedFd) {
    let ends = slots.iter().filter_map(|slot| slot.rest.map(|rest| rest.until));
    let Some(first) = ends.min() else { return };
    let all_rest = slots.iter().all(|slot| slot.rest.is_some());
    let longest = if all_rest { first.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
    let woken = sleep(slots, bell, longest);
    let now = Instant::now();
    for (slot, woken) in slots.iter_mut().zip(woken) {
        if let Some(rest) = slot.rest.filter(|rest| woken.is_some() || rest.until <= now) {
            slot.step(|server| {
                server.resume(rest, woken.unwrap_or_default());
                None
            });
        }
    }
}

/// Sleeps until `bell` or a descriptor of a resting background server is readable, but not longer than `longest`.
/// Returns for each background server the descriptors that are readable; `None` if no descriptor of the
/// background server is readable.
fn sleep(slots: &[Slot], bell: &OwnedFd, longest: Duration) -> Vec<Option<Woken>> {
    let mut woken = vec![None; slots.len()];
    let mut marks: Vec<(usize, Mark)> = Vec::new();
    let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(bell, PollFlags::IN)];
    for (index, slot) in slots.iter().enumerate() {
        for (mark, fd) in slot.rest.into_iter().flat_map(|rest| slot.server.descriptors(rest)) {
            marks.push((index, mark));
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
    }
    // After an error (EINTR), a background server whose time `Rest::until` has not passed continues to rest.
    if poll(&mut fds, Some(&timespec(longest))).is_err() {
        return woken;
    }
    if !fds[0].revents().is_empty() {
        bell.take();
    }
    for (fd, (index, mark)) in fds[1..].iter().zip(marks) {
        if !fd.revents().is_empty() {
            mark(woken[index].get_or_insert_default());
        }
    }
    woken
}
