//! Events that the completer reports to the requester.

use crate::psn::Psn;
use crate::queue::WcStatus;
use crate::recovery::AckEvent;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseEvent<'p> {
    /// The response was dropped; it does not change the state of the requester.
    Ignored,
    /// A stale response to a PSN that is acknowledged already. A response to a PSN never sent is `Ignored`.
    Stale,
    /// The response acknowledges packets, shows a loss, or is a duplicate.
    Ack(AckEvent<'p>),
    /// RNR NAK: all packets below `next` are acknowledged, and packet `next` is to be retransmitted after the RNR wait.
    RnrNak {
        next: Psn,
        /// Length of the RNR wait that the RNR NAK demands, in nanoseconds.
        wait_nanos: u64,
    },
    /// All packets below `next` are acknowledged; the work request of packet `next` failed.
    Failed {
        next: Psn,
        /// Status for the CQE of the failed work request.
        status: WcStatus,
    },
}
