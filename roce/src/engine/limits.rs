//! Bounds of the engine, with their units. Relations between these bounds, and with bounds of lower modules, are
//! checked at compile time. Bounds of the module `neighbour` are in `neighbour/budget.rs`, `cache.rs` and `gid.rs`.

use crate::qp::outstanding::MAX_OUTSTANDING_PSNS;
use crate::queue::wqe::MAX_MESSAGE_BYTES;
use crate::recovery::responder::DUPLICATE_READS_MAX;
use crate::recovery::selective_repeat::WINDOW_PKTS_MAX;
use crate::wire::SackEth;

/// Largest number of frames received from the port in one poll. Equal to `TX_BUDGET_PKTS`, because otherwise a
/// poll could send more packets than it receives, and of two engines that send to each other each would fill the
/// other's receive queue.
pub const RX_BURST_FRAMES: usize = 64;

/// Largest number of packets sent in one poll; CNPs, ARP, neighbour discovery and ICMP frames are not counted.
pub const TX_BUDGET_PKTS: u32 = 64;

/// Above this number of queue pairs, the state of a queue pair is probably in no cache when a packet needs the state.
/// Therefore `ingress` prefetches the queue pairs of a received burst, `egress` prefetches queue pairs that transmit
/// soon, and `Engine::answer_doorbells` prefetches the bytes `Qp::SCHEDULE` of queue pairs whose doorbell is set.
pub const CACHED_QPS: usize = 512;

/// A queue pair is prefetched when this number of scheduled queue pairs precede it in the order of transmission.
pub(crate) const PREFETCH_AHEAD_QPS: usize = 3;

/// Largest number of packets that one queue pair sends before the next scheduled queue pair may send.
pub const TX_QUANTUM_PKTS: u32 = 32;

/// Largest number of responses that a queue pair sends when the application destroys it or changes its state to RESET
/// or ERR.
pub(crate) const LAST_RESPONSES_PKTS: u32 = TX_QUANTUM_PKTS;

pub(crate) const TIMERS_PER_POLL: usize = 16;

/// Time in nanoseconds from the setting of a deadline to its first comparison with the clock, unless the deadline is
/// sooner. Most ACKs arrive within this time and cancel the deadline.
pub(crate) const TIMER_CHECK_NANOS: u64 = 10_000;

/// Largest number of deadlines that wait for their first comparison with the clock; further deadlines are inserted into
/// `Timers::heap` at once.
pub(crate) const TIMER_CHECKS_MAX: usize = 4096;

/// Largest number of deadlines compared with the clock in one poll: more than the largest number of packets sent in one
/// poll, because each sent packet may set a deadline.
pub(crate) const TIMER_CHECKS_PER_POLL: usize = TIMERS_PER_POLL + TX_BUDGET_PKTS as usize;

pub(crate) const FLUSHED_QPS_PER_POLL: usize = 4;

/// Time in nanoseconds from the transition to ERR to a second flush of the queues. A thread that posts a receive during
/// the transition may read the previous state and set no doorbell. At the second flush, this receive is in its queue.
pub(crate) const FLUSH_NANOS: u64 = 1_000_000;

/// Largest number of work requests that one poll flushes from each of the two queues of a queue pair.
pub(crate) const FLUSHED_WRS_PER_QP: usize = 32;

/// Largest number of address handles that a queue pair uses at a time. The table `Engine::address_handles` has room for
/// one address handle of each queue pair and for the address handles that applications create, so no transition of a
/// queue pair fails for lack of an address handle.
pub(crate) const ADDRESS_HANDLES_PER_QP: usize = 1;

/// Largest number of address handles whose MAC one poll updates from a changed neighbour cache.
pub(crate) const FOLLOWED_ADDRESS_HANDLES_PER_POLL: usize = 16;

/// Largest number of ARP, neighbour discovery and ICMP frames sent in one poll.
pub const NEIGHBOUR_FRAMES_PER_POLL: usize = 4;

pub use crate::congestion::DEFAULT_WINDOW_PKTS;
pub use crate::qp::rc::ack_req::ACK_REQ_INTERVAL_PKTS;

pub use crate::qp::rc::read_queue::{
    RETRANSMIT_BURST_PKTS, RETRANSMIT_PKTS_MIN, RETRANSMIT_PKTS_PER_SEC, RETRANSMITS_PER_READ,
};
pub use crate::table::QUARANTINE_NUMBERS;

