//! Log lines about counters that should not grow, for example counters of address conflicts, of refused keys (P_Key,
//! Q_Key, L_Key, R_Key), of full receive queues and of full reorder buffers.
//!
//! The background thread compares the counters at intervals with their values in the last log lines. The data path does
//! not log. The first growth of a counter is logged at once. While the counter continues to grow, the interval between
//! log lines doubles, and each log line states the growth since the previous log line:
//!
//! ```text
//!   time in s   0      0.6   1                 3                 later
//!   counter     1      5     9                 70                ...
//!   log line    "1"          "8 more in 1 s"   "61 more in 2 s"  at most one line per INTERVAL_MAX_NANOS
//! ```

use roce::time::Instant;

/// Interval at which the counters are compared with their values in the last log lines, in nanoseconds. A shorter
/// interval would load the NIC, because reading a driver's statistics may query the NIC.
const LOOK_INTERVAL_NANOS: u64 = 200_000_000;
/// Initial value of `Said::interval_nanos`, the least time between two log lines about a counter, in nanoseconds. Each
/// log line after the first doubles `Said::interval_nanos`, or, if the counter had stopped growing, resets
/// `Said::interval_nanos` to the initial value.
const INTERVAL_MIN_NANOS: u64 = 1_000_000_000;
/// Upper bound of `Said::interval_nanos`, the least time between two log lines about a counter, in nanoseconds.
const INTERVAL_MAX_NANOS: u64 = 64_000_000_000;
/// Largest number of queue pairs whose counters are summed at every comparison of counters with their values in the
/// last log lines. If the device has more queue pairs, the counters are summed only after a queue pair entered ERR,
/// because the engine is locked during the sum.
const SUMMED_QPS_MAX: usize = 256;

/// Names of counters that should not grow, and the meaning of their growth.
const CONCERNS: [(&str, &str); 13] = [
    ("address_conflicts", "another station claims an address of this port"),
    ("moves_refuted", "a station claims a neighbour's address, which the neighbour still answers for"),
    (
        "reorder_conflicts",
        "two versions of one packet came: forged packets, or a peer that changed its memory",
    ),
    ("reorder_no_room", "packets out of order found no room, and must be retransmitted"),
    ("wrong_pkey", "packets of another partition (P_Key) were dropped"),
    ("wrong_qkey", "datagrams with another Q_Key than that of their queue pair were dropped"),
    (
        "resp_remote_access_errors",
        "a peer was refused access: unknown rkey, or wrong address, length or rights",
    ),
    ("req_remote_access_errors", "a peer refused access to its memory"),
    ("local_protection_err", "a work request names an unknown lkey, or lacks the rights of its region"),
    ("rx_missed", "the receive queue was full, frames are lost: this process polls too seldom"),
    ("rx_no_mbuf", "no packet buffer is free, frames are lost"),
    ("rx_not_linear", "no packet buffer is free for a frame in pieces, which is lost"),
    ("tx_no_mbuf", "no packet buffer is free to send from"),
];

/// The last log line about a counter: value of the counter, and time of the line.
#[derive(Clone, Copy)]
struct Said {
    count: u64,
    at: Instant,
    /// Shortest time from the last log line about a counter, at time `at`, to the next log line about this counter.
    interval_nanos: u64,
}

/// For each counter that `CONCERNS` names, the last log line about the counter; and the time at which the counters were
/// last compared with the values in these log lines.
pub(crate) struct Watch {
    said: [Option<Said>; CONCERNS.len()],
    looked: Option<Instant>,
    /// Number of transitions of queue pairs to the error state, at the last comparison of the counters with their
    /// values in the last log lines.
    qp_errors: u64,
}

impl Watch {
    pub(crate) fn new() -> Self {
        Watch { said: [None; CONCERNS.len()], looked: None, qp_errors: 0 }
    }

