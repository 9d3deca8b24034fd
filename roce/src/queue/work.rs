//! Common part of send and receive queues: a ring of work requests, and a ring of scatter/gather entries. The first
//! scatter/gather entry of a work request is in the work request, all further entries are in the ring of scatter/gather
//! entries. A work request and its entries are staged first: written to the rings, but not yet published.
//!
//! ```text
//!   application   publishes entries, then work requests:     so the engine finds the entries of each work request
//!   engine        releases entries, then the work request:   so room for a work request implies room for its entries
//! ```

use std::sync::Arc;

use super::doorbell::Doorbells;
use super::ring::{Consumer, Producer, growing_ring};
use super::sg::{Lists, RestSges};
use super::wqe::{MAX_MESSAGE_BYTES, PostError, SendWqe, SgList, Sge};
use crate::mem::{MemoryView, PdId};

pub(super) trait Wqe: Copy + Send {
    fn list(&self) -> &SgList;
}

/// Mode of a work queue: the treatment of posted work requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Posting {
    /// The post fails. Mode of a new work queue.
    Refused = 0,
    /// The work request is queued.
    Queued,
    /// The work request is queued, and the engine flushes it (state ERR).
    Flushed,
}

/// Parameters of a [`WorkPoster`].
#[derive(Clone, Copy, Debug)]
pub(super) struct PosterConfig {
    /// Largest number of scatter/gather entries of a work request.
    pub max_sges: u8,
    /// Whether all work requests of a send queue are signaled (`sq_sig_all`); false for a receive queue.
    pub signal_all: bool,
    /// Index of the queue pair whose doorbell a post may set.
    pub slot: u32,
}

impl PosterConfig {
    /// Creates the parameters of a poster. `max_sges` is at most `MAX_SGE`. `slot` is the index of a queue pair; or
    /// `slot` is larger than all indices, so that no doorbell is set.
    pub(super) fn new(max_sges: u32, signal_all: bool, slot: usize) -> Self {
        let slot = u32::try_from(slot).unwrap_or(u32::MAX);
        let max_sges = u8::try_from(max_sges).unwrap_or(u8::MAX);
        PosterConfig { max_sges, signal_all, slot }
    }
}

/// The part of a work queue that the application uses, in a cache line of its own.
#[repr(align(64))]
pub(super) struct WorkPoster<W> {
    wqes: Producer<W>,
    /// Ring of all scatter/gather entries except the first of each work request; `None` if each work request has at
    /// most one. Boxed, so that the poster takes one cache line.
    sges: Option<Box<Producer<Sge>>>,
    doorbells: Arc<Doorbells>,
    slot: u32,
    max_sges: u8,
    signal_all: bool,
    /// Whether the queue accepts datagrams: true only for a send queue of UD.
    takes_datagrams: bool,
    /// Whether scatter/gather entries are staged in `sges`.
    has_staged_sges: bool,
}

const _: () = assert!(size_of::<WorkPoster<SendWqe>>() == 64);

pub(super) struct WorkQueue<W> {
    wqes: Consumer<W>,
    /// Ring of all scatter/gather entries except the first of each work request; `None` if each work request has at
    /// most one. Boxed, so that the fields that every work request needs take fewer cache lines.
    sges: Option<Box<Consumer<Sge>>>,
}

/// Creates a work queue, which refuses posts until [`WorkQueue::set_posting`] is called. `first` is the first position
/// of its rings.
pub(super) fn work_queue<W: Wqe>(
    first: u32,
    depth: u32,
    config: PosterConfig,
    doorbells: Arc<Doorbells>,
) -> (WorkPoster<W>, WorkQueue<W>) {
    let (wqe_in, wqe_out) = growing_ring(first, depth);
    let rest_depth = depth * u32::from(config.max_sges).saturating_sub(1);
    let (sge_in, sge_out) = (rest_depth > 0)
        .then(|| growing_ring(first, rest_depth))
        .map(|(sge_in, sge_out)| (Box::new(sge_in), Box::new(sge_out)))
        .unzip();
    let PosterConfig { slot, max_sges, signal_all } = config;
    let poster = WorkPoster {
        wqes: wqe_in,
        sges: sge_in,
        doorbells,
        slot,
        max_sges,
        signal_all,
        takes_datagrams: false,
        has_staged_sges: false,
    };
    (poster, WorkQueue { wqes: wqe_out, sges: sge_out })
}

impl<W: Wqe> WorkPoster<W> {
    /// Returns an error if the state of the queue pair does not allow a post. [`WorkPoster::check_room`] checks whether
    /// the queue has room.
    #[inline]
    pub(super) fn admit(&self) -> Result<(), PostError> {
        if self.wqes.mode() == Posting::Refused as u8 { Err(PostError::WrongState) } else { Ok(()) }
    }

