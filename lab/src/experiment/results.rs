//! Results of an experiment: figures of each point, and for flows their times and samples of the fabric.

use super::plan::{Experiment, Point};

/// A figure: name, label with unit, and definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// Name of its column in files.
    pub name: &'static str,
    /// Label in tables and plots, with its unit.
    pub label: &'static str,
    /// Definition, shown in the report.
    pub meaning: &'static str,
}

/// Declares a constant for each figure, and their list in the order of the columns.
macro_rules! figures {
    ($($constant:ident: $name:literal, $label:literal, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub const $constant: Figure = Figure { name: $name, label: $label, meaning: $meaning };)*
        /// All figures, in the order of the columns.
        pub const FIGURES: &[Figure] = &[$($constant),*];
    };
}

figures! {
    GOODPUT: "goodput_gbit_per_sec", "goodput, Gbit/s",
        "Payload of completed messages over the time from the first post to the last completion.";
    KEPT: "kept", "kept",
        "Goodput over (1 - loss) x the goodput of the same variant and seed at the sweep's first value.";
    COMPLETED: "completed_messages", "messages completed",
        "Messages completed with success.";
    FLOWS: "completed_flows", "flows completed",
        "Flows completed with success.";
    SLOWDOWN: "average_slowdown", "average slowdown",
        "Mean over the flows of slowdown: the flow's completion time over what it would be with the path to itself.";
    SLOWDOWN_99: "p99_slowdown", "99th percentile of slowdown",
        "The slowdown that 99 % of the flows do not exceed.";
    FCT: "average_fct_us", "average FCT, us",
        "Mean over the flows of flow completion time: from the post of the message to its completion at the sender. A flow that failed or was unfinished counts with the time until the run ended.";
    FCT_99: "p99_fct_us", "99th percentile of FCT, us",
        "The flow completion time that 99 % of the flows do not exceed.";
    LAST: "last_completion_us", "last completion, us",
        "When the last flow completed, counted from the start of the run; of an incast, its request completion time.";
    GOODPUT_ALL: "fabric_goodput_gbit_per_sec", "goodput of all, Gbit/s",
        "Payload of all completed flows over the time until the last completion.";
    SENT: "sent_pkts", "packets sent",
        "Packets that the requester (of flows: all hosts) sent, retransmissions included.";
    LOST: "lost_pkts", "packets lost",
        "Packets that the network lost or corrupted: of two hosts, on the link that carries the payload (of READs, requests too); of a fabric, on all links, those included that found no room.";
    RETRANSMITTED: "retransmitted_pkts", "packets retransmitted",
        "Packets that the requester (of READs: either end) retransmitted.";
    NEEDLESS: "needless_pkts", "retransmitted needlessly",
        "Packets retransmitted beyond those that were lost.";
    NAKS: "loss_reports", "loss reports",
        "NAKs, selective acknowledges that report a gap, and responses found missing, at the requester.";
    TIMEOUTS: "timeouts", "timeouts",
        "Expiries of the local ACK timeout and of the adaptive one.";
    PROBES: "tail_probes", "tail probes",
        "Last packets retransmitted early, to hear what became of them.";
    MARKED: "marked_pkts", "packets marked",
        "Packets that switches marked as having met congestion.";
    PAUSES: "pauses", "pauses",
        "Times that a port paused who sends to it (priority flow control).";
    PAUSED: "paused_us", "paused, us",
        "How long links stood paused, summed over all links.";
    QUEUE_PEAK: "queue_peak_kbytes", "longest queue, kB",
        "The most bytes that waited for one link at once, in units of 1,000.";
    HOPS: "packet_hops", "packet-hops",
        "Packets over links: the size of the simulation.";
    NAK_GENERATION: "nak_generation_us", "NAK or CNP generation, us",
        "From the arrival of the packet that shows the event at the responder to the last bit of its report (NAK, selective acknowledge, CNP) leaving.";
    NAK_REACTION: "nak_reaction_us", "NAK reaction, us",
        "From the arrival of that report at the requester to the last bit of the retransmission leaving.";
    RETRANSMISSION: "retransmission_us", "retransmission, us",
        "From the last bit of the packet leaving for the first time to the last bit of its retransmission.";
    COST: "cost_us", "cost, us",
        "How much later the message completed than without the event.";
    BY_TIMEOUT: "by_timeout", "by timeout",
        "1 where the retransmission was not asked for by the responder but came by a timer or a tail probe.";
}

/// The figure with this name; `None` if there is none.
pub fn figure(name: &str) -> Option<Figure> {
    FIGURES.iter().copied().find(|figure| figure.name == name)
}

/// The results of one run.
#[derive(Clone, Debug)]
pub struct PointResult {
    /// The point that was run.
    pub point: Point,
    /// The figures measured; those that do not apply to the run are absent.
    pub figures: Vec<(Figure, f64)>,
    /// The flows; empty if the workload has none.
    pub flows: Vec<FlowResult>,
    /// Samples of the fabric over time; empty if the workload has no flows.
    pub samples: Vec<Sample>,
    /// Reason for which the run ended before all messages completed; `None` if they did.
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
    /// Time of its post, since the start of the run.
    pub start_nanos: u64,
    /// Flow completion time: from its post to its completion at the sender. If it did not complete with success,
    /// the time until the end of the run, a lower bound.
    pub fct_nanos: u64,
    /// Whether it completed with success.
    pub completed: bool,
    /// Flow completion time if the flow were alone in the network.
    pub ideal_nanos: u64,
}

impl FlowResult {
    /// Slowdown: flow completion time divided by that of the flow alone.
    pub fn slowdown(&self) -> f64 {
        self.fct_nanos as f64 / self.ideal_nanos as f64
    }

    /// Flow completion time in microseconds.
    pub fn fct_us(&self) -> f64 {
        self.fct_nanos as f64 / 1e3
    }
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

/// All points of an experiment, in the order of its variants, values and seeds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The experiment that was run.
    pub experiment: Experiment,
    /// The results of its points.
    pub points: Vec<PointResult>,
    /// The command that repeats it.
    pub command: String,
}

/// The runs of one variant and one combination of values, over all seeds.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// Index of the variant.
    pub variant: usize,
    /// Index of the value of each sweep.
    pub values: Vec<usize>,
    /// Its runs, in the order of seeds.
    pub runs: Vec<&'a PointResult>,
}

impl Group<'_> {
    /// The mean of a figure over the seeds that have it; `None` if none has.
    pub fn mean(&self, figure: Figure) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(figure)).collect();
        if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
    }

    /// The minimum and maximum of a figure over the seeds; `None` if none has it.
    pub fn range(&self, figure: Figure) -> Option<(f64, f64)> {
        let values = self.runs.iter().filter_map(|run| run.get(figure));
        values.fold(None, |range, value| match range {
            None => Some((value, value)),
            Some((least, most)) => Some((value.min(least), value.max(most))),
        })
    }
}

impl Outcome {
    /// The runs grouped over seeds, in order.
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

    /// Sets [`KEPT`] of each run, relative to the run without loss of the same variant, seed and other values. No
    /// effect without a sweep of `loss.chance`.
    pub(super) fn relate(&mut self) {
        let first: Vec<(usize, Vec<usize>, u64, f64)> = self
            .points
            .iter()
            .filter(|run| run.point.setup.loss.chance.0 == 0.0)
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
                let kept = goodput / (lossless * (1.0 - point.setup.loss.chance.0));
                run.set(KEPT, kept);
            }
        }
    }
}