    /// Returns whether a comparison of the counters with the last log lines is due at `now`. If a comparison is due,
    /// sets `looked` to `now`.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.looked.is_none_or(|at| now.nanos_since(at) >= LOOK_INTERVAL_NANOS);
        if due {
            self.looked = Some(now);
        }
        due
    }

    /// Returns whether the next comparison of counters with their values in the last log lines includes the counters
    /// of the queue pairs: if at most `SUMMED_QPS_MAX` queue pairs exist, or if `qp_errors` (number of transitions of
    /// queue pairs to the error state) has changed since the previous comparison.
    pub(crate) fn sums_up(&mut self, qp_count: usize, qp_errors: u64) -> bool {
        let has_new_errors = std::mem::replace(&mut self.qp_errors, qp_errors) != qp_errors;
        has_new_errors || qp_count <= SUMMED_QPS_MAX
    }

    /// Returns a log line for each counter whose value in `counters` exceeds the value in its last log line, if
    /// `interval_nanos` has passed since this line. A counter missing from `counters` is taken as unchanged.
    pub(crate) fn look(
        &mut self,
        now: Instant,
        counters: impl Iterator<Item = (&'static str, u64)>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, count) in counters {
            let Some(at) = CONCERNS.iter().position(|(concern, _)| *concern == name) else { continue };
            let (_, meaning) = CONCERNS[at];
            let said = &mut self.said[at];
            let before = said.map_or(0, |said| said.count);
            let Some(grown) = count.checked_sub(before).filter(|grown| *grown > 0) else { continue };
            let Some(last) = said else {
                lines.push(format!("{meaning} ({name} {grown})"));
                *said = Some(Said { count, at: now, interval_nanos: INTERVAL_MIN_NANOS });
                continue;
            };
            let since = now.nanos_since(last.at);
            if since < last.interval_nanos {
                continue;
            }
            lines.push(format!("{meaning} ({name} {grown} more in {} s)", since / 1_000_000_000));
            // If two intervals passed without a log line, the counter had stopped growing. The new growth then probably
            // has another cause, so the interval is reset to its minimum.
            let has_rested = since >= 2 * last.interval_nanos;
            let interval_nanos = if has_rested {
                INTERVAL_MIN_NANOS
            } else {
                (2 * last.interval_nanos).min(INTERVAL_MAX_NANOS)
            };
            *last = Said { count, at: now, interval_nanos };
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use roce::counters::{DropCounters, QpCounters};
    use roce::neighbour::NeighbourCounters;

    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn look(watch: &mut Watch, millis: u64, conflicts: u64) -> Vec<String> {
        let counters = NeighbourCounters { address_conflicts: conflicts, ..NeighbourCounters::default() };
        watch.look(at(millis), counters.iter())
    }

    #[test]
    fn the_first_of_a_kind_is_said_at_once_and_the_rest_in_sum() {
        let mut watch = Watch::new();
        assert!(look(&mut watch, 0, 0).is_empty());
        let [line] = &look(&mut watch, 20, 3)[..] else { panic!("one line") };
        assert!(line.contains("claims an address") && line.ends_with("(address_conflicts 3)"), "{line}");
        for millis in (40..1020).step_by(20) {
            assert!(look(&mut watch, millis, 3 + millis).is_empty(), "at {millis} ms");
        }
        let [line] = &look(&mut watch, 1020, 2000)[..] else { panic!("one line") };
        assert!(line.ends_with("(address_conflicts 1997 more in 1 s)"), "{line}");
        assert!(look(&mut watch, 9000, 2000).is_empty(), "what stands still");
    }

    #[test]
    fn what_goes_on_for_an_hour_takes_few_lines_and_loses_no_count() {
        let mut watch = Watch::new();
        let lines: Vec<String> =
            (0..=3600 * 5).flat_map(|look_no| look(&mut watch, look_no * 200, look_no)).collect();
        // Lines are due at 0.2, 1.2, 3.2, 7.2, ... 127.2 s, and then every 64 s.
        assert_eq!(lines.len(), 8 + (3600 - 128) / 64);
        let counts = lines.iter().map(|line| {
            let (_, rest) = line.split_once("(address_conflicts ").unwrap();
            rest.split([' ', ')']).next().unwrap().parse::<u64>().unwrap()
        });
        assert!(counts.sum::<u64>() >= 3536 * 5, "all but those since the last line");
        let [again] = &look(&mut watch, 4_000_000, 20_000)[..] else { panic!("one line") };
        assert!(again.contains("more in"), "{again}");
        assert_eq!(
            look(&mut watch, 4_001_000, 20_001).len(),
            1,
            "after a rest it is news again, a second later"
        );
    }

    #[test]
    fn kinds_do_not_wait_for_each_other() {
        let mut watch = Watch::new();
        assert_eq!(look(&mut watch, 0, 1).len(), 1);
        let drops = DropCounters { wrong_pkey: 1, bad_tver: 5, ..DropCounters::default() };
        assert_eq!(watch.look(at(20), drops.iter()).len(), 1, "and what concerns nobody is no line");
    }

    #[test]
    fn many_queue_pairs_are_summed_up_when_one_has_failed() {
        let mut watch = Watch::new();
        assert!(watch.sums_up(SUMMED_QPS_MAX, 0));
        assert!(!watch.sums_up(SUMMED_QPS_MAX + 1, 0));
        assert!(watch.sums_up(SUMMED_QPS_MAX + 1, 1));
        assert!(!watch.sums_up(SUMMED_QPS_MAX + 1, 1));
        assert!(watch.is_due(at(0)) && !watch.is_due(at(199)) && watch.is_due(at(200)));
    }

    #[test]
    fn every_concern_is_a_counter() {
        let counters = dpdk_ffi::PortStats::default().iter().chain(dpdk_ffi::PortCounters::default().iter());
        let counters = counters.chain(DropCounters::default().iter()).chain(QpCounters::default().iter());
        let names: Vec<_> =
            counters.chain(NeighbourCounters::default().iter()).map(|(name, _)| name).collect();
        for (concern, _) in CONCERNS {
            assert_eq!(names.iter().filter(|name| **name == concern).count(), 1, "{concern}");
        }
    }
}
