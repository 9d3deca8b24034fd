//! Events that the engine reports besides completions.

use crate::id::Qpn;
use crate::queue::{CqId, SrqId};

/// An asynchronous event (IBA 11.6.3), or a completion notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion for which notification was requested was written to this completion queue.
    Completion(CqId),
    /// A completion queue overflowed; the queue pairs of this completion queue went into error.
    CqError(CqId),
    /// A queue pair went into error, because its completion queue overflowed, or because it sent a NAK with the code
    /// remote operational error.
    QpFatal(Qpn),
    /// A queue pair sent a NAK with the code invalid request and went into error.
    QpRequestError(Qpn),
    /// A queue pair sent a NAK with the code remote access error and went into error.
    QpAccessError(Qpn),
    /// A queue pair in RTR received its first request.
    CommunicationEstablished(Qpn),
    /// All work requests that a queue pair started before the transition to SQD have completed.
    SendQueueDrained(Qpn),
    /// A queue pair with a shared receive queue went into error: it takes no further receive, and the receive that it
    /// had taken is flushed (IBA 11.6.3).
    LastWqeReached(Qpn),
    /// Fewer receives than its limit are left in a shared receive queue, whose limit is 0 now (IBA 11.6.3).
    SrqLimitReached(SrqId),
    /// Local catastrophic error (IBA 11.6.3): every later call fails. Reported by the owner of the engine after a panic
    /// of a thread that drove the engine.
    DeviceFatal,
}
