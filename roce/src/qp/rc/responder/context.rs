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

/// Parameters of a responder, known at the transition to RTR. Fields named as in [`ConnAttr`] have the same meaning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponderConfig {
    pub first_psn: Psn,
    pub mtu_bytes: u32,
    pub max_dest_rd_atomic: u8,
    pub recovery: RecoveryScheme,
    pub placement: Placement,
}

impl ResponderConfig {
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
    pub memory: &'a MemoryTable,
    pub pd: PdId,
    pub access: Access,
    pub min_rnr_timer: u8,
    pub rq: &'a mut RecvQueue,
    pub cqs: &'a mut CqTable,
    pub cq: CqId,
    pub qpn: Qpn,
    pub counters: &'a mut QpCounters,
    /// Index of the queue pair in the table of the device.
    pub slot: usize,
    pub now: Instant,
}

/// Action that the engine takes for the queue pair after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponderAction {
    /// No action: the request makes no response due.
    Nothing,
    /// A response may be due: the queue pair is scheduled to transmit.
    Answer,
    /// A NAK is due, and the queue pair changes to ERR.
    Fatal(NakCode),
}
