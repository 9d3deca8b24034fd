//! The background server of a device, which drives the engine while no application thread does. The background thread
//! (`progress.rs`) runs the background servers of all devices of the process.
//!
//! ```text
//!      ARMED, ASLEEP ---(1)--> DRIVING: polls
//!        |    ^      <--(2)---    |
//!       (3)  (4)                 (3)
//!        v    |                   |
//!      WATCHING: naps <-----------'
//!
//!   (1) a wake source of the port reports a frame, a deadline of the engine expires, or a thread rings the bell; after
//!       `ARMED_POLLS_MAX` polls that found work, the background thread disarms the port
//!   (2) no poll has found work for 20 to 200 us (`Linger`)
//!   (3) application threads poll often without requesting notifications; the polling thread disarms the port
//!       (`Shared::take_over`)
//!   (4) a nap ends, and application threads have stopped polling or a thread is the leader; or a thread requests a
//!       notification, which ends the nap at once
//! ```
//!
//! While a leader is the server of the port (`sleep.rs`), the background server rests. When the leader returns from
//! `CompChannel::wait`, the leader rings the bell of the background server if work may be due. On a port without wake
//! sources, or with wake sources that cannot be armed at present, a rest is a nap.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::thread::sched_yield;

use crate::device::Shared;
use crate::linger::Linger;
use crate::link::LinkWatch;
use crate::options::ProgressPolicy;
use crate::sleep::{LATE_NANOS, NAP_MAX, NAP_MIN, nanos};
use crate::stat::StatSocket;
use crate::watch;

/// The application has stopped polling if no poll is in progress and none begins for this number of nanoseconds, which
/// exceeds the time that an application that polls needs between two polls.
const POLLED_NANOS: u64 = 20_000;
/// If the application polled for at least this time after a takeover of the port, the next takeover needs `POLLS_MIN`
/// polls. Otherwise the next takeover needs twice as many polls as this takeover, at most `POLLS_MAX`
/// (`Activity::end_polls`).
const POLLED_LONG: Duration = Duration::from_millis(10);
/// Length of the longest nap of the background thread while the port is armed. In two cases the background thread naps
/// although the port is armed: frames wait for room in the transmit ring (the peer has stopped receiving), or
/// `SPURIOUS_MAX` wake-ups in succession were without a frame.
const NAP_STALLED_MAX: Duration = Duration::from_millis(200);
/// Number of wake-ups without a frame, in succession, after which the background thread naps, because the wake source
/// may stay readable for ever.
const SPURIOUS_MAX: u32 = 16;
/// Number of polls in `drive` that find work while the port is armed, after which the background thread disarms the
/// port. While a memif is armed, each burst of its peer costs the peer a system call; each arming of a disarmed memif
/// costs this process a memory barrier of all processors (membarrier(2)). With this number, the two costs are of the
/// same order.
const ARMED_POLLS_MAX: u32 = 8;
/// Interval between two calls of [`BackgroundServer::maintain`] while no application thread polls the engine or pushes.
const MAINTAIN_IDLE: Duration = Duration::from_secs(1);
/// Interval between two calls of [`BackgroundServer::maintain`] while application threads poll the engine or push.
/// Equal to the interval at which `watch.rs` compares counters with their values in the last log lines.
const MAINTAIN_ACTIVE: Duration = Duration::from_millis(200);
/// Interval between two calls of [`BackgroundServer::maintain`] while the link of a memif client is down, or neighbours
/// of a shared port are unresolved.
const MAINTAIN_WAITING: Duration = Duration::from_millis(20);

/// The descriptors that ended a [`Rest`], except the bell.
#[derive(Clone, Copy, Default)]
pub(crate) struct Woken {
    by_stat: bool,
    by_kernel: bool,
    by_link: bool,
    by_source: bool,
}

/// Records in a `Woken` that a descriptor ended the [`Rest`].
pub(crate) type Mark = fn(&mut Woken);

/// Reason of a [`Rest`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// The port is idle.
    Asleep,
    /// Application threads have taken over the port.
    Watching,
    /// Another thread drives the engine, or the background thread must not drive the engine: after a fatal error, or
    /// under `ProgressPolicy::Application`.
    Waiting,
}

