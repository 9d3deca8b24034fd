//! A RoCEv2 transport engine without I/O, clock or threads of its own.
//!
//! [`engine::Engine`] owns a [`port::Port`]. Each call of `engine.poll(now)` processes at most one receive burst and a
//! bounded number of timers, and sends a bounded number of packets; the caller chooses the time of each call. The same
//! engine runs over DPDK, over a simulated fabric in virtual time, and under a fuzzer.
//!
//! Modules are listed in the order of layers, lowest first. A module may use only modules listed before it.

pub mod sync;

pub mod time;

pub mod id;

pub mod psn;

pub mod start;

pub mod wire;

pub mod random;

mod prefetch;
pub(crate) mod table;

pub mod port;

pub mod mem;

pub mod queue;

pub mod counters;

pub mod recovery;

pub mod congestion;

pub mod qp;

pub mod neighbour;

pub mod engine;
