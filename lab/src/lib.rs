//! The laboratory: the real engine on a simulated Ethernet, in virtual time.
//!
//! ```text
//!   world      hosts, each an engine on a port, and the one loop that polls them
//!   sim_port   the engine's port on a `netsim` host
//!   rng        numbers from a seed
//!   experiment what to run as a TOML document, and what comes of it
//!   report     results as CSV, JSON and a page to read
//! ```

pub mod experiment;
pub mod report;
pub mod rng;
pub mod sim_port;
pub mod world;
