//! What the integration tests share: a pair of hosts, peers in other processes, records of what was on the wire.

pub mod line;
pub mod pair;
pub mod protocol;
pub mod record;
