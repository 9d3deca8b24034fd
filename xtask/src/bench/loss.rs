//! Goodput by selective repeat over a memif that loses frames both ways, compared with the same memif without loss.
//!
//! The table has a series of rows for each operation, message size and number of queue pairs. A series is one run of
//! `roce perf --loss-turns`, in which the probabilities of loss take turns:
//!
//! ```text
//!   write_lossless     Gb/sec without loss
//!   write_kept_0.01    goodput at 1 %, divided by that without loss and by 0.99    a row for each probability
//!   write_again        packets retransmitted for each that was lost
//! ```
//!
//! While a packet is lost, the work requests posted after its work request are transmitted, but not completed. With
//! fewer work requests than the window has packets, the requester therefore stops after each loss, although its window
//! is not full. So the send queue has as many work requests as the window has packets.
//!
//! Each process has a processor, and one thread (`--progress app`). With the background thread of the default policy,
//! four threads would share the two processors, and a turn of 20 ms would measure the kernel's scheduler.

use std::fmt;

use anyhow::{Context as _, bail};
use clap::ValueEnum;

use super::figures::Figures;
use super::perf::{Ends, PerfReport};
use super::report::{Row, Target};
use super::session::{Runs, Session};

/// Probabilities of loss per series, at most: `roce perf --loss-turns` has 12, and the first is that without loss.
const LOSSES_MAX: usize = 11;
/// Probability in the turns without loss: not 0, so that the port draws a random number per frame there too, which
/// costs time by itself.
pub(super) const LOSSLESS: f64 = 1e-9;
/// Packets retransmitted for each that was lost, at most.
const AGAIN_MAX: f64 = 1.02;
/// Path MTU in bytes.
const PATH_MTU_BYTES: u32 = 4096;
/// Default window of selective repeat, in packets.
const WINDOW_PKTS: u32 = 1024;
/// Default depth of the send queue of `roce perf`, and of perftest.
const DEFAULT_DEPTH: u32 = 128;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Op {
    Send,
    Write,
    Read,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Op::Send => "send",
            Op::Write => "write",
            Op::Read => "read",
        })
    }
}

/// The cells of the table: every combination.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Grid {
    ops: Vec<Op>,
    sizes_bytes: Vec<u32>,
    qps: Vec<u32>,
    losses: Vec<f64>,
    placement: Placement,
}

/// Placement of SENDs and WRITEs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Placement {
    /// Payload is placed on arrival
    #[default]
    Relaxed,
    /// Packets above a lost packet are buffered, as without --relaxed_placement
    InOrder,
}

const DEFAULT_OPS: &[Op] = &[Op::Send, Op::Write, Op::Read];
const DEFAULT_SIZE_BYTES: u32 = 65_536;
const DEFAULT_QPS: u32 = 1;
const DEFAULT_LOSSES: &[f64] = &[0.01, 0.02, 0.05];

impl Grid {
    /// Returns the grid of these values, of which an empty list stands for the default.
    pub(super) fn new(
        ops: &[Op],
        sizes_bytes: &[u32],
        qps: &[u32],
        losses: &[f64],
        placement: Placement,
    ) -> anyhow::Result<Grid> {
        let grid = Grid {
            placement,
            ops: values(ops, DEFAULT_OPS),
            sizes_bytes: values(sizes_bytes, &[DEFAULT_SIZE_BYTES]),
            qps: values(qps, &[DEFAULT_QPS]),
            losses: values(losses, DEFAULT_LOSSES),
        };
        let count = grid.losses.len();
        if count > LOSSES_MAX {
            bail!(
                "--loss has {count} values, and {LOSSES_MAX} at most take turns in one run: measure the others apart"
            );
        }
        Ok(grid)
    }

    fn series(&self) -> Vec<Series> {
        let mut all = Vec::new();
        for &op in &self.ops {
            for &size_bytes in &self.sizes_bytes {
                let placement = self.placement;
                all.extend(self.qps.iter().map(|&qps| Series { op, size_bytes, qps, placement }));
            }
        }
        all
    }

    /// Returns the rows of the report.
    pub(super) fn rows(&self) -> Vec<Row> {
        let is_default = self.series().iter().all(Series::is_default);
        self.series().iter().flat_map(|series| series.rows(&self.losses, is_default)).collect()
    }

