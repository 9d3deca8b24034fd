//! Schemes, probabilities of loss, and the rows of their combinations.

use crate::bench::loss::{Op, rounded, values};
use crate::bench::report::Row;

const DEFAULT_OPS: &[Op] = &[Op::Write, Op::Send];
const DEFAULT_LOSSES: &[f64] = &[0.001, 0.01, 0.02, 0.05, 0.1];

/// Recovery of this stack, by its name on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recovery {
    pub(super) arg: &'static str,
    pub(super) text: &'static str,
}

pub(super) const SELECTIVE_REPEAT: Recovery = Recovery { arg: "selective-repeat", text: "selective repeat" };
pub(super) const RECOVERIES: [Recovery; 3] = [
    SELECTIVE_REPEAT,
    Recovery { arg: "improved-go-back-n", text: "improved go-back-N" },
    Recovery { arg: "go-back-n", text: "go-back-N" },
];

/// Congestion control of TCP.
pub(super) const TCP_SCHEMES: [&str; 2] = ["bbr", "cubic"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    Roce { op: Op, recovery: Recovery },
    Tcp { congestion: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Scheme {
    pub(super) sender: Sender,
    /// Whether segmentation offload is on, so that a drop loses up to 64 KiB.
    pub(super) is_segmented: bool,
}

impl Scheme {
    pub(super) fn name(self) -> String {
        let sender = match self.sender {
            Sender::Roce { op, recovery } => format!("{op}_{}", recovery.arg.replace('-', "_")),
            Sender::Tcp { congestion } => format!("tcp_{congestion}"),
        };
        sender + if self.is_segmented { "_segmented" } else { "" }
    }

    pub(super) fn text(self) -> String {
        let sender = match self.sender {
            Sender::Roce { op, recovery } => format!("{}, {}", op.to_string().to_uppercase(), recovery.text),
            Sender::Tcp { congestion } => format!("TCP {}", congestion.to_uppercase()),
        };
        sender + if self.is_segmented { ", segmented" } else { "" }
    }
}

/// A scheme at a probability of loss, or without loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) scheme: Scheme,
    pub(super) loss: Option<f64>,
}

impl Cell {
    /// Returns the name of the row of goodput, with which those of the other rows begin.
    pub(super) fn name(self) -> String {
        let loss = self.loss.map_or("lossless".to_owned(), |loss| loss.to_string());
        format!("{}_{loss}", self.scheme.name())
    }

    pub(super) fn kept_name(self) -> String {
        self.name() + "_kept"
    }

    pub(super) fn again_name(self) -> String {
        self.name() + "_again"
    }

    pub(super) fn lost_name(self) -> String {
        self.name() + "_lost"
    }

    fn rows(self) -> Vec<Row> {
        let text = format!("{}, {}", self.scheme.text(), loss_text(self.loss));
        let mut rows = vec![Row::new(self.name(), text, "Gb/sec")];
        if self.loss.is_some() {
            rows.push(Row::new(self.kept_name(), "  kept of it without loss", ""));
            rows.push(Row::new(self.again_name(), "  packets retransmitted for each lost", ""));
        }
        rows.push(Row::new(self.lost_name(), "  packets lost", "%"));
        rows
    }
}

pub(super) fn loss_text(loss: Option<f64>) -> String {
    loss.map_or("no loss".to_owned(), |loss| format!("{} %", rounded(loss * 100.0)))
}

/// The cells of the table.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(super) ops: Vec<Op>,
    pub(super) losses: Vec<f64>,
}

impl Plan {
    /// Returns the plan of these values, of which an empty list stands for the default.
    pub(crate) fn new(ops: &[Op], losses: &[f64]) -> Plan {
        Plan { ops: values(ops, DEFAULT_OPS), losses: values(losses, DEFAULT_LOSSES) }
    }

    /// Returns the probabilities of loss, of which the first is none.
    pub(super) fn losses(&self) -> Vec<Option<f64>> {
        std::iter::once(None).chain(self.losses.iter().copied().map(Some)).collect()
    }

    pub(super) fn cells(&self, loss: Option<f64>) -> Vec<Cell> {
        let tcp = TCP_SCHEMES.map(|congestion| Sender::Tcp { congestion });
        let roce = |recoveries: &[Recovery]| -> Vec<Sender> {
            let of = |&op| recoveries.iter().map(move |&recovery| Sender::Roce { op, recovery });
            self.ops.iter().flat_map(of).collect()
        };
        let schemes = |roce: Vec<Sender>, is_segmented| {
            roce.into_iter().chain(tcp).map(move |sender| Scheme { sender, is_segmented })
        };
        let whole = schemes(roce(&[SELECTIVE_REPEAT]), true).filter(|_| loss.is_none());
        let cell = |scheme| Cell { scheme, loss };
        schemes(roce(&RECOVERIES), false).chain(whole).map(cell).collect()
    }

    pub(super) fn all_cells(&self) -> Vec<Cell> {
        self.losses().into_iter().flat_map(|loss| self.cells(loss)).collect()
    }

    /// Returns the rows of the report as JSON.
    pub(crate) fn rows(&self) -> Vec<Row> {
        self.all_cells().into_iter().flat_map(Cell::rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scheme_has_a_cell_for_each_loss() {
        let plan = Plan::new(&[], &[]);
        let names: Vec<_> = plan.cells(None).into_iter().map(Cell::name).collect();
        let expected = [
            "write_selective_repeat_lossless",
            "write_improved_go_back_n_lossless",
            "write_go_back_n_lossless",
            "send_selective_repeat_lossless",
            "send_improved_go_back_n_lossless",
            "send_go_back_n_lossless",
            "tcp_bbr_lossless",
            "tcp_cubic_lossless",
            "write_selective_repeat_segmented_lossless",
            "send_selective_repeat_segmented_lossless",
            "tcp_bbr_segmented_lossless",
            "tcp_cubic_segmented_lossless",
        ];
        assert_eq!(names, expected);
        assert_eq!(plan.all_cells().len(), 12 + 5 * 8);
        let plan = Plan::new(&[Op::Read, Op::Read], &[0.07]);
        assert_eq!(plan.all_cells().len(), 8 + 5);
        assert_eq!(plan.cells(Some(0.07))[0].name(), "read_selective_repeat_0.07");
    }

    #[test]
    fn rows_without_loss_have_no_share() {
        let plan = Plan::new(&[Op::Send], &[0.07]);
        let rows = |loss| plan.cells(loss)[0].rows();
        let of =
            |rows: Vec<Row>| rows.into_iter().map(|row| (row.name, row.text, row.unit)).collect::<Vec<_>>();
        let row =
            |name: &str, text: &str, unit| (format!("send_selective_repeat_{name}"), text.to_owned(), unit);
        let expected = [
            row("lossless", "SEND, selective repeat, no loss", "Gb/sec"),
            row("lossless_lost", "  packets lost", "%"),
        ];
        assert_eq!(of(rows(None)), expected);
        let expected = [
            row("0.07", "SEND, selective repeat, 7 %", "Gb/sec"),
            row("0.07_kept", "  kept of it without loss", ""),
            row("0.07_again", "  packets retransmitted for each lost", ""),
            row("0.07_lost", "  packets lost", "%"),
        ];
        assert_eq!(of(rows(Some(0.07))), expected);
    }
}
