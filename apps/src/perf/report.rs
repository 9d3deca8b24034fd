//! Figures and how they are printed: perftest's tables, or JSON.

use roce::port::fault::{FaultCounters, ImpairedFrames};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use verbs::Placement;

use super::args::Local;
use super::params::{Extent, Measure, Params, Verb};
use crate::exchange::perftest::Report;

/// The line between the parts of a report.
pub(super) const LINE: &str =
    "---------------------------------------------------------------------------------------";

/// Text of a progress bar.
pub(super) const MEASURING: &str = "Measuring";

/// Title of the counters of this end that are not zero.
pub(super) const COUNTERS_HEADER: &str = " counters   of this end, not zero";

const BYTES_PER_MIB: f64 = 1_048_576.0;
const BITS_PER_GBIT: f64 = 1e9;

/// The figures of one run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Row {
    /// Bandwidth.
    Bw(BwRow),
    /// Latency by messages.
    Lat(LatRow),
    /// Latency by time.
    LatSpan(LatSpanRow),
    /// Frames without a transport.
    Raw(RawRow),
}

/// Bandwidth of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct BwRow {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    /// Highest rate between any two messages, in messages per second; 0 if it was not computed.
    pub(super) peak_per_sec: f64,
    /// Messages per second.
    pub(super) average_per_sec: f64,
}

/// Latency of one size, in microseconds: half a round trip, for READ the whole.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LatRow {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) t_min_usec: f64,
    pub(super) t_max_usec: f64,
    pub(super) t_typical_usec: f64,
    pub(super) t_avg_usec: f64,
    pub(super) t_stdev_usec: f64,
    pub(super) percentile_99_usec: f64,
    pub(super) percentile_99_9_usec: f64,
}

/// Latency of one size over a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LatSpanRow {
    pub(super) bytes: u32,
    pub(super) iterations: u64,
    pub(super) t_avg_usec: f64,
    /// Transactions per second.
    pub(super) tps_average: f64,
}

/// Figures of the limit program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct RawRow {
    /// Payload of a frame, in bytes.
    pub(super) bytes: u32,
    pub(super) frame_bytes: u32,
    /// Frames received correctly.
    pub(super) frames: u64,
    /// Frames sent.
    pub(super) sent: u64,
    /// Frames received per second.
    pub(super) per_sec: f64,
}

impl RawRow {
    /// Returns the header of its table.
    pub(super) const HEADER: &str =
        " #bytes     #frame bytes   #frames        payload[Gb/sec]    frames[Gb/sec]    rate[Mpps]";

    fn gbit(&self, bytes: u32) -> f64 {
        self.per_sec * f64::from(bytes) * 8.0 / BITS_PER_GBIT
    }

    fn line(&self) -> String {
        let (payload, frames) = (self.gbit(self.bytes), self.gbit(self.frame_bytes));
        format!(
            " {:<10} {:<14} {:<14} {payload:<18.2} {frames:<17.2} {:<.6}",
            self.bytes,
            self.frame_bytes,
            self.frames,
            self.per_sec / 1e6
        )
    }

    fn json(&self) -> Value {
        json!({
            "bytes": self.bytes,
            "frame_bytes": self.frame_bytes,
            "frames": self.frames,
            "frames_sent": self.sent,
            "payload_gbit_per_sec": self.gbit(self.bytes),
            "frames_gbit_per_sec": self.gbit(self.frame_bytes),
            "rate_mpps": self.per_sec / 1e6,
        })
    }
}

impl BwRow {
    /// Returns the sum of two directions.
    pub(super) fn plus(self, other: BwRow) -> BwRow {
        BwRow {
            peak_per_sec: self.peak_per_sec + other.peak_per_sec,
            average_per_sec: self.average_per_sec + other.average_per_sec,
            ..self
        }
    }

    /// Returns the figures as perftest sends them, in Gb/s or MiB/s.
    pub(super) fn report(&self, in_gbits: bool) -> Report {
        let unit = |per_sec| if in_gbits { self.gbit(per_sec) } else { self.mib(per_sec) };
        Report {
            size_bytes: self.bytes,
            iterations: self.iterations,
            peak: unit(self.peak_per_sec),
            average: unit(self.average_per_sec),
            rate: self.average_per_sec / 1e6,
        }
    }

    fn gbit(&self, per_sec: f64) -> f64 {
        per_sec * f64::from(self.bytes) * 8.0 / BITS_PER_GBIT
    }

