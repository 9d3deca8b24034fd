//! The reliable connection: requester, responder and completer, which exchange values.

pub mod completer;
pub mod emit;
pub mod outstanding;
mod pace;
pub mod placing;
pub mod reads;
pub mod requester;
pub mod responder;
pub mod segment;
pub mod selective;
