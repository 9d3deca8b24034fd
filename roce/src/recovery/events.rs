//! Events that requester and responder report to a recovery scheme, and their results.

use crate::psn::Psn;
use crate::wire::SackEth;

/// Effect of a received response under go-back-N, as the completer reports it to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckEvent {
    /// The response acknowledges all PSNs below `next`.
    Cumulative {
        /// The new una.
        next: Psn,
        /// Transmission that the response answers.
        answers: Answers,
    },
    /// The response acknowledges all PSNs below `next`, and shows that `next` was lost: a NAK (PSN sequence error), or
    /// an implied NAK (a READ response is missing).
    Lost {
        /// The first PSN to retransmit, and new una.
        next: Psn,
    },
    /// The READ response `psn` was received and placed, while responses with lower PSNs are missing: an implied NAK of
    /// these.
    Received {
        /// PSN of the first missing READ response, and new una.
        next: Psn,
        /// PSN of the response.
        psn: Psn,
    },
}

/// Transmission of a request that a response answers, after a probe of that request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The first transmission, or the probe: the response is an ACK, or the last response of a READ.
    Any,
    /// The first transmission: a FIRST or MIDDLE response of a READ, of which the probe requests one response.
    First,
    /// The probe: a LAST or ONLY response inside of a READ.
    Probe,
}

/// Change of a go-back-N requester's state by one [`AckEvent`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AckResult {
    /// Number of PSNs by which una advanced.
    pub newly_acked_pkts: u32,
    /// Whether the PSN to send next was moved back to una: packets from una on are retransmitted.
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

/// PSNs of a work request, or of a READ request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PsnSpan {
    /// First PSN.
    pub first: Psn,
    /// Number of PSNs of the work request, 1 to 2^23.
    pub packets: u32,
    /// The work request is a READ: responses complete it, not ACKs.
    pub is_read: bool,
}

impl PsnSpan {
    /// Returns the PSN after the last PSN.
    pub(crate) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}

/// A response under selective repeat, as the completer reports it to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectiveEvent<'p> {
    /// ACK or NAK: all requests below `next` are executed.
    Executed {
        /// PSN of a NAK; the PSN after that of an ACK.
        next: Psn,
    },
    /// SACK: all requests below `next` are executed, and the out-of-order PSNs in `bitmap` are received.
    Sack {
        /// PSN of the SACK: the expected PSN of the responder, which is missing.
        next: Psn,
        /// SackETH: PSN of the request that triggered the SACK, and whether that request was a duplicate.
        header: SackEth,
        /// Bitmap of out-of-order PSNs, from `next + 1` on.
        bitmap: &'p [u8],
    },
    /// A READ response with a PSN that is acknowledged, or beyond the window.
    Duplicate {
        /// PSN of the response.
        psn: Psn,
    },
}
