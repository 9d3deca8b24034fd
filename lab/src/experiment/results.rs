//! What comes of an experiment: figures of each point, and of some what happened in the course of it.

use super::plan::{Experiment, Point};

/// What a figure is: its name as a column, its unit, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Figure {
    /// The name of its column.
    pub name: &'static str,
    /// As a reader reads it, with its unit.
    pub label: &'static str,
    /// How it is measured.
    pub meaning: &'static str,
}

/// Declares all figures once, each as a constant, and their list in the order of the columns.
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

/// The figure of a name, where there is one.
pub fn figure(name: &str) -> Option<Figure> {
    FIGURES.iter().copied().find(|figure| figure.name == name)
}

/// A run and what came of it.
#[derive(Clone, Debug)]
pub struct PointResult {
    /// What was run.
    pub point: Point,
    /// What was measured. A figure that makes no sense for the run is not there.
    pub figures: Vec<(Figure, f64)>,
    /// The flows, where the workload has flows.
    pub flows: Vec<FlowResult>,
    /// The fabric in the course of time, likewise.
    pub samples: Vec<Sample>,
    /// Why the run ended before its work was done, where it did.
    pub ended_early: Option<String>,
}

/// A flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowResult {
    /// The number of the host that sent.
    pub from: usize,
    /// The number of the host that received.
    pub to: usize,
    /// Payload.
    pub bytes: u32,
    /// When it was posted, since the start of the run.
    pub start_nanos: u64,
    /// Flow completion time: from its post to its completion at the sender. Where it failed or was
    /// unfinished when the run ended, until then: a lower bound.
    pub fct_nanos: u64,
    /// Whether it completed.
    pub completed: bool,
    /// What that would be with the path to itself.
    pub ideal_nanos: u64,
}

impl FlowResult {
    /// How many times longer it took than with the path to itself.
    pub fn slowdown(&self) -> f64 {
        self.fct_nanos as f64 / self.ideal_nanos as f64
    }

    /// Flow completion time in microseconds.
    pub fn fct_us(&self) -> f64 {
        self.fct_nanos as f64 / 1e3
    }
}

/// A look at the fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// When, since the start of the run.
    pub nanos: u64,
    /// The longest queue at any port of any switch.
    pub queue_bytes: u64,
    /// Bytes that all hosts received so far, headers included.
    pub received_bytes: u64,
}

impl PointResult {
    /// Nothing measured yet.
    pub(super) fn of(point: &Point) -> Self {
        PointResult {
            point: point.clone(),
            figures: Vec::new(),
            flows: Vec::new(),
            samples: Vec::new(),
            ended_early: None,
        }
    }

    /// Notes a figure.
    pub(super) fn set(&mut self, figure: Figure, value: f64) {
        self.figures.push((figure, value));
    }

    /// A figure that was measured.
    pub fn get(&self, figure: Figure) -> Option<f64> {
        self.figures.iter().find(|(measured, _)| *measured == figure).map(|(_, value)| *value)
    }
}

/// All points of an experiment, in the order of its variants, values and seeds.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What was run.
    pub experiment: Experiment,
    /// Its points.
    pub points: Vec<PointResult>,
    /// The command that does it again.
    pub command: String,
}

/// The runs of one variant and one combination of values, over all seeds.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// The place of the variant.
    pub variant: usize,
    /// The places of the sweeps' values.
    pub values: Vec<usize>,
    /// Its runs by seed.
    pub runs: Vec<&'a PointResult>,
}

impl Group<'_> {
    /// The mean of a figure over the seeds that have it.
    pub fn mean(&self, figure: Figure) -> Option<f64> {
        let values: Vec<f64> = self.runs.iter().filter_map(|run| run.get(figure)).collect();
        if values.is_empty() { None } else { Some(values.iter().sum::<f64>() / values.len() as f64) }
    }

    /// The least and the most of a figure over the seeds.
    pub fn range(&self, figure: Figure) -> Option<(f64, f64)> {
        let values = self.runs.iter().filter_map(|run| run.get(figure));
        values.fold(None, |range, value| match range {
            None => Some((value, value)),
            Some((least, most)) => Some((value.min(least), value.max(most))),
        })
    }
}

impl Outcome {
    /// The runs with seeds together, in order.
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

    /// How many seeds were run.
    pub fn seeds(&self) -> u64 {
        self.points.iter().map(|run| run.point.seed).max().unwrap_or(0)
    }

    /// Sets [`KEPT`], which needs the results of other points.
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
