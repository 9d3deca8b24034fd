use super::cqe::{Cqe, WcStatus};
use super::ring::{Consumer, Producer, ring};
use crate::random::Random;
use crate::table::Table;

/// Random number that identifies a completion queue in its engine; never sent on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqId(pub u32);

/// The application's end of a completion queue: polls completions, oldest first.
pub type CqPoller = Consumer<Cqe>;

/// Kind of completion that notifies the application (`ibv_req_notify_cq`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// Notify at the next solicited event, or at the next completion in error.
    Solicited,
    /// Notify at the next completion, with or without an error.
    Any,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// The completion was queued; no notification is due.
    Quietly,
    /// The completion was queued, and the application is to be notified. The request for notification is consumed.
    Notify,
    /// The completion was dropped, because the queue was full or had overflowed before.
    Overflow,
}

pub(crate) struct CompletionQueue {
    entries: Producer<Cqe>,
    notify: Option<Notify>,
    overflowed: bool,
    /// Number of send and receive queues that write their completions to this queue.
    users: u32,
}

impl CompletionQueue {
    pub(crate) fn new(depth: u32) -> (CompletionQueue, CqPoller) {
        let (entries, poller) = ring(depth);
        (CompletionQueue { entries, notify: None, overflowed: false, users: 0 }, poller)
    }

    /// Requests one notification. A request of [`Notify::Solicited`] does not replace a pending request of
    /// [`Notify::Any`].
    pub(crate) fn request_notify(&mut self, notify: Notify) {
        if self.notify != Some(Notify::Any) {
            self.notify = Some(notify);
        }
    }

    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }

    /// Writes a completion. `solicited` is true if the message received has the SE bit (IBA 9.2.3).
    #[inline]
    pub(crate) fn write(&mut self, cqe: Cqe, solicited: bool) -> Written {
        if self.overflowed || self.entries.push(cqe).is_err() {
            self.overflowed = true;
            return Written::Overflow;
        }
        let wanted = match self.notify {
            None => false,
            Some(Notify::Any) => true,
            Some(Notify::Solicited) => solicited || cqe.status != WcStatus::Success,
        };
        if wanted {
            self.notify = None;
            return Written::Notify;
        }
        Written::Quietly
    }
}

const CQ_BITS: u32 = 32;

pub(crate) struct CqTable {
    queues: Table<CompletionQueue>,
    /// Completion queues with a notification due, each listed at most once.
    notified: Vec<CqId>,
    /// Completion queues whose overflow is not yet reported to the application, each listed at most once.
    overflowed: Vec<CqId>,
}

impl CqTable {
    pub(crate) fn new(max_cqs: usize) -> Self {
        CqTable { queues: Table::new(CQ_BITS, max_cqs), notified: Vec::new(), overflowed: Vec::new() }
    }

    pub(crate) fn create(&mut self, random: &mut Random, depth: u32) -> Option<(CqId, CqPoller)> {
        let (queue, poller) = CompletionQueue::new(depth);
        let number = self.queues.insert_with(random, |_| false, |_, _| queue)?;
        // `notified` and `overflowed` each reserve an entry for every completion queue, so that writing a completion
        // allocates no memory.
        self.notified.reserve(self.queues.len());
        self.overflowed.reserve(self.queues.len());
        Some((CqId(number), poller))
    }

    /// Returns the number of work queues that use a completion queue; `None` if `cq` does not exist.
    pub(crate) fn users(&self, cq: CqId) -> Option<u32> {
        self.queues.get(cq.0).map(|queue| queue.users)
    }

    /// Adds a work queue to the users of `cq`; [`CqTable::release`] removes the work queue.
    pub(crate) fn acquire(&mut self, cq: CqId) {
        self.queues.get_mut(cq.0).into_iter().for_each(|queue| queue.users += 1);
    }

    pub(crate) fn release(&mut self, cq: CqId) {
        self.queues.get_mut(cq.0).into_iter().for_each(|queue| queue.users -= 1);
    }

    pub(crate) fn max_len(&self) -> usize {
        self.queues.max_len()
    }

    pub(crate) fn destroy(&mut self, cq: CqId) {
        self.notified.retain(|other| *other != cq);
        self.overflowed.retain(|other| *other != cq);
        self.queues.remove(cq.0);
    }

    pub(crate) fn request_notify(&mut self, cq: CqId, notify: Notify) -> bool {
        self.queues.get_mut(cq.0).map(|queue| queue.request_notify(notify)).is_some()
    }

    // Always inlined, because otherwise `cqe` is passed in memory, which costs 25 instructions per completion.
    #[inline(always)]
    pub(crate) fn write(&mut self, cq: CqId, cqe: Cqe, solicited: bool) {
        let Some(queue) = self.queues.get_mut(cq.0) else { return };
        let had_overflowed = queue.overflowed();
        let written = queue.write(cqe, solicited);
        if written != Written::Quietly {
            self.note(cq, written, had_overflowed);
        }
    }

    #[cold]
    #[inline(never)]
    fn note(&mut self, cq: CqId, written: Written, had_overflowed: bool) {
        match written {
            Written::Quietly => {}
            Written::Notify if self.notified.contains(&cq) => {}
            Written::Notify => self.notified.push(cq),
            Written::Overflow if had_overflowed => {}
            Written::Overflow => self.overflowed.push(cq),
        }
    }

    pub(crate) fn take_notified(&mut self) -> Option<CqId> {
        self.notified.pop()
    }

    pub(crate) fn take_overflowed(&mut self) -> Option<CqId> {
        self.overflowed.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::super::cqe::WcOpcode;
    use super::*;
    use crate::id::Qpn;

    fn cqe(wr_id: u64, status: WcStatus) -> Cqe {
        Cqe { wr_id, status, opcode: WcOpcode::Send, len_bytes: 0, imm: None, qpn: Qpn::new(1) }
    }

    #[test]
    fn an_overflow_is_final() {
        let (mut cq, mut poller) = CompletionQueue::new(2);
        assert_eq!(cq.write(cqe(1, WcStatus::Success), false), Written::Quietly);
        assert_eq!(cq.write(cqe(2, WcStatus::Success), false), Written::Quietly);
        assert_eq!(cq.write(cqe(3, WcStatus::Success), false), Written::Overflow);
        assert_eq!(poller.pop().map(|c| c.wr_id), Some(1));
        assert_eq!(cq.write(cqe(4, WcStatus::Success), false), Written::Overflow);
        assert!(cq.overflowed());
        assert_eq!(poller.pop().map(|c| c.wr_id), Some(2));
        assert_eq!(poller.pop(), None);
    }

    #[test]
    fn notification_is_one_shot_and_solicited_waits_for_its_kind() {
        let (mut cq, _poller) = CompletionQueue::new(8);
        cq.request_notify(Notify::Solicited);
        assert_eq!(cq.write(cqe(1, WcStatus::Success), false), Written::Quietly);
        assert_eq!(cq.write(cqe(2, WcStatus::Success), true), Written::Notify);
        assert_eq!(cq.write(cqe(3, WcStatus::Success), true), Written::Quietly);
        cq.request_notify(Notify::Solicited);
        assert_eq!(cq.write(cqe(4, WcStatus::WrFlushErr), false), Written::Notify);
        cq.request_notify(Notify::Any);
        cq.request_notify(Notify::Solicited);
        assert_eq!(cq.write(cqe(5, WcStatus::Success), false), Written::Notify);
    }
}
