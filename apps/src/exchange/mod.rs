//! Exchange over TCP, by which the two ends of `roce perf` and of `roce ping` find each other, whatever else connects.
//!
//! ```text
//!   client                              server
//!     |---- connect --------------------->|  lobby: any number of connections, also of strangers
//!     |---- hello: a line or a record --->|  framing: bounded length; the command's check; gid: is it the client's
//!     |<--- hello of the server ----------|  the connection of this client alone remains
//!     |                                   |  stream: keep-alive, and a time limit for each wait
//! ```
//!
//! `limits`, `framing`, `gid`, `pingpong`, `perftest` and the messages of `roce perf` are pure: a fuzzer feeds them
//! bytes.

pub(crate) mod framing;
pub(crate) mod gid;
pub(crate) mod limits;
mod lobby;
mod lockstep;
pub(crate) mod perftest;
pub(crate) mod pingpong;
mod reach;
mod stall;
mod stream;

use std::time::Duration;

use clap::Args;

pub(crate) use framing::Framing;
pub(crate) use lobby::{Refusal, accept, listen};
pub(crate) use lockstep::Lockstep;
pub(crate) use reach::DeviceReach;
pub(crate) use stall::Stall;
pub(crate) use stream::{connect, explain, guard, initial_rtt_nanos, read_record};

/// Options about the peer that both commands have.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExchangeArgs {
    /// Give up when the peer has neither sent nor acknowledged anything for so long, where it should have
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=limits::PEER_TIMEOUT_SECS_MAX))]
    peer_timeout: u32,

    /// Connect to whatever GID the peer names. Otherwise it must be the peer's own: on a kernel interface the
    /// address by which TCP reaches it, on a port with addresses of its own one of the same subnet
    #[arg(long)]
    pub(crate) any_gid: bool,
}

impl ExchangeArgs {
    /// Time limit for a peer that sends nothing.
    pub(crate) fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.peer_timeout.into())
    }
}
