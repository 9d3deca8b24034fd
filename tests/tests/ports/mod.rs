//! Real processes over real ports: `cargo test -p tests ports`.

mod command;
mod exchange;
mod fork;
mod kill;
mod leftovers;
mod link_changes;
mod links;
mod pairs;
mod run;
mod sleep;
mod stat;
mod verbs;
