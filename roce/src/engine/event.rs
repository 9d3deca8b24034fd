//! Events of the engine, which `Engine::poll_event` returns.

use crate::id::Qpn;
use crate::queue::{CqId, SrqId};

/// An asynchronous event (IBA 11.6.3), or a completion notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A completion queue has a new completion of the kind for which the application requested notification.
    Completion(CqId),
    /// A completion queue overflowed; all queue pairs that use this completion queue entered ERR.
    CqError(CqId),
    /// A queue pair entered ERR, because its send or receive completion queue overflowed, because the memory to which
    /// the scatter/gather list of a receive refers was not writable, or because a READ or WRITE of the peer
    /// caused a memory fault. Except after the overflow, a reliable connection sends a NAK with the code remote
    /// operational error.
    QpFatal(Qpn),
    /// A queue pair sent a NAK with the code invalid request and entered ERR.
    QpRequestError(Qpn),
    /// A queue pair sent a NAK with the code remote access error and entered ERR.
    QpAccessError(Qpn),
    /// A queue pair in RTR received its first request.
    CommunicationEstablished(Qpn),
    /// All work requests that a queue pair started before the transition to SQD have completed.
    SendQueueDrained(Qpn),
    /// A queue pair with a shared receive queue entered ERR. The queue pair takes no further receive, and the
    /// receive already taken is flushed (IBA 11.6.3).
    LastWqeReached(Qpn),
    /// A shared receive queue has fewer receives than its limit. The limit is set to 0, so that this event is reported
    /// once (IBA 11.6.3).
    SrqLimitReached(SrqId),
    /// The link of the port is up again (IBA 11.6.3). This event and the events below are reported by the owner of the
    /// engine (crate `verbs`), not by the engine.
    PortActive,
    /// The link of the port is down (IBA 11.6.3). Queue pairs stay in their states and continue to retransmit, so a
    /// connection continues if the link is up again before the connection's retry count is used up.
    PortError,
    /// An address was added to the GID table, or removed from it (`IBV_EVENT_GID_CHANGE`).
    GidChange,
    /// Local catastrophic error (IBA 11.6.3): a fatal error of the device (docs/GLOSSARY.md). Reported after a panic of
    /// a thread that drove the engine, and after the network interface of the port was removed.
    DeviceFatal,
}
