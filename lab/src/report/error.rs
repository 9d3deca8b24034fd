//! The error of a report.

use std::path::PathBuf;

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
