//! Which plots a report has, by what was measured.

use super::ReportError;
use super::plot::{Plot, Scale, Series, Titles, lines, stacked_bars};
use crate::experiment::results::{self, Figure};
use crate::experiment::{Outcome, Sweep};

/// Figures that are drawn over the first sweep, and what to see in them.
const OVER_FIRST_SWEEP: &[(Figure, Scale, &str)] = &[
    (results::GOODPUT, Scale::FromZero, ""),
    (results::KEPT, Scale::FromZero, "1 is what the network itself leaves."),
    (results::RETRANSMISSION, Scale::LogWhereFar, "The time from a packet's first departure to its second."),
    (results::COST, Scale::LogWhereFar, "How much later the message completed than undisturbed."),
    (results::NAK_GENERATION, Scale::LogWhereFar, ""),
    (results::NAK_REACTION, Scale::LogWhereFar, ""),
];

/// All plots of a report.
pub(super) fn charts(outcome: &Outcome) -> Result<Vec<Plot>, ReportError> {
    let figures = outcome.figures();
    let mut plots = Vec::new();
    if let Some(first) = outcome.experiment.sweeps.first() {
        for (figure, scale, note) in OVER_FIRST_SWEEP.iter().filter(|(figure, ..)| figures.contains(figure)) {
            plots.push(over_first_sweep(outcome, first, *figure, *scale, note)?);
        }
    }
    if figures.contains(&results::RESENT) && !figures.contains(&results::COST) {
        plots.extend(breakdown(outcome)?);
    }
    Ok(plots)
}

fn over_first_sweep(
    outcome: &Outcome,
    first: &Sweep,
    figure: Figure,
    scale: Scale,
    note: &str,
) -> Result<Plot, ReportError> {
    let experiment = &outcome.experiment;
    let names: Vec<String> = (0..first.values.len()).map(|at| first.value_name(at)).collect();
    let mut series: Vec<Series<Option<f64>>> = Vec::new();
    for group in outcome.groups() {
        let others = experiment.sweeps.iter().zip(&group.values).skip(1);
        let name = others.fold(experiment.variants[group.variant].clone(), |name, (sweep, at)| {
            format!("{name}, {}", sweep.value_name(*at))
        });
        let at = series.iter().position(|series| series.name == name).unwrap_or_else(|| {
            series.push(Series { name, values: vec![None; names.len()] });
            series.len() - 1
        });
        series[at].values[group.values[0]] = group.mean(figure);
    }
    series.retain(|series| series.values.iter().any(Option::is_some));
    let (name, _) = figure.label.split_once(',').unwrap_or((figure.label, ""));
    let title = format!("{}{} over {}", name[..1].to_uppercase(), &name[1..], first.label);
    lines(&Titles { title: &title, note, x: &first.label, y: figure.label }, &names, &series, scale)
}

/// What was sent again for each packet that was lost, by variant, at each value of the first sweep that
/// lost any.
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
        let (resent, needless) = (share(results::RESENT), share(results::NEEDLESS));
        if resent.iter().all(|share| *share == 0.0) {
            continue;
        }
        let useful = resent.iter().zip(&needless).map(|(resent, needless)| resent - needless).collect();
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
            Series { name: "sent again for a packet that was lost".to_owned(), values: useful },
            Series { name: "sent again needlessly".to_owned(), values: needless },
        ];
        plots.push(stacked_bars(&titles, &names, &series)?);
    }
    Ok(plots)
}
