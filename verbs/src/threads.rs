//! Tests of the hand-over of the engine between threads, in many rounds, with and without ThreadSanitizer. Loom runs
//! every interleaving of the tests in `models.rs`, so those tests have fewer steps than the tests in this file.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use roce::queue::{CqId, Doorbells};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::drive::{Drive, DriveLock};
use crate::inbox::Inbox;

const ROUNDS: u64 = 100_000;

/// A substitute for the engine in these tests: the doorbells of two send queues, and for each send queue the number of
/// the last work request posted, and of the last work request sent.
struct DoorbellCore {
    bells: Arc<Doorbells>,
    posted: Arc<[AtomicU64; 2]>,
    sent: [u64; 2],
}

impl Drive for DoorbellCore {
    fn send_posted(&mut self) {
        let (posted, sent) = (&self.posted, &mut self.sent);
        self.bells.drain(|slot| sent[slot] = posted[slot].load(Ordering::Relaxed));
    }

    fn on_release(&mut self) {}

    fn on_panic(&mut self) {}
}

#[test]
fn two_threads_post_while_one_polls() {
    let posted = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let bells = Arc::new(Doorbells::new(2));
    let driven = DoorbellCore { bells: bells.clone(), posted: posted.clone(), sent: [0; 2] };
    let lock = Arc::new(DriveLock::new(driven));
    let posters: Vec<_> = (0..2)
        .map(|slot| {
            let (posted, bells, lock) = (posted.clone(), bells.clone(), lock.clone());
            thread::spawn(move || {
                for post in 1..=ROUNDS {
                    posted[slot].store(post, Ordering::Relaxed);
                    bells.ring(slot);
                    if let Some(mut driven) = lock.try_lock_to_send() {
                        driven.send_posted();
                    }
                }
            })
        })
        .collect();
    for _ in 0..ROUNDS {
        if let Some(mut driven) = lock.try_lock() {
            driven.send_posted();
        }
    }
    posters.into_iter().for_each(|poster| poster.join().unwrap());
    assert_eq!(lock.lock().sent, [ROUNDS; 2], "all have gone, and the last posts were not sent");
}

fn is_readable(fd: &OwnedFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(fd, PollFlags::IN)], Some(&now)).unwrap() > 0
}

/// This test is not run under ThreadSanitizer: ThreadSanitizer does not recognise the mutex of the standard library,
/// and would report a race that does not exist.
#[test]
fn events_that_were_taken_leave_nothing_to_read() {
    let fd = eventfd(0, EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    let inbox = Arc::new(Inbox::new(fd));
    let engine = thread::spawn({
        let inbox = inbox.clone();
        move || (0..ROUNDS as u32).for_each(|cq| inbox.put(CqId(cq)))
    });
    for expected in 0..ROUNDS as u32 {
        let taken = loop {
            match inbox.take() {
                Some(cq) => break cq,
                None => thread::yield_now(),
            }
        };
        assert_eq!(taken, CqId(expected));
    }
    engine.join().unwrap();
    assert!(!is_readable(inbox.count()), "readable, though every event was taken");
}
