//! The laboratory: the real engine on a simulated Ethernet, in virtual time.
//!
//! ```text
//!   world      hosts, each an engine on a port of any network, and the one loop that polls them
//!   sim_port   the engine's port on a `netsim` host; carries payload, or its length alone
//!   seeds      the same experiment with several seeds, on all cores
//!   rng        numbers from a seed
//!   experiment what to run as a TOML document, and what comes of it
//!   report     results as CSV, JSON and a page to read
//! ```

mod due;
pub mod experiment;
pub mod report;
pub mod rng;
pub mod seeds;
pub mod sim_port;
pub mod world;
