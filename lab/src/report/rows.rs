//! Results for programs.

use serde_json::{Map, Value, json};

use super::ReportError;
use crate::experiment::Outcome;

/// A row for each point: variant, values of the sweeps, seed, figures. A figure that a point does not
/// have is left empty.
///
/// # Errors
/// None that a caller could bring about.
pub fn csv(outcome: &Outcome) -> Result<String, ReportError> {
    let experiment = &outcome.experiment;
    let figures = outcome.figures();
    let mut writer = csv::Writer::from_writer(Vec::new());
    let keys = experiment.sweeps.iter().map(|sweep| sweep.key.as_str());
    let names = figures.iter().map(|figure| figure.name);
    writer.write_record(
        ["variant"].into_iter().chain(keys).chain(["seed"]).chain(names).chain(["ended_early"]),
    )?;
    for run in &outcome.points {
        let point = &run.point;
        let mut row = vec![experiment.variants[point.variant].clone()];
        row.extend(experiment.sweeps.iter().zip(&point.values).map(|(sweep, at)| sweep.value_name(*at)));
        row.push(point.seed.to_string());
        row.extend(
            figures.iter().map(|figure| run.get(*figure).map_or(String::new(), |value| value.to_string())),
        );
        row.push(run.ended_early.clone().unwrap_or_default());
        writer.write_record(row)?;
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Everything: what was run, with the whole document, and the figures of each point.
pub fn json(outcome: &Outcome) -> Value {
    let experiment = &outcome.experiment;
    let points = outcome.points.iter().map(|run| {
        let point = &run.point;
        let values: Map<String, Value> = experiment
            .sweeps
            .iter()
            .zip(&point.values)
            .map(|(sweep, at)| (sweep.key.clone(), json!(sweep.value_name(*at))))
            .collect();
        let figures: Map<String, Value> =
            run.figures.iter().map(|(figure, value)| (figure.name.to_owned(), json!(value))).collect();
        json!({
            "variant": experiment.variants[point.variant],
            "values": values,
            "seed": point.seed,
            "figures": figures,
            "ended_early": run.ended_early,
        })
    });
    let figures: Map<String, Value> = outcome
        .figures()
        .iter()
        .map(|figure| (figure.name.to_owned(), json!({ "label": figure.label, "meaning": figure.meaning })))
        .collect();
    json!({
        "experiment": experiment.name,
        "title": experiment.title,
        "version": env!("CARGO_PKG_VERSION"),
        "command": outcome.command,
        "quick": experiment.is_quick,
        "seeds": outcome.seeds(),
        "figures": figures,
        "points": points.collect::<Vec<_>>(),
        "document": experiment.text,
    })
}
