//! Experiments: a TOML document describes the runs; the results are data for [`crate::report`].
//!
//! ```text
//!   document --plan--> points: variant x sweep x seed --run, all cores--> results --> report
//!     TOML               each with a complete Setup                        figures, flows, series
//! ```
//!
//! The same document and seeds give the same figures, on any number of threads, except on real ports.

mod fabric;
mod figures;
mod flows;
mod long_flows;
pub mod plan;
pub mod ports;
pub mod reaction;
pub mod results;
pub mod run;
pub mod spec;
mod stream;

pub use plan::{Experiment, Point, Sweep};
pub use results::{Outcome, PointResult};
pub use run::{Options, run};
pub use spec::Setup;

/// The experiments built into the program: name and document.
pub const SHIPPED: &[(&str, &str)] = &[
    ("goodput-vs-loss", include_str!("../../experiments/goodput-vs-loss.toml")),
    ("reactions", include_str!("../../experiments/reactions.toml")),
    ("incast", include_str!("../../experiments/incast.toml")),
    ("congestion", include_str!("../../experiments/congestion.toml")),
    ("spray", include_str!("../../experiments/spray.toml")),
    ("irn", include_str!("../../experiments/irn.toml")),
    ("ports-goodput-vs-loss", include_str!("../../experiments/ports-goodput-vs-loss.toml")),
];

/// The document of the built-in experiment `name`; `None` if no experiment has this name.
pub fn shipped(name: &str) -> Option<&'static str> {
    SHIPPED.iter().find(|(shipped, _)| *shipped == name).map(|(_, text)| *text)
}