/// A CE mark is counted if the PSN of a request is at most this number of PSNs from the expected PSN. A response is
/// dropped unread if its PSN is more than this number of PSNs below una. The value is the largest window of selective
/// repeat, so that CE marks on duplicates are counted.
pub const STALE_PSNS: u32 = WINDOW_PKTS_MAX;

/// Speed assumed for a link that does not report its speed, in bits per second.
pub(crate) const DEFAULT_LINK_BITS_PER_SEC: u64 = 100_000_000_000;

/// Default of [`DeviceLimits::reorder_bytes`]: the payload of 16 windows of 1,024 packets of path MTU 4096.
pub const REORDER_BYTES: usize = 64 << 20;

pub use crate::qp::rc::reorder_buffer::REORDER_NANOS_MAX;
use crate::qp::rc::reorder_buffer::REORDER_REQUEST_BYTES;

pub(crate) const REORDER_EXPIRED_PER_POLL: usize = 32;

pub(crate) const CNPS_PER_POLL: u32 = 16;

/// Largest number of work requests of a send or receive queue.
pub const MAX_QP_WR: u32 = 32_768;

/// Largest number of scatter/gather entries of one work request.
pub const MAX_SGE: u32 = 32;

/// Largest number of inline bytes of one send work request.
pub const MAX_INLINE_BYTES: u32 = 1024;

/// Largest number of entries of one completion queue.
pub const MAX_CQE: u32 = 1 << 20;

/// Largest `max_rd_atomic` (outstanding READs) and `max_dest_rd_atomic` (responder resources).
pub const MAX_RD_ATOMIC: u8 = 128;

/// Largest numbers of objects of a device, by kind of object, and of bytes of its reorder buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Largest number of protection domains.
    pub max_pds: usize,
    /// Largest number of memory regions.
    pub max_mrs: usize,
    /// Largest number of completion queues.
    pub max_cqs: usize,
    /// Largest number of shared receive queues.
    pub max_srqs: usize,
    /// Largest number of queue pairs.
    pub max_qps: usize,
    /// Largest number of address handles that applications create.
    pub max_ahs: usize,
    /// Largest number of bytes of all reorder buffers together. Memory is allocated when a reorder buffer needs it.
    pub reorder_bytes: usize,
}

impl Default for DeviceLimits {
    fn default() -> Self {
        DeviceLimits {
            max_pds: 1024,
            max_mrs: 65_536,
            max_cqs: 8192,
            max_srqs: 1024,
            max_qps: 16_384,
            max_ahs: 65_536,
            reorder_bytes: REORDER_BYTES,
        }
    }
}

const _: () = assert!(TX_QUANTUM_PKTS <= TX_BUDGET_PKTS);
const _: () = assert!(RX_BURST_FRAMES == TX_BUDGET_PKTS as usize);
// If 32 queue pairs lose packets at the same time, each can buffer `DEFAULT_WINDOW_PKTS` packets of the largest path
// MTU.
const _: () = assert!(REORDER_BYTES >= 32 * DEFAULT_WINDOW_PKTS as usize * REORDER_REQUEST_BYTES);
// A packet before the last packet of a window must request an ACK. Otherwise, after each window, the requester would
// send nothing for one round-trip time.
const _: () = assert!(ACK_REQ_INTERVAL_PKTS < DEFAULT_WINDOW_PKTS);
// One SACK covers the largest window of selective repeat. The memory of the reorder buffers is enough for three such
// windows.
const _: () = assert!(WINDOW_PKTS_MAX as usize == 32 * SackEth::BITMAP_WORDS_MAX);
const _: () = assert!(3 * WINDOW_PKTS_MAX as usize * REORDER_REQUEST_BYTES <= REORDER_BYTES);
// At the smallest path MTU, 256 bytes, the longest message has no more PSNs than may be outstanding.
const _: () = assert!(MAX_MESSAGE_BYTES / 256 <= MAX_OUTSTANDING_PSNS);
// Under go-back-N, a responder queues at most `MAX_RD_ATOMIC` new READs and `MAX_RD_ATOMIC` duplicate READs: together
// at most 256 READs.
const _: () = assert!(MAX_RD_ATOMIC as usize * 2 <= 256);
const _: () = assert!(MAX_RD_ATOMIC as usize <= DUPLICATE_READS_MAX);
