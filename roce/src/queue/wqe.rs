//! Work requests: as posted by the application, and as queued (WQEs).

use crate::id::{AhId, LKey, QKey, Qpn, RKey};

/// Largest message in bytes: 2^31 (IBA 9.7.4.1.6).
pub const MAX_MESSAGE_BYTES: u32 = 1 << 31;

/// Scatter/gather entry, with the layout of `struct ibv_sge`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Sge {
    /// Address of the first byte, in the address range given at the registration of the region.
    pub addr: u64,
    /// Number of bytes of memory that the entry names, from `addr` on.
    pub len_bytes: u32,
    /// L_Key of the region that contains the bytes.
    pub lkey: LKey,
}

/// Destination of a datagram (`wr.ud` of `ibv_send_wr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// Address handle with the address vector of the destination.
    pub ah: AhId,
    /// QPN of the destination.
    pub qpn: Qpn,
    /// Q_Key of the destination. If bit 31 is set, the packet has the Q_Key of the local queue pair (IBA 10.2.5).
    pub qkey: QKey,
}

/// Operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// SEND into the peer's next receive.
    Send,
    /// SEND with a 32-bit immediate, a number in host byte order.
    SendWithImm {
        /// Immediate data, which the peer receives with the completion of its receive.
        imm: u32,
    },
    /// RDMA WRITE of the gather list.
    Write {
        /// Address of the first byte written at the peer.
        remote_addr: u64,
        /// R_Key of the peer's region.
        rkey: RKey,
    },
    /// RDMA WRITE that consumes a receive of the peer and delivers an immediate.
    WriteWithImm {
        /// Address of the first byte written at the peer.
        remote_addr: u64,
        /// R_Key of the peer's region.
        rkey: RKey,
        /// Immediate data, which the peer receives with the completion of its receive.
        imm: u32,
    },
    /// RDMA READ into the local scatter list.
    Read {
        /// Address of the first byte read at the peer.
        remote_addr: u64,
        /// R_Key of the peer's region.
        rkey: RKey,
    },
    /// Local invalidate (`IBV_WR_LOCAL_INV`, IBA 10.6.5): both keys of a region of the queue pair's protection domain
    /// become invalid, until the region is deregistered. No packet is sent. The scatter/gather list must be empty.
    LocalInvalidate {
        /// R_Key of the region to invalidate.
        rkey: RKey,
    },
    /// SEND of a datagram, which is one packet: its payload is at most as long as the largest path MTU that the MTU of
    /// the port permits. A queue pair of RC or UC does not accept this operation. On a queue pair of UD, all operations
    /// except this operation and `SendToWithImm` fail (`LocQpOpErr`).
    SendTo {
        /// Queue pair to which the datagram is sent.
        to: Destination,
    },
    /// SEND of a datagram with a 32-bit immediate, a number in host byte order.
    SendToWithImm {
        /// Queue pair to which the datagram is sent.
        to: Destination,
        /// Immediate data, which the peer receives with the completion of its receive.
        imm: u32,
    },
}

impl SendOp {
    /// Returns whether the operation is a local operation, which sends no packet and takes no PSN.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        matches!(self, SendOp::LocalInvalidate { .. })
    }

    /// Returns whether the operation is neither a local operation nor a datagram. The variants of plain operations come
    /// first, so that one comparison decides.
    #[inline]
    pub(crate) const fn is_plain(&self) -> bool {
        matches!(
            self,
            SendOp::Send
                | SendOp::SendWithImm { .. }
                | SendOp::Write { .. }
                | SendOp::WriteWithImm { .. }
                | SendOp::Read { .. }
        )
    }

    /// Returns whether the operation sends a datagram.
    #[inline]
    pub(crate) const fn is_datagram(&self) -> bool {
        matches!(self, SendOp::SendTo { .. } | SendOp::SendToWithImm { .. })
    }

    /// Returns the destination of a datagram; `None` for other operations.
    #[inline]
    pub(crate) const fn destination(&self) -> Option<Destination> {
        match *self {
            SendOp::SendTo { to } | SendOp::SendToWithImm { to, .. } => Some(to),
            _ => None,
        }
    }
}

