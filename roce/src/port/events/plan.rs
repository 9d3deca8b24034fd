//! The specification of events: packets and actions.

use super::Sighting;
use crate::id::Qpn;
use crate::psn::{Psn, PsnSpace};
use crate::wire::Opcode;

/// Events of one port at most.
pub const EVENTS_MAX: usize = 256;
/// Connections that are numbered, at most; the limit of `roce perf -q`.
pub const CONNECTIONS_MAX: u32 = 4096;
/// The longest delay, in nanoseconds: 10 s.
pub const DELAY_NANOS_MAX: u64 = 10_000_000_000;
/// The most packets behind which a frame may be reordered.
pub const BEHIND_PKTS_MAX: u32 = 1024;

/// The queue pair of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventQp {
    /// The number of a connection, from 1, in the order of the first packets that the port sends.
    Number(u32),
    /// The destination queue pair number in the packet.
    Dest(Qpn),
}

/// The PSN of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPsn {
    /// Counted from 1, the first PSN that the port sends on the lane.
    Relative(u32),
    /// The PSN in the packet, where it first occurs on the lane.
    Absolute(Psn),
    /// Any PSN: passes count packets, not transmissions of one PSN.
    Any,
}

impl EventPsn {
    /// Returns the offset from `first`, the lane's first PSN; `None` for any PSN.
    pub(super) fn offset_from(self, first: Psn) -> Option<u64> {
        match self {
            EventPsn::Relative(number) => Some(u64::from(number.saturating_sub(1))),
            EventPsn::Absolute(psn) => Some(u64::from(psn.distance_from(first))),
            EventPsn::Any => None,
        }
    }
}

/// The impairment of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventAction {
    /// The packet is dropped.
    Drop,
    /// A bit of its ICRC is flipped.
    Corrupt,
    /// The packet gets a CE mark.
    MarkCe,
    /// The packet is sent twice.
    Duplicate,
    /// The packet is held; the first flush after the delay sends it.
    Delay {
        /// The delay in nanoseconds, 1 to [`DELAY_NANOS_MAX`].
        nanos: u64,
    },
    /// The packet is held until later packets of its lane were sent, or for a millisecond.
    Reorder {
        /// Number of these packets, 1 to [`BEHIND_PKTS_MAX`].
        behind_pkts: u32,
    },
}

/// An event: an action on one transmission of the packets that match all fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// The connection.
    pub qp: EventQp,
    /// Requests or responses.
    pub space: PsnSpace,
    /// The PSN.
    pub psn: EventPsn,
    /// The opcode; `None` for any. A SEND also matches the numbered SEND.
    pub opcode: Option<Opcode>,
    /// The number of the matching packet, from 1: 1 is the first transmission, 2 the first retransmission.
    pub pass: u32,
    /// The impairment of that packet.
    pub action: EventAction,
}

impl PacketEvent {
    /// Whether the event is of the connection and lane of a packet; `number` is the connection's.
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

/// Reason to refuse a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// More events than [`EVENTS_MAX`].
    #[error("{count} events are too many: a port takes {EVENTS_MAX} at most")]
    TooMany {
        /// Number of events in the plan.
        count: usize,
    },
    /// An event with a number out of its range.
    #[error("event {number}: {reason}")]
    Event {
        /// Place of the event in the plan, from 1.
        number: usize,
        /// The number and its range.
        reason: &'static str,
    },
}

/// Checked events of one port; the default has none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPlan(Vec<PacketEvent>);

impl EventPlan {
    /// Checks `events` and makes them a plan.
    ///
    /// # Errors
    /// [`PlanError`] if there are more than [`EVENTS_MAX`], or a number is out of its range.
    pub fn new(events: Vec<PacketEvent>) -> Result<Self, PlanError> {
        if events.len() > EVENTS_MAX {
            return Err(PlanError::TooMany { count: events.len() });
        }
        for (at, event) in events.iter().enumerate() {
            event.check().map_err(|reason| PlanError::Event { number: at + 1, reason })?;
        }
        Ok(EventPlan(events))
    }

    /// Whether the plan has no event.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_events(self) -> Vec<PacketEvent> {
        self.0
    }
}

// The messages of `PacketEvent::check` contain these numbers.
const _: () =
    assert!(CONNECTIONS_MAX == 4096 && BEHIND_PKTS_MAX == 1024 && DELAY_NANOS_MAX == 10_000_000_000);
