//! Goodput of this stack and of the kernel's TCP over one path that loses packets, by the same nftables rules.
//!
//! In each run the schemes take turns at each probability of loss. A cell is a scheme at a probability:
//!
//! ```text
//!   write_selective_repeat_0.01         Gb/sec at 1 %
//!   write_selective_repeat_0.01_kept    the same, divided by the scheme's own without loss in the same run
//!   write_selective_repeat_0.01_again   packets retransmitted for each that was lost
//!   write_selective_repeat_0.01_lost    percentage of the packets that was lost
//! ```

mod iperf3;
mod path;
mod plan;
mod table;

use std::collections::BTreeMap;

use super::figures::Figures;
use super::loss::{LOSSLESS, Op};
use super::session::{Runs, Session};
use super::veth;
use path::{Counts, Path};
use plan::{Cell, Recovery, Sender};

pub(super) use plan::Plan;

/// Debian packages of the programs that only this table runs.
pub(super) const PACKAGES: &[&str] = &["iperf3", "nftables", "ethtool"];

impl Plan {
    /// Returns the report as a table.
    pub(super) fn table(&self, figures: &Figures, runs: u32) -> String {
        table::table(self, figures, runs)
    }

    /// Starts this program in a network namespace of its own, and adds the figures that it prints.
    pub(super) fn start_measuring(&self, runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
        let ops: Vec<_> = self.ops.iter().map(Op::to_string).collect();
        let losses: Vec<_> = self.losses.iter().map(f64::to_string).collect();
        let (ops, losses) = (ops.join(","), losses.join(","));
        veth::start_measuring(runs, &["--port", "veth-loss", "--op", &ops, "--loss", &losses], figures)
    }

    /// Makes all runs. The process must be in a network namespace of its own.
    pub(super) fn measure(&self, runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
        let mut path = Path::new()?;
        let mut is_reversed = false;
        runs.each("veth-loss", self.all_cells().len(), figures, |session| {
            let measured = self.measure_run(session, &mut path, is_reversed);
            is_reversed = !is_reversed;
            measured
        })
    }

    /// Makes a run. Runs alternate the order of the schemes.
    fn measure_run(
        &self,
        session: &mut Session<'_>,
        path: &mut Path,
        is_reversed: bool,
    ) -> anyhow::Result<()> {
        let mut lossless = BTreeMap::new();
        for loss in self.losses() {
            path.lose(loss.unwrap_or(LOSSLESS))?;
            let mut cells = self.cells(loss);
            if is_reversed {
                cells.reverse();
            }
            for cell in cells {
                let base = lossless.get(&cell.scheme.name()).copied();
                match cell.measure(session, path) {
                    Ok(outcome) => {
                        cell.note(session, &outcome, base);
                        if loss.is_none() {
                            lossless.insert(cell.scheme.name(), outcome.gbit_per_sec);
                        }
                    }
                    Err(error) => session.note_missing(&cell.name(), &[cell.name()], &error),
                }
                session.step();
            }
        }
        Ok(())
    }
}

/// Figures of a measurement.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    gbit_per_sec: f64,
    retransmitted_pkts: f64,
    lost_percent: f64,
    /// Packets lost, without ACKs: these are not retransmitted.
    lost_pkts: u64,
}

impl Cell {
    fn measure(self, session: &mut Session<'_>, path: &mut Path) -> anyhow::Result<Outcome> {
        path.set_segmentation(self.scheme.is_segmented)?;
        // Discarded: packets of the measurement before that arrived after its count.
        path.take_counts()?;
        let (gbit_per_sec, retransmitted_pkts) = match self.scheme.sender {
            Sender::Roce { op, recovery } => {
                let args = roce_args(op, recovery, session.perf.seconds());
                let report = session.perf.run(path.ends(), session.cores, &args, &[])?;
                let goodput = report.number("/results/0/bw_average_gbit_per_sec")?;
                (goodput, report.number("/counters/retransmitted_pkts")?)
            }
            Sender::Tcp { congestion } => {
                let tcp = iperf3::measure(path, session.cores, congestion, session.perf.seconds())?;
                (tcp.gbit_per_sec, tcp.retransmitted_pkts as f64)
            }
        };
        let counts = path.take_counts()?;
        let lost_percent = counts.share()? * 100.0;
        Ok(Outcome { gbit_per_sec, retransmitted_pkts, lost_percent, lost_pkts: self.lost_pkts(counts) })
    }

    fn lost_pkts(self, counts: Counts) -> u64 {
        match self.scheme.sender {
            // The client retransmits the request of a lost READ response.
            Sender::Roce { op: Op::Read, .. } => counts.lost(),
            Sender::Roce { .. } | Sender::Tcp { .. } => counts.lost_to_server(),
        }
    }

    /// Adds the figures of a run in which the scheme had the goodput `lossless` without loss.
    fn note(self, session: &mut Session<'_>, outcome: &Outcome, lossless: Option<f64>) {
        session.note(&self.name(), outcome.gbit_per_sec);
        session.add(&self.lost_name(), outcome.lost_percent);
        if self.loss.is_none() {
            return;
        }
        if let Some(lossless) = lossless {
            session.add(&self.kept_name(), outcome.gbit_per_sec / lossless);
        }
        if outcome.lost_pkts > 0 {
            session.add(&self.again_name(), outcome.retransmitted_pkts / outcome.lost_pkts as f64);
        }
    }
}

fn roce_args(op: Op, recovery: Recovery, seconds: u32) -> String {
    let more = if op == Op::Read { " -o 64" } else { "" };
    format!("{op}-bw -s 65536 -q 1 -m 4096 -D {seconds} --recovery {}{more}", recovery.arg)
}

#[cfg(test)]
mod tests {
    use super::plan::{RECOVERIES, SELECTIVE_REPEAT};
    use super::*;

    #[test]
    fn reads_have_more_outstanding() {
        let expected = "read-bw -s 65536 -q 1 -m 4096 -D 3 --recovery selective-repeat -o 64";
        assert_eq!(roce_args(Op::Read, SELECTIVE_REPEAT, 3), expected);
        assert!(roce_args(Op::Write, RECOVERIES[2], 1).ends_with("-D 1 --recovery go-back-n"));
    }
}
