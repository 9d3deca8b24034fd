//! Reports of results: CSV and JSON files, an HTML page, a table for the terminal.

mod charts;
mod error;
mod html;
mod number;
mod plot;
mod rows;
mod text;

pub use error::ReportError;
pub use html::html;
pub use rows::{csv, flows_csv, json, rates_csv, samples_csv};
pub use text::table;

use std::path::{Path, PathBuf};

use crate::experiment::Outcome;

/// Writes `points.csv`, `results.json` and `report.html`, and if there are flows `flows.csv` or `rates.csv`, and
/// `samples.csv`, into `dir`, which is created if missing. Returns the paths.
///
/// # Errors
/// [`ReportError`] if a file cannot be written or a part of the report cannot be made.
pub fn write(outcome: &Outcome, dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let told = |path: &Path| {
        let path = path.to_owned();
        |error| ReportError::File { path, error }
    };
    std::fs::create_dir_all(dir).map_err(told(dir))?;
    let json = format!("{:#}\n", json(outcome));
    let mut files = vec![("points.csv", csv(outcome)?)];
    files.extend(flows_csv(outcome)?.map(|flows| ("flows.csv", flows)));
    files.extend(rates_csv(outcome)?.map(|rates| ("rates.csv", rates)));
    files.extend(samples_csv(outcome)?.map(|samples| ("samples.csv", samples)));
    files.extend([("results.json", json), ("report.html", html(outcome)?)]);
    files
        .into_iter()
        .map(|(name, content)| {
            let path = dir.join(name);
            std::fs::write(&path, content).map_err(told(&path))?;
            Ok(path)
        })
        .collect()
}
