//! The HTML page, in one file without external resources.

use minijinja::{Environment, context};

use super::charts::charts;
use super::error::ReportError;
use super::number::number;
use super::text::{Grid, grid};
use crate::experiment::Outcome;
use crate::experiment::plan::Comparison;
use crate::experiment::results::{Figure, figure};

const TEMPLATE: &str = include_str!("report.html");

/// Renders the HTML page of `outcome`.
///
/// # Errors
/// [`ReportError`] if a plot cannot be drawn.
pub fn html(outcome: &Outcome) -> Result<String, ReportError> {
    let experiment = &outcome.experiment;
    let Grid { head, rows } = grid(outcome);
    let mut environment = Environment::new();
    environment.add_template("report.html", TEMPLATE)?;
    let figures: Vec<_> = outcome
        .figures()
        .iter()
        .map(|figure| context! { name => figure.name, label => figure.label, meaning => figure.meaning })
        .collect();
    let early: Vec<String> = outcome
        .points
        .iter()
        .filter_map(|run| {
            let why = run.ended_early.as_ref()?;
            let place = experiment.place(run.point.variant, &run.point.values);
            Some(format!("{place}, seed {}: {why}", run.point.seed))
        })
        .collect();
    let page = environment.get_template("report.html")?.render(context! {
        title => experiment.title,
        name => experiment.name,
        paragraphs => paragraphs(&experiment.description),
        command => outcome.command,
        version => env!("CARGO_PKG_VERSION"),
        seeds => outcome.seeds(),
        points => outcome.points.len(),
        quick => experiment.is_quick,
        citation => experiment.paper.as_ref().map(|paper| paper.citation.trim()),
        finding => experiment.paper.as_ref().map(|paper| paragraphs(&paper.finding)),
        comparisons => comparisons(outcome),
        plots => charts(outcome)?,
        words => 1 + experiment.sweeps.len(),
        head => head,
        rows => rows,
        early => early,
        figures => figures,
        document => experiment.text,
    })?;
    Ok(page)
}

fn paragraphs(text: &str) -> Vec<&str> {
    text.split("\n\n").map(str::trim).filter(|paragraph| !paragraph.is_empty()).collect()
}

/// Returns the rows of the comparisons. Each row compares one figure of two variants with the same values.
fn comparisons(outcome: &Outcome) -> Vec<minijinja::Value> {
    let experiment = &outcome.experiment;
    let mut lines = Vec::new();
    for comparison in &experiment.comparisons {
        let place = |name: &str| experiment.variants.iter().position(|variant| variant == name);
        let (Some(ours), Some(theirs)) = (place(&comparison.variant), place(&comparison.against)) else {
            continue;
        };
        let groups = outcome.groups();
        for values in experiment.combinations() {
            let of = |variant: usize| {
                groups.iter().find(|group| group.variant == variant && group.values == values)
            };
            let (Some(ours), Some(theirs)) = (of(ours), of(theirs)) else { continue };
            let named = experiment.sweeps.iter().zip(&values).map(|(sweep, at)| sweep.value_name(*at));
            let named = named.collect::<Vec<_>>().join(", ");
            for figure in comparison.figures.iter().filter_map(|name| figure(name)) {
                if let (Some(ours), Some(theirs)) = (ours.mean(figure), theirs.mean(figure)) {
                    lines.push(line(comparison, &named, figure, ours, theirs));
                }
            }
        }
    }
    lines
}

fn line(comparison: &Comparison, values: &str, figure: Figure, ours: f64, theirs: f64) -> minijinja::Value {
    let less = 100.0 * (1.0 - ours / theirs);
    let change = if less >= 0.0 { format!("{less:.0} % less") } else { format!("{:.0} % more", -less) };
    context! {
        variant => comparison.variant,
        against => comparison.against,
        values => values,
        figure => figure.label,
        ours => number(ours),
        theirs => number(theirs),
        change => change,
        paper => comparison.paper,
    }
}
