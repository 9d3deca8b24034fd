//! Tests of rings, queues and doorbells with the model checker loom (`scripts/check.sh loom`). loom executes each test
//! in every order in which two or three threads may observe each other's accesses, with a bounded number of
//! preemptions.

use std::sync::Arc;

use super::cq::{CompletionQueue, CqId, Notify, SharedCq};
use super::cqe::{Cqe, WcOpcode, WcStatus};
use super::doorbell::Doorbells;
use super::ring::{Apart, Consumer, Together, ring, ring_of};
use super::sq::{SendQueueSize, send_queue};
use super::work::{PosterConfig, Posting, WorkPoster, work_queue};
use super::wqe::{PostError, RecvWqe, SendData, SendFlags, SendOp, SendRequest, SgList, Sge};
use crate::id::Qpn;
use crate::mem::{Access, Memory, MemoryTable, MemoryView, PdId};
use crate::start;
use crate::sync::UnsafeCell;
use loom::thread;

#[test]
fn a_ring_passes_every_element_and_reuses_places() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring::<u32>(2);
        let writer = thread::spawn(move || {
            let mut pushed = 0;
            for _ in 0..4 {
                pushed += u32::from(producer.push(pushed).is_ok());
            }
            pushed
        });
        let mut taken = 0;
        let mut take = |consumer: &mut Consumer<u32, Apart>| {
            while let Some(value) = consumer.pop() {
                assert_eq!(value, taken);
                taken += 1;
            }
        };
        take(&mut consumer);
        let pushed = writer.join().unwrap();
        take(&mut consumer);
        assert!(taken == pushed && pushed >= 2);
    });
}

/// While the consumer reads elements, the ring grows twice, once or not at all: `Producer::push` grows the ring if all
/// cells are in use.
#[test]
fn a_ring_that_grows_passes_every_element() {
    loom::model(|| {
        let (mut producer, mut consumer) = ring_of::<u32, Together>(u32::MAX, 4, 1);
        let writer = thread::spawn(move || {
            (0..3).for_each(|n| producer.push(n).expect("at most 3 of 4 elements are in the ring"));
        });
        let early: Vec<u32> = (0..2).map_while(|_| consumer.pop()).collect();
        writer.join().unwrap();
        let rest = std::iter::from_fn(|| consumer.pop());
        assert_eq!(early.into_iter().chain(rest).collect::<Vec<u32>>(), [0, 1, 2]);
    });
}

fn post(poster: &mut WorkPoster<RecvWqe>, wr_id: u64) -> Result<(), PostError> {
    poster.admit()?;
    poster.check_room()?;
    let sges = [Sge::default(); 3];
    let (position, len_bytes) = poster.stage_sges(&sges)?;
    poster.stage(RecvWqe { wr_id, list: SgList::new(&sges, position, len_bytes) });
    poster.publish();
    Ok(())
}

#[test]
fn who_finds_a_place_for_a_work_request_finds_places_for_its_entries() {
    loom::model(|| {
        let config = PosterConfig::new(3, false, 0);
        let (mut poster, mut queue) =
            work_queue(start::ring_position(), 2, config, Arc::new(Doorbells::new(1)));
        queue.set_posting(Posting::Queued);
        assert_eq!((post(&mut poster, 0), post(&mut poster, 1)), (Ok(()), Ok(())));
        let engine = thread::spawn(move || {
            assert_eq!(queue.release_oldest().map(|wqe| wqe.wr_id), Some(0));
            queue
        });
        let (had_place, posted) = (poster.check_room().is_ok(), post(&mut poster, 2).is_ok());
        assert!(posted || !had_place, "a place for the work request and none for its entries");
        let mut queue = engine.join().unwrap();
        while queue.release_oldest().is_some() {}
        assert_eq!((post(&mut poster, 3), post(&mut poster, 4)), (Ok(()), Ok(())), "the queue is empty");
        assert_eq!(post(&mut poster, 5), Err(PostError::QueueFull { depth: 2 }));
    });
}

