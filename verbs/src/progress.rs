//! The background thread, which drives the engine while no application thread polls. An application thread that stops
//! polling calls `Shared::hand_over`, which ends the nap (sleep) of the background thread.
//!
//! ```text
//!             the application polls, or no poll found work in the last 50 us (LINGER)
//!   DRIVING ------------------------------------------------------------> NAPPING: naps of 50 us, doubled up to 1 ms
//!      ^                                                                      |
//!      '----------------------------------------------------------------------'
//!             the application hands over, or did not poll during a nap
//! ```

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use crate::device::Shared;
use crate::drive::{Duty, Watch};
use crate::link::LinkWatch;
use crate::stat::StatSocket;
use crate::watch;

/// Length of the background thread's first nap after work or a hand-over. Each further nap is twice as long, up to
/// `NAP_MAX`.
const NAP_MIN: Duration = Duration::from_micros(50);
/// Length of the background thread's longest nap: the longest wait of a packet that is received on an idle port.
const NAP_MAX: Duration = Duration::from_millis(1);
/// Time for which the background thread continues to poll the engine after a poll that found work.
const LINGER: Duration = Duration::from_micros(50);
/// Interval at which the background thread calls `maintain`, and then answers readers of the statistics socket.
const MAINTAIN_INTERVAL: Duration = Duration::from_millis(20);

pub(crate) const THREAD_NAME: &str = "roce-progress";

/// Starts the background thread of a device. The thread also answers readers of the statistics socket `stat`.
pub(crate) fn start(shared: &Arc<Shared>, mut link: LinkWatch, stat: Option<StatSocket>) -> io::Result<()> {
    let weak = Arc::downgrade(shared);
    let handle = thread::Builder::new()
        .name(THREAD_NAME.into())
        .spawn(move || run_to_the_end(&weak, &mut link, stat.as_ref()))?;
    shared.background.keep(handle);
    Ok(())
}

/// Runs the background thread until the device is closed. A panic puts the device in a fatal error; the thread then
/// continues without driving the engine, to answer readers of the statistics socket. A second panic ends the thread.
fn run_to_the_end(weak: &Weak<Shared>, link: &mut LinkWatch, stat: Option<&StatSocket>) {
    for _ in 0..2 {
        let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(weak, link, stat))) else { return };
        let Some(shared) = weak.upgrade() else { return };
        let what = text_of(&*panic);
        tracing::error!(port = %shared.port, "the background thread panicked, the device is in a fatal error: {what}");
        shared.inspect().raise_fatal(format!("the background thread panicked (please report it): {what}"));
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

fn run(weak: &Weak<Shared>, link: &mut LinkWatch, stat: Option<&StatSocket>) {
    let mut nap = NAP_MIN;
    let mut watch = Watch::default();
    let mut counters = watch::Watch::new();
    let mut maintained = Instant::now();
    while let Some(shared) = weak.upgrade() {
        if shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        if maintained.elapsed() >= MAINTAIN_INTERVAL {
            if maintain(&shared, link, &mut counters) {
                maintained = Instant::now();
            }
            if let Some(stat) = stat {
                stat.answer(|| shared.describe());
            }
        }
        let duty = watch.look(&shared.activity);
        let worked = duty != Duty::Application && drive_while_busy(&shared);
        drop(shared);
        nap = if worked || duty == Duty::TakenOver { NAP_MIN } else { (nap * 2).min(NAP_MAX) };
        thread::park_timeout(nap);
    }
}

/// Restarts a memif client whose link is down, follows the link and the kernel's interface and neighbours, and logs the
/// growth of counters that should not grow. Returns false, without an effect, if another thread drives the engine or after a fatal error.
fn maintain(shared: &Shared, link: &mut LinkWatch, counters: &mut watch::Watch) -> bool {
    let driving = shared.activity.drive_in_background();
    let Some(mut driven) = shared.try_lock() else { return false };
    driven.log_conflict();
    drop(driven);
    shared.poll_link();
    drop(driving);
    let lines = shared.look_at_counters(counters);
    link.follow(shared);
    if shared.check().is_err() {
        return false;
    }
    shared.follow_kernel();
    for line in lines {
        tracing::warn!(port = %shared.port, "{line}");
    }
    true
}

/// Polls the engine until no poll found work in the last `LINGER`, another thread drives the engine, or the device is
/// being closed. Returns whether a poll found work.
fn drive_while_busy(shared: &Shared) -> bool {
    let _driving = shared.activity.drive_in_background();
    let polls = shared.activity.polls();
    let mut last_work: Option<Instant> = None;
    loop {
        let Some(mut driven) = shared.try_lock() else { return last_work.is_some() };
        let idle = driven.poll(shared.now()).is_idle();
        drop(driven);
        if !idle {
            last_work = Some(Instant::now());
        }
        let lingers = last_work.is_some_and(|at| at.elapsed() < LINGER);
        let taken_over = shared.activity.polls() != polls;
        if !lingers || taken_over || shared.stopping.load(Ordering::Relaxed) {
            return last_work.is_some();
        }
    }
}
