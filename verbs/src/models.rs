//! Tests of the hand-over of the engine between threads (`drive.rs`) and of completion events (`inbox.rs`) under loom,
//! which runs every interleaving of the threads (`scripts/check.sh loom`).

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::Condvar;
use loom::thread;
use roce::queue::{CqId, Doorbells};
use roce::sync::Mutex;
use roce::sync::atomic::{AtomicUsize, Ordering};

use crate::drive::{Activity, Drive, DriveLock, Duty, Watch};
use crate::inbox::{Inbox, Semaphore};

/// A substitute for the engine in these tests: the doorbells of two send queues, and the numbers of the doorbells that
/// `send_posted` drained.
struct DoorbellCore {
    bells: Arc<Doorbells>,
    sent: Vec<usize>,
}

impl Drive for DoorbellCore {
    fn send_posted(&mut self) {
        let sent = &mut self.sent;
        self.bells.drain(|slot| sent.push(slot));
    }

    fn on_panic(&mut self) {}
}

fn device() -> (Arc<Doorbells>, Arc<DriveLock<DoorbellCore>>) {
    let bells = Arc::new(Doorbells::new(2));
    (bells.clone(), Arc::new(DriveLock::new(DoorbellCore { bells, sent: Vec::new() })))
}

fn post(bells: &Doorbells, lock: &DriveLock<DoorbellCore>, slot: usize) {
    bells.ring(slot);
    if let Some(mut driven) = lock.try_lock_to_send() {
        driven.send_posted();
    }
}

fn poll(lock: &DriveLock<DoorbellCore>) {
    if let Some(mut driven) = lock.try_lock() {
        driven.send_posted();
    }
}

#[test]
fn what_was_posted_is_sent_before_all_have_gone() {
    loom::model(|| {
        let (bells, lock) = device();
        let poller = thread::spawn({
            let lock = lock.clone();
            move || poll(&lock)
        });
        post(&bells, &lock, 0);
        poller.join().unwrap();
        assert_eq!(lock.lock().sent, [0]);
    });
}

#[test]
fn what_two_threads_post_is_sent_before_all_have_gone() {
    loom::model(|| {
        let (bells, lock) = device();
        let poster = thread::spawn({
            let (bells, lock) = (bells.clone(), lock.clone());
            move || post(&bells, &lock, 1)
        });
        let poller = thread::spawn({
            let lock = lock.clone();
            move || poll(&lock)
        });
        post(&bells, &lock, 0);
        poster.join().unwrap();
        poller.join().unwrap();
        let mut sent = std::mem::take(&mut lock.lock().sent);
        sent.sort_unstable();
        assert_eq!(sent, [0, 1]);
    });
}

#[test]
fn what_was_posted_during_a_control_operation_is_sent() {
    loom::model(|| {
        let (bells, lock) = device();
        let control = thread::spawn({
            let lock = lock.clone();
            move || lock.lock().sent.clear()
        });
        post(&bells, &lock, 0);
        control.join().unwrap();
        assert!(!bells.any());
    });
}

/// A substitute for `park` and `unpark` of threads, because in loom an `unpark` of a thread that is about to park is
/// lost.
#[derive(Default)]
struct Nap {
    woken: Mutex<bool>,
    changed: Condvar,
}

impl Nap {
    fn park(&self) {
        let mut woken = self.woken.lock().unwrap();
        while !std::mem::take(&mut *woken) {
            woken = self.changed.wait(woken).unwrap();
        }
    }

    fn unpark(&self) {
        *self.woken.lock().unwrap() = true;
        self.changed.notify_one();
    }
}

/// The sleep of the background thread has no timeout in this test, so only an `unpark` ends the sleep.
#[test]
fn the_background_thread_drives_when_it_is_handed_over_to() {
    loom::model(|| {
        let (activity, nap) = (Arc::new(Activity::default()), Arc::new(Nap::default()));
        let background = thread::spawn({
            let (activity, nap) = (activity.clone(), nap.clone());
            move || {
                let mut watch = Watch::default();
                while watch.look(&activity) != Duty::TakenOver {
                    nap.park();
                }
            }
        });
        activity.count_poll();
        activity.hand_over();
        nap.unpark();
        background.join().unwrap();
    });
}

/// A substitute for an event file descriptor (eventfd): the number of pending events.
struct Counter(AtomicUsize);

impl Semaphore for Counter {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self) {
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
    }
}

#[test]
fn a_channel_is_readable_exactly_while_an_event_waits() {
    loom::model(|| {
        let inbox = Arc::new(Inbox::new(Counter(AtomicUsize::new(0))));
        let engine = thread::spawn({
            let inbox = inbox.clone();
            move || (0..2).for_each(|cq| inbox.put(CqId(cq)))
        });
        let mut taken: VecDeque<CqId> = inbox.take().into_iter().collect();
        engine.join().unwrap();
        assert_eq!(inbox.count().0.load(Ordering::Relaxed), 2 - taken.len());
        taken.extend(std::iter::from_fn(|| inbox.take()));
        assert_eq!(taken, [CqId(0), CqId(1)]);
    });
}
