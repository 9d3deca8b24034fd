//! The report: a table, or JSON.

use std::fmt;

use serde::Serialize;

use super::figures::Figures;
use crate::stats::{median, sorted};

/// Narrowest first column of the table.
const TEXT_COLUMNS_MIN: usize = 52;

/// A row, before its figures.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) unit: &'static str,
    /// The row whose median this row's is divided by.
    of: Option<Of>,
    pub(super) target: Option<Target>,
}

impl Row {
    /// Returns a row without ratio or target.
    pub(super) fn new(name: impl Into<String>, text: impl Into<String>, unit: &'static str) -> Row {
        Row { name: name.into(), text: text.into(), unit, of: None, target: None }
    }

    /// Returns the row with a ratio of its median to that of the row `name`, of which one unit is `factor` units of this
    /// row.
    pub(super) fn of(self, name: &'static str, factor: f64) -> Row {
        Row { of: Some(Of { name, factor }), ..self }
    }

    /// Returns the row with a target.
    pub(super) fn target(self, target: Target) -> Row {
        Row { target: Some(target), ..self }
    }
}

/// A row to compare with.
#[derive(Clone, Copy, Debug)]
struct Of {
    name: &'static str,
    factor: f64,
}

/// A bound of a median, or of its ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    ValueAtLeast(f64),
    ValueAtMost(f64),
    RatioAtLeast(f64),
    RatioAtMost(f64),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::ValueAtLeast(least) => write!(f, "value >= {least}"),
            Target::ValueAtMost(most) => write!(f, "value <= {most}"),
            Target::RatioAtLeast(least) => write!(f, "ratio >= {least}"),
            Target::RatioAtMost(most) => write!(f, "ratio <= {most}"),
        }
    }
}

/// Result of a comparison with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Reached,
    Missed,
    NotMeasured,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Verdict::Reached => "reached",
            Verdict::Missed => "missed",
            Verdict::NotMeasured => "not measured",
        })
    }
}

impl Target {
    fn verdict(self, value: Option<f64>, ratio: Option<f64>) -> Verdict {
        let is_reached = match self {
            Target::ValueAtLeast(least) => value.map(|value| value >= least),
            Target::ValueAtMost(most) => value.map(|value| value <= most),
            Target::RatioAtLeast(least) => ratio.map(|ratio| ratio >= least),
            Target::RatioAtMost(most) => ratio.map(|ratio| ratio <= most),
        };
        match is_reached {
            Some(true) => Verdict::Reached,
            Some(false) => Verdict::Missed,
            None => Verdict::NotMeasured,
        }
    }
}

/// A row with its figures.
#[derive(Debug, Serialize)]
pub(super) struct Entry {
    name: String,
    text: String,
    unit: &'static str,
    median: Option<f64>,
    /// Figures of the runs, in ascending order.
    runs: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio_of: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<Verdict>,
}

/// Returns the entries of the rows that were measured.
pub(super) fn entries(rows: &[Row], figures: &Figures) -> Vec<Entry> {
    let measured = rows.iter().filter(|row| figures.has(&row.name));
    measured.map(|row| entry(row, figures)).collect()
}

fn entry(row: &Row, figures: &Figures) -> Entry {
    let value = median(figures.of(&row.name));
    let base = row.of.and_then(|of| Some((of.name, median(figures.of(of.name))? * of.factor)));
    // To the digits that are printed: the verdict is that of the printed ratio.
    let ratio = value.zip(base).map(|(value, (_, base))| (value / base * 1000.0).round() / 1000.0);
    Entry {
        name: row.name.clone(),
        text: row.text.clone(),
        unit: row.unit,
        median: value,
        runs: sorted(figures.of(&row.name)),
        ratio,
        ratio_of: base.map(|(name, _)| name).filter(|_| ratio.is_some()),
        target: row.target.map(|target| target.to_string()),
        verdict: row.target.map(|target| target.verdict(value, ratio)),
    }
}

/// Returns the entries as a JSON array, with a line for each.
pub(super) fn json(entries: &[Entry]) -> anyhow::Result<String> {
    let lines: Vec<String> = entries.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(format!("[\n  {}\n]\n", lines.join(",\n  ")))
}