/// A period in which the background thread need not call [`BackgroundServer::turn`], which drives the engine or
/// prepares the next `Rest`.
#[derive(Clone, Copy)]
pub(crate) struct Rest {
    pub(crate) until: Instant,
    /// Whether a wake source of the port ends this `Rest`.
    on_sources: bool,
    reason: Reason,
}

/// State of a background server while application threads have taken over the port.
struct Watching {
    since: Instant,
    nap: Duration,
}

pub(crate) struct BackgroundServer {
    shared: Arc<Shared>,
    link: LinkWatch,
    stat: Option<StatSocket>,
    counters: watch::Watch,
    maintain_at: Instant,
    linger: Linger,
    nap: Duration,
    watching: Option<Watching>,
    /// Number of polls and pushes by application threads (`Activity::polls`) until the last call of `maintain`.
    polls_maintained: u64,
    /// Number of polls and pushes by application threads (`Activity::polls`) until the last call of `sleep`
    /// that locked the engine.
    polls_slept: u64,
    spurious: u32,
    /// Number of further polls in `drive` that must find work before the background thread disarms the port:
    /// `ARMED_POLLS_MAX` after a call of `sleep`, 0 after this thread has disarmed the port.
    armed_polls: u32,
    /// Whether the statistics socket may end a [`Rest`]. After a failure to accept a connection, false until the next
    /// call of `maintain`.
    accepts: bool,
}

