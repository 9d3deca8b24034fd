//! Real processes over real ports: `cargo test -p tests ports`.

mod command;
mod exchange;
mod fork;
mod links;
mod pairs;
mod stat;
mod verbs;
