//! Placing payload before its turn, where the side that it is sent to allows it.
//!
//! ```text
//!    expected                      FIRST of a WRITE, whose RETH came ahead
//!       |                            |
//!       x  M  M  x  M  L  x  M  L    F  M  x  M        M placed   x missing
//!       '----.--------'   '--.--'    '---.----'
//!     a message begun        |        its place is known
//!                            '- without its FIRST the place of a WRITE is not: kept as frames
//! ```
//! A packet that came too early is kept until the packets before it have come, and what is kept leaves the
//! cache meanwhile. A WRITE whose FIRST is known says where its payload belongs, and a SEND that is numbered,
//! as under selective repeat, says so itself. Placed at once, no more is kept of a packet than what it will
//! do in its turn, and everything that others see besides the bytes themselves, completions and
//! acknowledgements, comes in its turn all the same.
//!
//! What was placed cannot be kept back. Where a packet comes again as another version of itself, either may be
//! forged, and the forged one may have led others astray, or written where they belong. So everything ahead is
//! thrown away and the later version placed: whatever comes again is written again.

use super::segment::packets_in;
use crate::psn::Psn;
use crate::recovery::psn_window::PsnSet;
use crate::wire::{ExtHeader, Fingerprint, OpcodeInfo, Packet, Position, Reth};

/// A request as the responder takes it in: from the wire, or with its payload in its place already.
pub trait Request {
    /// Its PSN.
    fn psn(&self) -> Psn;
    /// What its opcode means.
    fn info(&self) -> &'static OpcodeInfo;
    /// The requester asks for an acknowledgement.
    fn ack_req(&self) -> bool;
    /// Its completion wakes a waiter.
    fn solicited(&self) -> bool;
    /// The remote memory that it names.
    fn reth(&self) -> Option<Reth>;
    /// Immediate data.
    fn immdt(&self) -> Option<u32>;
    /// Whether it asks to invalidate a key.
    fn invalidates(&self) -> bool;
    /// Whether it says which receive it is for.
    fn is_numbered(&self) -> bool;
    /// Bytes of payload.
    fn len_bytes(&self) -> u32;
    /// The payload; `None` where it is in its place.
    fn payload(&self) -> Option<&[u8]>;
    /// The place in a receive where it is.
    fn rq_offset(&self) -> Option<RqOffset>;
}

impl Request for Packet<'_> {
    #[inline(always)]
    fn psn(&self) -> Psn {
        self.bth.psn
    }

    #[inline(always)]
    fn info(&self) -> &'static OpcodeInfo {
        self.info
    }

    #[inline(always)]
    fn ack_req(&self) -> bool {
        self.bth.ack_req
    }

    #[inline(always)]
    fn solicited(&self) -> bool {
        self.bth.solicited
    }

    #[inline(always)]
    fn reth(&self) -> Option<Reth> {
        Packet::reth(self)
    }

    #[inline(always)]
    fn immdt(&self) -> Option<u32> {
        Packet::immdt(self)
    }

    #[inline(always)]
    fn invalidates(&self) -> bool {
        self.ieth().is_some()
    }

    #[inline(always)]
    fn is_numbered(&self) -> bool {
        self.info.offset_of(ExtHeader::RecvEth).is_some()
    }

    #[inline(always)]
    fn len_bytes(&self) -> u32 {
        self.payload.len() as u32
    }

    #[inline(always)]
    fn payload(&self) -> Option<&[u8]> {
        Some(self.payload)
    }

    #[inline(always)]
    fn rq_offset(&self) -> Option<RqOffset> {
        None
    }
}

/// Where a payload was put.
#[derive(Clone, Copy, Debug)]
enum Target {
    /// Into memory that the peer named: here, if it is the first of a message.
    Remote(Option<Reth>),
    /// Into a receive, from a byte on.
    Receive(RqOffset),
}

/// A place in a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RqOffset {
    /// How many receives were completed before it on this connection, modulo 2^32.
    pub recv_seq: u32,
    /// Bytes before it.
    pub offset_bytes: u32,
}

/// What is kept of a request whose payload is in its place.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    info: &'static OpcodeInfo,
    target: Target,
    psn: Psn,
    imm: u32,
    len_bytes: u32,
    ack_req: bool,
    solicited: bool,
}

