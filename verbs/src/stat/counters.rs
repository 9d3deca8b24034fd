//! Counters of a device, by source and name.

use std::collections::BTreeMap;

use roce::port::fault::{FaultCounters, FaultTally};
use serde::{Deserialize, Serialize};

/// Counters by name.
pub type CounterMap = BTreeMap<String, u64>;

/// All counters of a device, by source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Basic statistics of the DPDK driver ([`dpdk_ffi::PortStats`]); empty if it has none.
    pub driver: CounterMap,
    /// The port's own counters ([`dpdk_ffi::PortCounters`]).
    pub port: CounterMap,
    /// Frames dropped before any queue pair, by reason ([`roce::counters::DropCounters`]).
    pub drops: CounterMap,
    /// ARP, neighbour discovery and echo ([`roce::neighbour::NeighbourCounters`]).
    pub neighbour: CounterMap,
    /// Sums over all queue pairs, past and present ([`roce::counters::QpCounters`]).
    pub queue_pairs: CounterMap,
    /// Impaired frames, `tx_` or `rx_` before the name; empty without impairments.
    pub faults: CounterMap,
    /// Extended statistics of the driver, under its own names.
    pub xstats: CounterMap,
}

impl DeviceCounters {
    /// Returns the sources by name, in the order in which a received frame meets them.
    pub fn groups(&self) -> [(&'static str, &CounterMap); 7] {
        [
            ("driver", &self.driver),
            ("port", &self.port),
            ("drops", &self.drops),
            ("neighbour", &self.neighbour),
            ("queue_pairs", &self.queue_pairs),
            ("faults", &self.faults),
            ("xstats", &self.xstats),
        ]
    }
}

/// Returns the names of counters that every port has: the driver's basic statistics and the port's own.
pub fn port_counter_names() -> impl Iterator<Item = &'static str> {
    let driver = dpdk_ffi::PortStats::default().iter();
    driver.chain(dpdk_ffi::PortCounters::default().iter()).map(|(name, _)| name)
}

/// Collects counters by name.
pub(crate) fn map(counters: impl Iterator<Item = (&'static str, u64)>) -> CounterMap {
    counters.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Collects the impairment counters of the directions that had frames.
pub(crate) fn map_faults(faults: &FaultCounters) -> CounterMap {
    let ways = [("tx", faults.tx), ("rx", faults.rx)];
    let counts = ways.into_iter().filter(|(_, tally)| tally.frames > 0).flat_map(|(way, tally)| {
        let FaultTally { frames, dropped, reordered, corrupted, duplicated } = tally;
        [
            ("frames", frames),
            ("dropped", dropped),
            ("reordered", reordered),
            ("corrupted", corrupted),
            ("duplicated", duplicated),
        ]
        .map(|(name, count)| (format!("{way}_{name}"), count))
    });
    counts.collect()
}
