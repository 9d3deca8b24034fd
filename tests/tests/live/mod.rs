//! What tests over live ports share: network namespaces, processes that end with the test, peers,
//! and what two connected peers should be able to do.

mod link;
mod namespace;
mod peer;
mod process;
pub(crate) mod scenarios;

pub(crate) use link::{End, Settings, connect};
pub(crate) use namespace::Namespace;
pub(crate) use peer::Peer;
pub(crate) use process::{Output, Process, capture_file, ordinary_user, roce, run};
