//! The C interface: programs of perftest under `roce run`, beside `roce perf` with the same operation, size and depth.

use super::figures::Figures;
use super::perf::Ends;
use super::report::{Row, Target};
use super::session::{Extent, Measurement, Runs, steps};

/// Round trips of a latency test.
const ROUND_TRIPS: Extent = Extent::Iters(100_000);
/// Columns of the rows of perftest: "#bytes #iterations BW_peak BW_average MsgRate" with `--report_gbits`, and
/// "#bytes #iterations t_min t_max t_typical ..".
const BANDWIDTH: usize = 3;
const RATE: usize = 4;
const TYPICAL: usize = 4;

/// Returns the measurements: each of perftest follows that of `roce perf` which it is divided by.
pub(super) fn table() -> Vec<Measurement> {
    let perf = Measurement::perf;
    let perftest = Measurement::perftest;
    let (gbit, usec, seconds) = ("bw_average_gbit_per_sec", "t_typical_usec", Extent::Seconds);
    let at_least = Target::RatioAtLeast(0.95);
    vec![
        perf(
            row("perf_write_64k", "roce perf write-bw, 64 KiB", "Gb/sec"),
            gbit,
            "write-bw -s 65536 -m 4096 -t 128",
            seconds,
        ),
        perftest(
            row("c_write_64k", "ib_write_bw", "Gb/sec").of("perf_write_64k", 1.0).target(at_least),
            BANDWIDTH,
            "ib_write_bw -s 65536 -m 4096 -t 128 --report_gbits",
            seconds,
        ),
        perf(
            row("perf_send_64k", "roce perf send-bw, 64 KiB", "Gb/sec"),
            gbit,
            "send-bw -s 65536 -m 4096 -t 128",
            seconds,
        ),
        perftest(
            row("c_send_64k", "ib_send_bw", "Gb/sec").of("perf_send_64k", 1.0).target(at_least),
            BANDWIDTH,
            "ib_send_bw -s 65536 -m 4096 -t 128 --report_gbits",
            seconds,
        ),
        perf(
            row("perf_write_64", "roce perf write-bw, 64 B", "Mpps"),
            "msg_rate_mpps",
            "write-bw -s 64 -m 4096 -t 128",
            seconds,
        ),
        perftest(
            row("c_write_64", "ib_write_bw", "Mpps").of("perf_write_64", 1.0).target(at_least),
            RATE,
            "ib_write_bw -s 64 -m 4096 -t 128 --report_gbits",
            seconds,
        ),
        perf(
            row("perf_send_lat_64", "roce perf send-lat, 64 B", "usec"),
            usec,
            "send-lat -s 64 -m 4096",
            ROUND_TRIPS,
        ),
        perftest(
            row("c_send_lat_64", "ib_send_lat", "usec")
                .of("perf_send_lat_64", 1.0)
                .target(Target::RatioAtMost(1.05)),
            TYPICAL,
            "ib_send_lat -s 64 -m 4096",
            ROUND_TRIPS,
        ),
    ]
}

fn row(name: &str, text: &str, unit: &'static str) -> Row {
    Row::new(name, text, unit)
}

/// Makes all runs.
pub(super) fn measure(runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
    let table = table();
    runs.each("memif, C interface", steps(&table), figures, |session| session.measure(&table, &Ends::memif()))
}
