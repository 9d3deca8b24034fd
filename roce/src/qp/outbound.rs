//! Transmission of request packets: builds the frame for one segment of a work request. The transport service (`rc` or
//! `uc`) chooses the PSN.

use super::context::TxContext;
use super::emit::PortFull;
use super::segment::Segment;
use crate::mem::Access;
use crate::port::Port;
use crate::queue::{SendOp, SendQueue, SendWqe};
use crate::wire::{FrameParts, PacketSpec, RecvEth};

/// Reason for not sending a packet.
pub(crate) enum NotSent {
    PortFull,
    /// The memory of the work request cannot be read.
    BadMemory,
}

impl From<PortFull> for NotSent {
    fn from(_: PortFull) -> Self {
        NotSent::PortFull
    }
}

/// Returns whether the message of `op` consumes a receive of the peer. Only such a message may raise a solicited event.
pub(crate) fn takes_receive(op: &SendOp) -> bool {
    !matches!(op, SendOp::Write { .. } | SendOp::Read { .. } | SendOp::LocalInvalidate { .. })
}

/// Sends packet `part` of `wqe` with the header fields of `spec`.
// Always inlined, because otherwise `part` and `wqe` are passed in memory, which costs 60 instructions per packet.
#[inline(always)]
pub(crate) fn send_segment<P: Port>(
    queue: &mut SendQueue,
    wqe: &SendWqe,
    part: &Segment,
    spec: &mut PacketSpec,
    recveth: Option<RecvEth>,
    tx: &mut TxContext<'_, P>,
) -> Result<(), NotSent> {
    spec.solicited = part.is_last && wqe.flags.solicited && takes_receive(&wqe.op);
    let headers = |parts: &mut FrameParts<'_>| {
        if parts.ext.is_empty() {
            return;
        }
        // If the opcode lacks a header, the setter of this header writes nothing and returns `None`.
        let _ = part.reth.map(|reth| parts.set_reth(reth));
        let _ = recveth.map(|recveth| parts.set_recveth(recveth));
        let _ = part.imm.map(|imm| parts.set_immdt(imm));
    };
    let (offset, len) = (part.offset, part.payload_len);
    let in_one = if wqe.inline {
        Some(Ok(queue.inline_span(wqe, offset, len)))
    } else {
        queue.lists(tx.memory, tx.pd).open_one(&wqe.list, offset, len, Access::NONE)
    };
    // The memory is checked before a transmit buffer is reserved, because the port sends every reserved buffer.
    if let Some(span) = in_one {
        let span = span.map_err(|_| NotSent::BadMemory)?;
        tx.builder.emit(tx.port, spec, |parts| {
            headers(parts);
            span.copy_to(parts.payload);
        })?;
        return Ok(());
    }
    let mut lists = queue.lists(tx.memory, tx.pd);
    lists.check(&wqe.list, offset, len, Access::NONE).map_err(|_| NotSent::BadMemory)?;
    tx.builder.emit(tx.port, spec, |parts| {
        headers(parts);
        #[expect(clippy::expect_used, reason = "internal: the list was checked just before")]
        lists.gather(&wqe.list, offset, parts.payload).expect("checked just before");
    })?;
    Ok(())
}
