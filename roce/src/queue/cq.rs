//! Completion queues. Several engines can write completions to one queue, each to a ring of its own.
//!
//! ```text
//!   engine A: CompletionQueue --ring--+
//!   engine B: CompletionQueue --ring--+--> CqPoller     application
//!                     |                       |
//!                     +-----> SharedCq <------+         armed: kind of completion that notifies
//! ```

use std::sync::{Arc, PoisonError};

use super::cqe::{Cqe, WcStatus};
use super::ring::{Apart, Consumer, Producer, ring};
use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// Random number that identifies a completion queue in its device; never sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// Kind of completion that notifies the application (`ibv_req_notify_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Notify at the next solicited event, or at the next completion in error.
    Solicited,
    /// Notify at the next completion, with or without an error.
    Any,
}

const NOT_ARMED: u8 = 0;
const ARMED_FOR_SOLICITED: u8 = 1;
const ARMED_FOR_ANY: u8 = 2;

/// Returns the value that `SharedCq::armed` has while notification of completions of kind `notify` is requested.
fn armed_for(notify: Notify) -> u8 {
    match notify {
        Notify::Solicited => ARMED_FOR_SOLICITED,
        Notify::Any => ARMED_FOR_ANY,
    }
}

const WRITTEN: u8 = 1;
const SOLICITED: u8 = 2;

/// State of a completion queue that engines and application share.
pub(crate) struct SharedCq {
    id: CqId,
    depth: u32,
    /// `NOT_ARMED`, `ARMED_FOR_SOLICITED` or `ARMED_FOR_ANY`.
    armed: AtomicU8,
    /// Set when an engine has dropped a completion because the ring of this engine was full.
    has_overflowed: AtomicBool,
    /// Set when the completion queue is destroyed. The next [`CqTable::attach`] of an engine then frees the engine's
    /// ring of this queue.
    is_destroyed: AtomicBool,
    /// Rings that the poller does not have yet.
    new_rings: Mutex<Vec<Consumer<Cqe, Apart>>>,
    has_new_rings: AtomicBool,
}

impl SharedCq {
    /// Creates a completion queue with room for `depth` completions of each engine.
    pub(crate) fn new(id: CqId, depth: u32) -> (Arc<SharedCq>, CqPoller) {
        let shared = Arc::new(SharedCq {
            id,
            depth,
            armed: AtomicU8::new(NOT_ARMED),
            has_overflowed: AtomicBool::new(false),
            is_destroyed: AtomicBool::new(false),
            new_rings: Mutex::new(Vec::new()),
            has_new_rings: AtomicBool::new(false),
        });
        let poller = CqPoller { shared: shared.clone(), rings: Vec::new(), turn: 0 };
        (shared, poller)
    }

    fn new_rings(&self) -> MutexGuard<'_, Vec<Consumer<Cqe, Apart>>> {
        self.new_rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_ring(&self, ring: Consumer<Cqe, Apart>) {
        self.new_rings().push(ring);
        self.has_new_rings.store(true, Ordering::Release);
    }

    pub(crate) fn destroy(&self) {
        self.is_destroyed.store(true, Ordering::Relaxed);
    }

    /// If the queue is armed for the completions that an engine has written, disarms the queue and returns true.
    /// `written`: `Solicited` if one of these completions is a solicited event or has an error, otherwise `Any`. For
    /// each request for notification, only one engine receives true.
    fn take_request(&self, written: Notify) -> bool {
        let least = armed_for(written);
        // `fetch_update` and the `fetch_max` of `CqNotifier::request` have a total order, because both read and write
        // `armed`. If `request` is first, this call reads the request. Otherwise `request` synchronizes with this call,
        // and a poll after `request` finds the completion.
        let disarm = |armed: u8| Some(if armed >= least { NOT_ARMED } else { armed });
        let taken = self.armed.fetch_update(Ordering::AcqRel, Ordering::Acquire, disarm);
        taken.is_ok_and(|armed| armed >= least)
    }
}

/// The part of a completion queue that the application uses: polls completions. Completions of one queue pair are
/// returned in the order in which the engine wrote them.
pub struct CqPoller {
    shared: Arc<SharedCq>,
    /// One ring for each engine that writes to the queue.
    rings: Vec<Consumer<Cqe, Apart>>,
    /// Index of the ring polled last. The rings are polled in turn, so that no engine's completions wait for ever.
    turn: usize,
}

