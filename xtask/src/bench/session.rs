//! The runs of one port: measurements in a table, figures, and progress.

use anyhow::Context as _;

use super::cores::Cores;
use super::figures::Figures;
use super::perf::{Ends, Perf};
use super::report::Row;
use super::testpmd;
use crate::progress::Progress;
use crate::workspace::is_in_path;

/// Ethernet, IPv6, UDP, BTH and ICRC around a payload, in bytes.
const HEADERS_BYTES: u32 = 78;

/// A measurement with the row that reports it.
pub(super) struct Measurement {
    pub(super) row: Row,
    how: How,
}

/// The program that measures.
enum How {
    /// `dpdk-testpmd`, if it is installed.
    Testpmd { payload_bytes: u32 },
    /// `roce perf` with these arguments, whose result has the figure under this key.
    Perf { key: &'static str, args: &'static str, extent: Extent },
    /// A program of perftest with these arguments, under `roce run`, whose row has the figure in this column.
    Perftest { column: usize, args: &'static str, extent: Extent },
    /// `xtask tcp-lat` between the same ends.
    Tcp { key: &'static str, pause_usec: u32, iters: u32 },
}

/// Length of a measurement.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    /// The seconds of the session.
    Seconds,
    /// Number of messages.
    Iters(u32),
}

impl Extent {
    /// Returns `args` and the option for this length, in a session of `seconds`.
    fn added_to(self, args: &str, seconds: u32) -> String {
        match self {
            Extent::Seconds => format!("{args} -D {seconds}"),
            Extent::Iters(iters) => format!("{args} -n {iters}"),
        }
    }
}

impl Measurement {
    /// Returns a measurement by `dpdk-testpmd`, which is left out if that is not installed.
    pub(super) fn testpmd(row: Row, payload_bytes: u32) -> Measurement {
        Measurement { row, how: How::Testpmd { payload_bytes } }
    }

    /// Returns a measurement by `roce perf` with `args`, whose result has the figure under `key`.
    pub(super) fn perf(row: Row, key: &'static str, args: &'static str, extent: Extent) -> Measurement {
        Measurement { row, how: How::Perf { key, args, extent } }
    }

    /// Returns a measurement by a program of perftest with `args`, whose row has the figure in `column`, counted from 0.
    pub(super) fn perftest(row: Row, column: usize, args: &'static str, extent: Extent) -> Measurement {
        Measurement { row, how: How::Perftest { column, args, extent } }
    }

    /// Returns a measurement by `xtask tcp-lat`, whose client pauses before each of `iters` messages, and whose result
    /// has the figure under `key`.
    pub(super) fn tcp(row: Row, key: &'static str, pause_usec: u32, iters: u32) -> Measurement {
        Measurement { row, how: How::Tcp { key, pause_usec, iters } }
    }

    fn is_possible(&self) -> bool {
        !matches!(self.how, How::Testpmd { .. }) || is_in_path(testpmd::PROGRAM)
    }
}

/// Returns the number of measurements of a table that are possible here.
pub(super) fn steps(table: &[Measurement]) -> usize {
    table.iter().filter(|measurement| measurement.is_possible()).count()
}

/// State of the runs of one port.
pub(super) struct Session<'a> {
    pub(super) perf: Perf,
    pub(super) cores: Cores,
    progress: Progress,
    figures: &'a mut Figures,
}

impl Session<'_> {
    /// Adds a figure of this run.
    pub(super) fn note(&mut self, name: &str, figure: f64) {
        self.progress.say(&format!("  {name}: {figure:.4}"));
        self.figures.add(name, figure);
    }

    /// Adds a figure of this run, without a line of progress.
    pub(super) fn add(&mut self, name: &str, figure: f64) {
        self.figures.add(name, figure);
    }

    /// Records that this run has no figures of these names, of which `of` is the common part, because of `error`.
    pub(super) fn note_missing(&mut self, of: &str, names: &[String], error: &anyhow::Error) {
        self.progress.say(&format!("  {of}: no figure: {error:#}"));
        names.iter().for_each(|name| self.figures.add_missing(name));
    }

    /// Records that a measurement is done.
    pub(super) fn step(&self) {
        self.progress.step();
    }

    /// Makes the measurements of a table.
    pub(super) fn measure(&mut self, table: &[Measurement], ends: &Ends) -> anyhow::Result<()> {
        for measurement in table.iter().filter(|measurement| measurement.is_possible()) {
            let figure = match measurement.how {
                How::Testpmd { payload_bytes } => {
                    testpmd::rate_mpps(payload_bytes + HEADERS_BYTES, self.cores, self.perf.seconds())?
                }
                How::Perf { key, args, extent } => {
                    let args = extent.added_to(args, self.perf.seconds());
                    self.perf.run(ends, self.cores, &args, &[])?.number(&format!("/results/0/{key}"))?
                }
                How::Perftest { column, args, extent } => {
                    let args = extent.added_to(args, self.perf.seconds());
                    let row = self.perf.perftest(ends, self.cores, &args)?;
                    *row.get(column)
                        .with_context(|| format!("`{args}` prints no column {column}: {row:?}"))?
                }
                How::Tcp { key, pause_usec, iters } => {
                    let args = format!("-n {iters} --pause {pause_usec}");
                    self.perf.tcp(ends, self.cores, &args)?.number(&format!("/results/0/{key}"))?
                }
            };
            self.note(&measurement.row.name, figure);
            self.step();
        }
        Ok(())
    }
}

/// Number and length of the runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Runs {
    pub(super) count: u32,
    pub(super) seconds: u32,
    pub(super) cores: Cores,
}

impl Runs {
    /// Calls `measure`, which has `steps` measurements, once per run over port `port`.
    pub(super) fn each(
        self,
        port: &str,
        steps: usize,
        figures: &mut Figures,
        mut measure: impl FnMut(&mut Session<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let progress = Progress::of(steps * self.count as usize, format!("Measuring {port}"));
        let mut session = Session { perf: Perf::new(self.seconds), cores: self.cores, progress, figures };
        for run in 1..=self.count {
            session.progress.say(&format!("run {run} of {}, {port}", self.count));
            session.cores = self.cores.of_run(run);
            measure(&mut session)?;
        }
        Ok(())
    }
}
