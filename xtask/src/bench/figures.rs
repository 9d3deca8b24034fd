//! Figures of all runs.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Figures by the names of their rows.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Figures {
    runs: BTreeMap<String, Vec<f64>>,
    missing: BTreeSet<String>,
}

impl Figures {
    /// Adds the figure of a run.
    pub(super) fn add(&mut self, name: &str, figure: f64) {
        self.runs.entry(name.to_owned()).or_default().push(figure);
    }

    /// Records that a run has given no figure.
    pub(super) fn add_missing(&mut self, name: &str) {
        self.missing.insert(name.to_owned());
    }

    /// Returns the figures of a row, in the order of the runs.
    pub(super) fn of(&self, name: &str) -> &[f64] {
        self.runs.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns whether a row was measured, even if without a figure.
    pub(super) fn has(&self, name: &str) -> bool {
        self.runs.contains_key(name) || self.missing.contains(name)
    }

    /// Returns the number of rows of which a run has given no figure.
    pub(super) fn missing_count(&self) -> usize {
        self.missing.len()
    }

    /// Adds all figures of `other`.
    pub(super) fn merge(&mut self, other: Figures) {
        for (name, figures) in other.runs {
            self.runs.entry(name).or_default().extend(figures);
        }
        self.missing.extend(other.missing);
    }
}
