//! Send queues.

use std::mem::take;
use std::sync::Arc;

use super::doorbell::Doorbells;
use super::sg::Lists;
use super::work::{PosterConfig, Posting, WorkPoster, WorkQueue, Wqe, work_queue};
use super::wqe::{Destination, PostError, SendData, SendFlags, SendOp, SendRequest, SendWqe, SgList, Sge};
use crate::mem::{Memory, MemoryView, PdId, Span};
use crate::start;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SendQueueSize {
    pub depth: u32,
    pub max_sges: u32,
    pub max_inline_bytes: u32,
}

/// The part of a send queue that the application uses: posts work requests.
pub struct SendPoster {
    work: WorkPoster<SendWqe>,
    inline: Memory,
    /// Index of the part of the inline memory that the next inline work request uses, below the depth of the queue.
    inline_place: u32,
    max_inline_bytes: u32,
}

pub(crate) struct SendQueue {
    work: WorkQueue<SendWqe>,
    inline: Memory,
}

/// A work request, with access to its payload.
pub(crate) struct OpenWqe<'a> {
    pub wqe: &'a SendWqe,
    /// Access to the registered memory that the scatter/gather list names.
    pub lists: Lists<'a>,
    /// The inline memory of the send queue.
    inline: &'a Memory,
}

/// Creates a send queue, which refuses posts until [`SendQueue::set_posting`] is called. A post sets the
/// doorbell of the queue pair with index `slot`. `signal_all` makes every work request signaled (`sq_sig_all`).
pub(crate) fn send_queue(
    size: SendQueueSize,
    signal_all: bool,
    doorbells: Arc<Doorbells>,
    slot: usize,
) -> (SendPoster, SendQueue) {
    send_queue_from(start::ring_position(), size, signal_all, doorbells, slot)
}

/// Creates a send queue as [`send_queue`] does, with `first` as the first position of its rings.
fn send_queue_from(
    first: u32,
    size: SendQueueSize,
    signal_all: bool,
    doorbells: Arc<Doorbells>,
    slot: usize,
) -> (SendPoster, SendQueue) {
    let config = PosterConfig::new(size.max_sges, signal_all, slot);
    let (work, queue) = work_queue(first, size.depth, config, doorbells);
    let inline = Memory::alloc(size.depth as usize * size.max_inline_bytes as usize);
    let max_inline_bytes = size.max_inline_bytes;
    let poster = SendPoster { work, inline: inline.clone(), inline_place: 0, max_inline_bytes };
    (poster, SendQueue { work: queue, inline })
}

impl Wqe for SendWqe {
    #[inline]
    fn list(&self) -> &SgList {
        &self.list
    }
}

impl SendPoster {
    /// Makes the send queue accept datagrams. Called only if the queue pair is of UD.
    pub(crate) fn with_datagrams(mut self) -> Self {
        self.work.accept_datagrams();
        self
    }

