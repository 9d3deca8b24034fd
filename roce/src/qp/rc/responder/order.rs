//! Order of arrival: the expected PSN of a responder, and the requests above it that are buffered or placed.

use super::context::{ResponderConfig, RxContext};
use super::execute::Execution;
use super::message::Partial;
use crate::mem::Access;
use crate::psn::Psn;
use crate::qp::Placement;
use crate::qp::rc::placing::{Placed, Placing, Request, RqOffset};
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::recovery::out_of_order_set::OutOfOrderSet;
use crate::recovery::{ExpectedPsn, Verdict};
use crate::wire::{Operation, Packet, RecvEth, Reth};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    Dropped,
    /// Dropped, because the reorder buffer has no room for the frame.
    NoRoom,
    /// Dropped, because the PSN is buffered or placed already.
    Duplicate,
    /// To be put into the reorder buffer as a frame.
    Buffered,
    /// The payload is placed.
    Placed,
}

/// The expected PSN, and the out-of-order requests above it.
///
/// ```text
///   PSN    4         5          6 (expected)   7         8          9
///          executed  executed   missing        buffered  missing    placed
/// ```
#[derive(Debug)]
pub(super) struct Order {
    expected: ExpectedPsn,
    /// PSNs that are buffered or placed; `None` under go-back-N.
    out_of_order: Option<Box<OutOfOrderSet>>,
    /// `None` unless placement is relaxed.
    placing: Option<Box<Placing>>,
}

impl Order {
    pub(super) fn new(config: &ResponderConfig) -> Self {
        let buffered_pkts_max = config.recovery.buffered_pkts_max();
        let placed_pkts_max = buffered_pkts_max.filter(|_| config.placement == Placement::Relaxed);
        Order {
            expected: ExpectedPsn::new(config.first_psn),
            out_of_order: buffered_pkts_max.map(|window_pkts| Box::new(OutOfOrderSet::new(window_pkts))),
            placing: placed_pkts_max.map(|window_pkts| Box::new(Placing::new(window_pkts))),
        }
    }

    #[inline]
    pub(super) fn expected(&self) -> Psn {
        self.expected.expected()
    }

    /// True under improved go-back-N and selective repeat.
    #[inline]
    pub(super) fn buffers(&self) -> bool {
        self.out_of_order.is_some()
    }

    #[inline]
    pub(super) fn on_packet(&mut self, psn: Psn) -> Verdict {
        self.expected.on_packet(psn)
    }

    /// Advances the expected PSN by `span` executed PSNs. Returns whether any PSN was buffered or placed before.
    #[inline]
    pub(super) fn accept(&mut self, span: u32) -> bool {
        let has_out_of_order = self.has_out_of_order();
        if has_out_of_order {
            self.pass(span);
        }
        self.expected.accept(span);
        has_out_of_order
    }

    /// Removes the expected PSN and the `span - 1` PSNs after it from the sets of buffered and placed PSNs.
    #[inline]
    pub(super) fn pass(&mut self, span: u32) {
        let expected = self.expected();
        if let Some(out_of_order) = &mut self.out_of_order {
            out_of_order.advance(expected, span);
        }
        if let Some(placing) = &mut self.placing {
            placing.pass(expected, span);
        }
    }

    pub(super) fn on_not_ready(&mut self) {
        self.expected.refuse();
    }

    #[inline]
    pub(super) fn has_out_of_order(&self) -> bool {
        self.out_of_order.as_ref().is_some_and(|out_of_order| !out_of_order.is_empty())
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        let expected = self.expected();
        self.out_of_order
            .as_ref()
            .is_some_and(|out_of_order| !out_of_order.is_empty() && out_of_order.contains(expected))
    }

    /// Returns whether PSN `psn - 1` is buffered or placed, and PSN `psn + 1` is not.
    pub(super) fn extends_run(&self, psn: Psn) -> bool {
        self.is_out_of_order(psn.minus(1)) && !self.is_out_of_order(psn.plus(1))
    }

    /// Returns whether `psn`, above the expected PSN, is buffered or placed.
    fn is_out_of_order(&self, psn: Psn) -> bool {
        let expected = self.expected();
        self.out_of_order.as_ref().is_some_and(|out_of_order| out_of_order.is_buffered(expected, psn))
    }