/// Returns the entries as a table.
pub(super) fn table(entries: &[Entry], runs: u32) -> String {
    let columns = entries.iter().map(|entry| entry.text.chars().count()).max().unwrap_or(0);
    let columns = columns.max(TEXT_COLUMNS_MIN);
    let title = format!("median of {runs}");
    let mut table = line(columns, [&title, "", "", "ratio", "of", "target"]);
    for entry in entries {
        let value = entry.median.map_or_else(|| "-".to_owned(), |value| format!("{value:.3}"));
        let ratio = entry.ratio.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let target = entry.target.iter().zip(&entry.verdict);
        let target: String = target.map(|(target, verdict)| format!("{target}, {verdict}")).collect();
        let of = entry.ratio_of.unwrap_or_default();
        table += &line(columns, [&entry.text, &value, entry.unit, &ratio, of, &target]);
    }
    table
}

fn line(columns: usize, [text, value, unit, ratio, of, target]: [&str; 6]) -> String {
    let line = format!("{text:<columns$} {value:>9} {unit:<7} {ratio:>6}  {of:<16} {target}");
    format!("{}\n", line.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_follow_the_target() {
        use Target::{RatioAtLeast, RatioAtMost, ValueAtLeast, ValueAtMost};
        for (target, value, ratio, expected) in [
            (ValueAtLeast(4.0), Some(4.0), None, Verdict::Reached),
            (ValueAtLeast(4.0), Some(3.999), None, Verdict::Missed),
            (ValueAtLeast(4.0), None, None, Verdict::NotMeasured),
            (ValueAtMost(1.0), Some(1.0), None, Verdict::Reached),
            (ValueAtMost(1.0), Some(1.001), None, Verdict::Missed),
            (RatioAtLeast(0.7), Some(9.0), Some(0.7), Verdict::Reached),
            (RatioAtLeast(0.7), Some(9.0), Some(0.699), Verdict::Missed),
            (RatioAtLeast(0.7), Some(9.0), None, Verdict::NotMeasured),
            (RatioAtMost(1.05), Some(9.0), Some(1.05), Verdict::Reached),
            (RatioAtMost(1.05), Some(9.0), Some(1.051), Verdict::Missed),
        ] {
            assert_eq!(target.verdict(value, ratio), expected, "{target}: {value:?}, {ratio:?}");
        }
    }

    /// A bare port of 1 Mpps of 4096 B, a limit program with three quarters of that, and a row without a figure.
    fn example() -> Vec<Entry> {
        let rows = [
            Row::new("bare", "bare port", "Mpps"),
            Row::new("absent", "not measured at all", "Mpps"),
            Row::new("limit", "limit program", "Gb/sec")
                .of("bare", 32.768)
                .target(Target::RatioAtLeast(0.75)),
            Row::new("kept", "  kept of it", "").target(Target::ValueAtLeast(0.97)),
        ];
        let mut figures = Figures::default();
        for (name, figure) in
            [("bare", 1.5), ("limit", 24.58), ("bare", 0.5), ("limit", 24.57), ("bare", 1.0)]
        {
            figures.add(name, figure);
        }
        figures.add_missing("kept");
        entries(&rows, &figures)
    }

    #[test]
    fn a_row_has_its_median_and_its_ratio() {
        let lines = [
            "median of 3                                                             ratio  of               target",
            "bare port                                                1.000 Mpps",
            "limit program                                           24.575 Gb/sec   0.750  bare             ratio >= 0.75, reached",
            "  kept of it                                                 -                                  value >= 0.97, not measured",
        ];
        assert_eq!(table(&example(), 3).lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_long_text_widens_its_column() {
        let mut entries = example();
        entries[0].text = "x".repeat(60);
        let table = table(&entries, 3);
        let ends: Vec<_> = table.lines().map(|line| line.find("0.750")).collect();
        assert_eq!(ends, [None, None, Some(60 + 1 + 9 + 1 + 7 + 2), None]);
    }

    #[test]
    fn json_has_ratio_and_target_where_a_row_has() {
        let expected = r#"[
  {"name":"bare","text":"bare port","unit":"Mpps","median":1.0,"runs":[0.5,1.0,1.5]},
  {"name":"limit","text":"limit program","unit":"Gb/sec","median":24.575,"runs":[24.57,24.58],"ratio":0.75,"ratio_of":"bare","target":"ratio >= 0.75","verdict":"reached"},
  {"name":"kept","text":"  kept of it","unit":"","median":null,"runs":[],"target":"value >= 0.97","verdict":"not_measured"}
]
"#;
        assert_eq!(json(&example()).unwrap(), expected);
    }
}
