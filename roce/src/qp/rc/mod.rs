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
    pub responses: Responses,
}

/// Responses that the responder has to send. A message that is only sent accesses this enumeration in place of the
/// responder, which is in further cache lines.
///
/// Of 64 bits, so that the compiler stores in these bytes whether a slot of the table of queue pairs has a queue pair,
/// whether this has a connection, and of which service. Otherwise the compiler would choose the largest other
/// enumeration, in cache lines that a message received does not need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Responses {
    /// No response is due.
    None,
    /// Responses may be due; they are sent before requests.
    First,
    /// Responses are due. The last quantum (`TX_QUANTUM_PKTS`) ended before all were sent: the next quantum starts with
    /// requests.
    AfterRequests,
}

impl Rc {
    /// Records that a response may be due.
    #[inline]
    pub(crate) fn on_response_due(&mut self) {
        if self.responses == Responses::None {
            self.responses = Responses::First;
        }
    }
}