    pub(super) fn bitmap(&self) -> Option<impl ExactSizeIterator<Item = u32> + '_> {
        self.out_of_order.as_ref().map(|out_of_order| out_of_order.words(self.expected()))
    }

    /// Places the payload of an out-of-order packet if placement is relaxed and its address is known; otherwise the
    /// frame is to be buffered if there is room (`has_room`).
    pub(super) fn on_out_of_order(
        &mut self,
        packet: &Packet<'_>,
        has_room: bool,
        execution: &Execution,
        rx: &mut RxContext<'_>,
    ) -> Disposition {
        let (psn, expected) = (packet.bth.psn, self.expected());
        let Some(out_of_order) = &self.out_of_order else { return Disposition::Dropped };
        if !out_of_order.is_new(expected, psn) {
            let is_duplicate = out_of_order.is_buffered(expected, psn);
            return if is_duplicate { Disposition::Duplicate } else { Disposition::Dropped };
        }
        let disposition = match self.place(packet, execution, rx) {
            Some(()) => Disposition::Placed,
            None if has_room => Disposition::Buffered,
            None => return Disposition::NoRoom,
        };
        if let Some(out_of_order) = &mut self.out_of_order {
            out_of_order.insert(psn);
        }
        disposition
    }

    /// Places the payload of an out-of-order packet that is neither buffered nor placed. Returns `None` if it cannot:
    /// placement is not relaxed, the address is unknown, or access is denied.
    fn place(&mut self, packet: &Packet<'_>, execution: &Execution, rx: &mut RxContext<'_>) -> Option<()> {
        let (expected, mtu_bytes) = (self.expected(), execution.mtu_bytes());
        let placing = self.placing.as_mut()?;
        let mut rq_offset = None;
        match packet.info.operation {
            Operation::Send => {
                let RecvEth { recv_seq, packet: before } = packet.recveth()?;
                let offset_bytes = before.checked_mul(mtu_bytes)?;
                rq_offset = Some(RqOffset { recv_seq, offset_bytes });
                let index = recv_seq.wrapping_sub(execution.recv_seq());
                place_in_receive(packet, index, offset_bytes, mtu_bytes, rx)?;
            }
            Operation::Write => {
                let left = match execution.partial() {
                    Partial::Write { va, rkey, left, .. } => Some(Reth { va, rkey, len_bytes: left }),
                    _ => None,
                };
                let (reth, index) = placing.remote(packet, expected, left, mtu_bytes)?;
                place_in_memory(packet, reth, index * mtu_bytes, rx)?;
            }
            _ => return None,
        }
        placing.mark_placed(packet, rq_offset);
        rx.counters.placed_out_of_order += 1;
        Some(())
    }

    pub(super) fn has_placed(&self) -> bool {
        self.placing.as_ref().is_some_and(|placing| placing.contains(self.expected()))
    }

    #[inline]
    pub(super) fn placed(&self) -> Option<Placed> {
        self.placing.as_ref()?.get(self.expected())
    }

    /// Returns the number of placed MIDDLEs of the message in progress, from the expected PSN on.
    #[inline]
    pub(super) fn middles(&self, partial: Partial) -> u32 {
        let is_write = match partial {
            Partial::None => return 0,
            Partial::Send { .. } => false,
            Partial::Write { .. } => true,
        };
        self.placing.as_ref().map_or(0, |placing| placing.middles(self.expected(), is_write))
    }

    pub(super) fn is_same_as_placed(&self, packet: &Packet<'_>) -> Option<bool> {
        let psn = packet.bth.psn;
        let placing = self.placing.as_ref().filter(|placing| placing.contains(psn))?;
        self.is_out_of_order(psn).then(|| placing.is_same(packet))
    }

    pub(super) fn discard(&mut self, psn: Psn) {
        let expected = self.expected();
        let is_placed = self.placing.as_ref().is_some_and(|placing| placing.contains(psn));
        if let Some(out_of_order) = self.out_of_order.as_mut().filter(|_| !is_placed) {
            out_of_order.remove(expected, psn);
        }
    }

    pub(super) fn discard_all(&mut self) -> bool {
        let (Some(placing), Some(out_of_order)) = (&mut self.placing, &mut self.out_of_order) else {
            return false;
        };
        placing.clear();
        out_of_order.clear();
        true
    }
}

/// Places the payload of a SEND in the receive `index` positions after the oldest, from byte `at` on. Returns `None` if
/// that receive is not posted, too short or not writable, or if a FIRST or MIDDLE is shorter than the path MTU.
fn place_in_receive(
    packet: &Packet<'_>,
    index: u32,
    at: u32,
    mtu_bytes: u32,
    rx: &mut RxContext<'_>,
) -> Option<()> {
    let len = packet.len_bytes();
    if len != mtu_bytes && !packet.info.ends_message() {
        return None;
    }
    let list = rx.rq.nth(index)?.list;
    at.checked_add(len).filter(|end| *end <= list.len_bytes)?;
    rx.rq.lists(rx.memory, rx.pd).scatter(&list, at, packet.payload).ok()
}

/// Places the payload of a WRITE `offset` bytes after the address of `reth`. Returns `None` if access is denied.
fn place_in_memory(packet: &Packet<'_>, reth: Reth, offset: u32, rx: &mut RxContext<'_>) -> Option<()> {
    let Reth { va, rkey, len_bytes } = reth;
    if !rx.access.contains(Access::REMOTE_WRITE) || len_bytes > MAX_MESSAGE_BYTES {
        return None;
    }
    let open = |va, len| rx.memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE).ok();
    // As in `authorize_write`, the whole message is checked first, so that a message beyond the region writes nothing.
    if packet.info.starts_message() {
        open(va, len_bytes)?;
    }
    open(va.wrapping_add(u64::from(offset)), packet.len_bytes())?.copy_from(packet.payload);
    Some(())
}