    /// Makes all runs.
    pub(super) fn measure(&self, runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
        let all = self.series();
        let losses = std::iter::once(&LOSSLESS).chain(&self.losses).map(f64::to_string);
        let turns = ["--loss-turns".to_owned(), losses.collect::<Vec<_>>().join(",")];
        runs.each("loss", all.len(), figures, |session| {
            all.iter().for_each(|series| series.measure(session, &self.losses, &turns));
            Ok(())
        })
    }
}

/// Returns the values given, each once, or the default if there are none.
pub(super) fn values<T: Copy + PartialEq>(given: &[T], default: &[T]) -> Vec<T> {
    let mut values = Vec::new();
    for value in if given.is_empty() { default } else { given } {
        if !values.contains(value) {
            values.push(*value);
        }
    }
    values
}

/// Parses a probability of loss.
pub(super) fn parse_loss(text: &str) -> Result<f64, String> {
    let loss = text.parse().ok().filter(|loss| *loss > 0.0 && *loss < 1.0);
    loss.ok_or_else(|| format!("`{text}` is no probability above 0 and below 1, as 0.01 is"))
}

/// Cells of one run of `roce perf`: all losses of an operation, message size and number of queue pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Series {
    op: Op,
    size_bytes: u32,
    qps: u32,
    placement: Placement,
}

impl Series {
    fn is_default(&self) -> bool {
        (self.size_bytes, self.qps) == (DEFAULT_SIZE_BYTES, DEFAULT_QPS)
    }

    /// Returns the number of work requests that have as many packets as the window; at least [`DEFAULT_DEPTH`].
    fn depth(&self) -> u32 {
        (WINDOW_PKTS / self.size_bytes.div_ceil(PATH_MTU_BYTES)).max(DEFAULT_DEPTH)
    }

    /// Returns the start of the names of rows.
    fn name(&self) -> String {
        let Series { op, size_bytes, qps, .. } = self;
        if self.is_default() { op.to_string() } else { format!("{op}_{size_bytes}_{qps}qp") }
    }

    fn kept_name(&self, loss: f64) -> String {
        format!("{}_kept_{loss}", self.name())
    }

    fn rows(&self, losses: &[f64], is_default_grid: bool) -> Vec<Row> {
        let Series { op, size_bytes, qps, .. } = self;
        let what = if is_default_grid { String::new() } else { format!(" -s {size_bytes} -q {qps}") };
        let text = format!("roce perf {op}-bw{what}, selective repeat{}, no loss", self.order());
        let mut rows = vec![Row::new(format!("{}_lossless", self.name()), text, "Gb/sec")];
        for (at, &loss) in losses.iter().enumerate() {
            let both_ways = if at == 0 { " lost each way" } else { "" };
            let (share, percent) = (rounded(1.0 - loss), rounded(loss * 100.0));
            let text = format!("  kept of it x {share} at {percent} %{both_ways}");
            let row = Row::new(self.kept_name(loss), text, "");
            rows.push(match kept_target(loss) {
                Some(target) => row.target(target),
                None => row,
            });
        }
        let again = Row::new(format!("{}_again", self.name()), "  packets retransmitted for each lost", "");
        rows.push(again.target(Target::ValueAtMost(AGAIN_MAX)));
        rows
    }

