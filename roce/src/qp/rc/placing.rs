//! Relaxed placement: payloads of out-of-order packets are placed on arrival (RFC 5041 section 5).
//!
//! ```text
//!    expected                      FIRST of a WRITE, received out of order
//!       |                            |
//!       x  M  M  x  M  L  x  M  L    F  M  x  M        F, M, L  received FIRST, MIDDLE, LAST    x  missing
//!       '----.--------'   '--.--'    '---.----'
//!     message in progress    |        address known
//!                            '- rest of a WRITE whose FIRST is missing: address unknown, buffered as copies
//! ```
//! The payload of a WRITE packet is placed on arrival if the RETH of the WRITE was received (in its FIRST or ONLY) and
//! access is granted. The payload of a SEND packet is placed on arrival if the packet has a RecvETH (selective repeat)
//! and fits a posted receive of the queue pair's own receive queue. Any other out-of-order packet is buffered. For a
//! placed packet, only the header fields that execution needs are recorded. Execution, completions and ACKs stay in PSN
//! order.
//!
//! Placed bytes cannot be withdrawn. In a conflict either version may be forged: a forged FIRST leads to wrong
//! addresses of later packets, and a forged payload replaces the payload of the peer. Therefore a conflict drops all
//! out-of-order packets, and the version received last is placed. Retransmissions by the peer then overwrite forged
//! bytes.

#[cfg(doc)]
use crate::mem::MemoryView;
use crate::psn::Psn;
use crate::qp::request::{Request, RqOffset};
use crate::qp::segment::packets_in;
use crate::recovery::circular_array::CircularArray;
use crate::recovery::psn_set::PsnSet;
use crate::wire::{Fingerprint, OpcodeInfo, Packet, Position, Reth};

/// Where the payload of a packet was placed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// In a memory region: a WRITE packet, and its RETH if the packet has one.
    Remote(Option<Reth>),
    Receive(RqOffset),
}

/// Header fields that the execution of a placed request needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    info: &'static OpcodeInfo,
    target: Target,
    psn: Psn,
    imm: u32,
    len_bytes: u32,
    ack_req: bool,
    solicited: bool,
    /// [`MemoryView::revocations`] before the access was checked.
    revocations: u64,
}

impl Placed {
    fn new(packet: &Packet<'_>, target: Target, revocations: u64) -> Self {
        Placed {
            info: packet.info,
            target,
            psn: packet.bth.psn,
            imm: packet.immdt().unwrap_or_default(),
            len_bytes: packet.len_bytes(),
            ack_req: packet.bth.ack_req,
            solicited: packet.bth.solicited,
            revocations,
        }
    }
}

impl Request for Placed {
    fn psn(&self) -> Psn {
        self.psn
    }

    fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    fn ack_req(&self) -> bool {
        self.ack_req
    }

    fn solicited(&self) -> bool {
        self.solicited
    }

    fn reth(&self) -> Option<Reth> {
        if let Target::Remote(reth) = self.target { reth } else { None }
    }

    fn immdt(&self) -> Option<u32> {
        self.info.has_immediate.then_some(self.imm)
    }

    fn invalidates(&self) -> bool {
        false
    }

    fn is_numbered(&self) -> bool {
        self.rq_offset().is_some()
    }

    fn len_bytes(&self) -> u32 {
        self.len_bytes
    }

    fn payload(&self) -> Option<&[u8]> {
        None
    }

    fn rq_offset(&self) -> Option<RqOffset> {
        if let Target::Receive(rq_offset) = self.target { Some(rq_offset) } else { None }
    }
}

/// State of an out-of-order PSN.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The payload is not placed.
    #[default]
    Empty,
    /// The payload is placed, and `Placing::records` has the header fields.
    Recorded,
    /// As `Recorded`, of a WRITE ONLY without immediate. The execution needs no header fields but the length, unless
    /// access may have been revoked since the placement.
    WriteOnly,
    /// As `Recorded`, of a SEND ONLY.
    SendOnly,
    /// The payload of a SEND MIDDLE is placed. The execution of a MIDDLE needs no header fields.
    SendMiddle,
    WriteMiddle,
}

