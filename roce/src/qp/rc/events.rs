//! Events that the completer reports to the requester.

use crate::psn::Psn;
use crate::queue::WcStatus;
use crate::recovery::{AckEvent, SelectiveEvent};

/// A response, as the completer reports it to the requester.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEvent<'p> {
    /// The response was dropped; it does not change the state of the requester.
    Ignored,
    /// The response is to a request that is acknowledged already.
    Stale,
    /// Under go-back-N: the response acknowledges packets, or shows a loss.
    Ack(AckEvent),
    /// Under selective repeat: the response acknowledges packets, or is a duplicate.
    Selective(SelectiveEvent<'p>),
    /// Under selective repeat: a READ response, whose payload was placed.
    ReadResponse {
        /// PSN of the response.
        psn: Psn,
        /// PSN after the last of the READ request: all requests below this PSN are executed.
        executed: Psn,
    },
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