    /// Returns the words of a row for placement in order; of READs, which have no placement, no word.
    fn order(&self) -> &'static str {
        if self.op != Op::Read && self.placement == Placement::InOrder { ", placement in order" } else { "" }
    }

    fn args(&self, seconds: u32) -> String {
        let Series { op, size_bytes, qps, placement } = self;
        let more = match (op, placement) {
            (Op::Read, _) if self.depth() == DEFAULT_DEPTH => " -o 64",
            (Op::Read, _) | (_, Placement::InOrder) => "",
            (_, Placement::Relaxed) => " --relaxed_placement",
        };
        let depth = match self.depth() {
            DEFAULT_DEPTH => String::new(),
            depth => format!(" -t {depth} -r {depth}"),
        };
        format!(
            "{op}-bw -s {size_bytes} -q {qps} -m {PATH_MTU_BYTES} -D {seconds} --progress app \
             --recovery selective-repeat{depth}{more}"
        )
    }

    /// Makes a run. After an error the figures are missing, and the other series are measured nevertheless.
    fn measure(&self, session: &mut Session<'_>, losses: &[f64], turns: &[String]) {
        let args = self.args(session.perf.seconds());
        match session.perf.run(&Ends::memif(), session.cores, &args, turns) {
            Ok(report) => {
                for (name, figure) in self.figures(losses, &report) {
                    match figure {
                        Ok(figure) => session.note(&name, figure),
                        Err(error) => session.note_missing(&name, std::slice::from_ref(&name), &error),
                    }
                }
            }
            Err(error) => {
                let names: Vec<String> = self.rows(losses, false).into_iter().map(|row| row.name).collect();
                session.note_missing(&self.name(), &names, &error);
            }
        }
        session.step();
    }

    /// Returns the figures of all rows.
    fn figures(&self, losses: &[f64], report: &PerfReport) -> Vec<(String, anyhow::Result<f64>)> {
        let lossless = report.number("/loss_turns/0/gbit_per_sec");
        let mut figures = vec![(format!("{}_lossless", self.name()), lossless)];
        for (turn, &loss) in (1..).zip(losses) {
            figures.push((self.kept_name(loss), report.number(&format!("/loss_turns/{turn}/kept"))));
        }
        figures.push((format!("{}_again", self.name()), self.again(report)));
        figures
    }

    /// Returns the packets that the client retransmitted for each that it lost: of READs, lost responses too, because
    /// the client requests them anew. A lost ACK is replaced by the next.
    fn again(&self, report: &PerfReport) -> anyhow::Result<f64> {
        let retransmitted = report.number("/counters/retransmitted_pkts")?;
        let mut lost = report.number("/faults/sent/dropped")?;
        if self.op == Op::Read {
            lost += report.number("/faults/received/dropped")?;
        }
        Some(retransmitted / lost).filter(|again| again.is_finite()).context("no packet was lost")
    }
}

/// Returns the target at a probability of loss; none is set above 5 %.
fn kept_target(loss: f64) -> Option<Target> {
    match loss {
        ..=0.02 => Some(Target::ValueAtLeast(0.97)),
        ..=0.05 => Some(Target::ValueAtLeast(0.9)),
        _ => None,
    }
}