    /// Queues `request` and sets the doorbell of the queue pair.
    #[inline]
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.stage(request)?;
        self.publish();
        Ok(())
    }

    /// Stages `request`: appends it to the queue, where the engine does not find it before [`SendPoster::publish`]. A
    /// failed call changes nothing.
    // Inlined, because otherwise each caller writes `request` to the stack, from where it is read in words of another
    // size: the processor then waits until the writes have reached the cache.
    #[inline(always)]
    pub fn stage(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.work.admit()?;
        self.work.check_room()?;
        let SendRequest { wr_id, op, flags, data } = *request;
        if !op.is_plain() {
            self.check_special(op, &data)?;
        }
        let flags = SendFlags { signaled: flags.signaled || self.work.signals_all(), ..flags };
        self.with_list(op, data, true, |work, inline, list| {
            work.stage(SendWqe { wr_id, op, flags, inline, list });
        })
    }

    /// Replaces the payload, or the scatter list of a READ, of the last staged work request. After an error the
    /// scatter/gather list of the work request is empty.
    #[inline(always)] // See `SendPoster::stage`.
    pub fn set_data(&mut self, data: SendData<'_>) -> Result<(), PostError> {
        let wqe = self.work.last_staged().ok_or(PostError::NoneStaged)?;
        let op = wqe.op;
        if !wqe.list.is_empty() {
            self.unstage_data();
        }
        self.with_list(op, data, false, |work, inline, list| {
            if let Some(wqe) = work.last_staged() {
                (wqe.inline, wqe.list) = (inline, list);
            }
        })
    }

    /// Sets the destination of the last staged work request, which must be a datagram.
    pub fn set_destination(&mut self, destination: Destination) -> Result<(), PostError> {
        let wqe = self.work.last_staged().ok_or(PostError::NoneStaged)?;
        match &mut wqe.op {
            SendOp::SendTo { to } | SendOp::SendToWithImm { to, .. } => *to = destination,
            _ => return Err(PostError::WrongService),
        }
        Ok(())
    }

    /// Writes the second and all later scatter/gather entries of `data` to their ring, without publishing them, or
    /// copies the bytes of `data` to the inline memory. Then calls the function `queue`: the second argument is true
    /// if the bytes are in the inline memory, and the third argument is the whole scatter/gather list: all entries of
    /// `data`, or one entry for the bytes. Requires that the send queue has room for the work request.
    /// `is_checked`: whether [`SendPoster::check_special`] has checked the operation `op` and `data`.
    #[inline(always)] // See `SendPoster::stage`.
    fn with_list(
        &mut self,
        op: SendOp,
        data: SendData<'_>,
        is_checked: bool,
        queue: impl Fn(&mut WorkPoster<SendWqe>, bool, SgList),
    ) -> Result<(), PostError> {
        match data {
            SendData::Sges(sges) => {
                if !is_checked && op.is_local() && !sges.is_empty() {
                    return Err(PostError::LocalWithData);
                }
                let (position, len_bytes) = self.work.stage_sges(sges)?;
                queue(&mut self.work, false, SgList::new(sges, position, len_bytes));
            }
            SendData::Inline(bytes) => {
                let sge = self.place_inline(bytes, op)?;
                queue(&mut self.work, true, SgList::new(&[sge], 0, sge.len_bytes));
            }
        }
        Ok(())
    }

    /// Checks a datagram or a local operation. One function checks both, so that [`SendPoster::stage`] compares `op`
    /// only once: a second comparison would take 7 instructions per work request.
    #[cold]
    #[inline(never)]
    fn check_special(&self, op: SendOp, data: &SendData<'_>) -> Result<(), PostError> {
        if op.is_datagram() && !self.work.takes_datagrams() {
            return Err(PostError::WrongService);
        }
        if op.is_local() && !matches!(data, SendData::Sges([])) {
            return Err(PostError::LocalWithData);
        }
        Ok(())
    }

    /// Publishes the staged work requests to the engine, and sets the doorbell of the queue pair.
    #[inline]
    pub fn publish(&mut self) {
        self.work.publish();
        self.work.ring_doorbell();
    }

    /// Removes the staged work requests.
    pub fn unstage(&mut self) {
        while self.work.last_staged().is_some() {
            self.unstage_data();
            self.work.unstage();
        }
    }

    /// Empties the scatter/gather list of the last work request that is staged ([`SendPoster::stage`]).
    #[cold]
    fn unstage_data(&mut self) {
        let Some(wqe) = self.work.last_staged() else { return };
        let (inline, list) = (take(&mut wqe.inline), take(&mut wqe.list));
        self.work.unstage_sges(&list);
        if inline {
            self.inline_place = self.inline_place.checked_sub(1).unwrap_or(self.work.depth() - 1);
        }
    }

    /// Copies `bytes` to the part of the inline memory that has the index `inline_place`, and increments `inline_place`
    /// modulo the depth of the queue. The returned entry contains the offset of the part in the inline memory. Requires
    /// that the queue has room for the work request, because otherwise an outstanding work request still uses the part.
    #[inline(never)]
    fn place_inline(&mut self, bytes: &[u8], op: SendOp) -> Result<Sge, PostError> {
        match op {
            SendOp::Read { .. } => return Err(PostError::InlineRead),
            _ if op.is_local() => return Err(PostError::LocalWithData),
            _ => {}
        }
        let max_bytes = self.max_inline_bytes;
        let too_long = PostError::InlineTooLong { len_bytes: bytes.len(), max_bytes };
        if bytes.len() > max_bytes as usize {
            return Err(too_long);
        }
        let offset = self.inline_place as usize * max_bytes as usize;
        self.inline.write(offset, bytes).map_err(|_| too_long)?;
        // Inline work requests use the `depth` parts of `inline` in turn. A part is reused after `depth` inline posts.
        // By then the part's earlier work request has completed: at most `depth` work requests are outstanding.
        // The ring position modulo `depth` is not used as the index, because this remainder jumps when positions wrap.
        self.inline_place = if self.inline_place + 1 < self.work.depth() { self.inline_place + 1 } else { 0 };
        Ok(Sge { addr: offset as u64, len_bytes: bytes.len() as u32, ..Sge::default() })
    }

    /// Returns the number of work requests that may be outstanding at once.
    pub fn depth(&self) -> u32 {
        self.work.depth()
    }
}

