//! Inputs of a responder, and the action that the engine takes after a request.

use crate::counters::QpCounters;
use crate::id::Qpn;
use crate::mem::{Access, MemoryTable, PdId};
use crate::psn::Psn;
use crate::qp::{ConnAttr, Placement};
use crate::queue::{CqId, CqTable, RecvQueue};
use crate::recovery::RecoveryScheme;
use crate::time::Instant;
use crate::wire::NakCode;

/// Parameters of a responder, known at the transition to RTR.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderConfig {
    /// Expected PSN of the first request.
    pub first_psn: Psn,
    /// Path MTU, in bytes.
    pub mtu_bytes: u32,
    /// Responder resources: READs served at once, and remembered to recognise duplicates.
    pub max_dest_rd_atomic: u8,
    /// Recovery scheme.
    pub recovery: RecoveryScheme,
    /// Order in which the peer's payloads are placed.
    pub placement: Placement,
}

impl ResponderConfig {
    /// Returns the parameters for a connection with `conn`.
    pub(crate) fn new(conn: &ConnAttr, first_psn: Psn) -> Self {
        ResponderConfig {
            first_psn,
            mtu_bytes: conn.path_mtu.bytes(),
            max_dest_rd_atomic: conn.max_dest_rd_atomic,
            recovery: conn.recovery,
            placement: conn.placement,
        }
    }
}

/// State of queue pair and device that the responder needs to process a request.
pub(crate) struct RxContext<'a> {
    /// Memory regions of the device.
    pub memory: &'a MemoryTable,
    /// Protection domain of the queue pair.
    pub pd: PdId,
    /// Access that the queue pair grants to the peer's requests.
    pub access: Access,
    /// Timer code of the RNR NAKs sent, 5 bits.
    pub min_rnr_timer: u8,
    /// Receive queue.
    pub rq: &'a mut RecvQueue,
    /// Completion queues of the device.
    pub cqs: &'a mut CqTable,
    /// Completion queue of the receive queue.
    pub cq: CqId,
    /// Number of the local queue pair.
    pub qpn: Qpn,
    /// Counters of the queue pair.
    pub counters: &'a mut QpCounters,
    /// Current time.
    pub now: Instant,
}

/// Action that the engine takes for the queue pair after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponderAction {
    /// No action: the request makes no response due.
    Nothing,
    /// A response may be due: the queue pair is scheduled to transmit.
    Answer,
    /// The packet is out of order: [`Responder::on_out_of_order`] is to be called.
    OutOfOrder {
        /// True for the first out-of-order packet at this expected PSN, unless an RNR NAK was sent for it.
        first: bool,
    },
    /// A response may be due, and the frame is to be put into the reorder buffer.
    Buffer,
    /// A NAK is due, and the queue pair changes to ERR.
    Fatal(NakCode),
}

/// Input of [`Responder::on_out_of_order`], as determined by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OutOfOrder {
    /// True for the first out-of-order packet at this expected PSN, unless an RNR NAK was sent for it.
    pub first: bool,
    /// The reorder buffer has room for the frame.
    pub has_room: bool,
}
