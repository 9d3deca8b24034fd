//! The send queue.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::doorbell::Doorbells;
use super::ring::{Consumer, Producer, ring};
use super::sg::Lists;
use super::wqe::{PostError, SendData, SendFlags, SendOp, SendRequest, SendWqe, SgList, Sge};
use crate::mem::{Memory, MemoryTable, PdId, Span};

/// Sizes of a send queue.
#[derive(Clone, Copy, Debug)]
pub struct SendQueueSize {
    /// Work requests outstanding at most.
    pub depth: u32,
    /// Scatter/gather entries of one work request at most.
    pub max_sges: u32,
    /// Inline bytes of one work request at most.
    pub max_inline_bytes: u32,
}

/// The application's end: posts work requests.
pub struct SendPoster {
    wqes: Producer<SendWqe>,
    sges: Producer<Sge>,
    inline: Memory,
    size: SendQueueSize,
    open: Arc<AtomicBool>,
    signal_all: bool,
    doorbells: Arc<Doorbells>,
    slot: usize,
}

/// The engine's end: work requests from the oldest not completed to the newest posted.
pub struct SendQueue {
    wqes: Consumer<SendWqe>,
    sges: Consumer<Sge>,
    inline: Memory,
    open: Arc<AtomicBool>,
}

/// A send queue of the given size. `slot` is the bell of `doorbells` that a post rings;
/// `signal_all` makes every work request signaled (`sq_sig_all`).
pub fn send_queue(
    size: SendQueueSize,
    signal_all: bool,
    doorbells: Arc<Doorbells>,
    slot: usize,
) -> (SendPoster, SendQueue) {
    let (wqe_in, wqe_out) = ring(size.depth);
    let (sge_in, sge_out) = ring(size.depth * size.max_sges.saturating_sub(1).max(1));
    let inline = Memory::alloc(size.depth as usize * size.max_inline_bytes as usize);
    let open = Arc::new(AtomicBool::new(false));
    let poster = SendPoster {
        wqes: wqe_in,
        sges: sge_in,
        inline: inline.clone(),
        size,
        open: open.clone(),
        signal_all,
        doorbells,
        slot,
    };
    (poster, SendQueue { wqes: wqe_out, sges: sge_out, inline, open })
}

impl SendPoster {
    /// Queues `request` and rings the doorbell.
    #[inline]
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        if !self.open.load(Ordering::Relaxed) {
            return Err(PostError::WrongState);
        }
        if !self.wqes.has_room(1) {
            return Err(PostError::QueueFull { depth: self.size.depth });
        }
        let (inline, list) = match request.data {
            SendData::Sges(sges) => (false, self.list_of(sges)?),
            SendData::Inline(bytes) => (true, self.inline_of(bytes, request.op)?),
        };
        let flags = SendFlags { signaled: request.flags.signaled || self.signal_all, ..request.flags };
        let wqe = SendWqe { wr_id: request.wr_id, op: request.op, flags, inline, list };
        self.wqes.push(wqe).map_err(|_| PostError::QueueFull { depth: self.size.depth })?;
        self.doorbells.ring(self.slot);
        Ok(())
    }

    fn list_of(&mut self, sges: &[Sge]) -> Result<SgList, PostError> {
        if sges.len() > self.size.max_sges as usize {
            return Err(PostError::TooManySges { count: sges.len(), max: self.size.max_sges });
        }
        let list =
            SgList::new(sges, self.sges.position()).map_err(|len_bytes| PostError::TooLong { len_bytes })?;
        let full = PostError::QueueFull { depth: self.size.depth };
        sges.iter().skip(1).try_for_each(|sge| self.sges.push(*sge)).map_err(|_| full)?;
        Ok(list)
    }

    fn inline_of(&mut self, bytes: &[u8], op: SendOp) -> Result<SgList, PostError> {
        if matches!(op, SendOp::Read { .. }) {
            return Err(PostError::InlineRead);
        }
        let max_bytes = self.size.max_inline_bytes;
        let too_long = PostError::InlineTooLong { len_bytes: bytes.len(), max_bytes };
        if bytes.len() > max_bytes as usize {
            return Err(too_long);
        }
        let place = (self.wqes.position() % self.size.depth) as usize * max_bytes as usize;
        self.inline.write(place, bytes).map_err(|_| too_long)?;
        let sge = Sge { addr: place as u64, len_bytes: bytes.len() as u32, ..Sge::default() };
        SgList::new(&[sge], 0).map_err(|len_bytes| PostError::TooLong { len_bytes })
    }

    /// Work requests outstanding at most.
    pub fn depth(&self) -> u32 {
        self.size.depth
    }
}

impl SendQueue {
    /// Lets posts through or refuses them.
    pub fn set_open(&self, open: bool) {
        self.open.store(open, Ordering::Relaxed);
    }

    /// Work requests posted and not yet released.
    #[inline]
    pub fn len(&mut self) -> u32 {
        self.wqes.len()
    }

    /// Whether there are none.
    pub fn is_empty(&mut self) -> bool {
        self.wqes.is_empty()
    }

    /// The work request `index` places after the oldest.
    #[inline]
    pub fn get(&mut self, index: u32) -> Option<&SendWqe> {
        self.wqes.get(index)
    }

    /// Releases the oldest work request and its entries, once it has completed.
    #[inline]
    pub fn release_oldest(&mut self) -> Option<SendWqe> {
        let wqe = *self.wqes.get(0)?;
        self.sges.release(wqe.list.rest_count());
        self.wqes.release(1);
        Some(wqe)
    }

    /// The queue's gather and scatter lists.
    #[inline]
    pub fn lists<'a>(&'a mut self, memory: &'a MemoryTable, pd: PdId) -> Lists<'a> {
        Lists { memory, pd, rest: &mut self.sges }
    }

    /// Bytes `offset..offset+len_bytes` of an inline work request.
    #[inline]
    pub fn inline_span(&self, wqe: &SendWqe, offset: u32, len_bytes: u32) -> Span<'_> {
        let start = wqe.list.first_addr() as usize + offset as usize;
        self.inline.span(start, len_bytes as usize).unwrap_or(Span::EMPTY)
    }
}