/// Flags of a send work request (`enum ibv_send_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Whether a completion is written on success; on an error a completion is always written.
    pub signaled: bool,
    /// Whether the completion of the receive at the peer is a solicited event (IBA 9.2.3).
    pub solicited: bool,
    /// Whether the work request starts only after all earlier READs have completed (fence, IBA 10.8.3); a local
    /// invalidate with this flag starts only after all earlier work requests have completed (IBA 10.6.5). Without the
    /// flag, a local invalidate may execute although an earlier work request that uses the same region has not
    /// completed. If a packet of this earlier work request must then be retransmitted, the earlier work request fails.
    pub fence: bool,
}

/// A send work request, as posted.
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'a> {
    /// The application's number of the work request, returned in its completion.
    pub wr_id: u64,
    /// Operation, with remote address and immediate.
    pub op: SendOp,
    /// Flags of the work request: signaled, solicited event, fence.
    pub flags: SendFlags,
    /// Payload to send, or scatter list of a READ.
    pub data: SendData<'a>,
}

/// Location of the bytes of a send work request.
#[derive(Clone, Copy, Debug)]
pub enum SendData<'a> {
    /// Scatter/gather entries of registered memory.
    Sges(&'a [Sge]),
    /// Bytes that the post copies, so that their memory need not be registered. Not permitted for a READ.
    Inline(&'a [u8]),
}

/// A receive work request, as posted.
#[derive(Clone, Copy, Debug)]
pub struct RecvRequest<'a> {
    /// The application's number of the receive, returned in its completion.
    pub wr_id: u64,
    /// Scatter list, filled in order by the message.
    pub sges: &'a [Sge],
}

/// Reason why a call refuses a work request. A failed post does not change the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The queue pair's state does not allow the post.
    #[error(
        "the queue pair's state does not allow this post: sends need RTS (or SQD, ERR), receives at least INIT"
    )]
    WrongState,
    /// The work queue is full: `depth` work requests are outstanding.
    #[error(
        "the work queue is full ({depth} outstanding): poll completions first, or create the queue pair with a larger queue"
    )]
    QueueFull {
        /// Number of work requests that may be outstanding at once.
        depth: u32,
    },
    /// The work request has more scatter/gather entries than the work queue was created for.
    #[error("{count} scatter/gather entries, but the queue pair was created for at most {max}")]
    TooManySges {
        /// Number of scatter/gather entries of the work request.
        count: usize,
        /// Largest number of scatter/gather entries of a work request.
        max: u32,
    },
    /// The work request has more inline bytes than the queue pair was created for.
    #[error("{len_bytes} inline bytes, but the queue pair was created for at most {max_bytes}")]
    InlineTooLong {
        /// Number of inline bytes of the work request.
        len_bytes: usize,
        /// Largest number of inline bytes of a work request.
        max_bytes: u32,
    },
    /// The work request is a READ with inline data.
    #[error("an RDMA READ fills memory, so it cannot be posted with inline data: give a scatter list")]
    InlineRead,
    /// The work request is a local operation with inline data or scatter/gather entries.
    #[error("a local invalidate has no payload: post it with an empty scatter/gather list")]
    LocalWithData,
    /// The operation is a datagram, and the queue pair is of RC or UC; or a destination is set for an operation that is
    /// not a datagram.
    #[error("only a queue pair of UD sends datagrams: a connection sends to its peer, without a destination")]
    WrongService,
    /// The call sets the payload or the destination of the work request staged last, but no work request is staged.
    #[error("data without a work request: begin a work request first")]
    NoneStaged,
    /// The queue pair takes its receives from a shared receive queue.
    #[error("the queue pair takes its receives from a shared receive queue: post them there")]
    Shared,
    /// The message is longer than [`MAX_MESSAGE_BYTES`].
    #[error("a message of {len_bytes} bytes is longer than the 2 GiB that a message may be")]
    TooLong {
        /// Length of all scatter/gather entries together, in bytes.
        len_bytes: u64,
    },
}