impl SendQueue {
    pub(crate) fn set_posting(&self, posting: Posting) {
        self.work.set_posting(posting);
    }

    pub(crate) fn is_empty(&mut self) -> bool {
        self.work.len() == 0
    }

    #[inline]
    pub(crate) fn get(&mut self, index: u32) -> Option<&SendWqe> {
        self.work.get(index)
    }

    /// Returns the work request at `index`, counted from the oldest work request (0); `None` if no earlier call of
    /// [`SendQueue::get`] or [`SendQueue::is_empty`] has seen this work request in the ring.
    #[inline]
    pub(crate) fn seen(&self, index: u32) -> Option<&SendWqe> {
        self.work.seen(index)
    }

    #[inline]
    pub(crate) fn release_oldest(&mut self) -> Option<SendWqe> {
        self.work.release_oldest()
    }

    /// Returns the work request at `index`, as [`SendQueue::seen`] does, with access to its payload.
    #[inline]
    pub(crate) fn open<'a>(
        &'a mut self,
        index: u32,
        memory: &'a MemoryView,
        pd: PdId,
    ) -> Option<OpenWqe<'a>> {
        let (wqe, lists) = self.work.open(index, memory, pd)?;
        Some(OpenWqe { wqe, lists, inline: &self.inline })
    }

    #[inline]
    pub(crate) fn lists<'a>(&'a mut self, memory: &'a MemoryView, pd: PdId) -> Lists<'a> {
        self.work.lists(memory, pd)
    }
}

