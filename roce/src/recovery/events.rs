//! Events that requester and responder report to go-back-N, and their results.

use crate::psn::Psn;

/// A response under go-back-N, as the completer reports it to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckEvent {
    /// Acknowledges all PSNs before `next`.
    Cumulative {
        /// The new una.
        next: Psn,
    },
    /// As `Cumulative`, and `next` was lost: a NAK (PSN sequence error), or an implied NAK (a READ
    /// response is missing).
    Lost {
        /// The PSN to retransmit from.
        next: Psn,
    },
}

/// Change of a go-back-N requester's state by one [`AckEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckResult {
    /// Number of PSNs by which una advanced.
    pub newly_acked_pkts: u32,
    /// The next PSN to send was moved back to una: retransmission begins there.
    pub lost: bool,
}

/// Position of an arriving request relative to the expected PSN (IBA 9.7.4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Its PSN is the expected one.
    InOrder,
    /// Its PSN is below the expected one.
    Duplicate,
    /// Out of order: its PSN is above the expected one.
    OutOfOrder {
        /// The first out-of-order packet behind this gap: a NAK (PSN sequence error) is due.
        first: bool,
    },
}
