//! Engines on a simulated network in virtual time.

mod acknowledge;
mod congestion;
mod cost;
mod errors;
mod fairness;
mod flows;
mod goodput;
mod long_path;
mod never_slower;
mod placement;
mod plan;
mod play;
mod run;
mod scenario;
mod services;
mod standing_queue;
mod tapes;
