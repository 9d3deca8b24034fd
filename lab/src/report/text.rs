//! A table for the terminal: means over the seeds, with 95 % confidence intervals.

use super::number::number;
use crate::experiment::Outcome;

pub(super) struct Grid {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

/// Means over the seeds with their 95 % confidence intervals, with a row per variant and combination of values.
pub(super) fn grid(outcome: &Outcome) -> Grid {
    let experiment = &outcome.experiment;
    let figures = outcome.figures();
    let labels = experiment.sweeps.iter().map(|sweep| sweep.label.clone());
    let names = figures.iter().map(|figure| figure.label.to_owned());
    let head = ["variant".to_owned()].into_iter().chain(labels).chain(names).collect();
    let groups = outcome.groups();
    let rows = groups.iter().map(|group| {
        let mut row = vec![experiment.variants[group.variant].clone()];
        row.extend(experiment.sweeps.iter().zip(&group.values).map(|(sweep, at)| sweep.value_name(*at)));
        let ended = group.runs.iter().any(|run| run.ended_early.is_some());
        row.extend(figures.iter().enumerate().map(|(at, figure)| {
            let mark = if ended && at == 0 { " *" } else { "" };
            let spread = group.interval(*figure).filter(|interval| *interval > 0.0);
            let spread = spread.map_or(String::new(), |interval| format!(" +-{}", number(interval)));
            group.mean(*figure).map_or(String::new(), |mean| number(mean) + &spread + mark)
        }));
        row
    });
    Grid { head, rows: rows.collect() }
}

/// The table as text. Figures that are 0 or absent in all rows are omitted. Runs that ended early are listed.
pub fn table(outcome: &Outcome) -> String {
    let Grid { head, rows } = grid(outcome);
    let words = 1 + outcome.experiment.sweeps.len();
    let says_something =
        |column: usize| column < words || rows.iter().any(|row| !["", "0"].contains(&row[column].as_str()));
    let columns: Vec<usize> = (0..head.len()).filter(|column| says_something(*column)).collect();
    let width =
        |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let line = |row: &Vec<String>| {
        let cells = columns.iter().map(|column| {
            let (cell, width) = (&row[*column], width(*column));
            if *column < words { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    let mut text: String = [&head].into_iter().chain(&rows).map(line).collect();
    let early = outcome.points.iter().filter_map(|run| run.ended_early.as_ref().map(|why| (run, why)));
    for (run, why) in early {
        let place = outcome.experiment.place(run.point.variant, &run.point.values);
        text += &format!("* {place}, seed {}: {why}\n", run.point.seed);
    }
    text
}
