//! The receives of a queue pair, from its own receive queue or from a shared receive queue (SRQ).

use crate::mem::{MemoryView, PdId};
use crate::queue::{Lists, RecvQueue, RecvWqe, RestSges, Sge, SrqId, SrqTable};

/// Source of the receives of a queue pair.
pub(crate) enum Receives {
    Own(RecvQueue),
    /// Boxed, so that [`Receives`] is not larger than a receive queue needs.
    Shared(Box<SharedReceive>),
}

/// The receive that a queue pair took from its SRQ when the queue pair checked the first packet that needs the receive:
/// the first packet of a SEND, or the last packet of a WRITE with immediate. Before this receive completes, other queue
/// pairs may take later receives of the SRQ (IBA 10.2.9).
pub(crate) struct SharedReceive {
    srq: SrqId,
    /// Protection domain of the SRQ, and of the memory regions of its receives.
    pd: PdId,
    held: Option<RecvWqe>,
    /// All scatter/gather entries, except the first, of the receive taken from the SRQ (`held`).
    rest: Box<[Sge]>,
}

impl SharedReceive {
    pub(crate) fn new(srq: SrqId, pd: PdId, max_sges: u32) -> Self {
        let rest = vec![Sge::default(); max_sges.saturating_sub(1) as usize].into_boxed_slice();
        SharedReceive { srq, pd, held: None, rest }
    }

    #[cold]
    #[inline(never)]
    fn take(&mut self, srqs: &mut SrqTable) -> Option<&RecvWqe> {
        if self.held.is_none() {
            self.held = srqs.take(self.srq, &mut self.rest);
        }
        self.held.as_ref()
    }
}

impl Receives {
    /// Returns the SRQ; `None` if the queue pair has a receive queue of its own.
    pub(crate) fn srq(&self) -> Option<SrqId> {
        match self {
            Receives::Own(_) => None,
            Receives::Shared(shared) => Some(shared.srq),
        }
    }

    /// Returns the current receive: the oldest receive of the queue pair's own receive queue, or the receive taken from
    /// the SRQ (`SharedReceive::held`). If the queue pair uses an SRQ and `held` is `None`, takes a receive from the
    /// SRQ.
    #[inline]
    pub(crate) fn current(&mut self, srqs: &mut SrqTable) -> Option<&RecvWqe> {
        match self {
            Receives::Own(queue) => queue.oldest(),
            Receives::Shared(shared) => shared.take(srqs),
        }
    }

    /// Returns the receive `index` positions after the oldest receive of the queue pair's own receive queue; `None`
    /// with an SRQ, because the queue pair takes a receive from the SRQ only when a message needs the receive.
    pub(crate) fn nth(&mut self, index: u32) -> Option<&RecvWqe> {
        match self {
            Receives::Own(queue) => queue.nth(index),
            Receives::Shared(_) => None,
        }
    }

    /// Removes and returns the oldest receive of the queue pair's own receive queue, or with an SRQ the receive taken
    /// from the SRQ (`SharedReceive::held`).
    #[inline]
    pub(crate) fn release(&mut self) -> Option<RecvWqe> {
        match self {
            Receives::Own(queue) => queue.release_oldest(),
            Receives::Shared(shared) => shared.held.take(),
        }
    }

    /// Returns access to the registered memory named by the scatter/gather lists of the receives. `pd`: protection
    /// domain of the queue pair.
    #[inline]
    pub(crate) fn lists<'a>(&'a mut self, memory: &'a MemoryView, pd: PdId) -> Lists<'a> {
        match self {
            Receives::Own(queue) => queue.lists(memory, pd),
            Receives::Shared(shared) => Lists { memory, pd: shared.pd, rest: RestSges::Held(&shared.rest) },
        }
    }
}
