//! What shall happen, and to which packets.

use super::Sighting;
use crate::id::Qpn;
use crate::psn::{Psn, PsnSpace};
use crate::wire::Opcode;

/// Events of one port.
pub const EVENTS_MAX: usize = 256;
/// Connections that are told apart by their number: those of `roce perf -q` at its most.
pub const CONNECTIONS_MAX: u32 = 4096;
/// The longest delay, in nanoseconds: 10 s.
pub const DELAY_NANOS_MAX: u64 = 10_000_000_000;
/// The most packets that a frame may be held behind.
pub const BEHIND_PKTS_MAX: u32 = 1024;

/// The queue pair of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventQp {
    /// A connection's number, from 1, in the order in which this end first sends on them.
    Number(u32),
    /// The destination's queue pair number, as it is on the wire.
    Dest(Qpn),
}

/// The PSN of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPsn {
    /// Counted from 1, which is the first that this end sends on its lane.
    Relative(u32),
    /// As it is on the wire, where it comes first.
    Absolute(Psn),
    /// Any: the event counts packets, not transmissions of one.
    Any,
}

impl EventPsn {
    /// The offset from a lane's first PSN; `None` for any.
    pub(super) fn offset_from(self, first: Psn) -> Option<u64> {
        match self {
            EventPsn::Relative(number) => Some(u64::from(number.saturating_sub(1))),
            EventPsn::Absolute(psn) => Some(u64::from(psn.distance_from(first))),
            EventPsn::Any => None,
        }
    }
}

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventAction {
    /// It vanishes.
    Drop,
    /// A bit of its ICRC is flipped.
    Corrupt,
    /// It is marked "congestion experienced".
    MarkCe,
    /// It goes twice.
    Duplicate,
    /// It goes so much later, in nanoseconds; the poll after that sends it.
    Delay {
        /// Nanoseconds.
        nanos: u64,
    },
    /// It goes after the next so many packets of its lane, or after a millisecond if fewer come.
    Reorder {
        /// Packets.
        behind_pkts: u32,
    },
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// Packets of this connection,
    pub qp: EventQp,
    /// of this lane,
    pub space: PsnSpace,
    /// with this PSN,
    pub psn: EventPsn,
    /// and, where one is given, of this opcode; a SEND may be numbered.
    pub opcode: Option<Opcode>,
    /// Which of them, from 1: 1 is the first transmission, 2 the first retransmission.
    pub pass: u32,
    /// What happens to it.
    pub action: EventAction,
}

impl PacketEvent {
    /// Whether the event is for the lane of a packet on the connection of this number.
    pub(super) fn names(&self, number: u32, sighting: &Sighting) -> bool {
        let is_of_qp = match self.qp {
            EventQp::Number(wanted) => wanted == number,
            EventQp::Dest(wanted) => wanted == sighting.dest.1,
        };
        is_of_qp && self.space == sighting.space
    }

    fn check(&self) -> Result<(), &'static str> {
        match (self.qp, self.psn, self.action) {
            (EventQp::Number(0), ..) => Err("queue pairs are numbered from 1"),
            (EventQp::Number(number), ..) if number > CONNECTIONS_MAX => {
                Err("queue pairs are told apart by number up to 4096")
            }
            (_, EventPsn::Relative(0), _) => Err("PSNs are counted from 1, which is the first that is sent"),
            _ if self.pass == 0 => Err("transmissions are counted from 1, which is the first"),
            (.., EventAction::Delay { nanos: 0 }) => Err("a delay needs some time"),
            (.., EventAction::Delay { nanos }) if nanos > DELAY_NANOS_MAX => {
                Err("a delay is at most 10 seconds")
            }
            (.., EventAction::Reorder { behind_pkts }) if !(1..=BEHIND_PKTS_MAX).contains(&behind_pkts) => {
                Err("a packet goes behind 1 to 1024 others")
            }
            _ => Ok(()),
        }
    }
}

/// What is wrong with a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More events than [`EVENTS_MAX`].
    #[error("{count} events are too many: a port takes {EVENTS_MAX} at most")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// An event that cannot be.
    #[error("event {number}: {reason}")]
    Event {
        /// Which, from 1.
        number: usize,
        /// What is wrong with it.
        reason: &'static str,
    },
}

/// Events that a port can be given; the default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPlan(Vec<PacketEvent>);

impl EventPlan {
    /// A plan of these events, each of which is checked.
    ///
    /// # Errors
    /// [`PlanError`]: too many, or a number out of its range.
    pub fn new(events: Vec<PacketEvent>) -> Result<Self, PlanError> {
        if events.len() > EVENTS_MAX {
            return Err(PlanError::TooMany { count: events.len() });
        }
        for (at, event) in events.iter().enumerate() {
            event.check().map_err(|reason| PlanError::Event { number: at + 1, reason })?;
        }
        Ok(EventPlan(events))
    }

    /// Whether nothing is to happen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_events(self) -> Vec<PacketEvent> {
        self.0
    }
}

// The texts of `PacketEvent::check` say these numbers.
const _: () =
    assert!(CONNECTIONS_MAX == 4096 && BEHIND_PKTS_MAX == 1024 && DELAY_NANOS_MAX == 10_000_000_000);
