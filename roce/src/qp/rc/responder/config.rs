//! Parameters of a responder, and the action that the engine takes after a request.

use crate::psn::Psn;
use crate::qp::{ConnAttr, Placement};
use crate::recovery::RecoveryScheme;
use crate::wire::NakCode;

/// Parameters of a responder, known at the transition to RTR; fields as in [`ConnAttr`].
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
