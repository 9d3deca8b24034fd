//! The specification of events: packets that match, and impairments.

use crate::id::Qpn;
use crate::port::impairment::Impairment;
use crate::psn::{Psn, PsnSpace};
use crate::wire::Opcode;

/// Largest number of events of one port.
pub(crate) const EVENTS_MAX: usize = 256;
/// Largest number of connections that are numbered; the limit of `roce perf -q`.
pub(crate) const CONNECTIONS_MAX: u32 = 4096;

/// The queue pair whose packets an event matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventQp {
    /// The number of the connection, from 1: the port numbers connections in the order of their first packets sent.
    Number(u32),
    /// The destination QPN in the packet.
    Dest(Qpn),
}

/// The PSN of the packets that an event matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPsn {
    /// Number of the PSN, from 1, which is the first PSN that the port sends in the PSN space.
    Relative(u32),
    /// The PSN in the packet. The same PSN after a wrap, 2^24 PSNs later, does not match.
    Absolute(Psn),
    /// Any PSN: [`PacketEvent::pass`] counts packets, not transmissions of one PSN.
    Any,
}

impl EventPsn {
    /// Returns the offset of this PSN from `first`, the first PSN of the PSN space; `None` for any PSN.
    pub(super) fn offset_from(self, first: Psn) -> Option<u64> {
        match self {
            EventPsn::Relative(number) => Some(u64::from(number.saturating_sub(1))),
            EventPsn::Absolute(psn) => Some(u64::from(psn.distance_from(first))),
            EventPsn::Any => None,
        }
    }
}

/// An event: applies `impairment` to one of the packets that match all other fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// Queue pair of the packet.
    pub qp: EventQp,
    /// PSN space of the packet: requests, or responses.
    pub space: PsnSpace,
    /// PSN of the packet.
    pub psn: EventPsn,
    /// Opcode of the packet; `None` for any. A SEND also matches the numbered SEND.
    pub opcode: Option<Opcode>,
    /// Number of the packet among the matching packets, from 1. If `psn` names one PSN, 1 is the first transmission, 2
    /// the first retransmission.
    pub pass: u32,
    /// The impairment of the packet with that number.
    pub impairment: Impairment,
}

impl PacketEvent {
    /// Returns whether the event matches packets of PSN space `space` on the connection `number`, whose destination QPN
    /// is `dest_qpn`.
    pub(super) fn names(&self, number: u32, dest_qpn: Qpn, space: PsnSpace) -> bool {
        let is_of_qp = match self.qp {
            EventQp::Number(wanted) => wanted == number,
            EventQp::Dest(wanted) => wanted == dest_qpn,
        };
        is_of_qp && self.space == space
    }

    fn check(&self) -> Result<(), &'static str> {
        match (self.qp, self.psn) {
            (EventQp::Number(0), _) => Err("queue pairs are numbered from 1"),
            (EventQp::Number(number), _) if number > CONNECTIONS_MAX => {
                Err("queue pairs are told apart by number up to 4096")
            }
            (_, EventPsn::Relative(0)) => Err("PSNs are counted from 1, which is the first that is sent"),
            _ if self.pass == 0 => Err("transmissions are counted from 1, which is the first"),
            _ => self.impairment.check(),
        }
    }
}

/// Reason to refuse a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The plan has more than 256 events.
    #[error("{count} events are too many: a port takes {EVENTS_MAX} at most")]
    TooMany {
        /// Number of events in the plan.
        count: usize,
    },
    /// A number in an event is out of its range.
    #[error("event {number}: {reason}")]
    Event {
        /// Position of the event in the plan, from 1.
        number: usize,
        /// The field out of range, and its range.
        reason: &'static str,
    },
}

/// Checked events of one port; the default plan has no events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPlan(Vec<PacketEvent>);

impl EventPlan {
    /// Checks `events` and makes them a plan.
    ///
    /// # Errors
    /// [`PlanError`] if there are more than `EVENTS_MAX` events, or a number is out of its range.
    pub fn new(events: Vec<PacketEvent>) -> Result<Self, PlanError> {
        if events.len() > EVENTS_MAX {
            return Err(PlanError::TooMany { count: events.len() });
        }
        for (at, event) in events.iter().enumerate() {
            event.check().map_err(|reason| PlanError::Event { number: at + 1, reason })?;
        }
        Ok(EventPlan(events))
    }

    /// Returns whether the plan has no event.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn into_events(self) -> Vec<PacketEvent> {
        self.0
    }
}

// A message of `PacketEvent::check` contains this number.
const _: () = assert!(CONNECTIONS_MAX == 4096);
