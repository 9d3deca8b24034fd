//! The reliable connection (RC): requester, responder and completer.

pub(crate) mod ack_req;
pub(crate) mod completer;
pub(crate) mod events;
pub(crate) mod placing;
pub(crate) mod read_queue;
pub(crate) mod reorder_buffer;
pub(crate) mod requester;
pub(crate) mod responder;

#[cfg(test)]
mod completer_tests;
#[cfg(test)]
mod harness;
#[cfg(test)]
mod loss_timer_tests;
#[cfg(test)]
mod placing_tests;
#[cfg(test)]
mod read_queue_tests;
#[cfg(test)]
mod selective_tests;

use requester::Requester;
use responder::Responder;

/// The protocol state of a reliable connection, from RTR on.
#[repr(C)] // the order puts the cache lines that each message needs side by side
pub(crate) struct Rc {
    pub requester: Requester,
    pub responder: Responder,
    /// True if the last quantum (`TX_QUANTUM_PKTS`) ended before all READ responses were sent: the next quantum starts
    /// with requests.
    pub requests_first: bool,
    /// False only if the responder has no response to send. A message that is only sent accesses this flag in place of
    /// the responder, which is in further cache lines.
    pub has_responses: bool,
}
