//! The reliable connection: requester, responder and completer.

pub mod completer;
pub mod emit;
mod loss_timer;
pub mod outstanding;
pub mod placing;
pub mod read_queue;
pub mod requester;
pub mod responder;
pub mod segment;
pub mod selective;
