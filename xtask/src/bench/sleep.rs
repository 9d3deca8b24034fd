//! Latency between two ends that sleep until a message arrives, beside TCP over the same path.

use super::figures::Figures;
use super::perf::Ends;
use super::report::{Row, Target};
use super::session::{Extent, Measurement, Runs, steps};

/// Round trips without a pause, and with a pause of 2 ms before each.
const ROUND_TRIPS: u32 = 20_000;
const PAUSED_ROUND_TRIPS: u32 = 1000;

const TYPICAL: &str = "t_typical_usec";
const P99: &str = "percentile_99_usec";
const WAIT: &str = "send-lat -s 64 -m 1024 -t 64 -e";
const POLL_FD: &str = "send-lat -s 64 -m 1024 -t 64 -e --poll-fd";
const PAUSED: &str = "send-lat -s 64 -m 1024 -t 64 -e --pause 2000";
const PAUSED_POLL_FD: &str = "send-lat -s 64 -m 1024 -t 64 -e --poll-fd --pause 2000";

fn row(name: &str, text: &str) -> Row {
    Row::new(name, format!("{text}, 64 B, half a round trip"), "usec")
}

/// Returns the measurements over a memif.
pub(super) fn memif_table() -> Vec<Measurement> {
    let (extent, paused) = (Extent::Iters(ROUND_TRIPS), Extent::Iters(PAUSED_ROUND_TRIPS));
    let perf = Measurement::perf;
    let at_most = Target::ValueAtMost;
    vec![
        perf(row("sleep_memif", "memif, waiting").target(at_most(15.0)), TYPICAL, WAIT, extent),
        perf(row("sleep_memif_p99", "the same, 99th percentile").target(at_most(75.0)), P99, WAIT, extent),
        perf(
            row("sleep_memif_fd", "memif, poll(2) on the channel").target(at_most(15.0)),
            TYPICAL,
            POLL_FD,
            extent,
        ),
        perf(row("sleep_memif_pause", "memif, 2 ms apart").target(at_most(30.0)), TYPICAL, PAUSED, paused),
        perf(row("sleep_memif_pause_fd", "the same by poll(2)"), TYPICAL, PAUSED_POLL_FD, paused),
    ]
}

/// Returns the measurements over a veth pair.
pub(super) fn veth_table() -> Vec<Measurement> {
    let (extent, paused) = (Extent::Iters(ROUND_TRIPS), Extent::Iters(PAUSED_ROUND_TRIPS));
    let perf = Measurement::perf;
    vec![
        Measurement::tcp(row("sleep_tcp", "TCP over veth, poll(2)"), TYPICAL, 0, ROUND_TRIPS),
        perf(row("sleep_veth", "af_packet over veth, waiting").of("sleep_tcp", 1.0), TYPICAL, WAIT, extent),
        perf(row("sleep_veth_p99", "the same, 99th percentile"), P99, WAIT, extent),
        perf(row("sleep_veth_fd", "the same by poll(2)").of("sleep_tcp", 1.0), TYPICAL, POLL_FD, extent),
        Measurement::tcp(row("sleep_tcp_pause", "TCP, 2 ms apart"), TYPICAL, 2000, PAUSED_ROUND_TRIPS),
        perf(
            row("sleep_veth_pause", "af_packet over veth, 2 ms apart").of("sleep_tcp_pause", 1.0),
            TYPICAL,
            PAUSED,
            paused,
        ),
        perf(
            row("sleep_veth_pause_fd", "the same by poll(2)").of("sleep_tcp_pause", 1.0),
            TYPICAL,
            PAUSED_POLL_FD,
            paused,
        ),
    ]
}

/// Makes all runs over a memif.
pub(super) fn measure_memif(runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
    let table = memif_table();
    runs.each("memif, asleep", steps(&table), figures, |session| session.measure(&table, &Ends::memif()))
}
