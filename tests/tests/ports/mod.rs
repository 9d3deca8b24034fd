//! Real processes over real ports: `cargo test -p tests ports`.

mod ci;
mod command;
mod counters;
mod exchange;
mod fork;
mod kill;
mod leftovers;
mod limits;
mod link_changes;
mod links;
mod pairs;
mod programs;
mod rewritten_paths;
mod run;
mod shared_interface;
mod sleep;
mod stat;
mod stop;
mod threads;
mod verbs;
