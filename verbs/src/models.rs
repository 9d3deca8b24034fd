//! Tests under loom, which runs every interleaving of the threads (`scripts/check.sh loom`): the hand-over of the
//! engine between threads (`drive.rs`), threads that sleep (`sleep.rs`), and completion events (`inbox.rs`).

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::Condvar;
use loom::thread;
use roce::queue::{CqId, Doorbells};
use roce::sync::Mutex;
use roce::sync::atomic::{AtomicUsize, Ordering};
use roce::time::Instant;

use crate::drive::{Drive, DriveLock};
use crate::inbox::{Inbox, Semaphore};
use crate::sleep::Sleep;

/// A substitute for the engine in these tests: the doorbells of two send queues, and the indices (0 or 1) of the
/// doorbells that `send_posted` drained.
struct DoorbellCore {
    bells: Arc<Doorbells>,
    sent: Vec<usize>,
}

impl Drive for DoorbellCore {
    fn send_posted(&mut self) {
        let sent = &mut self.sent;
        self.bells.drain(|slot| sent.push(slot));
    }

    fn on_release(&mut self) {}

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

/// A substitute for the eventfd of a bell, on which a thread of the model can sleep without a timeout.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    fn sleep(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.changed.wait(rung).unwrap();
        }
    }
}

impl Semaphore for Arc<Bell> {
    fn add(&self) {
        *self.rung.lock().unwrap() = true;
        self.changed.notify_one();
    }

    fn take(&self) {
        *self.rung.lock().unwrap() = false;
    }
}

/// A substitute for the engine. After `send_posted` has sent a work request, the deadline of the substitute (for a
/// retransmission) is at the time 1 ns.
struct SleepCore {
    bells: Arc<Doorbells>,
    sent: Vec<usize>,
    sleep: Arc<Sleep<Arc<Bell>>>,
}

impl Drive for SleepCore {
    fn send_posted(&mut self) {
        let sent = &mut self.sent;
        self.bells.drain(|slot| sent.push(slot));
    }

    fn on_release(&mut self) {
        if self.sleep.is_asleep() {
            self.sleep.ring_if_due((!self.sent.is_empty()).then(|| Instant::from_nanos(1)));
        }
    }

    fn on_panic(&mut self) {}
}

/// Runs a server that sleeps without a timeout, and a thread that posts and does not poll. The server must send the
/// work request, or be woken after the other thread has sent it. `leads`: the server is a leader.
fn server_beside_a_poster(leads: bool) {
    let bells = Arc::new(Doorbells::new(1));
    let bell = Arc::new(Bell::default());
    let other = Arc::new(Bell::default());
    let sleep = Arc::new(match leads {
        true => Sleep::new(other, bell.clone()),
        false => Sleep::new(bell.clone(), other),
    });
    assert!(!leads || sleep.try_lead());
    let core = SleepCore { bells: bells.clone(), sent: Vec::new(), sleep: sleep.clone() };
    let lock = Arc::new(DriveLock::new(core));
    let server = thread::spawn({
        let (sleep, lock) = (sleep.clone(), lock.clone());
        move || {
            let mut driven = lock.lock();
            sleep.announce();
            driven.send_posted();
            if !driven.sent.is_empty() {
                return;
            }
            sleep.sleep_until(Instant::from_nanos(u64::MAX));
            drop(driven);
            bell.sleep();
        }
    });
    bells.ring(0);
    if sleep.is_server_asleep()
        && let Some(mut driven) = lock.try_lock_to_send()
    {
        driven.send_posted();
    }
    server.join().unwrap();
    assert_eq!(lock.lock().sent, [0]);
}

#[test]
fn a_post_is_not_lost_beside_a_background_thread_that_falls_asleep() {
    loom::model(|| server_beside_a_poster(false));
}

#[test]
fn a_post_is_not_lost_beside_a_leader_that_falls_asleep() {
    loom::model(|| server_beside_a_poster(true));
}

/// A leader stops being the leader while work requests are outstanding: the background thread, which sleeps without a
/// timeout, is woken.
#[test]
fn a_leader_that_leaves_wakes_the_background_thread_for_a_deadline() {
    loom::model(|| {
        let bells = Arc::new(Doorbells::new(1));
        let (bell, other) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
        let sleep = Arc::new(Sleep::new(bell.clone(), other));
        assert!(sleep.try_lead());
        let core = SleepCore { bells: bells.clone(), sent: Vec::new(), sleep: sleep.clone() };
        let lock = Arc::new(DriveLock::new(core));
        let background = thread::spawn({
            let (sleep, lock) = (sleep.clone(), lock.clone());
            move || {
                let mut driven = lock.lock();
                if !sleep.is_led() {
                    sleep.announce();
                    driven.send_posted();
                    if !driven.sent.is_empty() {
                        return;
                    }
                    sleep.sleep_until(Instant::from_nanos(u64::MAX));
                }
                sleep.set_background_until(Some(Instant::from_nanos(u64::MAX)));
                drop(driven);
                bell.sleep();
            }
        });
        bells.ring(0);
        let mut driven = lock.lock();
        driven.send_posted();
        sleep.end_lead();
        drop(driven);
        background.join().unwrap();
    });
}

/// A leader stops being the leader while another thread posts and does not poll; the background thread sleeps without a
/// timeout. Either the leader or the posting thread sends the work request.
#[test]
fn a_post_is_not_lost_beside_a_leader_that_leaves() {
    loom::model(|| {
        let bells = Arc::new(Doorbells::new(1));
        let sleep = Arc::new(Sleep::new(Arc::new(Bell::default()), Arc::new(Bell::default())));
        assert!(sleep.try_lead());
        sleep.set_background_until(Some(Instant::from_nanos(u64::MAX)));
        let core = SleepCore { bells: bells.clone(), sent: Vec::new(), sleep: sleep.clone() };
        let lock = Arc::new(DriveLock::new(core));
        let leader = thread::spawn({
            let (sleep, lock) = (sleep.clone(), lock.clone());
            move || {
                // The thread stops being the leader by the steps of the drop of `Waiter` (state of a thread in
                // `CompChannel::wait`).
                let mut driven = lock.lock();
                sleep.announce();
                driven.send_posted();
                sleep.end_lead();
            }
        });
        bells.ring(0);
        if sleep.is_server_asleep()
            && let Some(mut driven) = lock.try_lock_to_send()
        {
            driven.send_posted();
        }
        leader.join().unwrap();
        assert_eq!(lock.lock().sent, [0]);
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
