//! Recovery: which packet is next.
//!
//! A scheme sees PSNs and feedback, never packets or work requests. Its requester side answers
//! `next_psn`; its responder side turns an arrival into a [`Verdict`]. The requester asks
//! congestion control separately whether that packet may go now.

pub mod go_back_n;
pub mod rto;

pub use go_back_n::{ExpectedPsn, GoBackN};
pub use rto::RetransmitTimer;

use crate::psn::Psn;

/// What the peer's answers say of the packets sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// Everything before `next` has arrived.
    Cumulative {
        /// The first PSN not acknowledged.
        next: Psn,
    },
    /// As `Cumulative`, and `next` itself was lost: a NAK, or a response that never came.
    Lost {
        /// The PSN to resume at.
        next: Psn,
    },
}

/// What a scheme made of feedback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Packets newly acknowledged.
    pub acknowledged: u32,
    /// Sending resumes at an earlier PSN.
    pub resumes: bool,
}

/// What a responder does with an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet expected next.
    InOrder,
    /// It was received before.
    Duplicate,
    /// Ahead of what is expected: packets are missing.
    Ahead {
        /// The first sign of this gap: it is to be answered with a NAK.
        first: bool,
    },
}
