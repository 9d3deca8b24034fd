//! Events of loss recovery: a response at a requester under go-back-N, and a request at a responder.

use crate::psn::Psn;

/// Effect of a received response under go-back-N, as the completer reports it to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckEvent {
    /// The response acknowledges all PSNs below `next`.
    Cumulative {
        /// The new una.
        next: Psn,
    },
    /// The response acknowledges all PSNs below `next`, and shows that `next` was lost: a NAK (PSN sequence error), or
    /// an implied NAK (a READ response is missing).
    Lost {
        /// The first PSN to retransmit, and new una.
        next: Psn,
    },
}

/// Change of a go-back-N requester's state by one [`AckEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckResult {
    /// Number of PSNs by which una advanced.
    pub newly_acked_pkts: u32,
    /// Whether the PSN to send next was moved back to una, so that all packets from una on are retransmitted.
    pub lost: bool,
}

/// PSN of a received request compared with the expected PSN (IBA 9.7.4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The PSN of the request is the expected one.
    InOrder,
    /// The PSN of the request is below the expected one.
    Duplicate,
    /// The PSN of the request is above the expected one.
    OutOfOrder {
        /// Whether no out-of-order request was received and no RNR NAK was due since the expected PSN last advanced.
        /// Under go-back-N, a NAK (PSN sequence error) is then due.
        first: bool,
    },
}
