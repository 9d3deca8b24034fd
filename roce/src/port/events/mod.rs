//! A port on which single packets, named beforehand, meet a given fate: the n-th packet of a queue pair,
//! or its second retransmission, is dropped, damaged, marked, doubled or held back. The language is that
//! of Lumina (SIGCOMM 2023): queue pair, PSN, which transmission of it, what happens.
//!
//! ```text
//!   frame sent --Packet::parse--> connection (destination GID and QPN) and lane (requests or responses)
//!              --> offset of its PSN from the first that the lane sent
//!              --> each event of that lane and offset counts a pass, and acts at the one that it names
//!
//!   --drop?--> --corrupt, mark--> --duplicate?--> --delay, reorder?--> on its way
//!        |                           a copy goes too      |               ^
//!        x                                                held until its time or enough others passed
//! ```
//!
//! Only frames sent are looked at. Each event acts once, so what is held or copied is bounded by the
//! number of events, and nothing is allocated for a packet that no event acts on.

mod plan;
mod streams;
#[cfg(test)]
mod tests;

pub use plan::{
    BEHIND_PKTS_MAX, CONNECTIONS_MAX, DELAY_NANOS_MAX, EVENTS_MAX, EventAction, EventPlan, EventPsn, EventQp,
    PacketEvent, PlanError,
};

use super::staging::Staging;
use super::{Payload, Port, PortCaps};
use crate::id::{Gid, Qpn};
use crate::psn::{Psn, PsnSpace};
use crate::time::Instant;
use crate::wire::ipv4::{self, Ipv4Header};
use crate::wire::{EthHeader, ICRC_LEN, Opcode, Packet, VlanTag};
use streams::{StreamId, Streams};

/// A frame held back behind others goes after this long, even if fewer have passed.
const REORDER_NANOS_MAX: u64 = 1_000_000;

/// An event that has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firing {
    /// When, counted from the first packet that the port sent, in nanoseconds.
    pub after_nanos: u64,
    /// The queue pair that the packet went to.
    pub dest_qpn: Qpn,
    /// Its PSN.
    pub psn: Psn,
    /// What it was.
    pub opcode: Opcode,
    /// How long after that the same PSN was sent again, in nanoseconds, if it was.
    pub resent_after_nanos: Option<u64>,
}

/// What became of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventOutcome {
    /// The event.
    pub event: PacketEvent,
    /// How often its packet was sent, up to the transmission that it acted on.
    pub passes: u32,
    /// What happened, if it did.
    pub fired: Option<Firing>,
}

/// An event on the watch.
struct Watch {
    event: PacketEvent,
    /// The lane that it names, once seen, and the offset of its PSN there: after it has fired, of the
    /// packet that it acted on.
    space: Option<StreamId>,
    offset: Option<u64>,
    passes: u32,
    fired: Option<Firing>,
}

impl Watch {
    fn sees(&self, offset: u64, opcode: Opcode) -> bool {
        self.offset.is_none_or(|wanted| wanted == offset)
            && self.event.opcode.is_none_or(|wanted| wanted == opcode || wanted == opcode.unnumbered())
    }
}

/// What is known of a frame that is a RoCE packet of a connection.
struct Sighting {
    dest: (Gid, Qpn),
    space: PsnSpace,
    opcode: Opcode,
    psn: Psn,
    /// Where the IP header starts and where the ICRC does, in bytes.
    l3_at: usize,
    icrc_at: usize,
    is_ipv6: bool,
}

impl Sighting {
    fn of(frame: &[u8]) -> Option<Sighting> {
        let packet = Packet::parse(frame).ok()?;
        let space = match (packet.info.is_request, packet.info.is_response) {
            (true, _) => PsnSpace::Request,
            (_, true) => PsnSpace::Response,
            _ => return None,
        };
        let l3_at = EthHeader::LEN + if packet.vlan.is_some() { VlanTag::LEN } else { 0 };
        Some(Sighting {
            dest: (packet.dst_gid(), packet.bth.dest_qp),
            space,
            opcode: packet.bth.opcode,
            psn: packet.bth.psn,
            l3_at,
            icrc_at: l3_at + packet.l3().len(),
            is_ipv6: packet.ip.is_ipv6,
        })
    }

    /// Flips a bit of the ICRC: everything else can still be read in a capture.
    fn corrupt(&self, frame: &mut [u8]) {
        debug_assert!(self.icrc_at + ICRC_LEN <= frame.len());
        if let Some(byte) = frame.get_mut(self.icrc_at) {
            *byte ^= 1;
        }
    }

