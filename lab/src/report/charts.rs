//! Selection of the plots of a report by the figures measured.

use super::error::ReportError;
use super::plot::{Plot, Scale, Series, Titles, curves, lines, stacked_bars};
use crate::experiment::results::{self, Figure, FlowResult, Sample};
use crate::experiment::{Outcome, PointResult, Sweep};

/// Figures that are drawn over the first sweep, with scale and explanation.
const OVER_FIRST_SWEEP: &[(Figure, Scale, &str)] = &[
    (results::SLOWDOWN, Scale::LogWhereFar, "1 is a flow with its path to itself."),
    (results::FCT, Scale::LogWhereFar, ""),
    (results::FCT_99, Scale::LogWhereFar, ""),
    (results::GOODPUT, Scale::FromZero, ""),
    (results::KEPT, Scale::FromZero, "1 is what the network itself leaves."),
    (
        results::LINK_SHARE,
        Scale::FromZero,
        "1 is a bottleneck that is always busy, without needless packets.",
    ),
    (results::JAIN, Scale::FromZero, "1: all flows have the same goodput."),
    (results::QUEUE_50, Scale::LogWhereFar, ""),
    (results::QUEUE_99, Scale::LogWhereFar, ""),
    (results::RETRANSMISSION, Scale::LogWhereFar, "The time from a packet's first departure to its second."),
    (results::COST, Scale::LogWhereFar, "How much later the message completed than undisturbed."),
    (results::NAK_GENERATION, Scale::LogWhereFar, ""),
    (results::NAK_REACTION, Scale::LogWhereFar, ""),
];

pub(super) fn charts(outcome: &Outcome) -> Result<Vec<Plot>, ReportError> {
    let figures = outcome.figures();
    let mut plots = Vec::new();
    if let Some(first) = outcome.experiment.sweeps.first() {
        for (figure, scale, note) in OVER_FIRST_SWEEP.iter().filter(|(figure, ..)| figures.contains(figure)) {
            for others in other_values(outcome) {
                plots.extend(over_first_sweep(outcome, first, &others, *figure, *scale, note)?);
            }
        }
    }
    plots.extend(slowdowns(outcome)?);
    plots.extend(courses(outcome)?);
    if figures.contains(&results::RETRANSMITTED) && !figures.contains(&results::COST) {
        plots.extend(breakdown(outcome)?);
    }
    Ok(plots)
}

/// The combinations of values of all sweeps except the first; each has its own plot.
fn other_values(outcome: &Outcome) -> Vec<Vec<usize>> {
    let mut others: Vec<Vec<usize>> = outcome
        .experiment
        .combinations()
        .iter()
        .filter_map(|values| Some(values.get(1..)?.to_vec()))
        .collect();
    others.sort();
    others.dedup();
    others
}

/// Plots a figure over the first sweep, with a line per variant; `None` if no run has the figure.
fn over_first_sweep(
    outcome: &Outcome,
    first: &Sweep,
    others: &[usize],
    figure: Figure,
    scale: Scale,
    note: &str,
) -> Result<Option<Plot>, ReportError> {
    let experiment = &outcome.experiment;
    let groups = outcome.groups();
    let series = experiment.variants.iter().enumerate().map(|(variant, name)| {
        let mut values = vec![None; first.values.len()];
        for group in groups.iter().filter(|group| group.variant == variant && group.values[1..] == *others) {
            values[group.values[0]] = group.mean(figure);
        }
        Series { name: name.clone(), values }
    });
    let series: Vec<Series<Option<f64>>> = series.collect();
    if series.iter().all(|series| series.values.iter().all(Option::is_none)) {
        return Ok(None);
    }
    let names: Vec<String> = (0..first.values.len()).map(|at| first.value_name(at)).collect();
    let (name, _) = figure.label.split_once(',').unwrap_or((figure.label, ""));
    let at = experiment.sweeps[1..].iter().zip(others);
    let place: String =
        at.map(|(sweep, at)| format!(", {} {}", sweep.label, sweep.value_name(*at))).collect();
    let title = format!("{}{} over {}{place}", name[..1].to_uppercase(), &name[1..], first.label);
    let titles = Titles { title: &title, note, x: &first.label, y: figure.label };
    lines(&titles, &names, &series, scale, first.is_numeric()).map(Some)
}

/// Approximate number of points of a drawn distribution.
const CDF_POINTS: usize = 300;

/// Largest number of combinations of values that have a plot of their own.
const COMBINATIONS_MAX: usize = 9;

/// For each plotted combination of values, its name and the run of each variant with seed 1.
fn side_by_side(outcome: &Outcome) -> Vec<(String, Vec<(&str, &PointResult)>)> {
    let experiment = &outcome.experiment;
    let all = experiment.combinations();
    let count = all.len().min(COMBINATIONS_MAX);
    // Evenly spaced combinations, the first and the last included.
    let combinations: Vec<_> = (0..count).map(|at| &all[at * (all.len() - 1) / (count - 1).max(1)]).collect();
    let runs = |values: &&Vec<usize>| {
        let names = experiment.sweeps.iter().zip(values.iter());
        let name = names.map(|(sweep, at)| format!(", {} {}", sweep.label, sweep.value_name(*at)));
        let of_values =
            outcome.points.iter().filter(|run| run.point.values == **values && run.point.seed == 1);
        let named = of_values.map(|run| (experiment.variants[run.point.variant].as_str(), run));
        (name.collect::<String>(), named.collect())
    };
    combinations.iter().map(runs).collect()
}