    fn mib(&self, per_sec: f64) -> f64 {
        per_sec * f64::from(self.bytes) / BYTES_PER_MIB
    }

    fn line(&self, gbits: bool) -> String {
        let unit = |per_sec| if gbits { self.gbit(per_sec) } else { self.mib(per_sec) };
        let (peak, average) = (unit(self.peak_per_sec), unit(self.average_per_sec));
        let rate = self.average_per_sec / 1e6;
        let (bytes, iterations) = (self.bytes, self.iterations);
        // As perftest does: more digits if two show nothing.
        if gbits && average < 0.1 {
            format!(
                " {bytes:<7}    {iterations}           {peak:<7.6}            {average:<7.6}            {rate:<7.6}"
            )
        } else {
            format!(
                " {bytes:<7}    {iterations:<10}       {peak:<7.2}            {average:<7.2}\t\t     {rate:<7.6}"
            )
        }
    }

    fn json(&self) -> Value {
        json!({
            "bytes": self.bytes,
            "iterations": self.iterations,
            "bw_peak_gbit_per_sec": self.gbit(self.peak_per_sec),
            "bw_average_gbit_per_sec": self.gbit(self.average_per_sec),
            "bw_peak_mib_per_sec": self.mib(self.peak_per_sec),
            "bw_average_mib_per_sec": self.mib(self.average_per_sec),
            "msg_rate_mpps": self.average_per_sec / 1e6,
        })
    }
}

impl LatRow {
    /// Returns the figures of `nanos`, one entry per round trip, each divided by `divisor`; `None` if there
    /// are none.
    pub(super) fn of(bytes: u32, nanos: &mut [u64], divisor: f64) -> Option<LatRow> {
        nanos.sort_unstable();
        let usec = |nanos: u64| nanos as f64 / 1000.0 / divisor;
        let (first, last) = (*nanos.first()?, *nanos.last()?);
        let count = nanos.len();
        let middle = nanos.get(count / 2).copied()?;
        let before = if count.is_multiple_of(2) { nanos.get(count / 2 - 1).copied()? } else { middle };
        let average = nanos.iter().map(|n| usec(*n)).sum::<f64>() / count as f64;
        let variance = nanos.iter().map(|n| (usec(*n) - average).powi(2)).sum::<f64>() / count as f64;
        let percentile = |share: f64| {
            let place = ((count as f64 * share).ceil() as usize).clamp(1, count);
            nanos.get(place - 1).map_or(0.0, |n| usec(*n))
        };
        Some(LatRow {
            bytes,
            iterations: count as u64,
            t_min_usec: usec(first),
            t_max_usec: usec(last),
            t_typical_usec: (usec(before) + usec(middle)) / 2.0,
            t_avg_usec: average,
            t_stdev_usec: variance.sqrt(),
            percentile_99_usec: percentile(0.99),
            percentile_99_9_usec: percentile(0.999),
        })
    }

    fn line(&self) -> String {
        format!(
            " {:<7} {}          {:<7.2}        {:<7.2}      {:<7.2}  \t       {:<7.2}     \t{:<7.2}\t\t{:<7.2} \t\t{:<7.2}",
            self.bytes,
            self.iterations,
            self.t_min_usec,
            self.t_max_usec,
            self.t_typical_usec,
            self.t_avg_usec,
            self.t_stdev_usec,
            self.percentile_99_usec,
            self.percentile_99_9_usec
        )
    }
}

impl Row {
    /// Returns the header of its table.
    pub(super) fn header(measure: Measure, extent: Extent, gbits: bool) -> &'static str {
        match (measure, extent, gbits) {
            (Measure::Bw, _, false) => {
                " #bytes     #iterations    BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]"
            }
            (Measure::Bw, _, true) => {
                " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]"
            }
            (Measure::Lat, Extent::Iters(_), _) => {
                " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] "
            }
            (Measure::Lat, Extent::Secs(_), _) => {
                " #bytes        #iterations       t_avg[usec]    tps average"
            }
        }
    }

    /// Returns its line of the table.
    pub(super) fn line(&self, gbits: bool) -> String {
        match self {
            Row::Bw(row) => row.line(gbits),
            Row::Lat(row) => row.line(),
            Row::LatSpan(row) => format!(
                " {:<7}       {}            {:<7.2}        {:<7.2}",
                row.bytes, row.iterations, row.t_avg_usec, row.tps_average
            ),
            Row::Raw(row) => row.line(),
        }
    }

    /// Returns its figures under names with units.
    pub(super) fn json(&self) -> Value {
        match self {
            Row::Bw(row) => row.json(),
            Row::Lat(row) => json!(row),
            Row::LatSpan(row) => json!(row),
            Row::Raw(row) => row.json(),
        }
    }
}

