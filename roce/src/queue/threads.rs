//! Tests with the application and the engine of a queue on different threads. Each test has `ROUNDS` rounds, because a
//! race does not occur in every round. `scripts/check.sh tsan` runs these tests under ThreadSanitizer. The tests in
//! `models.rs` check short interleavings with loom.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use super::cq::{CompletionQueue, CqId, SharedCq, Written};
use super::cqe::{Cqe, WcOpcode, WcStatus};
use super::doorbell::Doorbells;
use super::rq::{RecvQueueSize, recv_queue};
use super::sq::{SendQueueSize, send_queue};
use super::work::Posting;
use super::wqe::{RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge};
use crate::id::Qpn;
use crate::mem::{Access, Memory, MemoryTable, MemoryView, PdId};

const ROUNDS: u64 = if cfg!(miri) { 200 } else { 200_000 };
const DEPTH: u32 = 5;

/// Calls `post` for `ROUNDS` work requests, and retries each post until the queue accepts the work request. Panics if
/// an empty queue refuses a post, because an empty queue would refuse each retry.
fn post_all(released: &AtomicU64, mut post: impl FnMut(u64) -> bool) {
    for wr_id in 0..ROUNDS {
        loop {
            let is_empty = released.load(Ordering::Acquire) == wr_id;
            if post(wr_id) {
                break;
            }
            assert!(!is_empty, "post {wr_id} was refused by an empty queue");
            thread::yield_now();
        }
    }
}

fn entries(wr_id: u64) -> usize {
    1 + (wr_id % 3) as usize
}

#[test]
fn two_threads_post_and_release_receives() {
    let (mut poster, mut queue) =
        recv_queue(RecvQueueSize { depth: DEPTH, max_sges: 3 }, Arc::new(Doorbells::new(1)), 0);
    queue.set_posting(Posting::Queued);
    let released = Arc::new(AtomicU64::new(0));
    let engine = thread::spawn({
        let released = released.clone();
        move || {
            let mut next = 0;
            while next < ROUNDS {
                let Some(wqe) = queue.release_oldest() else {
                    thread::yield_now();
                    continue;
                };
                assert_eq!((wqe.wr_id, wqe.list.len_bytes), (next, entries(next) as u32));
                next += 1;
                released.store(next, Ordering::Release);
            }
        }
    });
    let sges = [Sge { len_bytes: 1, ..Sge::default() }; 3];
    post_all(&released, |wr_id| poster.post(&RecvRequest { wr_id, sges: &sges[..entries(wr_id)] }).is_ok());
    engine.join().unwrap();
}

/// Every second work request is inline; each payload byte of a work request is the low 8 bits of its `wr_id`.
#[test]
fn two_threads_post_sends_and_answer_doorbells() {
    let memory = Memory::alloc(256);
    memory.write(0, &std::array::from_fn::<u8, 256, _>(|at| at as u8)).unwrap();
    let mut view = MemoryView::alone(1);
    let register = |table: &MemoryTable| table.register(|| 1, PdId(1), memory, 0, Access::NONE).unwrap();
    let (lkey, _) = view.with_table(register);
    let bells = Arc::new(Doorbells::new(1));
    let size = SendQueueSize { depth: DEPTH, max_sges: 3, max_inline_bytes: 3 };
    let (mut poster, mut queue) = send_queue(size, true, bells.clone(), 0);
    queue.set_posting(Posting::Queued);
    let released = Arc::new(AtomicU64::new(0));
    let engine = thread::spawn({
        let released = released.clone();
        move || {
            let mut next = 0;
            while next < ROUNDS {
                let mut rung = false;
                bells.drain(|_| rung = true);
                if !rung {
                    thread::yield_now();
                    continue;
                }
                while queue.get(0).is_some() {
                    let mut out = [0; 3];
                    let out = &mut out[..entries(next)];
                    let mut open = queue.open(0, &view, PdId(1)).unwrap();
                    let wqe = open.wqe;
                    if wqe.inline {
                        open.inline_span(0, wqe.list.len_bytes).copy_to(out).unwrap();
                    } else {
                        open.lists.gather(&wqe.list, 0, out).unwrap();
                    }
                    assert!(wqe.wr_id == next && out.iter().all(|byte| *byte == next as u8));
                    queue.release_oldest().unwrap();
                    next += 1;
                    released.store(next, Ordering::Release);
                }
            }
        }
    });
    post_all(&released, |wr_id| {
        let (byte, count) = (wr_id as u8, entries(wr_id));
        let sges = [Sge { addr: u64::from(byte), len_bytes: 1, lkey }; 3];
        let inline = [byte; 3];
        let data = match wr_id % 2 {
            0 => SendData::Sges(&sges[..count]),
            _ => SendData::Inline(&inline[..count]),
        };
        let flags = SendFlags::default();
        poster.post(&SendRequest { wr_id, op: SendOp::Send, flags, data }).is_ok()
    });
    engine.join().unwrap();
}

#[test]
fn two_threads_ring_while_one_answers() {
    const SLOTS: usize = 130;
    let bells = Arc::new(Doorbells::new(SLOTS));
    // For each slot, the number of the last round (1 to `ROUNDS`) in which a thread set the doorbell of the slot, or 0.
    // Accesses are relaxed, because setting and draining a doorbell orders these accesses.
    let posted: Arc<Vec<AtomicU64>> = Arc::new((0..SLOTS).map(|_| AtomicU64::new(0)).collect());
    let ringers: Vec<_> = (0..2)
        .map(|first| {
            let (bells, posted) = (bells.clone(), posted.clone());
            thread::spawn(move || {
                for round in 0..ROUNDS {
                    let slot = (2 * (round as usize % (SLOTS / 2))) + first;
                    posted[slot].store(round + 1, Ordering::Relaxed);
                    bells.ring(slot);
                }
            })
        })
        .collect();
    let mut seen = vec![0; SLOTS];
    let is_complete = |seen: &[u64]| seen.iter().all(|last| *last + SLOTS as u64 / 2 > ROUNDS);
    while !is_complete(&seen) {
        let mut any = false;
        bells.drain(|slot| {
            any = true;
            seen[slot] = posted[slot].load(Ordering::Relaxed);
        });
        if !any {
            thread::yield_now();
        }
    }
    ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
}

#[test]
fn two_threads_write_and_poll_completions() {
    let (shared, mut poller) = SharedCq::new(CqId(1), DEPTH);
    let mut cq = CompletionQueue::new(&shared);
    let taken = Arc::new(AtomicU64::new(0));
    let engine = thread::spawn({
        let taken = taken.clone();
        move || {
            for wr_id in 0..ROUNDS {
                // The engine writes only while the queue has a free entry, because a queue that has overflowed accepts
                // no completion.
                while taken.load(Ordering::Acquire) + u64::from(DEPTH) <= wr_id {
                    thread::yield_now();
                }
                let (status, opcode, qpn) = (WcStatus::Success, WcOpcode::Recv, Qpn::new(1));
                let cqe = Cqe::new(wr_id, status, opcode, wr_id as u32, qpn);
                assert_ne!(cq.write(cqe, false), Written::Overflow);
            }
        }
    });
    for wr_id in 0..ROUNDS {
        let cqe = loop {
            if let Some(cqe) = poller.pop() {
                break cqe;
            }
            thread::yield_now();
        };
        assert_eq!((cqe.wr_id, cqe.len_bytes), (wr_id, wr_id as u32));
        taken.store(wr_id + 1, Ordering::Release);
    }
    engine.join().unwrap();
}