fn slowdowns(outcome: &Outcome) -> Result<Vec<Plot>, ReportError> {
    let mut plots = Vec::new();
    for (name, runs) in side_by_side(outcome) {
        let curve = |(variant, run): &(&str, &PointResult)| {
            let mut slowdowns: Vec<f64> = run.flows.iter().map(FlowResult::slowdown).collect();
            slowdowns.sort_by(f64::total_cmp);
            let share = |at: usize| (at + 1) as f64 / slowdowns.len() as f64;
            let step = (slowdowns.len() / CDF_POINTS).max(1);
            let places = (0..slowdowns.len()).filter(|at| at % step == 0 || at + 1 == slowdowns.len());
            Series {
                name: (*variant).to_owned(),
                values: places.map(|at| (slowdowns[at], share(at))).collect(),
            }
        };
        let series: Vec<Series<(f64, f64)>> =
            runs.iter().filter(|(_, run)| run.flows.len() > 1).map(curve).collect();
        if !series.is_empty() {
            let titles = Titles {
                title: &format!("Distribution of FCT slowdown{name}"),
                note: "Seed 1. A curve further left and steeper is better; 1 is a flow with its path to itself.",
                x: "slowdown: completion time over that of the flow alone",
                y: "share of flows",
            };
            plots.push(curves(&titles, &series, Scale::LogWhereFar)?);
        }
    }
    Ok(plots)
}

/// Plots the longest queue, and the receive rate of all hosts, over time.
fn courses(outcome: &Outcome) -> Result<Vec<Plot>, ReportError> {
    let mut plots = Vec::new();
    for (name, runs) in side_by_side(outcome) {
        let drawn = || runs.iter().filter(|(_, run)| run.samples.len() > 1);
        if drawn().next().is_none() {
            continue;
        }
        let micros = |sample: &Sample| sample.nanos as f64 / 1e3;
        let queue = |(variant, run): &(&str, &PointResult)| Series {
            name: (*variant).to_owned(),
            values: run
                .samples
                .iter()
                .map(|sample| (micros(sample), sample.queue_bytes as f64 / 1e3))
                .collect(),
        };
        let rate = |(variant, run): &(&str, &PointResult)| {
            let between = run.samples.windows(2).filter(|pair| pair[1].nanos > pair[0].nanos).map(|pair| {
                let bits = (pair[1].received_bytes - pair[0].received_bytes) * 8;
                (micros(&pair[1]), bits as f64 / (pair[1].nanos - pair[0].nanos) as f64)
            });
            Series { name: (*variant).to_owned(), values: between.collect() }
        };
        let (queues, rates): (Vec<_>, Vec<_>) = drawn().map(|run| (queue(run), rate(run))).unzip();
        for (what, y, series) in [
            ("Longest queue of any switch port", "longest queue, kB", queues),
            ("Received by all hosts", "received by all hosts, Gbit/s", rates),
        ] {
            let title = format!("{what} over time{name}");
            let note = "Seed 1. Packets retransmitted and headers count.";
            plots.push(curves(&Titles { title: &title, note, x: "time, us", y }, &series, Scale::FromZero)?);
        }
    }
    Ok(plots)
}

/// For each variant with retransmissions, plots the share of retransmissions of lost packets, and of spurious
/// retransmissions, in the packets sent.
fn breakdown(outcome: &Outcome) -> Result<Vec<Plot>, ReportError> {
    let experiment = &outcome.experiment;
    let mut plots = Vec::new();
    for variant in 0..experiment.variants.len() {
        let groups: Vec<_> = outcome.groups().into_iter().filter(|group| group.variant == variant).collect();
        let share = |figure: Figure| {
            groups
                .iter()
                .map(|group| {
                    let sent = group.mean(results::SENT).unwrap_or(0.0).max(1.0);
                    100.0 * group.mean(figure).unwrap_or(0.0) / sent
                })
                .collect::<Vec<f64>>()
        };
        let (retransmitted, needless) = (share(results::RETRANSMITTED), share(results::NEEDLESS));
        if retransmitted.iter().all(|share| *share == 0.0) {
            continue;
        }
        let useful = retransmitted
            .iter()
            .zip(&needless)
            .map(|(retransmitted, needless)| retransmitted - needless)
            .collect();
        let names: Vec<String> = groups
            .iter()
            .map(|group| {
                let names =
                    experiment.sweeps.iter().zip(&group.values).map(|(sweep, at)| sweep.value_name(*at));
                names.collect::<Vec<_>>().join(", ")
            })
            .collect();
        let labels: Vec<&str> = experiment.sweeps.iter().map(|sweep| sweep.label.as_str()).collect();
        let titles = Titles {
            title: &format!("Retransmission breakdown: {}", experiment.variants[variant]),
            note: "Of all packets the requester sent, how many were sent before.",
            x: &labels.join(", "),
            y: "of packets sent, %",
        };
        let series = [
            Series { name: "retransmitted for a packet that was lost".to_owned(), values: useful },
            Series { name: "retransmitted needlessly".to_owned(), values: needless },
        ];
        plots.push(stacked_bars(&titles, &names, &series)?);
    }
    Ok(plots)
}
