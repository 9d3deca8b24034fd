//! The reliable connection: requester, responder and completer.

pub(crate) mod ack_req;
pub(crate) mod completer;
pub(crate) mod emit;
pub(crate) mod events;
pub(crate) mod outstanding;
pub(crate) mod placing;
pub(crate) mod read_queue;
pub(crate) mod reorder_buffer;
pub(crate) mod request;
pub(crate) mod requester;
pub(crate) mod responder;
pub(crate) mod segment;

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
