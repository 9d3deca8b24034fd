//! The exchange with another `roce perf`.

use std::time::Duration;

use roce::id::Gid;
use roce::qp::Endpoint;

use super::control::{Control, Message, unexpected};
use super::message::{End, check_ends};
use super::report::Row;
use super::session::{Done, LatRole, PeerEnds, Session};

pub(super) struct Own {
    pub(super) control: Control,
    pub(super) is_client: bool,
    /// GID of the peer, which both ends derive from the two hellos.
    pub(super) peer_gid: Gid,
}

impl Session for Own {
    fn timeout(&self) -> Duration {
        self.control.timeout()
    }

    fn lat_role(&self) -> LatRole {
        if self.is_client { LatRole::Start } else { LatRole::Follow }
    }

    fn exchange_ends(
        &mut self,
        own: &[(Endpoint, End)],
        _check: &dyn Fn(Gid) -> anyhow::Result<()>,
    ) -> anyhow::Result<PeerEnds> {
        self.control.send(&Message::Ends(own.iter().map(|(_, end)| end.clone()).collect()))?;
        let ends = match self.control.recv()? {
            // `peer_gid` was checked with the hello.
            Message::Ends(ends) => check_ends(ends, own.len(), self.peer_gid).map_err(anyhow::Error::msg)?,
            other => return Err(unexpected(&other)),
        };
        Ok(PeerEnds { ends, reads_max: None, initial_rtt_nanos: self.control.initial_rtt_nanos() })
    }

    fn connected(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn begin_run(&mut self) -> anyhow::Result<()> {
        self.control.barrier()
    }

    fn end_own(&mut self, sent: &[u64], row: Row) -> anyhow::Result<()> {
        self.control.send(&Message::Done { sent: sent.to_vec(), row })
    }

    fn try_done(&mut self) -> anyhow::Result<Option<Done>> {
        match self.control.try_recv()? {
            None => Ok(None),
            Some(Message::Done { sent, row }) => Ok(Some(Done { sent: Some(sent), row: Some(row) })),
            Some(other) => Err(unexpected(&other)),
        }
    }

    fn end_run(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn close(&mut self) -> anyhow::Result<()> {
        self.control.barrier()
    }

    fn give_up(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.control.give_up(error)
    }
}
