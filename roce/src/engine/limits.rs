//! Every bound of the engine, with its unit; assertions between them hold at compile time.

use crate::qp::rc::requester::ACK_REQ_INTERVAL_PKTS;

/// Frames taken from the port by one poll.
pub const RX_BURST_FRAMES: usize = 32;

/// Packets sent by one poll.
pub const TX_BUDGET_PKTS: u32 = 64;

/// Packets that one queue pair may send before the next one's turn.
pub const TX_QUANTUM_PKTS: u32 = 32;

/// Queue pairs whose timers are looked at by one poll.
pub const TIMERS_PER_POLL: usize = 16;

/// Queue pairs in error that one poll flushes.
pub const FLUSHED_QPS_PER_POLL: usize = 4;

/// Work requests that one poll flushes of each.
pub const FLUSHED_WRS_PER_QP: usize = 32;

/// Frames of the neighbour code that one poll sends.
pub const NEIGHBOUR_FRAMES_PER_POLL: usize = 4;

/// Bounds on what questions of others cost: answers that wait, and answers to one source.
pub use crate::neighbour::{
    ANSWERS_WAITING_MAX, SOURCE_ANSWER_INTERVAL_NANOS, SOURCE_ANSWERS_BURST, SOURCES_MAX,
};

pub use crate::congestion::DEFAULT_WINDOW_PKTS;

pub use super::admit::MARKED_PSNS;
pub use crate::qp::rc::read_queue::{
    RETRANSMIT_BURST_PKTS, RETRANSMIT_PKTS_MIN, RETRANSMIT_PKTS_PER_SEC, RETRANSMITS_PER_READ,
};
pub use crate::table::QUARANTINE_NUMBERS;

/// Speed of a link that does not tell, in bits per second.
pub const DEFAULT_LINK_BITS_PER_SEC: u64 = 100_000_000_000;

/// Frames of the port that a device keeps out of order, over all queue pairs: they are not in the port's pool
/// meanwhile.
pub const REORDER_FRAMES_MAX: usize = 4096;

/// Tiny frames that it keeps besides, as copies: they are in the port's pool again.
pub const REORDER_COPIES_MAX: usize = 4096;

/// The longest frame that is copied, in bytes: a SEND or WRITE of 128 bytes with any headers is.
pub const REORDER_COPY_BYTES: usize = 256;

/// Of frames and of copies, so many for each queue pair alone. Where so many queue pairs would take more than
/// half of all, that half is divided among them.
pub const REORDER_RESERVED: usize = 16;

/// Beyond that, a queue pair keeps at most so many times what is free of the rest.
pub const REORDER_SHARE_OF_FREE: usize = 8;

/// How long a packet is kept out of order, in nanoseconds: a peer sends again what is missing before it many
/// times in a second, or is gone.
pub const REORDER_NANOS_MAX: u64 = 1_000_000_000;

/// Packets kept for too long that one poll drops.
pub const REORDER_EXPIRED_PER_POLL: usize = 32;

/// Congestion notifications that one poll sends.
pub const CNPS_PER_POLL: u32 = 16;

/// Work requests of one queue.
pub const MAX_QP_WR: u32 = 32_768;

/// Scatter/gather entries of one work request.
pub const MAX_SGE: u32 = 32;

/// Inline bytes of one send.
pub const MAX_INLINE_BYTES: u32 = 1024;

/// Completions of one queue.
pub const MAX_CQE: u32 = 1 << 20;

/// READs outstanding at one queue pair, at either end.
pub const MAX_RD_ATOMIC: u8 = 128;

/// How much of each object a device has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Protection domains.
    pub max_pds: usize,
    /// Memory regions.
    pub max_mrs: usize,
    /// Completion queues.
    pub max_cqs: usize,
    /// Queue pairs.
    pub max_qps: usize,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        DeviceLimits { max_pds: 1024, max_mrs: 65_536, max_cqs: 8192, max_qps: 16_384 }
    }
}

const _: () = assert!(TX_QUANTUM_PKTS <= TX_BUDGET_PKTS);
// Two queue pairs that lose packets at once keep a window of the default each.
const _: () = assert!(REORDER_FRAMES_MAX >= 2 * DEFAULT_WINDOW_PKTS as usize);
// A window ends with a request for an acknowledgement; it should hear of one before.
const _: () = assert!(ACK_REQ_INTERVAL_PKTS < DEFAULT_WINDOW_PKTS);