impl BackgroundServer {
    pub(crate) fn new(shared: Arc<Shared>, link: LinkWatch, stat: Option<StatSocket>) -> Self {
        BackgroundServer {
            shared,
            link,
            stat,
            counters: watch::Watch::new(),
            maintain_at: Instant::now(),
            linger: Linger::new(),
            nap: NAP_MIN,
            watching: None,
            polls_maintained: 0,
            polls_slept: 0,
            spurious: 0,
            armed_polls: 0,
            accepts: true,
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Returns whether the device is being closed.
    pub(crate) fn is_stopping(&self) -> bool {
        self.shared.stopping.load(Ordering::Relaxed)
    }

    /// Takes a turn: drives the engine, not longer than `longest`, or prepares a [`Rest`]. Returns the `Rest`; `None`
    /// if the next turn is due at once.
    pub(crate) fn turn(&mut self, longest: Option<Duration>) -> Option<Rest> {
        if Instant::now() >= self.maintain_at {
            self.maintain();
        }
        if self.shared.check().is_err() || self.shared.policy == ProgressPolicy::Application {
            return Some(self.wait_until(self.maintain_at));
        }
        if self.shared.sleep.is_watching() {
            if !self.shared.sleep.is_led() {
                return Some(self.watch());
            }
            self.end_watch();
        }
        let goes_on = self.drive(longest);
        if goes_on || self.shared.policy == ProgressPolicy::Busy || self.shared.sleep.is_watching() {
            return None;
        }
        self.sleep()
    }

    fn wait_until(&self, until: Instant) -> Rest {
        Rest { until, on_sources: false, reason: Reason::Waiting }
    }

    /// Polls the engine until one of these events: no poll has found work for 20 to 200 us (`Linger`), another thread
    /// took over the port or became the leader, the device is being closed, or the time `longest` has passed. Returns
    /// true only if the time `longest` has passed.
    fn drive(&mut self, longest: Option<Duration>) -> bool {
        let shared = &*self.shared;
        if shared.sleep.is_led() {
            return false;
        }
        let end = longest.map(|longest| Instant::now() + longest);
        let _driving = shared.activity.drive_in_background();
        loop {
            let idle = match shared.try_lock() {
                Some(mut driven) => {
                    let is_idle = driven.poll(shared.now()).is_idle();
                    // While a thread is the leader, the port stays armed, because the leader may have armed the port
                    // for the leader's own sleep.
                    if !is_idle && self.armed_polls > 0 && !shared.sleep.is_led() {
                        self.armed_polls -= 1;
                        if self.armed_polls == 0 {
                            driven.disarm();
                        }
                    }
                    is_idle
                }
                None => true,
            };
            let lingers = self.linger.goes_on(!idle);
            let taken_over = shared.sleep.is_watching() || shared.sleep.is_led();
            if !lingers || taken_over || shared.stopping.load(Ordering::Relaxed) {
                return false;
            }
            if idle {
                // A poll may have woken an application thread. The woken thread may wait for the processor on which the
                // background thread runs.
                sched_yield();
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                return true;
            }
        }
    }

    /// Arms the port and returns the [`Rest`] until the next call of `turn`. Does not arm the port while another thread
    /// drives the engine, or a leader is the server of the port. Returns `None` if a poll after the port was armed
    /// found work.
    fn sleep(&mut self) -> Option<Rest> {
        let shared = &*self.shared;
        let Some(mut driven) = shared.try_lock() else {
            return Some(self.wait_until(Instant::now() + NAP_MIN));
        };
        let (now, polls) = (Instant::now(), shared.activity.polls());
        let mut until = self.maintain_at;
        let is_led = shared.sleep.is_led();
        let is_used = std::mem::replace(&mut self.polls_slept, polls) != polls;
        // `armed_polls` (number of polls with work until the port is disarmed) is set also while a thread is the
        // leader, because the leader arms the port before it returns from `CompChannel::wait`.
        self.armed_polls = ARMED_POLLS_MAX;
        if is_led {
            // After the leader has returned from `CompChannel::wait`, `Sleep::ring_if_due` rings the bell if a deadline
            // of the engine is more than `LATE_NANOS` before `until`, the time until which the background thread
            // sleeps. If application threads have used the engine, `until` is at most `now` plus `LATE_NANOS`. A
            // deadline after `now` is then less than `LATE_NANOS` before `until`, so application threads need not ring
            // the bell.
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
                return None;
            }
            let mut deadline = driven.next_deadline();
            if is_used && is_armed {
                let late = shared.now().plus_nanos(LATE_NANOS);
                deadline = deadline.map(|at| at.max(late));
            }
            if is_armed && self.spurious < SPURIOUS_MAX && !driven.is_tx_stalled() {
                self.nap = NAP_MIN;
            } else {
                let nap_max = if is_armed { NAP_STALLED_MAX } else { shared.nap_max() };
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
        Some(Rest { until, on_sources: self.spurious < SPURIOUS_MAX, reason: Reason::Asleep })
    }

    /// Continues after the end of `rest`: a descriptor became readable, or the time `rest.until` was reached.
    pub(crate) fn resume(&mut self, rest: Rest, woken: Woken) {
        self.shared.sleep.clear_background_bell();
        match rest.reason {
            Reason::Asleep => self.wake_up(woken),
            Reason::Watching => self.end_nap(),
            Reason::Waiting => {}
        }
        self.serve(woken);
    }

    /// Polls the engine once after a sleep, unless application threads took over the port.
    fn wake_up(&mut self, woken: Woken) {
        let shared = &*self.shared;
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
        let is_idle = driven.poll(shared.now()).is_idle();
        drop(driven);
        if !is_idle {
            self.linger.restart();
            self.spurious = 0;
        } else if woken.by_source {
            self.spurious = (self.spurious + 1).min(SPURIOUS_MAX);
            // A memif connection may have begun or ended, so the next maintenance, which checks the link, is due soon.
            self.maintain_at = self.maintain_at.min(Instant::now() + MAINTAIN_WAITING);
        } else if self.spurious == SPURIOUS_MAX {
            // The `Rest` that ended was the nap after `SPURIOUS_MAX` wake-ups without a frame. One more such wake-up
            // begins the next nap.
            self.spurious -= 1;
        } else {
            self.spurious = 0;
        }
    }

    /// Leaves the port to application threads, for the time of a nap.
    fn watch(&mut self) -> Rest {
        let shared = &*self.shared;
        let watching = self.watching.get_or_insert_with(|| {
            // `Shared::take_over` has rung the bell. If the bell has not ended a `Rest`, the bell is still readable,
            // and would end the first nap at once. Therefore the bell is cleared.
            shared.sleep.clear_background_bell();
            Watching { since: Instant::now(), nap: NAP_MIN }
        });
        let until = Instant::now() + watching.nap;
        Rest { until, on_sources: false, reason: Reason::Watching }
    }

    /// After a nap: doubles the nap if application threads still poll. If these threads have stopped polling, have
    /// requested a notification, or wait in `CompChannel::wait`, ends the state [`Watching`].
    fn end_nap(&mut self) {
        let shared = &*self.shared;
        let is_left = || shared.sleep.is_watching() && !shared.sleep.is_led();
        match &mut self.watching {
            // `is_left` (the port is taken over, and no thread is the leader) is called again, because a thread may end
            // the takeover during `is_polled`, by a request for a notification.
            Some(watching) if is_left() && is_polled(shared) && is_left() => {
                watching.nap = (watching.nap * 2).min(NAP_MAX);
            }
            _ => self.end_watch(),
        }
    }

    fn end_watch(&mut self) {
        let is_long = self.watching.take().is_some_and(|watching| watching.since.elapsed() >= POLLED_LONG);
        self.shared.activity.end_polls(is_long);
        self.shared.sleep.set_watching(false);
    }

    /// Returns the descriptors that end `rest`.
    pub(crate) fn descriptors(&self, rest: Rest) -> impl Iterator<Item = (Mark, BorrowedFd<'_>)> {
        let shared = &*self.shared;
        let bell: Option<(Mark, _)> = Some((|_| {}, shared.sleep.background_bell()));
        let stat = self
            .stat
            .as_ref()
            .filter(|_| self.accepts)
            .map(|stat| -> (Mark, _) { (|woken| woken.by_stat = true, stat.as_fd()) });
        let link = self.link.notifications().map(|fd| -> (Mark, _) { (|woken| woken.by_link = true, fd) });
        // After a fatal error no thread reads the kernel's changes, so the descriptor would stay readable.
        let changes = shared.kernel_changes().filter(|_| shared.check().is_ok());
        let changes = changes.map(|fd| -> (Mark, _) { (|woken| woken.by_kernel = true, fd) });
        let sources = shared.wakes.as_ref().filter(|_| rest.on_sources);
        let sources = sources.map(|wakes| -> (Mark, _) { (|woken| woken.by_source = true, wakes.epoll()) });
        [bell, stat, link, changes, sources].into_iter().flatten()
    }

    /// Does the work that `woken` reports: sends the counters of the device to processes connected to the statistics
    /// socket, and applies changes of the kernel's interface and neighbours to the device.
    fn serve(&mut self, woken: Woken) {
        if woken.by_stat {
            self.answer();
        }
        if woken.by_link {
            self.link.follow(&self.shared);
        }
        if woken.by_kernel && self.shared.check().is_ok() {
            self.shared.follow_kernel();
        }
    }

    fn answer(&mut self) {
        self.accepts = self.stat.as_ref().is_none_or(|stat| stat.answer(|| self.shared.describe()));
    }

    /// Restarts a memif client whose link is down, applies changes of the link and of the kernel's interface and
    /// neighbours, sends the counters of the device to processes connected to the statistics socket, and logs the
    /// growth of counters that should not grow. Does not poll the engine.
    fn maintain(&mut self) {
        self.answer();
        let shared = &*self.shared;
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

/// Returns whether application threads poll: a poll began at most `POLLED_NANOS` ago, a poll is in progress, or a poll
/// begins within `POLLED_NANOS`. A poll that executes many buffered requests takes longer than `POLLED_NANOS`; its
/// thread may also be waiting for the processor on which the background thread runs.
fn is_polled(shared: &Shared) -> bool {
    let (polls, began) = (shared.activity.polls(), shared.now());
    if shared.activity.idle_nanos(began) <= POLLED_NANOS {
        return true;
    }
    loop {
        if shared.is_locked() || shared.activity.polls() != polls {
            return true;
        }
        if shared.now().nanos_since(began) > POLLED_NANOS {
            return false;
        }
        sched_yield();
    }
}
