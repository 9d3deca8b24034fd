//! Events that the completer reports to the requester.

use crate::psn::Psn;
use crate::queue::WcStatus;
use crate::recovery::AckEvent;
use crate::wire::SackEth;

/// Effect of a response on the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEvent<'p> {
    /// None.
    Ignored,
    /// Go-back-N: packets were acknowledged or lost.
    Ack(AckEvent),
    /// Selective repeat: packets were acknowledged, or a response is a duplicate.
    Selective(SelectiveEvent<'p>),
    /// RNR NAK: all packets below `next` are acknowledged, and `next` is to be retransmitted after a wait.
    RnrNak {
        /// PSN of the RNR NAK.
        next: Psn,
        /// Shortest wait, in nanoseconds.
        wait_nanos: u64,
    },
    /// All packets below `next` are acknowledged; the work request of `next` failed.
    Failed {
        /// A PSN of the work request.
        next: Psn,
        /// Status of its completion.
        status: WcStatus,
    },
}

/// A response under selective repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SelectiveEvent<'p> {
    /// ACK: all requests below `next` are executed.
    Executed {
        /// PSN after the one acknowledged.
        next: Psn,
    },
    /// SACK: as `Executed`, with the out-of-order PSNs above `next`.
    Sack {
        /// Expected PSN of the responder, which is missing.
        next: Psn,
        /// SackETH: the PSN that triggered the SACK, and whether it was a duplicate.
        header: SackEth,
        /// Bitmap of the PSNs from `next + 1` on.
        bitmap: &'p [u8],
    },
    /// A READ response, whose payload is placed.
    Response {
        /// PSN of the response.
        psn: Psn,
        /// End of its READ: all requests below are executed.
        executed: Psn,
    },
    /// A READ response that is a duplicate, or lies beyond the window.
    Duplicate {
        /// PSN of the response.
        psn: Psn,
    },
}
