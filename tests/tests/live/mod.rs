//! What tests over live ports share: network namespaces, processes that end with the test, peers,
//! and what two connected peers should be able to do.

mod link;
mod namespace;
mod peer;
mod process;
pub(crate) mod scenarios;
mod turn;

pub(crate) use link::{End, Settings, TARGET, connect};
pub(crate) use namespace::{Namespace, wait_listen};
pub(crate) use peer::{Peer, TIMEOUT};
pub(crate) use process::{
    Output, Process, capture_file, compile, install, install_script, is_root, library, ordinary_user,
    programs, roce, run, shared_dir,
};
pub(crate) use turn::{Turn, common_turn, turn};