/// Returns the block of settings above the table.
pub(super) fn settings(
    params: &Params,
    local: &Local,
    port: &str,
    gid_index: u8,
    sends: bool,
) -> Vec<String> {
    let test = params.test;
    let verb = match test.verb {
        Verb::Send => "Send",
        Verb::Write => "RDMA_Write",
        Verb::Read => "RDMA_Read",
    };
    let is_bw = test.measure == Measure::Bw;
    let direction = if params.bidirectional { "Bidirectional " } else { "" };
    let list = if local.post_list > 1 { "Post List " } else { "" };
    let kind = if is_bw { "BW" } else { "Latency" };
    let mut lines = vec![LINE.to_owned(), format!("                    {verb} {direction}{list}{kind} Test")];
    if local.cq_events {
        lines.push(" Test with events.".to_owned());
    }
    lines.push(format!(" Dual-port       : OFF\t\tDevice         : {port}"));
    lines.push(format!(" Number of qps   : {}\t\tTransport type : IB", params.qps));
    let srq = if local.use_srq { "ON" } else { "OFF" };
    lines.push(format!(" Connection type : {}\t\tUsing SRQ      : {srq}", params.connection));
    if sends {
        lines.push(format!(" TX depth        : {}", local.tx_depth));
    }
    if local.post_list > 1 {
        lines.push(format!(" Post List       : {}", local.post_list));
    }
    if test.verb == Verb::Send && (!sends || params.bidirectional) {
        lines.push(format!(" RX depth        : {}", local.rx_depth));
    }
    if is_bw {
        lines.push(format!(" CQ Moderation   : {}", local.cq_mod(params.size_max())));
    }
    lines.push(format!(" Mtu             : {}[B]", params.mtu.bytes()));
    if params.recovery != super::params::DEFAULT_RECOVERY {
        lines.push(format!(" Recovery        : {}", params.recovery));
    }
    if local.placement == Placement::Relaxed {
        lines.push(" Placement       : relaxed".to_owned());
    }
    if let Some(congestion) = local.congestion {
        lines.push(format!(" Congestion      : {congestion}"));
    }
    lines.push(" Link type       : Ethernet".to_owned());
    lines.push(format!(" GID index       : {gid_index}"));
    if test.verb == Verb::Read {
        lines.push(format!(" Outstand reads  : {}", params.outs));
    } else {
        lines.push(format!(" Max inline data : {}[B]", local.inline_bytes));
    }
    lines.push(" rdma_cm QPs\t : OFF".to_owned());
    lines.push(" Data ex. method : Ethernet".to_owned());
    lines.push(LINE.to_owned());
    lines
}

/// Returns the impaired frames of this end by direction; empty without impairments.
fn faulted(faults: &FaultCounters) -> Vec<(&'static str, ImpairedFrames)> {
    let ways = [("sent", faults.tx), ("received", faults.rx)];
    ways.into_iter().filter(|(_, tally)| tally.frames > 0).collect()
}

/// Returns a table of the impaired frames of this end, and of its retransmissions.
pub(super) fn faults(faults: &FaultCounters, retransmitted_pkts: u64) -> Vec<String> {
    let ways = faulted(faults);
    if ways.is_empty() {
        return Vec::new();
    }
    let header = " frames     #all         #dropped     #corrupted   #duplicated  #reordered".to_owned();
    let row = |(way, tally): (&str, ImpairedFrames)| {
        let ImpairedFrames { frames, dropped, corrupted, duplicated, reordered } = tally;
        format!(" {way:<10} {frames:<12} {dropped:<12} {corrupted:<12} {duplicated:<12} {reordered}")
    };
    let again = format!(" Packets retransmitted : {retransmitted_pkts}");
    std::iter::once(header).chain(ways.into_iter().map(row)).chain([again]).collect()
}

/// Returns the same as JSON, by direction.
pub(super) fn faults_json(faults: &FaultCounters) -> Value {
    let tally = |tally: ImpairedFrames| {
        let ImpairedFrames { frames, dropped, corrupted, duplicated, reordered } = tally;
        json!({
            "frames": frames,
            "dropped": dropped,
            "corrupted": corrupted,
            "duplicated": duplicated,
            "reordered": reordered,
        })
    };
    faulted(faults).into_iter().map(|(way, count)| (way.to_owned(), tally(count))).collect()
}

