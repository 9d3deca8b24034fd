use crate::id::Qpn;
use crate::port::impairment::Impairment;
use crate::psn::{Psn, PsnSpace};
use crate::wire::Opcode;

pub(crate) const EVENTS_MAX: usize = 256;
/// A port applies packet events only to its first connections, at most this number, which is the limit of
/// `roce perf -q`.
pub(crate) const CONNECTIONS_MAX: u32 = 4096;

/// The destination queue pair of the packets that an event matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventQp {
    /// Number of the connection, from 1, in the order in which the port sends the first packets of its connections.
    Number(u32),
    /// The destination QPN in the packet.
    Dest(Qpn),
}

/// The PSN of the packets that an event matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPsn {
    /// Position of the PSN in the PSN space: 1 is the first PSN that the port sends, 2 the PSN after it.
    Relative(u32),
    /// The PSN in the packet. An equal PSN after a wrap, 2^24 PSNs later, does not match.
    Absolute(Psn),
    /// Any PSN: the count of matching packets (see [`PacketEvent::pass`]) includes packets of all PSNs.
    Any,
}

impl EventPsn {
    pub(super) fn offset_from(self, first: Psn) -> Option<u64> {
        match self {
            EventPsn::Relative(number) => Some(u64::from(number.saturating_sub(1))),
            EventPsn::Absolute(psn) => Some(u64::from(psn.distance_from(first))),
            EventPsn::Any => None,
        }
    }
}

/// A packet event: counts, from 1, the packets that match `qp`, `space`, `psn` and `opcode`, and applies `impairment`
/// to the packet at which the count of matching packets becomes `pass`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketEvent {
    /// Destination queue pair of the packet.
    pub qp: EventQp,
    /// PSN space of the packet: requests, or responses.
    pub space: PsnSpace,
    /// PSN of the packet.
    pub psn: EventPsn,
    /// Opcode of the packet; `None` matches any opcode. A SEND opcode also matches the corresponding numbered SEND.
    pub opcode: Option<Opcode>,
    /// Count of matching packets, from 1, at which the impairment is applied. If `psn` is a single PSN, 1 is the first
    /// transmission of this PSN, and 2 the first retransmission.
    pub pass: u32,
    /// Impairment of packet number [`PacketEvent::pass`] of the packets that match `qp`, `space`, `psn` and `opcode`,
    /// counted from 1.
    pub impairment: Impairment,
}

impl PacketEvent {
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

/// Reason why a plan is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The plan has more than 256 events.
    #[error("{count} events are too many: a port takes {EVENTS_MAX} at most")]
    TooMany {
        /// Number of events in the plan.
        count: usize,
    },
    /// A number in an event is out of range.
    #[error("event {number}: {reason}")]
    Event {
        /// Position of the event in the plan, from 1.
        number: usize,
        /// Message that names the field and its range.
        reason: &'static str,
    },
}

/// Events of one port, validated by [`EventPlan::new`]. The default plan has no events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventPlan(Vec<PacketEvent>);

impl EventPlan {
    /// Creates a plan of `events`.
    ///
    /// # Errors
    /// [`PlanError`] if `events` has more than 256 events, or a number in an event is out of range.
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

// An error message of `PacketEvent::check` contains the number 4096.
const _: () = assert!(CONNECTIONS_MAX == 4096);