    /// Returns an error if the queue has no room for a work request.
    #[inline]
    pub(super) fn check_room(&mut self) -> Result<(), PostError> {
        if self.wqes.has_room(1) { Ok(()) } else { Err(self.full()) }
    }

    /// Stages all scatter/gather entries of `sges` after the first. Returns the ring position of these entries, and the
    /// sum of `len_bytes` of all entries of `sges`. On an error stages no entry, because the engine releases an
    /// entry only with its work request.
    #[inline(always)] // See `SendPoster::stage`.
    pub(super) fn stage_sges(&mut self, sges: &[Sge]) -> Result<(u32, u32), PostError> {
        if sges.len() > usize::from(self.max_sges) {
            let max = u32::from(self.max_sges);
            return Err(PostError::TooManySges { count: sges.len(), max });
        }
        match sges {
            [] => Ok((0, 0)),
            [sge] if sge.len_bytes <= MAX_MESSAGE_BYTES => Ok((0, sge.len_bytes)),
            _ => self.stage_long(sges),
        }
    }

    #[inline(never)]
    fn stage_long(&mut self, sges: &[Sge]) -> Result<(u32, u32), PostError> {
        let total: u64 = sges.iter().map(|sge| u64::from(sge.len_bytes)).sum();
        let len_bytes = u32::try_from(total).ok().filter(|len| *len <= MAX_MESSAGE_BYTES);
        let len_bytes = len_bytes.ok_or(PostError::TooLong { len_bytes: total })?;
        let full = self.full();
        let ring = self.sges.as_mut().ok_or(full)?;
        let position = ring.position();
        let rest = sges.get(1..).unwrap_or_default();
        if !ring.has_room(rest.len() as u32) {
            return Err(full);
        }
        rest.iter().for_each(|sge| ring.stage(*sge));
        self.has_staged_sges = true;
        Ok((position, len_bytes))
    }

    /// Stages `wqe`: the engine does not find `wqe` before [`WorkPoster::publish`]. Requires that
    /// [`WorkPoster::admit`], [`WorkPoster::check_room`] and [`WorkPoster::stage_sges`] have succeeded, in this order.
    #[inline]
    pub(super) fn stage(&mut self, wqe: W) {
        self.wqes.stage(wqe);
    }

    /// Publishes to the engine the staged scatter/gather entries, then the staged work requests.
    #[inline]
    pub(super) fn publish(&mut self) {
        if self.has_staged_sges {
            self.publish_sges();
        }
        self.wqes.publish();
    }

    #[inline(never)]
    fn publish_sges(&mut self) {
        self.sges.iter_mut().for_each(|sges| sges.publish());
        self.has_staged_sges = false;
    }

    /// Returns the work request staged last.
    #[inline]
    pub(super) fn last_staged(&mut self) -> Option<&mut W> {
        self.wqes.last_staged()
    }

    /// Removes the work request staged last. [`WorkPoster::unstage_sges`] must have removed its scatter/gather entries
    /// before.
    pub(super) fn unstage(&mut self) {
        self.wqes.unstage(1);
    }

    /// Removes all staged scatter/gather entries of `list`, except the first, which is not in the ring. Requires that
    /// `list` is the list of the work request staged last.
    pub(super) fn unstage_sges(&mut self, list: &SgList) {
        self.sges.iter_mut().for_each(|sges| sges.unstage(list.rest_count()));
    }

    /// Returns whether the engine flushes posted work requests. Must be called after [`WorkPoster::publish`].
    /// Otherwise the engine could set the mode and flush the queue between this call and the publication, and the work
    /// request would stay in the queue.
    #[inline]
    pub(super) fn is_flushed(&self) -> bool {
        self.wqes.mode() == Posting::Flushed as u8
    }

    /// Returns whether all work requests are signaled.
    #[inline]
    pub(super) fn signals_all(&self) -> bool {
        self.signal_all
    }

    pub(super) fn accept_datagrams(&mut self) {
        self.takes_datagrams = true;
    }

    /// Returns whether the queue accepts datagrams: true only for a send queue of UD.
    pub(super) fn takes_datagrams(&self) -> bool {
        self.takes_datagrams
    }

    /// Sets the doorbell of the queue pair.
    #[inline]
    pub(super) fn ring_doorbell(&self) {
        self.doorbells.ring(self.slot as usize);
    }

    pub(super) fn depth(&self) -> u32 {
        self.wqes.depth()
    }

    fn full(&self) -> PostError {
        PostError::QueueFull { depth: self.depth() }
    }
}

impl<W: Wqe> WorkQueue<W> {
    pub(super) fn set_posting(&self, posting: Posting) {
        self.wqes.set_mode(posting as u8);
    }

    #[inline]
    pub(super) fn len(&mut self) -> u32 {
        self.wqes.len()
    }

    #[inline]
    pub(super) fn get(&mut self, index: u32) -> Option<&W> {
        self.wqes.get(index)
    }

