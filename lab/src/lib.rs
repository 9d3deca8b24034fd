//! The laboratory: the engine on a simulated Ethernet, in virtual time.
//!
//! ```text
//!   world      hosts, each an engine on a port of a network, and the loop that polls them
//!   sim_port   the engine's port on a `netsim` host; transmits payload, or its length only
//!   seeds      one experiment with several seeds, on all cores
//!   rng        pseudo-random numbers from a seed
//!   experiment experiments as TOML documents, and their results
//!   report     results as CSV, JSON and HTML
//! ```

mod due;
pub mod experiment;
pub mod report;
pub mod rng;
pub mod seeds;
pub mod sim_port;
pub mod world;