    /// Marks the packet "congestion experienced" (RFC 3168), as a router would: the ICRC does not cover it.
    fn mark_ce(&self, frame: &mut [u8]) {
        let Some(l3) = frame.get_mut(self.l3_at..) else { return };
        if self.is_ipv6 {
            if let Some(byte) = l3.get_mut(1) {
                *byte |= 0x30;
            }
        } else if let Some(bytes) = l3.first_chunk_mut::<{ Ipv4Header::LEN }>() {
            let mut header = Ipv4Header::parse(bytes);
            header.tos |= 3;
            header.checksum = 0;
            header.write(bytes);
            header.checksum = !ipv4::fold(ipv4::word_sum(bytes));
            header.write(bytes);
        }
    }
}

/// What becomes of a frame as a whole; at most one event decides that.
#[derive(Clone, Copy)]
enum Fate {
    Drop,
    Duplicate,
    Hold { behind_pkts: Option<u32>, due: Instant },
}

/// A frame held back: until `due`, or until so many packets of its lane have passed.
struct DelayedFrame {
    frame: Vec<u8>,
    space: StreamId,
    behind_pkts: Option<u32>,
    due: Instant,
}

/// A port on which the events of an [`EventPlan`] happen to frames sent. With an empty plan it costs a
/// branch per call.
pub struct Events<P: Port> {
    port: P,
    watches: Vec<Watch>,
    streams: Streams,
    now: Instant,
    /// When the first packet was sent.
    start: Option<Instant>,
    /// At most as many as there are events.
    delayed: Vec<DelayedFrame>,
    /// Frames the caller reserved since its last flush.
    reserved: Staging,
    /// Frames that the port beneath had no room for.
    outgoing: Staging,
}

impl<P: Port> Events<P> {
    /// Puts the events of `plan` on `port`.
    pub fn new(port: P, plan: EventPlan) -> Self {
        let watch = |event| Watch { event, space: None, offset: None, passes: 0, fired: None };
        let watches: Vec<Watch> = plan.into_events().into_iter().map(watch).collect();
        let (streams, delayed) = (Streams::new(!watches.is_empty()), Vec::with_capacity(watches.len()));
        Events {
            port,
            watches,
            streams,
            now: Instant::ZERO,
            start: None,
            delayed,
            reserved: Staging::default(),
            outgoing: Staging::default(),
        }
    }

    fn is_active(&self) -> bool {
        !self.watches.is_empty()
    }

    /// What became of each event so far, in the order of the plan.
    pub fn outcomes(&self) -> Vec<EventOutcome> {
        let outcome =
            |watch: &Watch| EventOutcome { event: watch.event, passes: watch.passes, fired: watch.fired };
        self.watches.iter().map(outcome).collect()
    }

    /// The port beneath.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// The port beneath.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    /// Lets one frame meet its events.
    fn admit(&mut self, mut frame: Vec<u8>) {
        let Some(sighting) = Sighting::of(&frame) else { return self.outgoing.push(frame) };
        self.start.get_or_insert(self.now);
        let Some((space, offset)) = self.find_lane(&sighting) else { return self.outgoing.push(frame) };
        match self.fate(space, offset, &sighting, &mut frame) {
            None => self.outgoing.push(frame),
            Some(Fate::Drop) => return self.reserved.recycle(frame),
            Some(Fate::Duplicate) => {
                self.outgoing.push(frame.clone());
                self.outgoing.push(frame);
            }
            Some(Fate::Hold { behind_pkts, due }) => {
                return self.delayed.push(DelayedFrame { frame, space, behind_pkts, due });
            }
        }
        self.count_passing(space);
    }

    /// The lane of a packet and the offset of its PSN there, where any event waits for that lane.
    fn find_lane(&mut self, sighting: &Sighting) -> Option<(StreamId, u64)> {
        let spot = self.streams.locate(sighting.dest, sighting.space, sighting.psn)?;
        if spot.is_new {
            let unplaced = self.watches.iter_mut().filter(|watch| watch.space.is_none());
            for watch in unplaced.filter(|watch| watch.event.names(spot.number, sighting)) {
                watch.space = Some(spot.space);
                watch.offset = watch.event.psn.offset_from(sighting.psn);
                self.streams.watch(spot.space);
            }
        }
        self.streams.is_watched(spot.space).then_some((spot.space, spot.offset?))
    }

