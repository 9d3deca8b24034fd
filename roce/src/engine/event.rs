//! What the engine tells its owner besides completions.

use crate::id::Qpn;
use crate::queue::CqId;

/// An event: the affiliated asynchronous events of IBA 11.6.3, and completion notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion for which notification was requested is in the queue.
    Completion(CqId),
    /// A completion queue overflowed; the queue pairs that use it went into error.
    CqError(CqId),
    /// A queue pair went into error for a reason of its own.
    QpFatal(Qpn),
    /// The peer's request was invalid: the queue pair went into error.
    QpRequestError(Qpn),
    /// The peer's request was refused access: the queue pair went into error.
    QpAccessError(Qpn),
    /// The first packet came in RTR.
    CommunicationEstablished(Qpn),
    /// The send queue has drained in SQD.
    SendQueueDrained(Qpn),
    /// The device is out of order: every later call fails (IBA's local catastrophic error). The engine's owner
    /// reports it, where a thread panicked in the engine.
    DeviceFatal,
}
