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
#[repr(C)] // fixes the order of the fields: cache lines that each message needs are adjacent
pub(crate) struct Rc {
    pub requester: Requester,
    pub responder: Responder,
    pub responses: Responses,
}

/// Whether the responder has responses to send. To send a request, the engine reads this enumeration instead of the
/// responder, so that the cache lines of the responder are not loaded.
///
/// 64 bits wide, so that no field of a queue pair has more unused values than this enumeration. The compiler encodes
/// three more states in the unused values of this enumeration: whether a slot of the table of queue pairs has a queue
/// pair, whether the queue pair has a connection, and the service of the connection. If this enumeration were narrower,
/// the compiler could store these states in another cache line, for example in a line of the requester; each received
/// message would then load this line only to read these states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Responses {
    /// No response is due.
    None,
    /// Responses may be due; they are sent before requests.
    First,
    /// Responses are due. The last quantum of this queue pair (at most `TX_QUANTUM_PKTS` packets) ended before all
    /// responses were sent: the next quantum starts with requests.
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