impl SlotState {
    /// Returns whether `Placing::records` has the header fields.
    #[inline]
    fn has_record(self) -> bool {
        !matches!(self, SlotState::Empty | SlotState::SendMiddle | SlotState::WriteMiddle)
    }
}

/// Position directly after the WRITE packet placed last; in most cases, the next packet received has this position.
#[derive(Clone, Copy, Debug)]
struct WriteCursor {
    /// One past the PSN of the packet placed last.
    psn: Psn,
    /// Index, in the WRITE, of the packet directly after the packet placed last.
    index: u32,
    packets: u32,
    reth: Reth,
}

/// Slot of a PSN.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    state: SlotState,
    /// Valid unless the state is [`SlotState::Empty`].
    fingerprint: Fingerprint,
}

/// Out-of-order packets whose payload is placed.
#[derive(Debug)]
pub(crate) struct Placing {
    /// Slot of each PSN, indexed by the PSN modulo the window.
    slots: CircularArray<Slot>,
    /// Record of each PSN, indexed by the PSN modulo the window; valid only if [`SlotState::has_record`].
    records: CircularArray<Option<Placed>>,
    /// PSNs of the placed FIRST packets of WRITEs.
    write_firsts: PsnSet,
    write_cursor: Option<WriteCursor>,
}

impl Placing {
    /// Creates the state for a window of `window_pkts` PSNs, a power of two.
    pub(super) fn new(window_pkts: u32) -> Self {
        Placing {
            slots: CircularArray::new(window_pkts, Slot::default()),
            records: CircularArray::new(window_pkts, None),
            write_firsts: PsnSet::new(window_pkts),
            write_cursor: None,
        }
    }

    #[inline]
    pub(super) fn slot_state(&self, psn: Psn) -> SlotState {
        self.slots.at(psn.value()).state
    }

    /// Returns the RETH of the WRITE to which the out-of-order `packet` belongs, and the index of `packet` in this
    /// WRITE. If the WRITE is in progress, the RETH is `left`, the rest of the WRITE from `expected` on, and the index
    /// counts from `expected`. If the RETH is unknown, or its length contradicts opcode or payload length of `packet`,
    /// returns `None`. `own`: the RETH of `packet`, if `packet` has one.
    #[inline]
    pub(super) fn remote(
        &mut self,
        packet: &Packet<'_>,
        own: Option<Reth>,
        expected: Psn,
        left: Option<Reth>,
        mtu_bytes: u32,
    ) -> Option<(Reth, u32)> {
        let psn = packet.bth.psn;
        let write_cursor = match own {
            Some(reth) if packet.info.position == Position::Only => {
                let fits = packet.payload.len() == reth.len_bytes as usize;
                return (fits && reth.len_bytes <= mtu_bytes).then_some((reth, 0));
            }
            Some(reth) => WriteCursor { psn, index: 0, packets: packets_in(reth.len_bytes, mtu_bytes), reth },
            None => self.following(psn).or_else(|| self.begun(psn, expected, left, mtu_bytes))?,
        };
        let WriteCursor { index, packets, reth, .. } = write_cursor;
        let offset = index.checked_mul(mtu_bytes).filter(|_| index < packets)?;
        let len = (reth.len_bytes - offset).min(mtu_bytes);
        let ends = index + 1 == packets;
        if packet.info.ends_message() != ends || packet.payload.len() != len as usize {
            return None;
        }
        self.write_cursor = Some(WriteCursor { psn: psn.plus(1), index: index + 1, ..write_cursor });
        Some((reth, index))
    }

    /// If packet `psn - 1` is the WRITE packet placed last and is not executed yet, returns the position of `psn` in
    /// the WRITE; otherwise `None`. After packet `psn - 1` was executed, `write_cursor` is out of date: `psn` may be
    /// the PSN of a packet 2^24 PSNs later.
    #[inline]
    fn following(&self, psn: Psn) -> Option<WriteCursor> {
        let write_cursor = self.write_cursor.filter(|write_cursor| write_cursor.psn == psn)?;
        matches!(self.slot_state(psn.minus(1)), SlotState::WriteMiddle | SlotState::Recorded)
            .then_some(write_cursor)
    }

