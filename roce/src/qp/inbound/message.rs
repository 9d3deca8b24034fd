//! Messages that a queue pair receives.

use crate::id::RKey;

/// The message in progress: its FIRST was executed, and its LAST was not executed yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Partial {
    /// No message is in progress: the next request must begin one.
    None,
    /// A SEND; `received_bytes` of its payload are placed in the current receive.
    Send { received_bytes: u32 },
    /// An RDMA WRITE of `total` bytes; `left` bytes are still to be placed at `va` with R_Key `rkey`.
    Write { va: u64, rkey: RKey, left: u32, total: u32 },
}

/// Packet format of the messages, and the message in progress.
#[derive(Debug)]
pub(crate) struct Message {
    pub mtu_bytes: u32,
    /// Whether SENDs have a RecvETH (selective repeat).
    pub has_numbered_sends: bool,
    pub partial: Partial,
}
