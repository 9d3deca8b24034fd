//! Runs the points of an experiment on all cores.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::plan::{Experiment, PlanError, Point};
use super::results::{Outcome, PointResult};
use super::spec::{Fabric, Workload};
use super::{flows, long_flows, ports, reaction, stream};
use crate::seeds;

/// Options of a run. Only `seeds` changes the figures of simulations.
#[derive(Clone, Debug)]
pub struct Options {
    /// Number of seeds: the runs have the seeds 1 to this number. `None`: the number in the document.
    pub seeds: Option<u32>,
    /// Largest number of parallel runs; `None`: the number of cores. On real ports always 1.
    pub jobs: Option<NonZero<usize>>,
    /// The `roce` program, for experiments on real ports.
    pub program: PathBuf,
    /// The command that repeats the run, shown in the report.
    pub command: String,
}

/// An experiment that could not be run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The document is invalid.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A point failed.
    #[error("{place}, seed {seed}: {what}")]
    Point {
        /// The point's variant and values.
        place: String,
        /// The point's seed.
        seed: u64,
        /// The error message.
        what: String,
    },
}

/// Runs all points. Calls `progress` with the number of points done and the number of all points.
///
/// # Errors
/// The error of the first failed point, in the order of the points. All points are run nevertheless.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Outcome, RunError> {
    let points = experiment.points(options.seeds.unwrap_or(experiment.seeds))?;
    let uses_ports = points.iter().any(|point| matches!(point.setup.fabric, Fabric::Ports { .. }));
    let jobs = if uses_ports { 1 } else { options.jobs.map_or(usize::MAX, NonZero::get) };
    let done = AtomicUsize::new(0);
    progress(0, points.len());
    let places: Vec<u64> = (0..points.len() as u64).collect();
    let results = seeds::run_all(&places, jobs, |place| {
        let result = run_point(&points[place as usize], options);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1, points.len());
        result
    });
    let mut finished = Vec::with_capacity(points.len());
    for (point, result) in points.iter().zip(results) {
        finished.push(result.map_err(|what| RunError::Point {
            place: experiment.place(point.variant, &point.values),
            seed: point.seed,
            what,
        })?);
    }
    let mut outcome =
        Outcome { experiment: experiment.clone(), points: finished, command: options.command.clone() };
    outcome.relate();
    Ok(outcome)
}

fn run_point(point: &Point, options: &Options) -> Result<PointResult, String> {
    match (&point.setup.fabric, &point.setup.workload) {
        (Fabric::Ports { .. }, _) => ports::run(point, &options.program),
        (_, Workload::Stream { .. }) => stream::run(point),
        (_, Workload::Reaction { .. }) => reaction::run(point),
        (_, Workload::LongFlows { .. }) => long_flows::run(point),
        (_, Workload::Flows { .. } | Workload::Incast { .. }) => flows::run(point),
    }
}
