//! Work queue elements: what the application asks for.

use super::ring::Consumer;
use crate::id::{LKey, RKey};

/// The longest message, in bytes: 2^31 (IBA 9.7.6).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// One entry of a scatter/gather list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// Address of the first byte, as registered.
    pub addr: u64,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Key of the region that holds the bytes.
    pub lkey: LKey,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND into the peer's next receive.
    Send,
    /// SEND that delivers a 32-bit immediate (network byte order is the caller's affair).
    SendWithImm {
        /// The immediate.
        imm: u32,
    },
    /// RDMA WRITE.
    Write {
        /// First remote address.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: RKey,
    },
    /// RDMA WRITE that consumes a receive and delivers an immediate.
    WriteWithImm {
        /// First remote address.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: RKey,
        /// The immediate.
        imm: u32,
    },
    /// RDMA READ into the local scatter list.
    Read {
        /// First remote address.
        remote_addr: u64,
        /// Key of the remote region.
        rkey: RKey,
    },
}

/// Flags of a send work request, as `enum ibv_send_flags`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// A success completes visibly (a failure always does).
    pub signaled: bool,
    /// The peer's completion is a solicited event.
    pub solicited: bool,
    /// Starts only when every earlier READ has completed.
    pub fence: bool,
}

/// A send work request, as posted.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The caller's own number, returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// The bytes.
    pub data: SendData<'a>,
}

/// Where the bytes of a send work request are.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// In registered memory.
    Sges(&'a [Sge]),
    /// Here; they are copied at once and need no registration. Not for READ.
    Inline(&'a [u8]),
}

/// A receive work request, as posted.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The caller's own number, returned in the completion.
    pub wr_id: u64,
    /// Where the message goes, filled in order.
    pub sges: &'a [Sge],
}

/// Why a work request was not posted. Nothing of it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue pair cannot take it in its present state.
    #[error(
        "the queue pair's state does not allow this post: sends need RTS (or SQD, ERR), receives at least INIT"
    )]
    WrongState,
    /// The queue is full.
    #[error(
        "the work queue is full ({depth} outstanding): poll completions first, or create the queue pair with a larger queue"
    )]
    QueueFull {
        /// Its depth.
        depth: u32,
    },
    /// More scatter/gather entries than the queue pair was created for.
    #[error("{count} scatter/gather entries, but the queue pair was created for at most {max}")]
    TooManySges {
        /// Entries given.
        count: usize,
        /// Entries allowed.
        max: u32,
    },
    /// More inline bytes than the queue pair was created for.
    #[error("{len_bytes} inline bytes, but the queue pair was created for at most {max_bytes}")]
    InlineTooLong {
        /// Bytes given.
        len_bytes: usize,
        /// Bytes allowed.
        max_bytes: u32,
    },
    /// A READ cannot carry inline data.
    #[error("an RDMA READ fills memory, so it cannot be posted with inline data: give a scatter list")]
    InlineRead,
    /// Longer than a message may be.
    #[error("a message of {len_bytes} bytes is longer than the 2 GiB that a message may be")]
    TooLong {
        /// Its length.
        len_bytes: u64,
    },
}

/// A scatter/gather list as a queue keeps it: the first entry in place, the rest in the queue's
/// ring of entries, because most lists have one.
#[derive(Clone, Copy, Debug, Default)]
pub struct SgList {
    first: Sge,
    rest_position: u32,
    count: u32,
    /// Bytes of all entries together.
    pub len_bytes: u32,
}

impl SgList {
    /// The list of `sges`, whose entries after the first lie from `rest_position` on.
    /// `Err` is the total length where that is longer than a message may be.
    pub(super) fn new(sges: &[Sge], rest_position: u32) -> Result<SgList, u64> {
        let total: u64 = sges.iter().map(|sge| u64::from(sge.len_bytes)).sum();
        let len_bytes = u32::try_from(total).ok().filter(|len| *len <= MAX_MESSAGE_BYTES).ok_or(total)?;
        let first = sges.first().copied().unwrap_or_default();
        Ok(SgList { first, rest_position, count: sges.len() as u32, len_bytes })
    }

    /// Whether the list has at most one entry.
    #[inline]
    pub fn is_one_entry(&self) -> bool {
        self.count <= 1
    }

    /// The run of memory that makes up bytes `offset..offset+len_bytes`, where the list has one entry
    /// and they lie in it.
    #[inline]
    pub(super) fn one_piece(&self, offset: u32, len_bytes: u32) -> Option<Sge> {
        let fits = self.is_one_entry() && len_bytes <= self.len_bytes.checked_sub(offset)?;
        let addr = self.first.addr.wrapping_add(u64::from(offset));
        fits.then_some(Sge { addr, len_bytes, lkey: self.first.lkey })
    }

    /// Address of the first entry.
    pub(super) fn first_addr(&self) -> u64 {
        self.first.addr
    }

    /// Entries kept in the ring.
    pub(super) fn rest_count(&self) -> u32 {
        self.count.saturating_sub(1)
    }

    /// Calls `piece` for each run of memory that makes up bytes `offset..offset+len_bytes` of the
    /// list, in order, until one fails. Stops early where the list ends before.
    #[inline]
    pub(super) fn pieces<E>(
        &self,
        rest: &mut Consumer<Sge>,
        offset: u32,
        len_bytes: u32,
        mut piece: impl FnMut(Sge) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut sge = self.first;
        let (mut skip, mut wanted, mut index) = (offset, len_bytes, 0);
        while wanted > 0 {
            if skip < sge.len_bytes {
                let len = wanted.min(sge.len_bytes - skip);
                piece(Sge { addr: sge.addr.wrapping_add(u64::from(skip)), len_bytes: len, lkey: sge.lkey })?;
                wanted -= len;
                skip = 0;
            } else {
                skip -= sge.len_bytes;
            }
            if index + 1 >= self.count {
                break;
            }
            let position = self.rest_position.wrapping_add(index);
            let Some(next) = rest.get(position.wrapping_sub(rest.position())) else { break };
            sge = *next;
            index += 1;
        }
        Ok(())
    }
}

/// A send work request in its queue.
#[derive(Clone, Copy, Debug)]
pub struct SendWqe {
    /// The caller's number.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// Whether the bytes lie in the queue's inline room; `list` then names them there.
    pub inline: bool,
    /// The bytes.
    pub list: SgList,
}

/// A receive work request in its queue.
#[derive(Clone, Copy, Debug)]
pub struct RecvWqe {
    /// The caller's number.
    pub wr_id: u64,
    /// Where the message goes.
    pub list: SgList,
}
