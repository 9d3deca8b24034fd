//! A port decorator that impairs selected packets: for example, it drops the n-th packet of a queue pair, or the second
//! retransmission of this packet. A packet event selects one transmission of a packet by queue pair, PSN and number of
//! the transmission, and specifies the impairment, as in Lumina (SIGCOMM 2023). Packet events are not asynchronous
//! events of verbs.
//!
//! ```text
//!   frame sent --Packet::parse--> connection (destination GID and QPN) and PSN space (requests or responses)
//!              --> offset of the PSN from the first PSN sent in that PSN space
//!              --> each event of that PSN space and offset counts the packet, and impairs it at the count `pass`
//!
//!   --corrupt, mark--> --drop?--> --duplicate?--> --delay, reorder?--> passed on
//!                        |        copies are passed on   |               ^
//!                        x                               held for the delay, or for at most 1 ms until
//!                                                        `behind_pkts` packets of the PSN space were sent
//! ```
//!
//! If several events select one transmission, [`Disposition`] combines their impairments. Each event impairs one frame,
//! so the number of events bounds the frames that are held or copied. Received frames are unchanged.

mod plan;
mod streams;
#[cfg(test)]
mod tests;

pub use plan::{EventPlan, EventPsn, EventQp, PacketEvent, PlanError};

use super::impairment::Disposition;
use super::staging::Staging;
use super::{Payload, Port, PortCaps};
use crate::id::{Gid, Qpn};
use crate::psn::{Psn, PsnSpace};
use crate::time::Instant;
use crate::wire::{EthHeader, ICRC_LEN, Opcode, Packet, VlanTag};
use streams::{StreamId, Streams};

/// Longest time for which the impairment `Reorder` holds a frame, in nanoseconds.
const OVERTAKEN_NANOS_MAX: u64 = 1_000_000;

/// The packet that an event impaired, and the time of the impairment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Firing {
    /// Time of the impairment, in nanoseconds after the port sent its first packet.
    pub after_nanos: u64,
    /// Destination queue pair of the packet.
    pub dest_qpn: Qpn,
    /// PSN of the packet.
    pub psn: Psn,
    /// Opcode of the packet.
    pub opcode: Opcode,
    /// Time from the impairment to the next transmission of `psn`, in nanoseconds; `None` if `psn` has not been sent
    /// after the impairment.
    pub retransmitted_after_nanos: Option<u64>,
}

/// An event of an [`EventPlan`], and whether the event has impaired a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventOutcome {
    /// The event, as given in the [`EventPlan`].
    pub event: PacketEvent,
    /// Number of matching packets sent, up to and including the packet that the event impaired.
    pub passes: u32,
    /// The packet that the event impaired; `None` if the event has impaired no packet.
    pub fired: Option<Firing>,
}

struct Watch {
    event: PacketEvent,
    /// PSN space of the event's packets; `None` until the port sends the first packet of this PSN space.
    space: Option<StreamId>,
    /// Offset of the matching PSN from the first PSN of the PSN space; `None` matches any PSN. When the event impairs a
    /// packet, `offset` is set to the offset of this packet.
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

/// The fields of a sent RoCE packet that events match, and the length of its frame.
struct Sighting {
    dest: (Gid, Qpn),
    space: PsnSpace,
    opcode: Opcode,
    psn: Psn,
    /// Length of the frame in bytes up to the end of the ICRC, without Ethernet padding.
    len_bytes: usize,
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
            len_bytes: l3_at + packet.l3().len() + ICRC_LEN,
        })
    }
}

/// A frame held until `due`, or until `behind_pkts` packets of its PSN space were passed on to the inner port without
/// being held.
struct DelayedFrame {
    frame: Vec<u8>,
    space: StreamId,
    behind_pkts: Option<u32>,
    due: Instant,
}

/// A port that applies the events of an [`EventPlan`] to sent frames. If the plan is empty, the cost is a branch per
/// call of `tx_reserve` and `tx_flush`.
pub struct Events<P: Port> {
    port: P,
    watches: Vec<Watch>,
    streams: Streams,
    now: Instant,
    /// The time at which the port sent the first packet.
    start: Option<Instant>,
    /// Frames held for a delay, or until later packets have overtaken them: at most one for each packet event.
    delayed: Vec<DelayedFrame>,
    reserved: Staging,
    /// Frames that `port` has not accepted yet.
    outgoing: Staging,
}

impl<P: Port> Events<P> {
    /// Applies the events of `plan` to the frames sent through `port`.
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

