//! Traffic: which host sends how much to which, and when.
//!
//! ```text
//!   Cdf (a table, or points of your own) --> Poisson: random pairs at a load --+
//!                                            Incast: many to one --------------+--> Flow, by time
//! ```

mod cdf;
mod flows;
mod tables;

pub use cdf::{Cdf, CdfError};
pub use flows::{Flow, Incast, Poisson};