    /// Returns the position of `psn` in the WRITE that begins with the highest placed FIRST below `psn`. If no FIRST is
    /// placed below `psn`, `psn` belongs to the WRITE in progress; `left` is the rest of this WRITE from `expected` on.
    fn begun(&self, psn: Psn, expected: Psn, left: Option<Reth>, mtu_bytes: u32) -> Option<WriteCursor> {
        let (reth, first) = match self.write_firsts.last_in(expected, psn.distance_from(expected)) {
            Some(first) => (self.records.at(first.value()).as_ref()?.reth()?, first),
            None => (left?, expected),
        };
        let (index, packets) = (psn.distance_from(first), packets_in(reth.len_bytes, mtu_bytes));
        Some(WriteCursor { psn, index, packets, reth })
    }

    /// Marks the payload of `packet` as placed at `target`. `revocations`: [`MemoryView::revocations`] before the
    /// access was checked.
    #[inline]
    pub(super) fn mark_placed(&mut self, packet: &Packet<'_>, target: Target, revocations: u64) {
        let place = packet.bth.psn.value();
        let state = match (packet.info.position, target) {
            (Position::Middle, Target::Receive(_)) => SlotState::SendMiddle,
            (Position::Middle, Target::Remote(_)) => SlotState::WriteMiddle,
            (Position::Only, Target::Remote(_)) if !packet.info.has_immediate => SlotState::WriteOnly,
            (Position::Only, Target::Receive(_)) => SlotState::SendOnly,
            _ => SlotState::Recorded,
        };
        *self.slots.at_mut(place) = Slot { state, fingerprint: packet.fingerprint() };
        if state.has_record() {
            *self.records.at_mut(place) = Some(Placed::new(packet, target, revocations));
            if packet.info.position == Position::First && matches!(target, Target::Remote(_)) {
                self.write_firsts.insert(packet.bth.psn);
            }
        }
    }

    /// Returns whether `packet` has the same content as the packet placed at its PSN. If not, the two packets are a
    /// conflict.
    pub(super) fn is_same(&self, packet: &Packet<'_>) -> bool {
        packet.has_fingerprint(&self.slots.at(packet.bth.psn.value()).fingerprint)
    }

    pub(super) fn clear(&mut self) {
        self.slots.fill(Slot::default());
        self.write_firsts.remove_range(Psn::new(0), self.write_firsts.capacity());
        self.write_cursor = None;
    }

    /// Returns the record of `psn`; `None` if `psn` is not placed, or is a placed MIDDLE.
    #[inline]
    pub(super) fn get(&self, psn: Psn) -> Option<&Placed> {
        if self.slot_state(psn).has_record() { self.records.at(psn.value()).as_ref() } else { None }
    }

    /// Returns the number of consecutive placed WRITE ONLYs without immediate from `psn` on whose access was not revoked
    /// since their placement, and the sum of their lengths in bytes. `revocations`: [`MemoryView::revocations`].
    #[inline]
    pub(super) fn write_onlys(&self, psn: Psn, revocations: u64) -> (u32, u64) {
        let mut bytes = 0;
        for packets in 0..self.slots.len() {
            let psn = psn.plus(packets);
            let is_write_only = self.slot_state(psn) == SlotState::WriteOnly;
            let placed = self.records.at(psn.value()).as_ref().filter(|_| is_write_only);
            match placed.filter(|placed| placed.revocations == revocations) {
                Some(placed) => bytes += u64::from(placed.len_bytes),
                None => return (packets, bytes),
            }
        }
        (self.slots.len(), bytes)
    }

    /// Returns the number of consecutive placed MIDDLEs from `psn` on: of a WRITE if `is_write`, otherwise of a SEND.
    pub(super) fn middles(&self, psn: Psn, is_write: bool) -> u32 {
        let wanted = if is_write { SlotState::WriteMiddle } else { SlotState::SendMiddle };
        let len = self.slots.len();
        (0..len).find(|i| self.slot_state(psn.plus(*i)) != wanted).unwrap_or(len)
    }

    /// Marks `expected` and the `span - 1` PSNs after it as not placed, because they were executed or refused.
    pub(super) fn pass(&mut self, expected: Psn, span: u32) {
        for i in 0..span.min(self.slots.len()) {
            self.slots.at_mut(expected.plus(i).value()).state = SlotState::Empty;
        }
        self.write_firsts.remove_range(expected, span);
    }
}
