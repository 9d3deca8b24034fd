//! Results as CSV and JSON.

use serde_json::{Map, Value, json};

use super::error::ReportError;
use crate::experiment::results::{FlowResult, RateResult, Sample};
use crate::experiment::{Outcome, Point, PointResult};

/// CSV with a row per point: variant, values of the sweeps, seed, figures. The cell of a figure that a point does not
/// have is empty.
pub fn csv(outcome: &Outcome) -> Result<String, ReportError> {
    let figures = outcome.figures();
    let columns: Vec<&str> = figures.iter().map(|figure| figure.name).chain(["ended_early"]).collect();
    table(outcome, &columns, |run| {
        let mut row: Vec<String> = figures
            .iter()
            .map(|figure| run.get(*figure).map_or(String::new(), |value| value.to_string()))
            .collect();
        row.push(run.ended_early.clone().unwrap_or_default());
        [row]
    })
}

/// The first cells of a point's rows: variant, values, seed.
fn place(outcome: &Outcome, point: &Point) -> Vec<String> {
    let experiment = &outcome.experiment;
    let mut row = vec![experiment.variants[point.variant].clone()];
    row.extend(experiment.sweeps.iter().zip(&point.values).map(|(sweep, at)| sweep.value_name(*at)));
    row.push(point.seed.to_string());
    row
}

/// Writes a table: variant, values and seed, then `columns`, with the rows that `rows` returns for each run.
fn table<R: IntoIterator<Item = Vec<String>>>(
    outcome: &Outcome,
    columns: &[&str],
    rows: impl Fn(&PointResult) -> R,
) -> Result<String, ReportError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let keys = outcome.experiment.sweeps.iter().map(|sweep| sweep.key.as_str());
    let head = ["variant"].into_iter().chain(keys).chain(["seed"]).chain(columns.iter().copied());
    writer.write_record(head)?;
    for run in &outcome.points {
        let place = place(outcome, &run.point);
        for row in rows(run) {
            writer.write_record(place.iter().chain(&row))?;
        }
    }
    let bytes = writer.into_inner().map_err(|error| csv::Error::from(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// CSV with a row per flow of each run; `None` if the workload has no flows.
pub fn flows_csv(outcome: &Outcome) -> Result<Option<String>, ReportError> {
    if outcome.points.iter().all(|run| run.flows.is_empty()) {
        return Ok(None);
    }
    let columns = ["from", "to", "bytes", "start_ns", "fct_ns", "ideal_ns", "slowdown", "completed"];
    let rows = |run: &PointResult| {
        let row = |flow: &FlowResult| {
            let words =
                [flow.from as u64, flow.to as u64, flow.bytes.into(), flow.start_nanos, flow.fct_nanos];
            let mut row: Vec<String> = words.iter().chain([&flow.ideal_nanos]).map(u64::to_string).collect();
            row.extend([format!("{:.4}", flow.slowdown()), flow.completed.to_string()]);
            row
        };
        run.flows.iter().map(row).collect::<Vec<_>>()
    };
    table(outcome, &columns, rows).map(Some)
}

/// CSV with a row per long flow of each run; `None` if the workload has none.
///
/// # Errors
/// [`ReportError`] if the table cannot be written; no value in `outcome` causes this error.
pub fn rates_csv(outcome: &Outcome) -> Result<Option<String>, ReportError> {
    if outcome.points.iter().all(|run| run.rates.is_empty()) {
        return Ok(None);
    }
    let rows = |run: &PointResult| {
        let row = |rate: &RateResult| {
            let [from, to] = [rate.from, rate.to].map(|host| host.to_string());
            vec![from, to, rate.start_nanos.to_string(), format!("{:.6}", rate.goodput_gbits)]
        };
        run.rates.iter().map(row).collect::<Vec<_>>()
    };
    table(outcome, &["from", "to", "start_ns", "goodput_gbit_per_sec"], rows).map(Some)
}

/// CSV with a row per sample of the fabric in each run; `None` if there are no samples.
pub fn samples_csv(outcome: &Outcome) -> Result<Option<String>, ReportError> {
    if outcome.points.iter().all(|run| run.samples.is_empty()) {
        return Ok(None);
    }
    let rows = |run: &PointResult| {
        let row = |sample: &Sample| {
            vec![sample.nanos.to_string(), sample.queue_bytes.to_string(), sample.received_bytes.to_string()]
        };
        run.samples.iter().map(row).collect::<Vec<_>>()
    };
    table(outcome, &["time_ns", "longest_queue_bytes", "received_bytes"], rows).map(Some)
}

/// JSON with the document, the command, the figures of each point, and their means over the seeds with half the width of
/// the 95 % confidence interval.
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
    let means = outcome.groups().into_iter().map(|group| {
        let values = experiment.sweeps.iter().zip(&group.values);
        let values: Map<String, Value> =
            values.map(|(sweep, at)| (sweep.key.clone(), json!(sweep.value_name(*at)))).collect();
        let figures = outcome.figures().into_iter().filter_map(|figure| {
            let mean = group.mean(figure)?;
            Some((figure.name.to_owned(), json!({ "mean": mean, "ci95": group.interval(figure) })))
        });
        json!({
            "variant": experiment.variants[group.variant],
            "values": values,
            "figures": figures.collect::<Map<String, Value>>(),
        })
    });
    json!({
        "experiment": experiment.name,
        "title": experiment.title,
        "version": env!("CARGO_PKG_VERSION"),
        "command": outcome.command,
        "quick": experiment.is_quick,
        "seeds": outcome.seeds(),
        "figures": figures,
        "points": points.collect::<Vec<_>>(),
        "means": means.collect::<Vec<_>>(),
        "document": experiment.text,
    })
}