#[test]
fn a_send_is_seen_whole_by_whoever_answers_its_doorbell() {
    // The registered memory is created outside of the model, because the stack of a loom thread may be too small for
    // its creation.
    let memory = Memory::alloc(16);
    memory.write(0, &[7, 8, 9]).unwrap();
    loom::model(move || {
        let mut view = MemoryView::alone(1);
        let register =
            |table: &MemoryTable| table.register(|| 1, PdId(1), memory.clone(), 0, Access::NONE).unwrap();
        let (lkey, _) = view.with_table(register);
        let bells = Arc::new(Doorbells::new(1));
        let size = SendQueueSize { depth: 1, max_sges: 3, max_inline_bytes: 8 };
        let (mut poster, mut queue) = send_queue(size, true, bells.clone(), 0);
        queue.set_posting(Posting::Queued);
        let application = thread::spawn(move || {
            let sges = [0, 1, 2].map(|addr| Sge { addr, len_bytes: 1, lkey });
            let flags = SendFlags::default();
            let request = |wr_id, data| SendRequest { wr_id, op: SendOp::Send, flags, data };
            let posts = [request(0, SendData::Sges(&sges)), request(1, SendData::Inline(b"inline"))];
            posts.iter().filter(|request| poster.post(request).is_ok()).count()
        });
        let mut seen = 0;
        let mut answer = || {
            bells.drain(|_| {
                assert!(!queue.is_empty(), "a doorbell without a work request");
                assert!(queue.get(0).is_some());
                let mut open = queue.open(0, &view, PdId(1)).unwrap();
                let mut out = [0; 3];
                if open.wqe.inline {
                    open.inline_span(0, 3).copy_to(&mut out).unwrap();
                    assert_eq!(&out, b"inl");
                } else {
                    open.lists.gather(&open.wqe.list, 0, &mut out).unwrap();
                    assert_eq!(out, [7, 8, 9]);
                }
                assert!(queue.release_oldest().is_some());
                seen += 1;
            });
        };
        answer();
        let posted = application.join().unwrap();
        answer();
        assert_eq!(seen, posted);
    });
}

#[test]
fn no_doorbell_is_lost_and_each_shows_what_was_written_before() {
    loom::model(|| {
        let bells = Arc::new(Doorbells::new(2));
        let written = Arc::new([UnsafeCell::new(()), UnsafeCell::new(())]);
        let ringers: Vec<_> = (0..2)
            .map(|slot| {
                let (bells, written) = (bells.clone(), written.clone());
                thread::spawn(move || {
                    written[slot].with_mut(|_| ());
                    bells.ring(slot);
                })
            })
            .collect();
        let mut rung = [0; 2];
        let mut answer = || {
            bells.drain(|slot| {
                written[slot].with(|_| ());
                rung[slot] += 1;
            });
        };
        answer();
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
        answer();
        assert_eq!(rung, [1, 1]);
        assert!(!bells.any());
    });
}

fn success(wr_id: u64) -> Cqe {
    let (status, opcode) = (WcStatus::Success, WcOpcode::Send);
    Cqe::new(wr_id, status, opcode, 0, Qpn::new(1))
}

/// Polls a completion queue, requests a notification and polls once more, as an application does before it blocks.
#[test]
fn a_completion_is_polled_or_notified() {
    loom::model(|| {
        let (shared, mut poller) = SharedCq::new(CqId(1), 1);
        let notifier = poller.notifier();
        let writer = thread::spawn(move || {
            // `new` adds a ring for the completions of this engine to the queue, while the main thread polls.
            let mut engine = CompletionQueue::new(&shared);
            engine.write(success(1), false);
            engine.is_notification_due()
        });
        let mut polled = poller.pop();
        if polled.is_none() {
            notifier.request(Notify::Any);
            polled = poller.pop();
        }
        let is_notified = writer.join().unwrap();
        assert!(polled.is_some() || is_notified);
        assert_eq!(polled.or_else(|| poller.pop()).map(|cqe| cqe.wr_id), Some(1));
    });
}

/// Two engines write one completion each to a queue that is armed.
#[test]
fn one_of_two_engines_notifies() {
    loom::model(|| {
        let (shared, mut poller) = SharedCq::new(CqId(1), 1);
        poller.notifier().request(Notify::Any);
        let write = |shared: Arc<SharedCq>, wr_id| {
            let mut engine = CompletionQueue::new(&shared);
            engine.write(success(wr_id), false);
            engine.is_notification_due()
        };
        let other = thread::spawn({
            let shared = shared.clone();
            move || write(shared, 2)
        });
        let notified = write(shared, 1);
        assert!(notified ^ other.join().unwrap());
        let mut polled: Vec<u64> = std::iter::from_fn(|| poller.pop()).map(|cqe| cqe.wr_id).collect();
        polled.sort_unstable();
        assert_eq!(polled, [1, 2]);
    });
}
