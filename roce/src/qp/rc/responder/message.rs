//! The message in progress at a responder.

use crate::id::RKey;

/// The message in progress: its FIRST was executed, and its LAST was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partial {
    /// No message is in progress: the next request must begin one.
    None,
    /// A SEND, of which `received_bytes` are in the oldest receive.
    Send { received_bytes: u32 },
    /// An RDMA WRITE: address, R_Key and length of the part still to be written, and length of the message.
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}