/// Returns a number without the digits that binary fractions leave: 7 for 7.000000000000001.
pub(super) fn rounded(number: f64) -> f64 {
    (number * 1e9).round() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| &*row.name).collect()
    }

    #[test]
    fn the_default_has_a_series_for_each_operation() {
        let rows = Grid::new(&[], &[], &[], &[], Placement::Relaxed).unwrap().rows();
        let expected = ["send", "write", "read"].map(|op| {
            ["lossless", "kept_0.01", "kept_0.02", "kept_0.05", "again"].map(|name| format!("{op}_{name}"))
        });
        assert_eq!(names(&rows), expected.as_flattened());
        let texts: Vec<_> = rows[..5].iter().map(|row| (&*row.text, row.unit, row.target)).collect();
        use Target::{ValueAtLeast, ValueAtMost};
        let expected = [
            ("roce perf send-bw, selective repeat, no loss", "Gb/sec", None),
            ("  kept of it x 0.99 at 1 % lost each way", "", Some(ValueAtLeast(0.97))),
            ("  kept of it x 0.98 at 2 %", "", Some(ValueAtLeast(0.97))),
            ("  kept of it x 0.95 at 5 %", "", Some(ValueAtLeast(0.9))),
            ("  packets retransmitted for each lost", "", Some(ValueAtMost(1.02))),
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn a_grid_has_a_row_for_each_cell() {
        let (sizes, qps, losses) = ([64, 65_536, 8 << 20], [1, 4, 4], [0.001, 0.07]);
        let grid = Grid::new(&[Op::Read], &sizes, &qps, &losses, Placement::InOrder).unwrap();
        let rows = grid.rows();
        assert_eq!(rows.len(), 3 * 2 * (2 + 2), "{:?}", names(&rows));
        let expected = ["read_64_1qp_lossless", "read_64_1qp_kept_0.001", "read_64_1qp_kept_0.07"];
        assert_eq!(names(&rows[..3]), expected);
        assert_eq!(names(&rows[8..10]), ["read_lossless", "read_kept_0.001"]);
        assert_eq!(rows[8].text, "roce perf read-bw -s 65536 -q 1, selective repeat, no loss");
        assert_eq!(rows[10].text, "  kept of it x 0.93 at 7 %");
        assert_eq!(
            grid.series()[5].args(2),
            "read-bw -s 8388608 -q 4 -m 4096 -D 2 --progress app --recovery selective-repeat -o 64"
        );
    }

    #[test]
    fn short_messages_have_a_work_request_for_each_packet_of_the_window() {
        use Placement::{InOrder, Relaxed};
        for (op, size_bytes, placement, expected) in [
            (Op::Write, 64, Relaxed, " -t 1024 -r 1024 --relaxed_placement"),
            (Op::Send, 4096, InOrder, " -t 1024 -r 1024"),
            (Op::Send, 4097, Relaxed, " -t 512 -r 512 --relaxed_placement"),
            (Op::Read, 64, Relaxed, " -t 1024 -r 1024"),
            (Op::Read, 65_536, Relaxed, " -o 64"),
            (Op::Write, 65_536, InOrder, ""),
            (Op::Write, 1 << 30, Relaxed, " --relaxed_placement"),
        ] {
            let args = Series { op, size_bytes, qps: 1, placement }.args(1);
            let options = "-q 1 -m 4096 -D 1 --progress app --recovery selective-repeat";
            let start = format!("{op}-bw -s {size_bytes} {options}");
            assert_eq!(args.strip_prefix(&start), Some(expected), "{args}");
        }
    }

    #[test]
    fn rows_name_placement_in_order() {
        let rows = Grid::new(&[Op::Send, Op::Read], &[], &[], &[0.01], Placement::InOrder).unwrap().rows();
        assert_eq!(rows[0].text, "roce perf send-bw, selective repeat, placement in order, no loss");
        assert_eq!(rows[3].text, "roce perf read-bw, selective repeat, no loss");
    }

    #[test]
    fn targets_fall_with_the_loss() {
        for (loss, target) in [
            (0.0001, Some(Target::ValueAtLeast(0.97))),
            (0.02, Some(Target::ValueAtLeast(0.97))),
            (0.021, Some(Target::ValueAtLeast(0.9))),
            (0.05, Some(Target::ValueAtLeast(0.9))),
            (0.051, None),
        ] {
            assert_eq!(kept_target(loss), target, "{loss}");
        }
    }

    #[test]
    fn losses_are_probabilities() {
        for (text, expected) in [
            ("0.01", Some(0.01)),
            ("1e-3", Some(0.001)),
            ("0", None),
            ("1", None),
            ("-0.1", None),
            ("x", None),
        ] {
            assert_eq!(parse_loss(text).ok(), expected, "{text}");
        }
        let many: Vec<f64> = (1..=12).map(|percent| f64::from(percent) / 100.0).collect();
        assert!(Grid::new(&[], &[], &[], &many[..11], Placement::Relaxed).is_ok());
        let error = Grid::new(&[], &[], &[], &many, Placement::Relaxed).unwrap_err().to_string();
        assert!(error.contains("12 values, and 11 at most"), "{error}");
    }

    #[test]
    fn figures_are_those_of_the_turns() {
        let json = r#"{
            "loss_turns": [{"gbit_per_sec": 40.5, "kept": 1.0}, {"gbit_per_sec": 39.0, "kept": 0.98}, {"kept": null}],
            "counters": {"retransmitted_pkts": 30},
            "faults": {"sent": {"dropped": 10}, "received": {"dropped": 20}}
        }"#;
        let report = PerfReport::parse(json, String::new()).unwrap();
        for (op, again) in [(Op::Send, 3.0), (Op::Write, 3.0), (Op::Read, 1.0)] {
            let series = Series { op, size_bytes: 64, qps: 4, placement: Placement::Relaxed };
            let figures = series.figures(&[0.01, 0.02], &report);
            let found: Vec<_> =
                figures.iter().map(|(name, figure)| (&**name, figure.as_ref().ok())).collect();
            let expected = [
                ("lossless", Some(40.5)),
                ("kept_0.01", Some(0.98)),
                ("kept_0.02", None),
                ("again", Some(again)),
            ];
            let expected = expected.map(|(name, figure)| (format!("{op}_64_4qp_{name}"), figure));
            let expected: Vec<_> = expected.iter().map(|(name, figure)| (&**name, figure.as_ref())).collect();
            assert_eq!(found, expected);
        }
        let nothing_lost = r#"{"counters": {"retransmitted_pkts": 0}, "faults": {"sent": {"dropped": 0}}}"#;
        let report = PerfReport::parse(nothing_lost, String::new()).unwrap();
        let again =
            Series { op: Op::Send, size_bytes: 64, qps: 4, placement: Placement::Relaxed }.again(&report);
        assert_eq!(again.unwrap_err().to_string(), "no packet was lost");
    }
}