/// Scatter/gather list of a queued work request. The list itself stores the first entry, because most lists have one
/// entry; further entries are in the queue's ring of scatter/gather entries.
///
/// Packed, so that a [`SendWqe`] fits in a cache line.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, packed(4))]
pub(crate) struct SgList {
    first: Sge,
    rest_position: u32,
    count: u32,
    /// Length of all entries together, in bytes.
    pub len_bytes: u32,
}

impl SgList {
    /// Creates the scatter/gather list of `sges`. `len_bytes`: length of all entries together. The entries after the
    /// first are at `rest_position` and the following positions of the queue's ring of scatter/gather entries.
    #[inline]
    pub(super) fn new(sges: &[Sge], rest_position: u32, len_bytes: u32) -> SgList {
        let first = sges.first().copied().unwrap_or_default();
        SgList { first, rest_position, count: sges.len() as u32, len_bytes }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(crate) fn is_one_entry(&self) -> bool {
        self.count <= 1
    }

    /// Returns an entry that names bytes `offset..offset+len_bytes` of the memory that this scatter/gather list names;
    /// `None` if this list has more than one entry, or names fewer than `offset + len_bytes` bytes.
    #[inline]
    pub(super) fn one_piece(&self, offset: u32, len_bytes: u32) -> Option<Sge> {
        let fits = self.is_one_entry() && len_bytes <= self.len_bytes.checked_sub(offset)?;
        let addr = self.first.addr.wrapping_add(u64::from(offset));
        fits.then_some(Sge { addr, len_bytes, lkey: self.first.lkey })
    }

    pub(super) fn first_addr(&self) -> u64 {
        self.first.addr
    }

    /// Returns the number of scatter/gather entries after the first entry. The queue has a ring for these entries; the
    /// first entry is part of this list.
    pub(super) fn rest_count(&self) -> u32 {
        self.count.saturating_sub(1)
    }

    /// Returns this scatter list with `rest_position` (the position of the second entry) 0, for a receive that a queue
    /// pair takes from its SRQ: `RecvQueue::take` copies the second and later entries to indices 0, 1, 2 and so on of
    /// an array.
    pub(super) fn at_start(self) -> SgList {
        SgList { rest_position: 0, ..self }
    }

    /// Calls `piece` with an entry for each contiguous part of the bytes `offset..offset+len_bytes` of the memory that
    /// this scatter/gather list names, in order, until a call of `piece` fails. Bytes beyond the end of this memory are
    /// ignored. `rest` returns the entry at a position: a position of the queue's ring of scatter/gather entries, or an
    /// index of the entries copied from an SRQ.
    #[inline]
    pub(super) fn pieces<E>(
        &self,
        mut rest: impl FnMut(u32) -> Option<Sge>,
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
            let Some(next) = rest(position) else { break };
            sge = next;
            index += 1;
        }
        Ok(())
    }
}

/// A queued send work request, in a cache line of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct SendWqe {
    pub wr_id: u64,
    pub op: SendOp,
    /// Flags of the work request; `signaled` is also set if the queue signals all work requests (`sq_sig_all`).
    pub flags: SendFlags,
    /// Whether the payload is in the inline memory of the send queue. If so, the address of the entry in `list` is
    /// an offset in that memory.
    pub inline: bool,
    pub list: SgList,
}

/// A queued receive, in a cache line of its own.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(crate) struct RecvWqe {
    pub wr_id: u64,
    pub list: SgList,
}

const _: () = assert!(size_of::<SendWqe>() == 64 && size_of::<RecvWqe>() == 64);
