//! Results as files: CSV and JSON for programs, one page of HTML for readers, a table for the terminal.

mod charts;
mod html;
mod plot;
mod rows;
mod text;

pub use html::html;
pub use rows::{csv, flows_csv, json, samples_csv};
pub use text::table;

use std::path::{Path, PathBuf};

use crate::experiment::Outcome;

/// A report that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file.
    #[error("cannot write {path}: {error}")]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// A plot.
    #[error("a plot cannot be drawn: {0}")]
    Plot(String),
    /// The page's template.
    #[error("the page cannot be made: {0}")]
    Page(#[from] minijinja::Error),
    /// CSV.
    #[error("the table cannot be made: {0}")]
    Csv(#[from] csv::Error),
}

/// Writes `points.csv`, `results.json` and `report.html`, of flows also `flows.csv` and `samples.csv`, into `dir`, which is made where it is not there.
///
/// # Errors
/// Where a file cannot be written.
pub fn write(outcome: &Outcome, dir: &Path) -> Result<Vec<PathBuf>, ReportError> {
    let told = |path: &Path| {
        let path = path.to_owned();
        |error| ReportError::File { path, error }
    };
    std::fs::create_dir_all(dir).map_err(told(dir))?;
    let json = format!("{:#}\n", json(outcome));
    let mut files = vec![("points.csv", csv(outcome)?)];
    files.extend(flows_csv(outcome)?.map(|flows| ("flows.csv", flows)));
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

/// A number as a reader wants it: four digits that count, no exponent where it is not needed.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    match value {
        _ if value == value.trunc() && size < 1e15 => format!("{value}"),
        _ if size >= 1000.0 => format!("{value:.0}"),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 10.0 => format!("{value:.2}"),
        _ if size >= 0.001 => format!("{value:.3}"),
        _ => format!("{value:.2e}"),
    }
}
