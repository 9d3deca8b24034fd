//! The number or key of an object of a device.

use roce::engine::Event;
use roce::id::{AhId, LKey, Qpn};
use roce::mem::PdId;
use roce::queue::{CqId, SrqId};

/// An object of a device. The variants are in an order in which objects can be destroyed: no object uses an object of
/// an earlier variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Object {
    Qp(Qpn),
    Srq(SrqId),
    Cq(CqId),
    Mr(LKey),
    Ah(AhId),
    Pd(PdId),
}

impl Object {
    /// Returns the object that `event` names; `None` for an event of the device.
    pub(crate) fn of(event: Event) -> Option<Object> {
        match event {
            Event::PortActive | Event::PortError | Event::GidChange | Event::DeviceFatal => None,
            Event::Completion(cq) | Event::CqError(cq) => Some(Object::Cq(cq)),
            Event::SrqLimitReached(srq) => Some(Object::Srq(srq)),
            Event::QpFatal(qpn)
            | Event::QpRequestError(qpn)
            | Event::QpAccessError(qpn)
            | Event::CommunicationEstablished(qpn)
            | Event::SendQueueDrained(qpn)
            | Event::LastWqeReached(qpn) => Some(Object::Qp(qpn)),
        }
    }

    /// Returns the place of the object's kind in the order of destruction: 0 for the kind to be destroyed first.
    pub(crate) fn rank(self) -> u8 {
        match self {
            Object::Qp(_) => 0,
            Object::Srq(_) => 1,
            Object::Cq(_) => 2,
            Object::Mr(_) => 3,
            Object::Ah(_) => 4,
            Object::Pd(_) => 5,
        }
    }

    /// Returns the name of the object's kind, as errors of the engine write this name.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Object::Qp(_) => "queue pair",
            Object::Srq(_) => "shared receive queue",
            Object::Cq(_) => "completion queue",
            Object::Mr(_) => "memory region",
            Object::Ah(_) => "address handle",
            Object::Pd(_) => "protection domain",
        }
    }
}
