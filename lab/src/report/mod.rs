//! Reports of results: CSV and JSON files, an HTML page, a table for the terminal.

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

/// Reason why a report could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A file or directory could not be written.
    #[error("cannot write {path}: {error}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// A plot could not be drawn.
    #[error("a plot cannot be drawn: {0}")]
    Plot(String),
    /// The template of the HTML page failed.
    #[error("the page cannot be made: {0}")]
    Page(#[from] minijinja::Error),
    /// A CSV table could not be written.
    #[error("the table cannot be made: {0}")]
    Csv(#[from] csv::Error),
}

/// Writes `points.csv`, `results.json` and `report.html`, and if there are flows `flows.csv` and `samples.csv`,
/// into `dir`, which is created if missing. Returns the paths.
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

/// Formats a number with about four significant digits; with an exponent below 0.001 only.
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
