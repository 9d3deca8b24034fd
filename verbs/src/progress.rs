//! The background thread, which drives the engine while no application thread does.
//!
//! ```text
//!                      the port's wake source, a deadline of the engine, a bell
//!      ARMED, ASLEEP ------------------------------------------------------------> DRIVING: polls, until no poll found
//!        ^    |      <------------------------------------------------------------  work for the time LINGER
//!        |    |                          idle
//!        |    | the application polls without requests of notifications: it disarms the port (`Shared::take_over`)
//!        |    v
//!      WATCHING: naps
//!        |    ^
//!        '----' the application does not poll at the end of a nap, or requests a notification
//! ```
//!
//! While a thread in `CompChannel::wait` is the server of the port (`sleep.rs`), the background thread sleeps, and is
//! woken by its bell when the leader leaves and work is due. On a port without wake sources, or whose wake sources cannot
//! be armed at present, the sleep is a nap.

use std::any::Any;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::device::Shared;
use crate::linger::Linger;
use crate::link::LinkWatch;
use crate::memory;
use crate::options::ProgressPolicy;
use crate::sleep::LATE_NANOS;
use crate::slice;
use crate::stat::StatSocket;
use crate::watch;

/// Length of the shortest nap, and of each nap while work requests are outstanding.
pub(crate) const NAP_MIN: Duration = Duration::from_micros(50);
/// Length of the longest nap.
pub(crate) const NAP_MAX: Duration = Duration::from_millis(1);
/// Largest time in nanoseconds since its last poll for an application that polls: longer than a poll of a full burst, and
/// than the wake-up of a thread that displaces the application from its processor.
const POLLED_NANOS: u64 = 20_000;
/// Time for which an application must have polled so that it may take over the port again as soon as before.
const POLLED_LONG: Duration = Duration::from_millis(10);
/// Length of the longest nap while frames wait for room in the transmit ring, of a peer that has stopped receiving.
const NAP_STALLED_MAX: Duration = Duration::from_millis(200);
/// Wake-ups in succession without a frame after which the background thread takes a nap, because the wake source may be
/// readable for ever.
const SPURIOUS_MAX: u32 = 16;
/// Interval of maintenance of an idle device.
const MAINTAIN_IDLE: Duration = Duration::from_secs(1);
/// Interval of maintenance of a device in use: the interval at which counters are compared.
const MAINTAIN_ACTIVE: Duration = Duration::from_millis(200);
/// Interval of maintenance while the link of a memif client is down, or neighbours of a shared port are unresolved.
const MAINTAIN_WAITING: Duration = Duration::from_millis(20);

pub(crate) const THREAD_NAME: &str = "roce-progress";

/// Starts the background thread of a device. The thread also answers readers of the statistics socket `stat`.
pub(crate) fn start(shared: &Arc<Shared>, mut link: LinkWatch, stat: Option<StatSocket>) -> io::Result<()> {
    let weak = Arc::downgrade(shared);
    let handle = thread::Builder::new().name(THREAD_NAME.into()).spawn(move || {
        memory::prepare_thread();
        slice::shorten();
        run_to_the_end(&weak, &mut link, stat.as_ref());
    })?;
    shared.background.keep(handle);
    Ok(())
}