    /// Returns the state of each event, in the order of the [`EventPlan`].
    pub fn outcomes(&self) -> Vec<EventOutcome> {
        let outcome =
            |watch: &Watch| EventOutcome { event: watch.event, passes: watch.passes, fired: watch.fired };
        self.watches.iter().map(outcome).collect()
    }

    /// Returns the inner port.
    pub fn inner(&self) -> &P {
        &self.port
    }

    /// Returns the inner port, mutably.
    pub fn inner_mut(&mut self) -> &mut P {
        &mut self.port
    }

    fn admit(&mut self, mut frame: Vec<u8>) {
        let Some(sighting) = Sighting::of(&frame) else { return self.outgoing.push(frame) };
        self.start.get_or_insert(self.now);
        let Some((space, offset)) = self.find_lane(&sighting) else { return self.outgoing.push(frame) };
        let disposition = self.impair(space, offset, &sighting, &mut frame);
        let Disposition { is_dropped, copies, delay_nanos, behind_pkts, .. } = disposition;
        if is_dropped {
            return self.reserved.recycle(frame);
        }
        (0..copies).for_each(|_| self.outgoing.push(frame.clone()));
        let (behind_pkts, nanos) = match behind_pkts {
            0 => (None, delay_nanos),
            behind_pkts => (Some(behind_pkts), OVERTAKEN_NANOS_MAX),
        };
        if nanos > 0 {
            let due = self.now.plus_nanos(nanos);
            return self.delayed.push(DelayedFrame { frame, space, behind_pkts, due });
        }
        self.outgoing.push(frame);
        self.count_passing(space);
    }

    /// Returns the PSN space of a packet, and the offset of its PSN from the first PSN of this PSN space; `None` if no
    /// event can match the packet.
    fn find_lane(&mut self, sighting: &Sighting) -> Option<(StreamId, u64)> {
        let spot = self.streams.locate(sighting.dest, sighting.space, sighting.psn)?;
        if spot.is_new {
            let unplaced = self.watches.iter_mut().filter(|watch| watch.space.is_none());
            let (dest_qpn, space) = (sighting.dest.1, sighting.space);
            for watch in unplaced.filter(|watch| watch.event.names(spot.number, dest_qpn, space)) {
                watch.space = Some(spot.space);
                watch.offset = watch.event.psn.offset_from(sighting.psn);
                self.streams.watch(spot.space);
            }
        }
        self.streams.is_watched(spot.space).then_some((spot.space, spot.offset?))
    }

    /// Counts the packet for each matching event. If the count of an event becomes [`PacketEvent::pass`], the
    /// impairment of this event changes `frame` or the returned disposition.
    fn impair(&mut self, space: StreamId, offset: u64, sighting: &Sighting, frame: &mut [u8]) -> Disposition {
        let mut disposition = Disposition::default();
        let packet = frame.get_mut(..sighting.len_bytes).unwrap_or_default();
        let (now, start) = (self.now, self.start.unwrap_or(self.now));
        for watch in self.watches.iter_mut().filter(|watch| watch.space == Some(space)) {
            if let Some(fired) = &mut watch.fired {
                if fired.retransmitted_after_nanos.is_none() && watch.offset == Some(offset) {
                    let since = now.nanos_since(start).saturating_sub(fired.after_nanos);
                    fired.retransmitted_after_nanos = Some(since);
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
            disposition.add(watch.event.impairment, packet, sighting.len_bytes);
            watch.offset = Some(offset);
            watch.fired = Some(Firing {
                after_nanos: now.nanos_since(start),
                dest_qpn: sighting.dest.1,
                psn: sighting.psn,
                opcode: sighting.opcode,
                retransmitted_after_nanos: None,
            });
        }
        disposition
    }

    /// Called after a packet of `space` was passed on. For each held frame of `space`, decrements `behind_pkts`, the
    /// number of packets after which the frame is passed on to the inner port.
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
        // If `outgoing`, the frames that `self.port` has not accepted yet, is not empty, `self.port` is full, and no
        // further frame can be sent.
        if self.outgoing.is_empty() { self.reserved.reserve(len_bytes) } else { None }
    }

    fn tx_cancel(&mut self) {
        if !self.is_active() {
            return self.port.tx_cancel();
        }
        self.reserved.cancel();
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
        // Buffers of sent frames are returned to `reserved`. Otherwise each `tx_reserve` would allocate a buffer.
        self.outgoing.return_spares(&mut self.reserved);
    }

    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.now = now;
        self.port.set_now(now);
    }
}
