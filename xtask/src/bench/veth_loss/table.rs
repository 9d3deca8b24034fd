//! The report as a table, which ends with a comparison of selective repeat with TCP.

use super::plan::{Cell, Plan, SELECTIVE_REPEAT, Scheme, Sender, TCP_SCHEMES, loss_text};
use crate::bench::figures::Figures;
use crate::bench::loss::Op;
use crate::stats::median;

const NOTE: &str = "\
64 KiB messages, one queue pair or TCP stream, MTU 4200 (path MTU 4096, MSS 4148), the same loss in each direction.
Segmentation offload and GRO are off on the path, so that a drop loses one packet of the path MTU; it is on in
rows with the word segmented. TCP leaves checksums to the interface, and has socket buffers of up to 64 MiB.
";

pub(super) fn table(plan: &Plan, figures: &Figures, runs: u32) -> String {
    let title = format!("median of {runs}");
    let mut table = line(["loss", &title, "Gb/sec", "of lossless", "retransmitted/lost", "lost"]);
    for cell in plan.all_cells().into_iter().filter(|cell| figures.has(&cell.name())) {
        let text = |name: &str, unit: &str| {
            median(figures.of(name)).map_or_else(|| "-".to_owned(), |value| format!("{value:.3}{unit}"))
        };
        table += &line([
            &loss_text(cell.loss),
            &cell.scheme.text(),
            &text(&cell.name(), ""),
            &text(&cell.kept_name(), ""),
            &text(&cell.again_name(), ""),
            &text(&cell.lost_name(), " %"),
        ]);
    }
    let comparisons = plan.ops.iter().map(|&op| comparison(plan, figures, op));
    format!("{table}{NOTE}{}", comparisons.collect::<String>())
}

fn line([loss, scheme, goodput, kept, again, lost]: [&str; 6]) -> String {
    format!("{loss:<8} {scheme:<35} {goodput:>8} {kept:>12} {again:>19} {lost:>9}\n")
}

/// Returns the losses at which WRITEs, SENDs or READs by selective repeat have more goodput than TCP by each scheme, and
/// the goodput at the others.
fn comparison(plan: &Plan, figures: &Figures, op: Op) -> String {
    let of = |scheme, loss| median(figures.of(&Cell { scheme, loss }.name()));
    let tcp = |congestion| Scheme { sender: Sender::Tcp { congestion }, is_segmented: false };
    let own = Scheme { sender: Sender::Roce { op, recovery: SELECTIVE_REPEAT }, is_segmented: false };
    let (mut compared, mut ahead, mut others) = (0, Vec::new(), String::new());
    for loss in plan.losses() {
        let text = loss_text(loss);
        let goodput = of(own, loss);
        let tcps = TCP_SCHEMES.map(|congestion| (tcp(congestion), of(tcp(congestion), loss)));
        let [Some(goodput), Some(_), Some(_)] = [goodput, tcps[0].1, tcps[1].1] else {
            others += &format!("  {text}: not all measured\n");
            continue;
        };
        compared += 1;
        let faster: Vec<_> = tcps
            .iter()
            .filter_map(|(scheme, tcp)| tcp.filter(|tcp| *tcp >= goodput).map(|tcp| (scheme.text(), tcp)))
            .map(|(scheme, tcp)| format!("{scheme} has {tcp:.3} Gb/sec"))
            .collect();
        if faster.is_empty() {
            ahead.push(text);
        } else {
            others += &format!("  {text}: not ahead, {goodput:.3} Gb/sec; {}\n", faster.join(", "));
        }
    }
    if compared == 0 {
        return String::new();
    }
    let at = if ahead.is_empty() { String::new() } else { format!(": {}", ahead.join(", ")) };
    let count = format!("{} of {compared}", ahead.len());
    format!("{} is ahead of TCP BBR and TCP CUBIC in {count} rows{at}\n{others}", own.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures of the goodput of selective repeat, BBR and CUBIC, without loss and at 1 % and 5 %.
    fn figures(goodputs: [[f64; 3]; 3]) -> Figures {
        let mut figures = Figures::default();
        for (loss, goodputs) in ["lossless", "0.01", "0.05"].into_iter().zip(goodputs) {
            let schemes = ["write_selective_repeat", "tcp_bbr", "tcp_cubic"];
            for (scheme, goodput) in schemes.into_iter().zip(goodputs).filter(|(_, goodput)| *goodput > 0.0) {
                figures.add(&format!("{scheme}_{loss}"), goodput);
            }
        }
        figures
    }

    #[test]
    fn the_comparison_follows_the_figures() {
        let plan = Plan::new(&[Op::Write], &[0.01, 0.05]);
        for (goodputs, expected) in [
            (
                [[5.0, 4.0, 3.0], [5.0, 4.0, 3.0], [5.0, 4.0, 3.0]],
                "WRITE, selective repeat is ahead of TCP BBR and TCP CUBIC in 3 of 3 rows: no loss, 1 %, 5 %\n",
            ),
            (
                [[5.0, 6.0, 7.25], [5.0, 1.0, 5.0], [4.0, 1.0, 0.0]],
                "WRITE, selective repeat is ahead of TCP BBR and TCP CUBIC in 0 of 2 rows\n  \
                 no loss: not ahead, 5.000 Gb/sec; TCP BBR has 6.000 Gb/sec, TCP CUBIC has 7.250 Gb/sec\n  \
                 1 %: not ahead, 5.000 Gb/sec; TCP CUBIC has 5.000 Gb/sec\n  \
                 5 %: not all measured\n",
            ),
            ([[5.0, 4.0, 0.0], [0.0, 4.0, 3.0], [0.0; 3]], ""),
        ] {
            assert_eq!(comparison(&plan, &figures(goodputs), Op::Write), expected);
        }
    }

    #[test]
    fn the_table_has_what_was_measured() {
        let plan = Plan::new(&[Op::Write], &[0.01, 0.05]);
        let mut figures = figures([[5.0, 0.0, 0.0], [4.0, 0.0, 0.0], [0.0; 3]]);
        figures.add("write_selective_repeat_0.01_kept", 0.8);
        figures.add("write_selective_repeat_0.01_again", 1.0005);
        figures.add("write_selective_repeat_0.01_lost", 1.01);
        figures.add_missing("tcp_bbr_0.05");
        let expected = [
            "loss     median of 3                           Gb/sec  of lossless  retransmitted/lost      lost",
            "no loss  WRITE, selective repeat                5.000            -                   -         -",
            "1 %      WRITE, selective repeat                4.000        0.800               1.000   1.010 %",
            "5 %      TCP BBR                                    -            -                   -         -",
        ];
        assert_eq!(table(&plan, &figures, 3).lines().take(4).collect::<Vec<_>>(), expected);
    }
}
