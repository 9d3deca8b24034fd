//! Traffic: source, destination, size and start time of flows.
//!
//! ```text
//!   Cdf (a table, or given points) --> Poisson: random pairs at a load --+
//!                                      Incast: many to one --------------+--> Flow, by time
//! ```

mod cdf;
mod flows;
mod tables;

pub use cdf::{Cdf, CdfError};
pub use flows::{Flow, Incast, Poisson};