    /// Counts a pass for every event that names this packet, changes the frame where one acts on its
    /// bytes, and returns what becomes of it.
    fn fate(&mut self, space: StreamId, offset: u64, sighting: &Sighting, frame: &mut [u8]) -> Option<Fate> {
        let mut fate = None;
        let (now, start) = (self.now, self.start.unwrap_or(self.now));
        for watch in self.watches.iter_mut().filter(|watch| watch.space == Some(space)) {
            if let Some(fired) = &mut watch.fired {
                if fired.resent_after_nanos.is_none() && watch.offset == Some(offset) {
                    let since = now.nanos_since(start).saturating_sub(fired.after_nanos);
                    fired.resent_after_nanos = Some(since);
                }
                continue;
            }
            if !watch.sees(offset, sighting.opcode) {
                continue;
            }
            watch.passes = watch.passes.saturating_add(1);
            if watch.passes != watch.event.pass {
                continue;
            }
            let hold = |nanos, behind_pkts| Fate::Hold { behind_pkts, due: now.plus_nanos(nanos) };
            let decided = match watch.event.action {
                EventAction::Corrupt => {
                    sighting.corrupt(frame);
                    None
                }
                EventAction::MarkCe => {
                    sighting.mark_ce(frame);
                    None
                }
                // Of two that decide on the whole frame the first does.
                _ if fate.is_some() => continue,
                EventAction::Drop => Some(Fate::Drop),
                EventAction::Duplicate => Some(Fate::Duplicate),
                EventAction::Delay { nanos } => Some(hold(nanos, None)),
                EventAction::Reorder { behind_pkts } => Some(hold(REORDER_NANOS_MAX, Some(behind_pkts))),
            };
            fate = fate.or(decided);
            watch.offset = Some(offset);
            watch.fired = Some(Firing {
                after_nanos: now.nanos_since(start),
                dest_qpn: sighting.dest.1,
                psn: sighting.psn,
                opcode: sighting.opcode,
                resent_after_nanos: None,
            });
        }
        fate
    }

    /// A packet of `space` is on its way: frames held behind it have one less to wait for.
    fn count_passing(&mut self, space: StreamId) {
        if self.delayed.is_empty() {
            return;
        }
        for left in self
            .delayed
            .iter_mut()
            .filter(|delayed| delayed.space == space)
            .filter_map(|delayed| delayed.behind_pkts.as_mut())
        {
            *left = left.saturating_sub(1);
        }
        self.release();
    }

    /// Sends the held frames that have waited enough, oldest first.
    fn release(&mut self) {
        let now = self.now;
        let due = |delayed: &DelayedFrame| delayed.behind_pkts == Some(0) || delayed.due <= now;
        while let Some(at) = self.delayed.iter().position(due) {
            self.outgoing.push(self.delayed.remove(at).frame);
        }
    }
}

impl<P: Port> Port for Events<P> {
    type Frame = P::Frame;

    fn caps(&self) -> PortCaps {
        self.port.caps()
    }

    #[inline]
    fn payload(&self) -> Payload {
        self.port.payload()
    }

    #[inline]
    fn rx_burst(&mut self, frames: &mut Vec<Self::Frame>, max: usize) -> usize {
        self.port.rx_burst(frames, max)
    }

    #[inline]
    fn free_frames(&mut self, frames: &mut Vec<Self::Frame>) {
        self.port.free_frames(frames);
    }

    #[inline]
    fn tx_reserve(&mut self, len_bytes: usize) -> Option<&mut [u8]> {
        if !self.is_active() {
            return self.port.tx_reserve(len_bytes);
        }
        // A backlog means that the port beneath is full, and the caller shall see that.
        if self.outgoing.is_empty() { self.reserved.reserve(len_bytes) } else { None }
    }

    #[inline]
    fn tx_flush(&mut self) {
        if !self.is_active() {
            return self.port.tx_flush();
        }
        self.release();
        while let Some(frame) = self.reserved.pop() {
            self.admit(frame);
        }
        self.outgoing.drain_into(&mut self.port, |_| {});
        self.port.tx_flush();
        // Buffers come from `reserved` and end in `outgoing`: bring the used ones back.
        self.outgoing.return_spares(&mut self.reserved);
    }

    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.port.set_now(now);
    }
}
