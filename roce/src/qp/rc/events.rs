//! Events that the completer reports to the requester.

use crate::psn::Psn;
use crate::queue::WcStatus;
use crate::recovery::AckEvent;
use crate::wire::SackEth;

/// A response, as the completer reports it to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEvent<'p> {
    /// The response was dropped; it does not change the state of the requester.
    Ignored,
    /// Under go-back-N: the response acknowledges packets, or shows a loss.
    Ack(AckEvent),
    /// Under selective repeat: the response acknowledges packets, or is a duplicate.
    Selective(SelectiveEvent<'p>),
    /// RNR NAK: all packets below `next` are acknowledged, and `next` is to be retransmitted after the RNR wait.
    RnrNak {
        /// PSN of the RNR NAK.
        next: Psn,
        /// Shortest RNR wait, in nanoseconds.
        wait_nanos: u64,
    },
    /// All packets below `next` are acknowledged; the work request that `next` belongs to failed.
    Failed {
        /// A PSN of the failed work request.
        next: Psn,
        /// Status for the CQE of the failed work request.
        status: WcStatus,
    },
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
    /// A READ response, whose payload was placed.
    Response {
        /// PSN of the response.
        psn: Psn,
        /// PSN after the last of the READ: all requests below this PSN are executed.
        executed: Psn,
    },
    /// A READ response with a PSN that is acknowledged, or beyond the window.
    Duplicate {
        /// PSN of the response.
        psn: Psn,
    },
}