impl Placed {
    fn new(packet: &Packet<'_>, target: Target) -> Self {
        Placed {
            info: packet.info,
            target,
            psn: packet.bth.psn,
            imm: packet.immdt().unwrap_or_default(),
            len_bytes: packet.payload.len() as u32,
            ack_req: packet.bth.ack_req,
            solicited: packet.bth.solicited,
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

/// What is known of a PSN ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// Not placed.
    Empty,
    /// Placed, and recorded.
    Recorded,
    /// Placed, inside of a SEND: full, and of no effect but its payload, so that there is no more to know.
    SendMiddle,
    /// The same, of a WRITE.
    WriteMiddle,
}

/// A WRITE whose packets come one after the other.
#[derive(Clone, Copy, Debug)]
struct WriteCursor {
    /// The packet after the last that came.
    psn: Psn,
    /// Its number in the message.
    index: u32,
    /// Packets of the message.
    packets: u32,
    /// The message.
    reth: Reth,
}

/// What was placed before its turn.
#[derive(Debug)]
pub(super) struct Placing {
    /// By place: PSN modulo the window.
    slots: Box<[SlotState]>,
    /// By place, of those marked so.
    records: Box<[Option<Placed>]>,
    /// By place, of all that are placed.
    fingerprints: Box<[Fingerprint]>,
    /// The packets that begin a WRITE of several.
    write_firsts: PsnSet,
    write_cursor: Option<WriteCursor>,
}

impl Placing {
    /// For a responder that keeps at most `window_pkts`, a power of two.
    pub(super) fn new(window_pkts: u32) -> Self {
        Placing {
            slots: vec![SlotState::Empty; window_pkts as usize].into_boxed_slice(),
            records: (0..window_pkts).map(|_| None).collect(),
            fingerprints: vec![Fingerprint::default(); window_pkts as usize].into_boxed_slice(),
            write_firsts: PsnSet::new(window_pkts),
            write_cursor: None,
        }
    }

    #[inline]
    fn place(&self, psn: Psn) -> usize {
        psn.value() as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn slot_state(&self, psn: Psn) -> SlotState {
        self.slots[self.place(psn)]
    }

    /// Where the payload of `packet`, a WRITE ahead of `expected`, belongs: its message, and its number in
    /// it. `left` is what is left of the message that `expected` is in. `None` where that is not known, or
    /// the packet is not what its message says.
    #[inline]
    pub(super) fn remote(
        &mut self,
        packet: &Packet<'_>,
        expected: Psn,
        left: Option<Reth>,
        mtu_bytes: u32,
    ) -> Option<(Reth, u32)> {
        let psn = packet.bth.psn;
        let write_cursor = match packet.reth() {
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

    /// The message of `psn`, if it follows the WRITE packet placed last. That the one before it is placed
    /// shows that this is not what was left of an earlier round of PSNs.
    #[inline]
    fn following(&self, psn: Psn) -> Option<WriteCursor> {
        let write_cursor = self.write_cursor.filter(|write_cursor| write_cursor.psn == psn)?;
        matches!(self.slot_state(psn.minus(1)), SlotState::WriteMiddle | SlotState::Recorded)
            .then_some(write_cursor)
    }

    /// The message of `psn`, if its first packet is known, or is behind.
    fn begun(&self, psn: Psn, expected: Psn, left: Option<Reth>, mtu_bytes: u32) -> Option<WriteCursor> {
        let (reth, first) = match self.write_firsts.last_in(expected, psn.distance_from(expected)) {
            Some(first) => (self.records[self.place(first)].as_ref()?.reth()?, first),
            None => (left?, expected),
        };
        let (index, packets) = (psn.distance_from(first), packets_in(reth.len_bytes, mtu_bytes));
        Some(WriteCursor { psn, index, packets, reth })
    }

    /// The payload of `packet` is in its place: in the receive of `rq_offset`, or in remote memory.
    #[inline]
    pub(super) fn mark_placed(&mut self, packet: &Packet<'_>, rq_offset: Option<RqOffset>) {
        let place = self.place(packet.bth.psn);
        self.fingerprints[place] = packet.fingerprint();
        self.slots[place] = match (packet.info.position, rq_offset) {
            (Position::Middle, Some(_)) => SlotState::SendMiddle,
            (Position::Middle, None) => SlotState::WriteMiddle,
            _ => SlotState::Recorded,
        };
        if self.slots[place] == SlotState::Recorded {
            self.record(packet, rq_offset);
        }
    }

    fn record(&mut self, packet: &Packet<'_>, rq_offset: Option<RqOffset>) {
        let psn = packet.bth.psn;
        let target = rq_offset.map_or_else(|| Target::Remote(packet.reth()), Target::Receive);
        self.records[self.place(psn)] = Some(Placed::new(packet, target));
        if rq_offset.is_none() && packet.info.position == Position::First {
            self.write_firsts.insert(psn);
        }
    }

    /// Whether the payload of `psn` is in its place.
    #[inline]
    pub(super) fn contains(&self, psn: Psn) -> bool {
        self.slot_state(psn) != SlotState::Empty
    }

    /// Whether `packet`, whose PSN was placed, is what was placed.
    pub(super) fn is_same(&self, packet: &Packet<'_>) -> bool {
        packet.has_fingerprint(&self.fingerprints[self.place(packet.bth.psn)])
    }

    /// Everything was thrown away.
    pub(super) fn clear(&mut self) {
        self.slots.fill(SlotState::Empty);
        self.write_firsts.remove_range(Psn::new(0), self.write_firsts.capacity());
        self.write_cursor = None;
    }

    /// What was kept of `psn`, where its payload is in its place and more than that is to be known.
    pub(super) fn get(&self, psn: Psn) -> Option<Placed> {
        if self.slot_state(psn) == SlotState::Recorded { self.records[self.place(psn)] } else { None }
    }

    /// How many packets from `psn` on lie inside one message, a SEND or a WRITE.
    pub(super) fn middles(&self, psn: Psn, is_write: bool) -> u32 {
        let wanted = if is_write { SlotState::WriteMiddle } else { SlotState::SendMiddle };
        (0..self.slots.len() as u32).take_while(|i| self.slot_state(psn.plus(*i)) == wanted).count() as u32
    }

    /// `expected` and the `span - 1` PSNs after it are behind, or were thrown away.
    pub(super) fn pass(&mut self, expected: Psn, span: u32) {
        for i in 0..span.min(self.slots.len() as u32) {
            self.slots[self.place(expected.plus(i))] = SlotState::Empty;
        }
        self.write_firsts.remove_range(expected, span);
    }
}