    /// Returns the work request at `index`, counted from the oldest work request (0); `None` if no earlier call of
    /// [`WorkQueue::get`] or [`WorkQueue::len`] has seen this work request in the ring.
    #[inline]
    pub(super) fn seen(&self, index: u32) -> Option<&W> {
        self.wqes.seen(index)
    }

    /// Returns the work request at `index`, as [`WorkQueue::seen`] does, and access to the registered memory that the
    /// scatter/gather list of this work request names.
    #[inline]
    pub(super) fn open<'a>(
        &'a mut self,
        index: u32,
        memory: &'a MemoryView,
        pd: PdId,
    ) -> Option<(&'a W, Lists<'a>)> {
        Some((self.wqes.seen(index)?, Lists { memory, pd, rest: RestSges::Ring(&mut self.sges) }))
    }

    /// Releases the scatter/gather entries of the oldest work request, then the work request. In the reverse order, a
    /// post could find room for a work request, but not for its scatter/gather entries.
    #[inline]
    pub(super) fn release_oldest(&mut self) -> Option<W> {
        let wqe = *self.wqes.get(0)?;
        let rest = wqe.list().rest_count();
        // Most scatter/gather lists have one entry. For these lists `release_rest` is not called, because it writes to
        // a cache line that is shared with the posting thread.
        if rest > 0 {
            self.release_rest(rest);
        }
        self.wqes.release(1);
        Some(wqe)
    }

    #[inline(never)]
    fn release_rest(&mut self, count: u32) {
        self.sges.iter_mut().for_each(|sges| sges.release(count));
    }

    /// Copies all scatter/gather entries of the oldest work request, except the first, to `rest`, whose length must be
    /// sufficient. Then releases the work request as [`WorkQueue::release_oldest`] does.
    pub(super) fn take(&mut self, rest: &mut [Sge]) -> Option<W> {
        let count = self.wqes.get(0)?.list().rest_count();
        for (index, room) in (0..count).zip(rest) {
            *room = *self.sges.as_mut()?.get(index)?;
        }
        self.release_oldest()
    }

    #[inline]
    pub(super) fn lists<'a>(&'a mut self, memory: &'a MemoryView, pd: PdId) -> Lists<'a> {
        Lists { memory, pd, rest: RestSges::Ring(&mut self.sges) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::wqe::RecvWqe;
    use super::*;
    use crate::start;

    /// Creates a receive queue for scatter/gather lists of up to 3 entries.
    fn small(depth: u32) -> (WorkPoster<RecvWqe>, WorkQueue<RecvWqe>) {
        let config = PosterConfig::new(3, false, 0);
        work_queue(start::ring_position(), depth, config, Arc::new(Doorbells::new(1)))
    }

    fn post(poster: &mut WorkPoster<RecvWqe>, wr_id: u64, sges: usize) -> Result<(), PostError> {
        poster.admit()?;
        poster.check_room()?;
        let sges = vec![Sge::default(); sges];
        let (position, len_bytes) = poster.stage_sges(&sges)?;
        poster.stage(RecvWqe { wr_id, list: SgList::new(&sges, position, len_bytes) });
        poster.publish();
        Ok(())
    }

    /// Releases a work request before its scatter/gather entries, which is the wrong order: a post then finds room for
    /// a work request, but not for its scatter/gather entries.
    #[test]
    fn a_refused_post_leaves_no_entries_behind() {
        let (mut poster, mut queue) = small(2);
        queue.set_posting(Posting::Queued);
        assert_eq!((post(&mut poster, 1, 2), post(&mut poster, 2, 3)), (Ok(()), Ok(())));
        queue.wqes.release(1);
        let full = Err(PostError::QueueFull { depth: 2 });
        assert_eq!(post(&mut poster, 3, 3), full, "one entry has a place, two need one");
        queue.release_rest(1);
        assert_eq!(queue.release_oldest().map(|wqe| wqe.wr_id), Some(2));
        let both = (post(&mut poster, 4, 3), post(&mut poster, 5, 3));
        assert_eq!(both, (Ok(()), Ok(())), "the queue is empty, so all of it has room");
    }

    #[test]
    fn a_refused_list_leaves_no_entries_behind() {
        let (mut poster, queue) = small(1);
        assert_eq!(post(&mut poster, 1, 1), Err(PostError::WrongState));
        queue.set_posting(Posting::Queued);
        assert_eq!(post(&mut poster, 1, 4), Err(PostError::TooManySges { count: 4, max: 3 }));
        let huge = [Sge { len_bytes: 1 << 31, ..Sge::default() }; 2];
        assert_eq!(poster.stage_sges(&huge).err(), Some(PostError::TooLong { len_bytes: 1 << 32 }));
        assert_eq!(poster.sges.as_ref().unwrap().position(), start::ring_position());
        assert_eq!(post(&mut poster, 1, 3), Ok(()));
        assert_eq!(post(&mut poster, 2, 1), Err(PostError::QueueFull { depth: 1 }));
    }
}
