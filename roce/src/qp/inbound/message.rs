//! Messages at a receiver.

use crate::id::RKey;

/// The message in progress: its FIRST was executed, and its LAST was not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partial {
    /// No message is in progress: the next request must begin one.
    None,
    /// A SEND, of which `received_bytes` are in the current receive.
    Send { received_bytes: u32 },
    /// An RDMA WRITE: address, R_Key and length of the part still to be written, and length of the message.
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// Form of the messages of a queue pair, and the message in progress.
#[derive(Debug)]
pub(crate) struct Message {
    pub mtu_bytes: u32,
    /// Whether SENDs have a RecvETH (selective repeat).
    pub has_numbered_sends: bool,
    pub partial: Partial,
}