/// Runs the background thread until the device is closed. A panic puts the device in a fatal error; the thread then
/// continues without driving the engine, to answer readers of the statistics socket. A second panic ends the thread.
fn run_to_the_end(weak: &Weak<Shared>, link: &mut LinkWatch, stat: Option<&StatSocket>) {
    for _ in 0..2 {
        let Some(shared) = weak.upgrade() else { return };
        let thread = AssertUnwindSafe(|| BackgroundThread::new(&shared, link, stat).run());
        let Err(panic) = catch_unwind(thread) else { return };
        let what = text_of(&*panic);
        tracing::error!(port = %shared.port, "the background thread panicked, the device is in a fatal error: {what}");
        shared.inspect().raise_fatal(format!("the background thread panicked (please report it): {what}"));
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

/// The descriptors that ended a sleep.
#[derive(Clone, Copy, Default)]
struct Woken {
    by_stat: bool,
    by_kernel: bool,
    by_link: bool,
    by_source: bool,
}

struct BackgroundThread<'a> {
    shared: &'a Shared,
    link: &'a mut LinkWatch,
    stat: Option<&'a StatSocket>,
    counters: watch::Watch,
    maintain_at: Instant,
    linger: Linger,
    nap: Duration,
    /// Value of `Activity::polls` at the last maintenance.
    polls_maintained: u64,
    /// Value of `Activity::polls` at the begin of the last sleep.
    polls_slept: u64,
    spurious: u32,
    /// Whether the thread sleeps next without lingering.
    yields: bool,
    /// Whether the statistics socket may end a sleep; false from a failure to accept a reader until the next maintenance.
    accepts: bool,
}

impl<'a> BackgroundThread<'a> {
    fn new(shared: &'a Shared, link: &'a mut LinkWatch, stat: Option<&'a StatSocket>) -> Self {
        BackgroundThread {
            shared,
            link,
            stat,
            counters: watch::Watch::new(),
            maintain_at: Instant::now(),
            linger: Linger::new(),
            nap: NAP_MIN,
            polls_maintained: 0,
            polls_slept: 0,
            spurious: 0,
            yields: false,
            accepts: true,
        }
    }

    fn run(&mut self) {
        while !self.shared.stopping.load(Ordering::Relaxed) {
            if Instant::now() >= self.maintain_at {
                self.maintain();
            }
            if self.shared.check().is_err() || self.shared.policy == ProgressPolicy::Application {
                let woken = self.rest(self.maintain_at, false);
                self.serve(woken);
                continue;
            }
            if self.shared.sleep.is_watching() {
                self.watch();
            }
            self.drive();
            if self.shared.policy != ProgressPolicy::Busy && !self.shared.sleep.is_watching() {
                self.sleep();
            }
        }
    }

    /// Polls the engine until no poll found work for the time of `linger`, another thread drives the engine or took over
    /// the port, the application has an event to process, or the device is being closed.
    fn drive(&mut self) {
        let shared = self.shared;
        if std::mem::take(&mut self.yields) || shared.sleep.is_led() {
            return;
        }
        let _driving = shared.activity.drive_in_background();
        loop {
            let Some(mut driven) = shared.try_lock() else { return };
            let events = driven.events();
            let idle = driven.poll(shared.now()).is_idle();
            let has_event = driven.events() != events;
            drop(driven);
            let lingers = self.linger.goes_on(!idle);
            let taken_over = shared.sleep.is_watching() || shared.sleep.is_led();
            if !lingers || has_event || taken_over || shared.stopping.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Arms the port and sleeps. If a leader is the server of the port, only sleeps.
    fn sleep(&mut self) {
        let shared = self.shared;
        let Some(mut driven) = shared.try_lock() else {
            // Another thread drives the engine.
            let woken = self.rest(Instant::now() + NAP_MIN, false);
            return self.serve(woken);
        };
        let (now, polls) = (Instant::now(), shared.activity.polls());
        let mut until = self.maintain_at;
        let is_led = shared.sleep.is_led();
        let is_used = std::mem::replace(&mut self.polls_slept, polls) != polls;
        if is_led {
            // When the leader leaves, the bell rings if a deadline of the engine is earlier.
            if is_used {
                until = until.min(now + Duration::from_nanos(LATE_NANOS));
            }
            let nanos = nanos(until.saturating_duration_since(now));
            shared.sleep.set_background_until(Some(shared.now().plus_nanos(nanos)));
        } else {
            let is_armed = driven.arm() && shared.sleep.has_barriers();
            shared.wakes.iter().for_each(|wakes| wakes.switch(is_armed));
            shared.sleep.announce();
            if !driven.poll(shared.now()).is_idle() {
                shared.sleep.wake_up();
                return;
            }
            let mut deadline = driven.next_deadline();
            if is_used && is_armed {
                let late = shared.now().plus_nanos(LATE_NANOS);
                deadline = deadline.map(|at| at.max(late));
            }
            if is_armed && self.spurious < SPURIOUS_MAX && !driven.is_tx_stalled() {
                self.nap = NAP_MIN;
            } else {
                let nap_max = if is_armed { NAP_STALLED_MAX } else { NAP_MAX };
                let is_pending = !is_armed && deadline.is_some();
                self.nap = if is_pending { NAP_MIN } else { (self.nap * 2).min(nap_max) };
                until = until.min(now + self.nap);
            }
            let engine_now = shared.now();
            let mut at = engine_now.plus_nanos(nanos(until.saturating_duration_since(now)));
            if let Some(deadline) = deadline.filter(|deadline| *deadline < at) {
                at = deadline;
                until = now + Duration::from_nanos(deadline.nanos_since(engine_now));
            }
            shared.sleep.sleep_until(at);
            shared.sleep.set_background_until(Some(at));
        }
        drop(driven);
        let woken = self.rest(until, self.spurious < SPURIOUS_MAX);
        self.wake_up(woken);
        self.serve(woken);
    }

    /// Polls the engine once after a sleep, unless application threads took over the port.
    fn wake_up(&mut self, woken: Woken) {
        let shared = self.shared;
        if shared.sleep.is_watching() {
            return;
        }
        let mut driven = shared.inspect();
        shared.sleep.set_background_until(None);
        if shared.check().is_err() {
            return;
        }
        if shared.sleep.is_led() {
            driven.poll(shared.now());
            return;
        }
        shared.sleep.wake_up();
        let events = driven.events();
        let is_idle = driven.poll(shared.now()).is_idle();
        // A thread that was woken by an event needs the processor, and polls soon.
        self.yields = driven.events() != events;
        drop(driven);
        if !is_idle {
            self.linger.restart();
            self.spurious = 0;
        } else if woken.by_source {
            self.spurious = (self.spurious + 1).min(SPURIOUS_MAX);
            // The connection of a memif may have begun or ended.
            self.maintain_at = self.maintain_at.min(Instant::now() + MAINTAIN_WAITING);
        } else if self.spurious == SPURIOUS_MAX {
            // The nap ended. If the wake source is still readable, the next nap follows after one wake-up.
            self.spurious -= 1;
        } else {
            self.spurious = 0;
        }
    }

    /// Leaves the port to application threads until they do not poll, request a notification, or wait in
    /// `CompChannel::wait`.
    fn watch(&mut self) {
        let shared = self.shared;
        let (mut nap, begin) = (NAP_MIN, Instant::now());
        // The ring with which the application took over, if it did not end a sleep.
        shared.sleep.clear_background_bell();
        while shared.sleep.is_watching() && !shared.sleep.is_led() && !shared.stopping.load(Ordering::Relaxed)
        {
            let woken = self.rest(Instant::now() + nap, false);
            let is_polled = shared.activity.idle_nanos(shared.now()) <= POLLED_NANOS;
            self.serve(woken);
            if !is_polled {
                break;
            }
            if Instant::now() >= self.maintain_at {
                self.maintain();
            }
            nap = (nap * 2).min(NAP_MAX);
        }
        shared.activity.end_polls(begin.elapsed() >= POLLED_LONG);
        shared.sleep.set_watching(false);
    }

    /// Sleeps until `until`, a ring of the bell, or work for `serve`; `on_sources`: or until a wake source is readable.
    fn rest(&self, until: Instant, on_sources: bool) -> Woken {
        let shared = self.shared;
        let mut fds: Vec<(Wakes, BorrowedFd<'_>)> = Vec::with_capacity(5);
        fds.push((|_| {}, shared.sleep.background_bell()));
        fds.extend(
            self.stat
                .filter(|_| self.accepts)
                .map(|stat| ((|woken| woken.by_stat = true) as Wakes, stat.as_fd())),
        );
        fds.extend(self.link.notifications().map(|fd| ((|woken| woken.by_link = true) as Wakes, fd)));
        // After a fatal error no thread reads the kernel's changes, so the descriptor would stay readable.
        let changes = shared.kernel_changes().filter(|_| shared.check().is_ok());
        fds.extend(changes.map(|fd| ((|woken| woken.by_kernel = true) as Wakes, fd)));
        if let Some(wakes) = shared.wakes.as_ref().filter(|_| on_sources) {
            fds.push((|woken| woken.by_source = true, wakes.epoll()));
        }
        let mut polled: Vec<PollFd<'_>> =
            fds.iter().map(|(_, fd)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let mut woken = Woken::default();
        // An error (EINTR) is a wake-up.
        if poll(&mut polled, Some(&timespec(until.saturating_duration_since(Instant::now())))).is_ok() {
            let readable = polled.iter().zip(&fds).filter(|(polled, _)| !polled.revents().is_empty());
            readable.for_each(|(_, (mark, _))| mark(&mut woken));
        }
        shared.sleep.clear_background_bell();
        woken
    }

    /// Answers readers of statistics, and follows the kernel's neighbours and interface.
    fn serve(&mut self, woken: Woken) {
        if woken.by_stat {
            self.answer();
        }
        if woken.by_link {
            self.link.follow(self.shared);
        }
        if woken.by_kernel && self.shared.check().is_ok() {
            self.shared.follow_kernel();
        }
    }

    fn answer(&mut self) {
        self.accepts = self.stat.is_none_or(|stat| stat.answer(|| self.shared.describe()));
    }

    /// Restarts a memif client whose link is down, follows the link and the kernel's interface and neighbours, answers
    /// readers of statistics, and logs the growth of counters that should not grow. Does not drive the engine.
    fn maintain(&mut self) {
        let shared = self.shared;
        self.answer();
        self.link.follow(shared);
        let mut waits = false;
        {
            let _driving = shared.activity.drive_in_background();
            if let Some(mut driven) = shared.try_lock() {
                driven.log_conflict();
                waits = driven.has_wanted() && shared.kernel_changes().is_some();
                drop(driven);
                waits |= !shared.poll_link() && shared.control().restarts();
                shared.follow_kernel();
                for line in shared.look_at_counters(&mut self.counters) {
                    tracing::warn!(port = %shared.port, "{line}");
                }
            }
        }
        let polls = shared.activity.polls();
        let is_active = std::mem::replace(&mut self.polls_maintained, polls) != polls;
        let interval = match (waits, is_active) {
            (true, _) => MAINTAIN_WAITING,
            (false, true) => MAINTAIN_ACTIVE,
            (false, false) => MAINTAIN_IDLE,
        };
        self.maintain_at = Instant::now() + interval;
    }
}

/// Records in a `Woken` that a descriptor ended the sleep.
type Wakes = fn(&mut Woken);

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(crate) fn timespec(duration: Duration) -> Timespec {
    Timespec::try_from(duration).unwrap_or(Timespec { tv_sec: i64::from(u32::MAX), tv_nsec: 0 })
}
