//! Transmission of request packets: builds the frame for one segment of a work request. The transport service (`rc`,
//! `uc` or `ud`) chooses the PSN.

use super::context::TxContext;
use super::emit::NotSent;
use super::segment::Segment;
use crate::mem::{Access, MemoryFault, Span};
use crate::port::Port;
use crate::queue::{Lists, OpenWqe, SendOp, SgList, open_one};
use crate::wire::{Deth, FrameParts, PacketSpec, RecvEth};

/// Memory of the payload of a packet.
enum Payload<'a> {
    /// One contiguous range of registered memory, or of the inline memory of the send queue.
    One(Span<'a>),
    /// The registered memory that several scatter/gather entries name.
    Several(Lists<'a>),
}

/// Returns whether the message of `op` consumes a receive of the peer. Only such a message may raise a solicited event.
pub(crate) fn takes_receive(op: &SendOp) -> bool {
    !matches!(op, SendOp::Write { .. } | SendOp::Read { .. } | SendOp::LocalInvalidate { .. })
}

/// Sends one packet of the work request `open`: `part` is the part of the message in this packet, and `spec` contains
/// header fields of this packet.
// Always inlined, because otherwise `part` and `open` are passed in memory, which costs 60 instructions per packet.
#[inline(always)]
pub(crate) fn send_segment<P: Port>(
    open: OpenWqe<'_>,
    part: &Segment,
    spec: &mut PacketSpec,
    (recveth, deth): (Option<RecvEth>, Option<Deth>),
    tx: &mut TxContext<'_, P>,
) -> Result<(), NotSent> {
    let wqe = open.wqe;
    if wqe.flags.solicited {
        spec.solicited = part.is_last && takes_receive(&wqe.op);
    }
    let (offset, len) = (part.offset, part.payload_len);
    // The memory is checked before a transmit buffer is reserved, so that a reserved buffer is cancelled only at a
    // memory fault.
    let mut payload = if wqe.inline {
        Payload::One(open.inline_span(offset, len))
    } else if let Some(opened) = open_one(tx.memory, tx.pd, &wqe.list, offset, len, Access::NONE) {
        Payload::One(opened.map_err(|_| NotSent::BadMemory)?)
    } else {
        let mut lists = open.lists;
        lists.check(&wqe.list, offset, len, Access::NONE).map_err(|_| NotSent::BadMemory)?;
        Payload::Several(lists)
    };
    tx.builder.emit_copied(tx.port, spec, |parts| {
        if !parts.ext.is_empty() {
            set_ext_headers(parts, part, recveth, deth);
        }
        match &mut payload {
            Payload::One(span) => span.copy_to(parts.payload),
            Payload::Several(lists) => gather(lists, &wqe.list, offset, parts.payload),
        }
    })
}

/// Copies bytes of the registered memory that `list` names, from byte `offset` on, to `out`, until `out` is full. The
/// caller has checked the right of access to these bytes. Not inlined, so that the code for a scatter/gather list of
/// one entry stays short.
#[inline(never)]
fn gather(lists: &mut Lists<'_>, list: &SgList, offset: u32, out: &mut [u8]) -> Result<(), MemoryFault> {
    lists.gather(list, offset, out).map_err(|_| MemoryFault)
}

/// Writes the extension headers. Not inlined, because most packets have none.
#[inline(never)]
fn set_ext_headers(parts: &mut FrameParts<'_>, part: &Segment, recveth: Option<RecvEth>, deth: Option<Deth>) {
    // If the opcode lacks a header, the setter of this header writes nothing and returns `None`.
    let _ = part.reth.map(|reth| parts.set_reth(reth));
    let _ = deth.map(|deth| parts.set_deth(deth));
    let _ = recveth.map(|recveth| parts.set_recveth(recveth));
    let _ = part.imm.map(|imm| parts.set_immdt(imm));
}