impl CqPoller {
    /// Removes and returns a completion: the oldest of one engine.
    #[inline]
    pub fn pop(&mut self) -> Option<Cqe> {
        // With one ring, a completion that an earlier call has already seen in the ring is returned at once. Other
        // completions are returned by `pop_in_turn`, which also adds the rings of further engines to `rings`. If this
        // branch also looked for new completions of the one ring, `pop_in_turn` would not be called while the engine
        // writes completions to this ring, and the ring of a second engine would not be polled.
        if let [ring] = self.rings.as_mut_slice()
            && let Some(cqe) = ring.pop_seen()
        {
            return Some(cqe);
        }
        self.pop_in_turn()
    }

    #[inline(never)]
    fn pop_in_turn(&mut self) -> Option<Cqe> {
        if self.shared.has_new_rings.load(Ordering::Acquire) {
            self.take_new_rings();
        }
        for _ in 0..self.rings.len() {
            if let Some(cqe) = self.next_ring()?.pop() {
                return Some(cqe);
            }
        }
        None
    }

    /// Removes at most `max` completions and appends them to `out`; returns their number.
    #[inline]
    pub fn pop_into(&mut self, out: &mut Vec<Cqe>, max: usize) -> usize {
        if self.shared.has_new_rings.load(Ordering::Acquire) {
            self.take_new_rings();
        }
        let mut count = 0;
        for _ in 0..self.rings.len() {
            let Some(ring) = self.next_ring() else { break };
            count += ring.pop_into(out, max - count);
            // Stops after the ring whose completions filled `out`, so that the next call starts at the ring after it.
            // Otherwise, with two rings, each call would start at the same ring.
            if count == max {
                break;
            }
        }
        count
    }

    #[inline]
    fn next_ring(&mut self) -> Option<&mut Consumer<Cqe, Apart>> {
        self.turn = if self.turn + 1 < self.rings.len() { self.turn + 1 } else { 0 };
        self.rings.get_mut(self.turn)
    }

    #[cold]
    fn take_new_rings(&mut self) {
        // `has_new_rings` is cleared before the new rings are moved to `rings`, so that a ring added later is not
        // missed.
        self.shared.has_new_rings.store(false, Ordering::Relaxed);
        self.rings.append(&mut self.shared.new_rings());
    }

    /// Returns a handle that requests notifications, on any thread.
    pub fn notifier(&self) -> CqNotifier {
        CqNotifier(self.shared.clone())
    }
}

/// Requests notifications of a completion queue. Clones are handles of the same queue.
#[derive(Clone)]
pub struct CqNotifier(Arc<SharedCq>);

impl CqNotifier {
    /// Requests one [`Event::Completion`](crate::engine::Event::Completion), reported at the next completion that
    /// `notify` selects. A request with [`Notify::Solicited`] does not replace a pending request with [`Notify::Any`].
    /// A completion written before the request may cause no event, but a poll after the request returns it. Takes no
    /// lock.
    pub fn request(&self, notify: Notify) {
        self.0.armed.fetch_max(armed_for(notify), Ordering::AcqRel);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The completion was queued.
    Queued,
    /// The completion was queued, as the first since the last call of [`CompletionQueue::is_notification_due`].
    First,
    /// The completion was dropped, because the ring of this engine was full. This engine has dropped no completion of
    /// this completion queue before.
    Overflow,
    /// The completion was dropped, because this engine already knew that a ring of the queue (the ring of this engine
    /// or of another engine) overflowed earlier.
    Dropped,
}

/// The part of a completion queue that one engine uses: writes completions to the ring of this engine.
pub(crate) struct CompletionQueue {
    shared: Arc<SharedCq>,
    entries: Producer<Cqe, Apart>,
    /// True once this engine knows that a ring of the queue (the ring of this engine or of another engine) overflowed;
    /// never reset. While true, this engine drops all completions.
    has_overflowed: bool,
    /// Bits of the completions written since the last call of `is_notification_due`: `WRITTEN`, and `SOLICITED` if one
    /// of them is a solicited event or has an error.
    written: u8,
}

impl CompletionQueue {
    pub(crate) fn new(shared: &Arc<SharedCq>) -> CompletionQueue {
        let (entries, consumer) = ring(shared.depth);
        shared.add_ring(consumer);
        CompletionQueue { shared: shared.clone(), entries, has_overflowed: false, written: 0 }
    }

