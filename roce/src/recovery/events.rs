//! Events that the completer reports to a recovery scheme, and the results of loss recovery: [`RecoveryResult`] and
//! [`Refusal`] for the requester, [`Verdict`] for the responder.

use crate::psn::Psn;
use crate::wire::{PrecedingReads, SackEth};

/// A response that the completer reports to the recovery scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AckEvent<'p> {
    /// ACK; or a NAK or RNR NAK whose PSN is above a missing READ response. All requests below `next` are executed.
    Ack {
        /// For an ACK: one past its PSN. For a NAK or RNR NAK: its PSN.
        next: Psn,
    },
    /// NAK (PSN sequence error): all requests below `next` are executed, and the request with PSN `next` is missing.
    SequenceError {
        /// PSN of the NAK.
        next: Psn,
    },
    /// SACK: all requests below `next` are executed, and the out-of-order PSNs in `bitmap` are received.
    Sack {
        /// PSN of the SACK: the expected PSN of the responder.
        next: Psn,
        /// SackETH: PSN of the request that triggered the SACK, and whether that request was a duplicate.
        header: SackEth,
        /// Bitmap of the out-of-order PSNs received, from the expected PSN + 1 on.
        bitmap: &'p [u8],
    },
    /// A READ response: all requests below the end of `request` are executed. The payload was placed, unless the state
    /// of the PSN is [`ResponseState::BeyondWindow`].
    ReadResponse {
        psn: Psn,
        /// PSNs of the READ request.
        request: PsnSpan,
        /// The opcode of the response is LAST or ONLY.
        ends_message: bool,
    },
    /// A duplicate READ response.
    Duplicate {
        /// PSN of the response.
        psn: Psn,
    },
}

/// State of a PSN of the requester when a READ response with that PSN arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseState {
    /// The READ response was not received before: its payload is placed.
    Missing,
    Received,
    /// Dropped: the READ response is 4096 PSNs or more above una, and a READ response with a lower PSN is missing.
    BeyondWindow,
}

/// The transmission that elicited a response, if the request was retransmitted as a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    /// Either the first transmission of the request, or the probe: the response is an ACK, or the last response of a
    /// READ request, and does not show which of the two elicited the response.
    Any,
    /// The first transmission of the request: the response is a FIRST or MIDDLE of a READ. The probe of a READ elicits
    /// only one response, an ONLY.
    First,
    /// The probe: the response is an ONLY, although its PSN is below the last PSN of the READ request. The first
    /// transmission of the READ request elicits a FIRST or MIDDLE with this PSN. A LAST with such a PSN is treated like
    /// an ONLY.
    Probe,
}

/// Kind of the NAK that a response is or implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nak {
    /// PSN sequence error.
    SequenceError,
    /// Implied NAK (IBA 9.7.6): the response shows that an earlier READ response was lost.
    Implied,
}

/// Change of a requester's state by one [`AckEvent`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveryResult {
    /// Number of PSNs by which una advanced.
    pub acked_pkts: u32,
    /// Number of packets that selective repeat newly marked lost.
    pub lost_pkts: u32,
    /// Under both kinds of go-back-N, `next_psn` was moved back to una: packets from una on are retransmitted.
    pub has_gone_back: bool,
    /// The response is or implies a NAK that uses up a retry, unless una advanced (IBA 9.7.6); under go-back-N only.
    /// Under improved go-back-N only local ACK timeouts use up retries, because probe timeouts are short: each READ
    /// response that was sent before a probe, and arrives after the probe, is one more implied NAK for the same loss.
    pub uses_retry: bool,
    /// The response shows that requests were executed: the RNR retry count is restored.
    pub is_executed: bool,
    /// True if the number of packets in flight changed; always false if [`RecoveryResult::is_read_response`] is true.
    pub changed: bool,
    /// The response updates the loss window. Set under improved go-back-N, and under selective repeat for any event but
    /// [`AckEvent::ReadResponse`].
    pub changes_loss_window: bool,
    /// Under selective repeat, the responder dropped a packet because the reorder buffer had no room. After a result
    /// with this flag, the flag is not set until all PSNs sent before that result are acknowledged.
    pub has_no_room: bool,
    /// The NAK that the response is or implies.
    pub nak: Option<Nak>,
    /// True for an [`AckEvent::ReadResponse`] under selective repeat; false under both kinds of go-back-N.
    pub is_read_response: bool,
    /// Under selective repeat: before this response was processed, no packet above una was acknowledged.
    pub had_no_gap: bool,
    /// Under selective repeat: what the response shows to have been spurious.
    pub spurious: Option<Spurious>,
    /// Under both kinds of go-back-N, the transmission that elicited the response, or `None` if the response shows a
    /// loss. Always `None` under selective repeat.
    pub answers: Option<Answers>,
}

/// A transmission of a packet of which an earlier transmission was received, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spurious {
    Probe,
    Retransmission,
}

/// Result of processing a response that is an RNR NAK or completes a work request in error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// Requests below the refused request were newly acknowledged (both kinds of go-back-N), or newly executed
    /// (selective repeat).
    pub is_progress: bool,
    /// Number of PSNs from una to below next (both kinds of go-back-N), or from una to the highest PSN sent (selective
    /// repeat).
    pub in_flight_pkts: u32,
}

/// A request packet that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SentRequest {
    pub psn: Psn,
    /// Number of PSNs of the packet: for a READ request the number of its responses, otherwise 1.
    pub psn_span: u32,
    /// Each READ request has AckReq.
    pub has_ack_req: bool,
    pub is_retransmission: bool,
}

/// The unacknowledged requests of a requester, by PSN.
pub(crate) trait Requests {
    /// Returns the PSNs of the message, or of the READ request, that contains `psn`.
    fn request_at(&mut self, psn: Psn) -> Option<PsnSpan>;

    /// Returns the number of PSNs directly below the READ request `psn` that belong to READs. PSNs of work requests that
    /// had completed when the READ request was sent first are not counted.
    fn preceding_reads(&mut self, psn: Psn) -> PrecedingReads;

    fn has_reads(&self) -> bool;

    /// Under selective repeat: records that the last missing response of a READ request was received.
    fn on_read_answered(&mut self);

    /// Returns the lowest PSN in `una..end` that belongs to a READ. The READ response with this PSN is missing: its
    /// arrival would have advanced una above this PSN.
    fn first_read_before(&self, una: Psn, end: Psn) -> Option<Psn>;
}

/// Result of comparing the PSN of a received request with the expected PSN (IBA 9.7.4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    InOrder,
    Duplicate,
    /// The PSN of the request is above the expected PSN.
    OutOfOrder {
        /// True if, since the last advance of the expected PSN, no other out-of-order request was received and no RNR
        /// NAK was due. If true, a NAK (PSN sequence error) is due under both kinds of go-back-N.
        first: bool,
    },
}

/// PSNs of a work request, or of one READ request of a READ work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PsnSpan {
    pub first: Psn,
    /// Number of PSNs: 1 to 2^23, or 0 for a local operation.
    pub packets: u32,
    /// The work request is a READ, which is completed by its responses and not by an ACK.
    pub is_read: bool,
}

impl PsnSpan {
    pub(crate) const fn end(&self) -> Psn {
        self.first.plus(self.packets)
    }
}
