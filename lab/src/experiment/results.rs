//! Results of an experiment: figures of each point, and for flows their times and samples of the fabric.

use roce::port::probability::Probability;

pub use super::figures::*;
use super::plan::{Experiment, Point};

/// The results of one run.
#[derive(Clone, Debug)]
pub struct PointResult {
    /// The point that was run.
    pub point: Point,
    /// The figures measured, without figures that do not apply to the run.
    pub figures: Vec<(Figure, f64)>,
    /// The flows; empty if the workload has none.
    pub flows: Vec<FlowResult>,
    /// The goodput of each long flow; empty for other workloads.
    pub rates: Vec<RateResult>,
    /// Samples of the fabric over time; empty if the workload has no flows.
    pub samples: Vec<Sample>,
    /// Reason for which the run ended before all messages completed; `None` if all messages completed.
    pub ended_early: Option<String>,
}

/// The result of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowResult {
    /// Number of the sending host.
    pub from: usize,
    /// Number of the receiving host.
    pub to: usize,
    /// Payload in bytes.
    pub bytes: u32,
    /// Time at which the message was posted, since the start of the run.
    pub start_nanos: u64,
    /// Flow completion time: from the post to the completion at the sender. For a flow that did not complete with
    /// success, the time until the end of the run, a lower bound.
    pub fct_nanos: u64,
    /// Whether the flow completed with success.
    pub completed: bool,
    /// Flow completion time if the flow were alone in the network.
    pub ideal_nanos: u64,
}

impl FlowResult {
    /// Slowdown: `fct_nanos` divided by `ideal_nanos`.
    pub fn slowdown(&self) -> f64 {
        self.fct_nanos as f64 / self.ideal_nanos as f64
    }

    /// Flow completion time in microseconds.
    pub fn fct_us(&self) -> f64 {
        self.fct_nanos as f64 / 1e3
    }
}

/// The result of one long flow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateResult {
    /// Number of the host that sends the payload.
    pub from: usize,
    /// Number of the host that receives the payload.
    pub to: usize,
    /// Time of its first post, since the start of the run.
    pub start_nanos: u64,
    /// Payload completed in the measured time, over that time, in Gbit/s.
    pub goodput_gbits: f64,
}

/// A sample of the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time since the start of the run.
    pub nanos: u64,
    /// Bytes of the longest output queue of any switch.
    pub queue_bytes: u64,
    /// Bytes sent to all hosts by their switches so far, headers included.
    pub received_bytes: u64,
}

impl PointResult {
    /// Empty results of a point.
    pub(super) fn of(point: &Point) -> Self {
        PointResult {
            point: point.clone(),
            figures: Vec::new(),
            flows: Vec::new(),
            rates: Vec::new(),
            samples: Vec::new(),
            ended_early: None,
        }
    }

    /// Adds a figure.
    pub(super) fn set(&mut self, figure: Figure, value: f64) {
        self.figures.push((figure, value));
    }

    /// The value of a figure; `None` if it was not measured.
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.figures.iter().find(|(measured, _)| *measured == figure).map(|(_, value)| *value)
    }
}

/// The results of an experiment. The points are in the order of variants, values and seeds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The experiment that was run.
    pub experiment: Experiment,
    /// The results of the points.
    pub points: Vec<PointResult>,
    /// The command that repeats the run.
    pub command: String,
}

/// The runs of one variant and one combination of values, over all seeds.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// Index of the variant.
    pub variant: usize,
    /// Index of the value of each sweep.
    pub values: Vec<usize>,
    /// The runs, in the order of their seeds.
    pub runs: Vec<&'a PointResult>,
}

/// 97.5 % quantiles of Student's t distribution, for 1 degree of freedom on.
const T_QUANTILES: [f64; 20] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086,
];
/// Quantile for 21 or more degrees of freedom: that of 21, the largest of them, rounded up.
const T_QUANTILE_LIMIT: f64 = 2.080;

impl Group<'_> {
    /// The mean of `figure` over the runs that have this figure; `None` if no run has it.
    pub fn mean(&self, figure: Figure) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(figure)).collect();
        if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
    }

    /// Returns half the width of the 95 % confidence interval of the mean of `figure` (Student's t); `None` with
    /// fewer than two runs that have this figure.
    pub fn interval(&self, figure: Figure) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(figure)).collect();
        let (count, mean) = (values.len() as f64, self.mean(figure)?);
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let freedom = values.len().checked_sub(1).filter(|freedom| *freedom > 0)?;
        let t = T_QUANTILES.get(freedom - 1).copied().unwrap_or(T_QUANTILE_LIMIT);
        Some(t * (squares / freedom as f64 / count).sqrt())
    }

    /// The minimum and maximum of `figure` over the runs; `None` if no run has this figure.
    pub fn range(&self, figure: Figure) -> Option<(f64, f64)> {
        let values = self.runs.iter().filter_map(|run| run.get(figure));
        values.fold(None, |range, value| match range {
            None => Some((value, value)),
            Some((least, most)) => Some((value.min(least), value.max(most))),
        })
    }
}

impl Outcome {
    /// The runs in groups of one variant and one combination of values.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for run in &self.points {
            let (variant, values) = (run.point.variant, &run.point.values);
            match groups.iter_mut().find(|group| group.variant == variant && group.values == *values) {
                Some(group) => group.runs.push(run),
                None => groups.push(Group { variant, values: values.clone(), runs: vec![run] }),
            }
        }
        groups
    }

    /// The figures that any run has, in the order of the columns.
    pub fn figures(&self) -> Vec<Figure> {
        FIGURES
            .iter()
            .copied()
            .filter(|figure| self.points.iter().any(|run| run.get(*figure).is_some()))
            .collect()
    }

    /// Number of seeds that were run.
    pub fn seeds(&self) -> u64 {
        self.points.iter().map(|run| run.point.seed).max().unwrap_or(0)
    }

    /// Sets [`KEPT`] of each run, relative to the run without loss that has the same variant, seed and values of all
    /// other sweeps. No effect without a sweep of `loss.chance`.
    pub(super) fn relate(&mut self) {
        let first: Vec<(usize, Vec<usize>, u64, f64)> = self
            .points
            .iter()
            .filter(|run| run.point.setup.loss.chance == Probability::NEVER)
            .filter_map(|run| {
                let point = &run.point;
                Some((point.variant, point.values.clone(), point.seed, run.get(GOODPUT)?))
            })
            .collect();
        let Some(loss_sweep) = self.experiment.sweeps.iter().position(|sweep| sweep.key == "loss.chance")
        else {
            return;
        };
        for run in &mut self.points {
            let point = &run.point;
            let same = |values: &[usize]| {
                values.iter().zip(&point.values).enumerate().all(|(at, (a, b))| at == loss_sweep || a == b)
            };
            let lossless = first.iter().find(|(variant, values, seed, _)| {
                *variant == point.variant && *seed == point.seed && same(values)
            });
            if let (Some((.., lossless)), Some(goodput)) = (lossless, run.get(GOODPUT)) {
                let kept = goodput / (lossless * (1.0 - point.setup.loss.chance.value()));
                run.set(KEPT, kept);
            }
        }
    }
}