impl<'a> OpenWqe<'a> {
    /// Returns bytes `offset..offset+len_bytes` of an inline work request; an empty span if the range is out of bounds.
    #[inline]
    pub(crate) fn inline_span(&self, offset: u32, len_bytes: u32) -> Span<'a> {
        let start = self.wqe.list.first_addr() as usize + offset as usize;
        self.inline.span(start, len_bytes as usize).unwrap_or(Span::EMPTY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::LKey;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const INLINE_BYTES: u32 = 8;

    fn queue(first: u32, depth: u32) -> (SendPoster, SendQueue) {
        let size = SendQueueSize { depth, max_sges: 2, max_inline_bytes: INLINE_BYTES };
        let (poster, queue) = send_queue_from(first, size, true, Arc::new(Doorbells::new(1)), 0);
        queue.set_posting(Posting::Queued);
        (poster, queue)
    }

    fn post(poster: &mut SendPoster, wr_id: u64, inline: bool) -> Result<(), PostError> {
        let posted = stage(poster, wr_id, &[inline]);
        poster.publish();
        posted
    }

    /// Stages a work request with a gather list of two entries, and replaces its payload once for each element of
    /// `inlines`: by inline bytes if the element is true, by a gather list of one entry if the element is false.
    fn stage(poster: &mut SendPoster, wr_id: u64, inlines: &[bool]) -> Result<(), PostError> {
        let (bytes, sge) = (wr_id.to_be_bytes(), Sge { addr: wr_id, len_bytes: 8, lkey: LKey(1) });
        let sges = [sge; 2];
        let data = |inline| if inline { SendData::Inline(&bytes) } else { SendData::Sges(&sges[..1]) };
        let (op, flags) = (SendOp::Send, SendFlags::default());
        poster.stage(&SendRequest { wr_id, op, flags, data: SendData::Sges(&sges) })?;
        inlines.iter().try_for_each(|inline| poster.set_data(data(*inline)))
    }

    fn inline_bytes(queue: &mut SendQueue, index: u32) -> Option<u64> {
        let mut bytes = [0; INLINE_BYTES as usize];
        let memory = MemoryView::alone(1);
        let open = queue.open(index, &memory, PdId(1)).unwrap();
        open.inline_span(0, INLINE_BYTES).copy_to(&mut bytes).unwrap();
        open.wqe.inline.then(|| u64::from_be_bytes(bytes))
    }

    /// Ring positions wrap at 2^32, which is not a multiple of 48: a position modulo 48 jumps from 15 to 0 at the wrap.
    #[test]
    fn each_inline_request_keeps_its_own_bytes_where_positions_wrap() {
        const DEPTH: u32 = 48;
        let (mut poster, mut queue) = queue(u32::MAX - 31, DEPTH);
        (0..u64::from(DEPTH)).for_each(|wr_id| post(&mut poster, wr_id, true).unwrap());
        let others: Vec<(u64, u64)> = (0..DEPTH)
            .filter_map(|index| Some((queue.get(index)?.wr_id, inline_bytes(&mut queue, index)?)))
            .filter(|(wr_id, sent)| wr_id != sent)
            .collect();
        assert!(others.is_empty(), "{} requests send the bytes of others: {others:?}", others.len());
    }

    proptest! {
        #[test]
        fn inline_bytes_last_until_the_request_is_released(
            first in prop_oneof![Just(0), u32::MAX - 40..=u32::MAX],
            depth in 1u32..20,
            steps in proptest::collection::vec(0u8..8, 0..if cfg!(miri) { 50 } else { 200 }),
        ) {
            let (mut poster, mut queue) = queue(first, depth);
            let mut model = VecDeque::new();
            for (wr_id, step) in (0..).zip(steps) {
                if step < 3 {
                    let inline = step < 2;
                    let posted = post(&mut poster, wr_id, inline).is_ok();
                    prop_assert_eq!(posted, (model.len() as u32) < depth);
                    model.extend(posted.then_some((wr_id, inline)));
                } else if step < 6 {
                    let staged = [&[true][..], &[false, true], &[true, false]][usize::from(step - 3)];
                    for _ in 0..(depth as usize - model.len()).min(wr_id as usize % 4) {
                        prop_assert_eq!(stage(&mut poster, wr_id, staged), Ok(()));
                    }
                    poster.unstage();
                } else {
                    prop_assert_eq!(queue.release_oldest().map(|wqe| wqe.wr_id), model.pop_front().map(|(id, _)| id));
                }
                for (index, (wr_id, inline)) in (0..).zip(&model) {
                    prop_assert_eq!(queue.get(index).map(|wqe| wqe.wr_id), Some(*wr_id));
                    prop_assert_eq!(inline_bytes(&mut queue, index), inline.then_some(*wr_id));
                }
            }
        }
    }
}
