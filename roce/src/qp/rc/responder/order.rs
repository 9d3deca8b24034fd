//! Order of requests at a responder: the expected PSN, and the out-of-order requests that are buffered or placed.

use super::config::ResponderConfig;
use crate::counters::QpCounters;
use crate::mem::{Access, MemoryView};
use crate::psn::Psn;
use crate::qp::Placement;
use crate::qp::context::RxContext;
use crate::qp::inbound::{Inbound, Partial};
use crate::qp::rc::placing::{Placed, Placing, SlotState, Target};
use crate::qp::rc::reorder_buffer::{ReorderBuffer, ReorderStore};
use crate::qp::request::{Request, RequestHeader, RqOffset};
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::recovery::out_of_order_set::{OutOfOrderSet, PsnState};
use crate::recovery::{ExpectedPsn, Verdict};
use crate::wire::{Operation, Packet, Position, PrecedingReads, RecvEth, Reth};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disposition {
    Dropped,
    /// Dropped, because the reorder buffer has no room.
    NoRoom,
    /// Dropped, because the PSN is buffered or placed already.
    Duplicate,
    Buffered,
    /// Buffered, after requests of higher PSNs were dropped to make room.
    BufferedInstead,
    /// The payload was placed on arrival.
    Placed,
}

impl Disposition {
    /// Returns whether the packet was buffered or placed at this reception.
    pub(super) fn is_kept(self) -> bool {
        matches!(self, Disposition::Buffered | Disposition::BufferedInstead | Disposition::Placed)
    }

    /// Returns whether the received packet, or a buffered packet, was dropped because the reorder buffer had no room.
    pub(super) fn lacked_room(self) -> bool {
        matches!(self, Disposition::NoRoom | Disposition::BufferedInstead)
    }
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
    /// Whether `buffer` has requests. For most packets only this flag is read, and the cache line of `buffer` is not
    /// loaded.
    has_out_of_order: bool,
    /// `None` under go-back-N.
    buffer: Option<Box<ReorderBuffer>>,
}

impl Order {
    pub(super) fn new(config: &ResponderConfig) -> Self {
        let is_relaxed = config.placement == Placement::Relaxed;
        let window_pkts = config.recovery.buffered_pkts_max();
        Order {
            expected: ExpectedPsn::new(config.first_psn),
            has_out_of_order: false,
            buffer: window_pkts.map(|window_pkts| Box::new(ReorderBuffer::new(window_pkts, is_relaxed))),
        }
    }

    #[inline]
    pub(super) fn expected(&self) -> Psn {
        self.expected.expected()
    }

    /// Returns true under improved go-back-N and selective repeat.
    #[inline]
    pub(super) fn buffers(&self) -> bool {
        self.buffer.is_some()
    }

    #[inline]
    pub(super) fn on_packet(&mut self, psn: Psn) -> Verdict {
        self.expected.on_packet(psn)
    }

    /// Advances the expected PSN by `span` executed PSNs. Returns whether, before this advance, the reorder buffer had
    /// a buffered or placed request.
    #[inline]
    pub(super) fn accept(&mut self, span: u32, store: &mut ReorderStore) -> bool {
        let has_out_of_order = self.has_out_of_order;
        if has_out_of_order {
            self.pass(span, store);
        }
        self.expected.accept(span);
        has_out_of_order
    }

    /// Removes the expected PSN and the `span - 1` PSNs after it from the buffered and placed requests.
    #[inline]
    pub(super) fn pass(&mut self, span: u32, store: &mut ReorderStore) {
        let expected = self.expected();
        if let Some(buffer) = &mut self.buffer {
            buffer.pass(expected, span, store);
            self.has_out_of_order = !buffer.set().is_empty();
        }
    }

    pub(super) fn on_not_ready(&mut self) {
        self.expected.refuse();
    }

    #[inline]
    fn set(&self) -> Option<&OutOfOrderSet> {
        self.buffer.as_ref().map(|buffer| buffer.set())
    }

    /// Returns the state of `psn`; `OutOfWindow` under go-back-N.
    #[inline]
    pub(super) fn state(&self, psn: Psn) -> PsnState {
        self.set().map_or(PsnState::OutOfWindow, |set| set.state(self.expected(), psn))
    }

    /// Returns whether requests above the expected PSN are buffered or placed. Early READs do not count, because their
    /// responses show the gap to the peer.
    #[inline]
    pub(super) fn has_buffered_or_placed(&self) -> bool {
        self.has_out_of_order && self.buffer.as_ref().is_some_and(|buffer| buffer.has_buffered_or_placed())
    }

