//! The exchange with the peer around the runs of a test, whatever program the peer is.
//!
//! ```text
//!   exchange_ends      queue pairs and memory of both ends
//!   connected          this end's queue pairs are connected
//!   begin_run          barrier, per size
//!   end_own            this end's requests have completed    try_done   the peer's are all sent
//!   end_run
//!   close              both ends need their queue pairs no more
//! ```

use std::time::Duration;

use roce::id::Gid;
use roce::qp::Endpoint;

use super::message::End;
use super::report::Row;

/// Queue pairs of the peer, in order.
pub(super) struct PeerEnds {
    pub(super) ends: Vec<(Endpoint, End)>,
    /// READs that the peer serves at once, per queue pair; `None`: as many as were agreed.
    pub(super) reads_max: Option<u8>,
    /// As [`crate::exchange::initial_rtt_nanos`].
    pub(super) initial_rtt_nanos: u32,
}

/// The end of the peer's part of a run.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Done {
    /// Number of messages that the peer sent, per queue pair; `None`: as many as have arrived.
    pub(super) sent: Option<Vec<u64>>,
    pub(super) row: Option<Row>,
}

/// The part of an end in a latency test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LatRole {
    /// Sends the first message, and measures.
    Start,
    /// Answers each message, and measures too.
    Answer,
    /// Answers each message, or serves READs, until the peer is done.
    Follow,
}

pub(super) trait Session {
    /// Time limit for a peer that sends nothing.
    fn timeout(&self) -> Duration;

    fn lat_role(&self) -> LatRole;

    /// Sends the queue pairs of this end, and returns the peer's; `check` refuses GIDs.
    fn exchange_ends(
        &mut self,
        own: &[(Endpoint, End)],
        check: &dyn Fn(Gid) -> anyhow::Result<()>,
    ) -> anyhow::Result<PeerEnds>;

    /// Called when the queue pairs are connected, before the first run.
    fn connected(&mut self) -> anyhow::Result<()>;

    /// Waits until both ends are ready for the next run.
    fn begin_run(&mut self) -> anyhow::Result<()>;

    /// Sends the peer the figures of this end, and its number of messages per queue pair.
    fn end_own(&mut self, sent: &[u64], row: Row) -> anyhow::Result<()>;

    /// Returns the end of the peer's part of the run, if it is reached. Cheap, and does not block.
    fn try_done(&mut self) -> anyhow::Result<Option<Done>>;

    fn end_run(&mut self) -> anyhow::Result<()>;

    /// Waits until the peer needs this end's queue pairs no more.
    fn close(&mut self) -> anyhow::Result<()>;

    /// Sends the peer the reason why this end gives up, if the exchange has a message for it.
    fn give_up(&mut self, error: anyhow::Error) -> anyhow::Error;
}
