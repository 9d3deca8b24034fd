//! The result of a check.

use serde::Serialize;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    Ok,
    Note,
    Warning,
    Blocks,
}

impl Severity {
    pub(super) fn text(self) -> &'static str {
        match self {
            Severity::Ok => "ok",
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Blocks => "BLOCKS",
        }
    }
}

/// Result of one check.
#[derive(Debug, Serialize)]
pub(super) struct Finding {
    pub(super) topic: &'static str,
    pub(super) severity: Severity,
    /// The condition found, and its meaning.
    pub(super) what: String,
    /// The commands that correct it, one per line.
    pub(super) mend: Vec<String>,
}

impl Finding {
    pub(super) fn new(topic: &'static str, severity: Severity, what: impl Into<String>) -> Self {
        Finding { topic, severity, what: what.into(), mend: Vec::new() }
    }

    pub(super) fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Finding::new(topic, Severity::Ok, what)
    }

    pub(super) fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend.push(command.into());
        self
    }
}