    /// Returns whether the READ request with PSN `psn` may be an early READ: `psn` is in the window and not in the
    /// reorder buffer, and the PSNs from the expected PSN to below `psn` are among the `preceding_reads` PSNs directly
    /// below `psn`, which belong to READ requests.
    pub(super) fn permits_early_read(&self, psn: Psn, preceding_reads: PrecedingReads) -> bool {
        let expected = self.expected();
        psn.distance_from(expected) <= preceding_reads.pkts() && self.state(psn) == PsnState::Missing
    }

    /// Records the early READs with first PSNs `psns`. `early_reads`: number of all early READs.
    pub(super) fn on_early_reads(&mut self, psns: impl Iterator<Item = Psn>, early_reads: usize) {
        let Some(buffer) = &mut self.buffer else { return };
        buffer.on_early_reads(psns, early_reads);
        self.has_out_of_order = !buffer.set().is_empty();
    }

    #[inline]
    pub(super) fn has_next(&self) -> bool {
        self.has_out_of_order && self.set().is_some_and(|set| set.contains(self.expected()))
    }

    /// Returns whether PSN `psn - 1` is buffered or placed, and PSN `psn + 1` is not. `psn` must be buffered or placed,
    /// and the expected PSN missing.
    #[inline]
    pub(super) fn extends_run(&self, psn: Psn) -> bool {
        self.set().is_some_and(|set| set.extends_run(psn))
    }

    pub(super) fn bitmap(&self) -> Option<impl ExactSizeIterator<Item = u32> + '_> {
        self.set().map(|set| set.words(self.expected()))
    }

    /// If the content of `packet`, whose PSN must be buffered or placed, differs from the buffered or placed request
    /// (conflict), drops the earlier request: a forged packet that was received before the peer's packet must not be
    /// executed. Under relaxed placement, drops all out-of-order requests instead, and returns true.
    #[cold]
    pub(super) fn drop_conflicting(
        &mut self,
        packet: &Packet<'_>,
        counters: &mut QpCounters,
        store: &mut ReorderStore,
    ) -> bool {
        let expected = self.expected();
        let Some(buffer) = &mut self.buffer else { return false };
        if buffer.is_same(packet, store) {
            return false;
        }
        counters.reorder_conflicts += 1;
        let are_all = buffer.placing().is_some();
        if are_all {
            buffer.clear(store);
        } else {
            buffer.discard(expected, packet.bth.psn, store);
        }
        self.has_out_of_order = !buffer.set().is_empty();
        are_all
    }

    /// Places the payload of an out-of-order packet of PSN state `state`, if the PSN is missing and `place` can place
    /// the payload. Otherwise buffers the packet, if the PSN is missing and the reorder buffer has room.
    #[inline]
    pub(super) fn on_out_of_order(
        &mut self,
        packet: &Packet<'_>,
        state: PsnState,
        inbound: &Inbound,
        rx: &mut RxContext<'_>,
        store: &mut ReorderStore,
    ) -> Disposition {
        let expected = self.expected();
        let Some(buffer) = &mut self.buffer else { return Disposition::Dropped };
        match state {
            PsnState::OutOfWindow => return Disposition::Dropped,
            PsnState::Kept => return Disposition::Duplicate,
            PsnState::Missing => {}
        }
        if place(buffer, packet, expected, inbound, rx).is_some() {
            self.has_out_of_order = true;
            return Disposition::Placed;
        }
        let mut dropped = 0;
        let is_buffered = buffer.buffer(packet, (expected, rx.slot, rx.now), store, &mut dropped);
        self.has_out_of_order = !buffer.set().is_empty();
        rx.counters.reorder_no_room += dropped + u64::from(!is_buffered);
        match (is_buffered, dropped) {
            (false, _) => Disposition::NoRoom,
            (true, 0) => Disposition::Buffered,
            (true, _) => Disposition::BufferedInstead,
        }
    }

    /// Returns header and body (extension headers and payload) of the buffered request of the expected PSN.
    #[inline]
    pub(super) fn buffered<'s>(&self, store: &'s mut ReorderStore) -> Option<(RequestHeader, &'s [u8])> {
        self.buffer.as_ref()?.buffered(self.expected(), store)
    }

    #[inline]
    fn placing(&self) -> Option<&Placing> {
        self.buffer.as_ref()?.placing()
    }

    /// Returns whether the request of `psn` is placed, and how to execute it.
    #[inline]
    pub(super) fn placed(&self, psn: Psn) -> SlotState {
        self.placing().map_or(SlotState::Empty, |placing| placing.slot_state(psn))
    }

    /// Returns the record of the placed request of `psn`; `None` if `psn` is not placed, or is a placed MIDDLE.
    #[inline]
    pub(super) fn record(&self, psn: Psn) -> Option<&Placed> {
        self.placing()?.get(psn)
    }

    /// Returns the number of placed MIDDLEs of the message in progress, from `psn` on.
    #[inline]
    pub(super) fn middles(&self, psn: Psn, partial: Partial) -> u32 {
        let is_write = match partial {
            Partial::None => return 0,
            Partial::Send { .. } => false,
            Partial::Write { .. } => true,
        };
        self.placing().map_or(0, |placing| placing.middles(psn, is_write))
    }

    /// Returns the number of placed WRITE ONLYs from `psn` on whose access was not revoked since their placement, and the
    /// sum of their lengths in bytes.
    #[inline]
    pub(super) fn write_onlys(&self, psn: Psn, memory: &MemoryView) -> (u32, u64) {
        self.placing().map_or((0, 0), |placing| placing.write_onlys(psn, memory.revocations()))
    }

    pub(super) fn on_expired(&mut self, psn: Psn) {
        let expected = self.expected();
        if let Some(buffer) = &mut self.buffer {
            buffer.on_dropped(expected, psn);
            self.has_out_of_order = !buffer.set().is_empty();
        }
    }

    pub(super) fn clear(&mut self, store: &mut ReorderStore) {
        if let Some(buffer) = &mut self.buffer {
            buffer.clear(store);
            self.has_out_of_order = false;
        }
    }
}