    /// Writes a completion. `solicited` is true if the message received has the SE bit (IBA 9.2.3).
    #[inline(always)]
    pub(crate) fn write(&mut self, cqe: Cqe, solicited: bool) -> Written {
        let before = self.written;
        self.written |= WRITTEN | if solicited || cqe.status != WcStatus::Success { SOLICITED } else { 0 };
        if self.has_overflowed || self.entries.push(cqe).is_err() {
            return self.overflow();
        }
        if before == 0 { Written::First } else { Written::Queued }
    }

    #[cold]
    fn overflow(&mut self) -> Written {
        self.shared.has_overflowed.store(true, Ordering::Relaxed);
        if std::mem::replace(&mut self.has_overflowed, true) { Written::Dropped } else { Written::Overflow }
    }

    /// Returns true once if the ring of another engine was full. After this call returned true, this engine's
    /// completions are dropped, too.
    fn has_other_overflowed(&mut self) -> bool {
        self.shared.has_overflowed.load(Ordering::Relaxed)
            && !std::mem::replace(&mut self.has_overflowed, true)
    }

    /// Returns whether the completions written since the last call notify the application. If so, the pending request
    /// for notification is removed.
    pub(crate) fn is_notification_due(&mut self) -> bool {
        let is_solicited = self.written & SOLICITED != 0;
        self.written = 0;
        self.shared.take_request(if is_solicited { Notify::Solicited } else { Notify::Any })
    }
}

/// Index of a completion queue in the [`CqTable`] of one engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CqSlot(u32);

impl CqSlot {
    /// Returns the slot with this index. A table has at most 2^32 entries, so the cast loses no bit.
    fn new(index: usize) -> Self {
        CqSlot(index as u32)
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

/// The completion queues to which one engine writes.
pub(crate) struct CqTable {
    queues: Vec<Option<CompletionQueue>>,
    /// Completion queues with completions for which `take_notified` has not yet checked whether a notification is due,
    /// each listed at most once.
    written: Vec<CqSlot>,
    /// Completion queues whose overflow is not yet reported to the application, each listed at most once.
    overflowed: Vec<CqSlot>,
}

impl CqTable {
    pub(crate) fn new() -> Self {
        CqTable { queues: Vec::new(), written: Vec::new(), overflowed: Vec::new() }
    }

    /// Returns the index of a completion queue, and allocates a ring if the engine has none for this queue. Frees the
    /// rings of completion queues that were destroyed.
    pub(crate) fn attach(&mut self, shared: &Arc<SharedCq>) -> CqSlot {
        let known = |queue: &Option<CompletionQueue>| {
            queue.as_ref().is_some_and(|queue| Arc::ptr_eq(&queue.shared, shared))
        };
        if let Some(index) = self.queues.iter().position(known) {
            return CqSlot::new(index);
        }
        for (index, queue) in self.queues.iter_mut().enumerate() {
            if queue.take_if(|queue| queue.shared.is_destroyed.load(Ordering::Relaxed)).is_some() {
                // The destroyed queue is removed from `written` (queues with a notification to check) and
                // `overflowed` (queues with an overflow to report); otherwise an event of this queue would be reported
                // for the next queue with this index.
                self.written.retain(|slot| slot.index() != index);
                self.overflowed.retain(|slot| slot.index() != index);
            }
        }
        let index = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if index == self.queues.len() {
            self.queues.push(None);
        }
        self.queues[index] = Some(CompletionQueue::new(shared));
        // The lists `written` and `overflowed` reserve an entry for each completion queue, so that writing a completion
        // allocates no memory.
        self.written.reserve(self.queues.len());
        self.overflowed.reserve(self.queues.len());
        CqSlot::new(index)
    }

    fn at(&mut self, slot: CqSlot) -> Option<&mut CompletionQueue> {
        self.queues.get_mut(slot.index())?.as_mut()
    }

    // Always inlined, because otherwise `cqe` is passed in memory, which costs 25 instructions per completion.
    #[inline(always)]
    pub(crate) fn write(&mut self, slot: CqSlot, cqe: Cqe, solicited: bool) {
        let Some(queue) = self.at(slot) else { return };
        let written = queue.write(cqe, solicited);
        if written != Written::Queued {
            self.note(slot, written);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, slot: CqSlot, written: Written) {
        match written {
            Written::Queued | Written::Dropped => {}
            Written::First => self.written.push(slot),
            Written::Overflow => self.overflowed.push(slot),
        }
    }

    /// Returns a completion queue of which the application must be notified; `None` if no notification is due.
    #[inline]
    pub(crate) fn take_notified(&mut self) -> Option<CqId> {
        while let Some(slot) = self.written.pop() {
            let Some(queue) = self.at(slot) else { continue };
            let (id, is_due) = (queue.shared.id, queue.is_notification_due());
            if queue.has_other_overflowed() {
                self.overflowed.push(slot);
            }
            if is_due {
                return Some(id);
            }
        }
        None
    }

    pub(crate) fn take_overflowed(&mut self) -> Option<CqId> {
        let slot = self.overflowed.pop()?;
        self.at(slot).map(|queue| queue.shared.id)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::cqe::WcOpcode;
    use super::*;
    use crate::id::Qpn;

    fn cqe(wr_id: u64, status: WcStatus) -> Cqe {
        Cqe::new(wr_id, status, WcOpcode::Send, 0, Qpn::new(1))
    }

    #[test]
    fn an_overflow_is_final() {
        let (shared, mut poller) = SharedCq::new(CqId(1), 2);
        let mut cq = CompletionQueue::new(&shared);
        assert_eq!(cq.write(cqe(1, WcStatus::Success), false), Written::First);
        assert_eq!(cq.write(cqe(2, WcStatus::Success), false), Written::Queued);
        assert_eq!(cq.write(cqe(3, WcStatus::Success), false), Written::Overflow);
        assert_eq!(poller.pop().map(|c| c.wr_id), Some(1));
        assert_eq!(cq.write(cqe(4, WcStatus::Success), false), Written::Dropped);
        assert_eq!(poller.pop().map(|c| c.wr_id), Some(2));
        assert_eq!(poller.pop(), None);
    }

    #[test]
    fn an_overflow_is_reported_once_by_each_engine() {
        let (shared, mut poller) = SharedCq::new(CqId(1), 2);
        let mut engines = [CqTable::new(), CqTable::new()];
        let [slot, other] = engines.each_mut().map(|cqs| cqs.attach(&shared));
        let [engine, other_engine] = &mut engines;
        (0..4).for_each(|n| engine.write(slot, cqe(n, WcStatus::Success), false));
        let report = |cqs: &mut CqTable| (cqs.take_notified(), cqs.take_overflowed(), cqs.take_overflowed());
        assert_eq!(report(engine), (None, Some(CqId(1)), None));
        other_engine.write(other, cqe(10, WcStatus::Success), false);
        assert_eq!(report(other_engine), (None, Some(CqId(1)), None));
        other_engine.write(other, cqe(11, WcStatus::Success), false);
        assert_eq!(report(other_engine), (None, None, None));
        let polled: Vec<u64> = std::iter::from_fn(|| poller.pop()).map(|cqe| cqe.wr_id).collect();
        assert_eq!(polled.len(), 3, "{polled:?}");
    }

    #[test]
    fn notification_is_one_shot_and_solicited_waits_for_its_kind() {
        let (shared, poller) = SharedCq::new(CqId(1), 8);
        let (mut cq, notifier) = (CompletionQueue::new(&shared), poller.notifier());
        let mut notifies = |status, solicited| {
            cq.write(cqe(1, status), solicited);
            cq.is_notification_due()
        };
        notifier.request(Notify::Solicited);
        assert!(!notifies(WcStatus::Success, false));
        assert!(notifies(WcStatus::Success, true));
        assert!(!notifies(WcStatus::Success, true));
        notifier.request(Notify::Solicited);
        assert!(notifies(WcStatus::WrFlushErr, false));
        notifier.request(Notify::Any);
        notifier.request(Notify::Solicited);
        assert!(notifies(WcStatus::Success, false));
    }

    #[test]
    fn one_of_several_completions_notifies() {
        let (shared, poller) = SharedCq::new(CqId(1), 8);
        let mut cqs = CqTable::new();
        let slot = cqs.attach(&shared);
        poller.notifier().request(Notify::Solicited);
        for (wr_id, solicited) in [(1, false), (2, true), (3, false)] {
            cqs.write(slot, cqe(wr_id, WcStatus::Success), solicited);
        }
        assert_eq!((cqs.take_notified(), cqs.take_notified()), (Some(CqId(1)), None));
    }

    #[test]
    fn the_rings_of_all_engines_are_polled_in_turn() {
        let (shared, mut poller) = SharedCq::new(CqId(1), 4);
        let mut engines = [CqTable::new(), CqTable::new()];
        let slots = engines.each_mut().map(|cqs| cqs.attach(&shared));
        for (engine, (cqs, slot)) in engines.iter_mut().zip(slots).enumerate() {
            assert_eq!(cqs.attach(&shared), slot, "the engine has a ring already");
            (0..3).for_each(|n| cqs.write(slot, cqe(10 * engine as u64 + n, WcStatus::Success), false));
        }
        let polled: Vec<u64> = std::iter::from_fn(|| poller.pop()).map(|cqe| cqe.wr_id).collect();
        for engine in 0..2 {
            let of_engine: Vec<u64> = polled.iter().copied().filter(|n| n / 10 == engine).collect();
            assert_eq!(of_engine, [10 * engine, 10 * engine + 1, 10 * engine + 2]);
        }
        assert!(polled[0] / 10 != polled[1] / 10, "the rings take turns");
        let mut out = Vec::new();
        engines[0].write(slots[0], cqe(1, WcStatus::Success), false);
        engines[1].write(slots[1], cqe(11, WcStatus::Success), false);
        assert_eq!((poller.pop_into(&mut out, 1), poller.pop_into(&mut out, 8), poller.pop()), (1, 1, None));
    }

    /// Calls `poll` while each of two engines writes a completion per call. The first engine writes before the second
    /// engine has a ring.
    fn check_turns(mut poll: impl FnMut(&mut CqPoller) -> Option<Cqe>) {
        const CALLS: u64 = 8;
        let (shared, mut poller) = SharedCq::new(CqId(1), 2 * CALLS as u32);
        let mut engines = [CqTable::new(), CqTable::new()];
        let mut write = |engine: u64| {
            let cqs = &mut engines[engine as usize];
            let slot = cqs.attach(&shared);
            cqs.write(slot, cqe(engine, WcStatus::Success), false);
        };
        write(0);
        assert_eq!(poll(&mut poller).map(|cqe| cqe.wr_id), Some(0));
        let mut polled = [0; 2];
        for _ in 0..CALLS {
            (0..2).for_each(&mut write);
            polled[poll(&mut poller).unwrap().wr_id as usize] += 1;
        }
        assert_eq!(polled, [CALLS / 2; 2]);
    }

    #[test]
    fn no_engine_waits_while_the_ring_of_another_is_never_empty() {
        check_turns(CqPoller::pop);
        check_turns(|poller| {
            let mut out = Vec::new();
            assert_eq!(poller.pop_into(&mut out, 1), 1);
            out.pop()
        });
    }

    #[test]
    fn a_queue_is_not_reported_for_a_destroyed_queue() {
        let mut cqs = CqTable::new();
        let (first, _poller) = SharedCq::new(CqId(1), 1);
        let slot = cqs.attach(&first);
        (0..2).for_each(|n| cqs.write(slot, cqe(n, WcStatus::Success), false));
        first.destroy();
        let (second, poller) = SharedCq::new(CqId(2), 1);
        poller.notifier().request(Notify::Any);
        assert_eq!(cqs.attach(&second), slot, "the slot is used again");
        assert_eq!((cqs.take_notified(), cqs.take_overflowed()), (None, None));
    }

    #[test]
    fn the_ring_of_a_destroyed_queue_is_freed_when_another_queue_is_used() {
        let mut cqs = CqTable::new();
        for number in 0..if cfg!(miri) { 50 } else { 1000 } {
            let (shared, _poller) = SharedCq::new(CqId(number), 4);
            cqs.attach(&shared);
            shared.destroy();
        }
        assert_eq!(cqs.queues.len(), 1);
    }
}