/// Returns the least time per message between a post and a completion, in nanoseconds. `posted` and
/// `completed` are times by message; `completed` is 0 for a message without a completion.
pub(super) fn peak_nanos_per_message(posted: &[u64], completed: &[(usize, u64)]) -> Option<f64> {
    let mut best: Option<f64> = None;
    for (first, at) in posted.iter().enumerate() {
        let from = completed.partition_point(|(message, _)| *message < first);
        for (message, done) in completed.get(from..).unwrap_or_default() {
            let each = done.saturating_sub(*at) as f64 / (message - first + 1) as f64;
            if best.is_none_or(|best| each < best) {
                best = Some(each);
            }
        }
    }
    best.filter(|nanos| *nanos > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bandwidth_lines_are_those_of_perftest() {
        let row = BwRow { bytes: 65536, iterations: 5000, peak_per_sec: 16384.0, average_per_sec: 16000.0 };
        assert_eq!(
            row.line(false),
            " 65536      5000             1024.00            1000.00\t\t     0.016000"
        );
        assert_eq!(
            row.line(true),
            " 65536      5000             8.59               8.39   \t\t     0.016000"
        );
        let slow = BwRow { bytes: 2, ..row };
        assert_eq!(
            slow.line(true),
            " 2          5000           0.000262            0.000256            0.016000"
        );
        let both = row.plus(row);
        assert_eq!((both.average_per_sec, both.bytes, both.iterations), (32000.0, 65536, 5000));
    }

    #[test]
    fn latency_figures_are_of_half_a_round_trip() {
        let mut nanos: Vec<u64> = (1..=1000).rev().map(|n| n * 2000).collect();
        let row = LatRow::of(2, &mut nanos, 2.0).unwrap();
        assert_eq!((row.t_min_usec, row.t_max_usec, row.t_typical_usec), (1.0, 1000.0, 500.5));
        assert_eq!((row.percentile_99_usec, row.percentile_99_9_usec), (990.0, 999.0));
        assert_eq!(row.t_avg_usec, 500.5);
        assert!((row.t_stdev_usec - 288.675).abs() < 0.001);
        assert_eq!(
            row.line(),
            " 2       1000          1.00           1000.00      500.50   \t       500.50      \t288.67 \t\t990.00  \t\t999.00 "
        );
        assert_eq!(LatRow::of(2, &mut [], 2.0), None);
        let one = LatRow::of(2, &mut [4000], 2.0).unwrap();
        assert_eq!((one.t_typical_usec, one.percentile_99_9_usec), (2.0, 2.0));
    }

    #[test]
    fn faults_are_told_where_there_were_any() {
        let lost = ImpairedFrames { frames: 1000, dropped: 9, ..ImpairedFrames::default() };
        let lossy = FaultCounters { tx: lost, ..FaultCounters::default() };
        let table = faults(&lossy, 10);
        assert_eq!(table[1], " sent       1000         9            0            0            0");
        assert_eq!((table.len(), table[2].as_str()), (3, " Packets retransmitted : 10"));
        assert_eq!(table[0].find("#dropped"), table[1].find('9'));
        assert_eq!(
            (&faults_json(&lossy)["sent"]["dropped"], faults_json(&lossy).get("received")),
            (&json!(9), None)
        );
        assert!(faults(&FaultCounters::default(), 10).is_empty());
        assert_eq!(faults_json(&FaultCounters::default()), json!({}));
    }

    #[test]
    fn the_limit_program_counts_payload_and_frames_apart() {
        let row = RawRow { bytes: 4000, frame_bytes: 5000, frames: 7, sent: 8, per_sec: 1e6 };
        assert_eq!(row.json()["payload_gbit_per_sec"], 32.0);
        let line = row.line();
        let fields: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(fields, ["4000", "5000", "7", "32.00", "40.00", "1.000000"]);
        assert_eq!(RawRow::HEADER.matches('#').count() + 3, fields.len());
    }

    #[test]
    fn the_peak_is_the_best_stretch() {
        let posted = [0, 100, 200, 300];
        let completed = [(0, 1000), (1, 1100), (3, 1150)];
        // Messages 0 to 3 in 1150 ns, 1 to 3 in 1050, 2 to 3 in 950.
        assert_eq!(peak_nanos_per_message(&posted, &completed), Some(1150.0 / 4.0));
        assert_eq!(peak_nanos_per_message(&posted, &[]), None);
    }
}
