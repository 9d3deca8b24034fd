//! Events that requester and responder report to a recovery scheme, and their results.

use crate::psn::Psn;
use crate::wire::SackEth;

/// A response, as the completer describes it to the recovery scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckEvent<'p> {
    /// ACK: all requests below `next` are executed.
    Ack {
        /// The PSN after that of the ACK.
        next: Psn,
    },
    /// NAK (PSN sequence error): all requests below `next` are executed, and `next` is missing.
    SequenceError {
        /// PSN of the NAK.
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
    /// A READ response: all requests below `request_end` are executed. The payload was placed, unless the PSN is
    /// [`ResponseState::BeyondWindow`].
    ReadResponse {
        psn: Psn,
        /// PSN after the last of the READ request.
        request_end: Psn,
        /// The opcode is LAST or ONLY.
        ends_message: bool,
    },
    /// A READ response with a PSN that was received before.
    Duplicate {
        /// PSN of the response.
        psn: Psn,
    },
}

/// State of a PSN of the requester when a READ response with that PSN arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseState {
    /// The READ response is missing: its payload is to be placed.
    Missing,
    Received,
    /// The READ response is dropped: its PSN is too far above una, whose READ response is missing.
    BeyondWindow,
}

/// After a probe of a request: the transmission of that request which a response answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// The first transmission or the probe: the response is an ACK, or the last response of a READ.
    Any,
    /// The first transmission: the response is a FIRST or MIDDLE of a READ, of which a probe requests one response, an
    /// ONLY.
    First,
    /// The probe: the response is a LAST or ONLY that is not the last response of its READ.
    Probe,
}

/// NAK that a response is, or that it implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// PSN sequence error.
    SequenceError,
    /// Implied NAK: a READ response before the response is missing (IBA 9.7.6).
    Implied,
}

/// Change of a requester's state by one [`AckEvent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveryResult {
    /// Number of PSNs by which una advanced.
    pub acked_pkts: u32,
    /// Number of packets that selective repeat newly marked lost.
    pub lost_pkts: u32,
    /// Go-back-N moved the PSN to send next back to una: packets from una on are retransmitted.
    pub has_gone_back: bool,
    /// Requests were executed, which restores the RNR retry count.
    pub is_executed: bool,
    /// The number of packets in flight changed.
    pub changed: bool,
    /// The response updates the loss window: under improved go-back-N any response, under selective repeat any but a
    /// READ response.
    pub changes_loss_window: bool,
    /// Under selective repeat, the responder dropped a packet for want of room. Set at most once until all PSNs sent so
    /// far are acknowledged.
    pub has_no_room: bool,
    /// The NAK that the response is or implies.
    pub nak: Option<Nak>,
    /// Under selective repeat, the response is a READ response.
    pub is_read_response: bool,
    /// Under selective repeat, no packet above una was acknowledged before the response.
    pub had_no_gap: bool,
    pub is_spurious: bool,
    /// Under go-back-N, the transmission that the response answers; `None` if the response shows a loss.
    pub answers: Option<Answers>,
}

/// Effect of the refusal of a request, by an RNR NAK or a NAK of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Requests below the refused one are newly acknowledged, or newly executed.
    pub is_progress: bool,
    /// Number of packets in flight; under selective repeat the number of PSNs sent from una on, in any state.
    pub in_flight_pkts: u32,
}

/// The unacknowledged requests of a requester, by PSN.
pub(crate) trait Requests {
    /// Returns the PSNs of the message, or of the READ request, that `psn` belongs to.
    fn request_at(&mut self, psn: Psn) -> Option<PsnSpan>;

    fn has_reads(&self) -> bool;

    /// Returns the lowest PSN of `una..end` that belongs to a READ: the READ response with this PSN is missing.
    fn first_read_before(&self, una: Psn, end: Psn) -> Option<Psn>;
}

/// PSN of a received request compared with the expected PSN (IBA 9.7.4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    InOrder,
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
    pub(crate) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}
