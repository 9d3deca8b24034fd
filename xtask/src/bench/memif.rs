//! Measurements over shared memory between two processes.

use super::figures::Figures;
use super::perf::Ends;
use super::report::{Row, Target};
use super::session::{Extent, Measurement, Runs, steps};

/// Gb/sec of a million frames per second of 4096 B payload.
pub(super) const GBIT_OF_MPPS_4096: f64 = 32.768;

/// Round trips of a latency test.
const ROUND_TRIPS: Extent = Extent::Iters(200_000);

/// Returns the measurements, in the order of the report.
pub(super) fn table() -> Vec<Measurement> {
    payload_4096().into_iter().chain(payload_64()).chain(latency()).collect()
}

/// Throughput in packets of 4096 B payload.
fn payload_4096() -> [Measurement; 5] {
    [
        Measurement::testpmd(
            Row::new("testpmd_4096", "bare port (testpmd), frames of 4096 B payload", "Mpps"),
            4096,
        ),
        Measurement::perf(
            Row::new("bare_4096", "bare port (roce perf raw --bare), same frames", "Mpps")
                .of("testpmd_4096", 1.0),
            "rate_mpps",
            "raw --bare -s 4096",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("limit_4096", "limit program (roce perf raw), same frames", "Gb/sec")
                .of("bare_4096", GBIT_OF_MPPS_4096),
            "payload_gbit_per_sec",
            "raw -s 4096",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("write_64k", "roce perf write-bw, 64 KiB, path MTU 4096", "Gb/sec")
                .of("limit_4096", 1.0)
                .target(Target::RatioAtLeast(0.7)),
            "bw_average_gbit_per_sec",
            "write-bw -s 65536 -m 4096",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("read_64k", "roce perf read-bw, 64 KiB, path MTU 4096", "Gb/sec").of("limit_4096", 1.0),
            "bw_average_gbit_per_sec",
            "read-bw -s 65536 -m 4096",
            Extent::Seconds,
        ),
    ]
}

/// Throughput in packets of 64 B payload.
fn payload_64() -> [Measurement; 4] {
    [
        Measurement::testpmd(
            Row::new("testpmd_64", "bare port (testpmd), frames of 64 B payload", "Mpps"),
            64,
        ),
        Measurement::perf(
            Row::new("bare_64", "bare port (roce perf raw --bare), same frames", "Mpps")
                .of("testpmd_64", 1.0),
            "rate_mpps",
            "raw --bare -s 64",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("limit_64", "limit program (roce perf raw), same frames", "Mpps").of("bare_64", 1.0),
            "rate_mpps",
            "raw -s 64",
            Extent::Seconds,
        ),
        Measurement::perf(
            Row::new("send_64", "roce perf send-bw, 64 B", "Mpps")
                .of("limit_64", 1.0)
                .target(Target::ValueAtLeast(4.0)),
            "msg_rate_mpps",
            "send-bw -s 64 -m 4096",
            Extent::Seconds,
        ),
    ]
}

/// Latency.
fn latency() -> [Measurement; 3] {
    [
        Measurement::perf(
            Row::new("bare_lat_64", "bare port, 64 B, half a round trip", "usec"),
            "t_typical_usec",
            "raw --bare --lat -s 64",
            ROUND_TRIPS,
        ),
        Measurement::perf(
            Row::new("limit_lat_64", "limit program, 64 B, half a round trip", "usec").of("bare_lat_64", 1.0),
            "t_typical_usec",
            "raw --lat -s 64",
            ROUND_TRIPS,
        ),
        Measurement::perf(
            Row::new("send_lat_64", "roce perf send-lat, 64 B, half a round trip", "usec")
                .of("limit_lat_64", 1.0)
                .target(Target::ValueAtMost(1.0)),
            "t_typical_usec",
            "send-lat -s 64 -m 4096 -t 64",
            ROUND_TRIPS,
        ),
    ]
}

/// Makes all runs.
pub(super) fn measure(runs: Runs, figures: &mut Figures) -> anyhow::Result<()> {
    let table = table();
    runs.each("memif", steps(&table), figures, |session| session.measure(&table, &Ends::memif()))
}