/// Places the payload of an out-of-order packet that is neither buffered nor placed. Returns `None` if the payload
/// cannot be placed, for example because placement is not relaxed, the address is unknown, or access is denied.
#[inline]
fn place(
    buffer: &mut ReorderBuffer,
    packet: &Packet<'_>,
    expected: Psn,
    inbound: &Inbound,
    rx: &mut RxContext<'_>,
) -> Option<()> {
    let (mtu_bytes, revocations) = (inbound.mtu_bytes(), rx.memory.revocations());
    let placing = buffer.placing_mut()?;
    let target = match packet.info.operation {
        Operation::Send => {
            let RecvEth { recv_seq, packet: before } = packet.recveth()?;
            let offset_bytes = before.checked_mul(mtu_bytes)?;
            let index = recv_seq.wrapping_sub(inbound.recv_seq());
            place_in_receive(packet, index, offset_bytes, mtu_bytes, rx)?;
            Target::Receive(RqOffset { recv_seq, offset_bytes })
        }
        Operation::Write => {
            let left = match inbound.partial() {
                Partial::Write { va, rkey, left, .. } => Some(Reth { va, rkey, len_bytes: left }),
                _ => None,
            };
            let own = packet.reth();
            let (reth, index) = placing.remote(packet, own, expected, left, mtu_bytes)?;
            place_in_memory(packet, reth, index * mtu_bytes, rx)?;
            Target::Remote(own)
        }
        _ => return None,
    };
    placing.mark_placed(packet, target, revocations);
    buffer.on_placed(packet.bth.psn);
    rx.counters.placed_out_of_order += 1;
    Some(())
}

/// Places the payload of a SEND at byte `at` of the receive that is `index` positions after the oldest receive of the
/// receive queue. Returns `None` if the queue pair uses an SRQ, if the receive is too short, not posted or not
/// writable, or if the length of a FIRST or MIDDLE is not the path MTU.
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
    let list = rx.receives.nth(index)?.list;
    at.checked_add(len).filter(|end| *end <= list.len_bytes)?;
    rx.receives.lists(rx.memory, rx.pd).scatter(&list, at, packet.payload).ok()
}

/// Places the payload of a WRITE `offset` bytes after the address of `reth`. Returns `None` if access is denied, if the
/// length in `reth` exceeds [`MAX_MESSAGE_BYTES`], or at a memory fault.
fn place_in_memory(packet: &Packet<'_>, reth: Reth, offset: u32, rx: &mut RxContext<'_>) -> Option<()> {
    let Reth { va, rkey, len_bytes } = reth;
    if !rx.access.contains(Access::REMOTE_WRITE) || len_bytes > MAX_MESSAGE_BYTES {
        return None;
    }
    let open = |va, len| rx.memory.open_remote(rx.pd, rkey, va, len, Access::REMOTE_WRITE).ok();
    // For a FIRST, the memory of the whole message is checked, so that a message beyond its memory region writes
    // nothing.
    if packet.info.position == Position::First {
        open(va, len_bytes)?;
    }
    open(va.wrapping_add(u64::from(offset)), packet.len_bytes())?.copy_from(packet.payload).ok()
}
