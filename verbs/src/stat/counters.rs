//! Counters of a device, by source and name.

use std::collections::BTreeMap;

use roce::port::fault::{FaultCounters, ImpairedFrames};
use serde::{Deserialize, Serialize};

/// Values of counters, by name.
pub type CounterMap = BTreeMap<String, u64>;

/// All counters of a device, in one group for each field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// Basic statistics of the DPDK driver ([`dpdk_ffi::PortStats`]); empty if the driver has no statistics.
    pub driver: CounterMap,
    /// The port's own counters ([`dpdk_ffi::PortCounters`]).
    pub port: CounterMap,
    /// Frames dropped before they reached a queue pair, by reason ([`roce::counters::DropCounters`]).
    pub drops: CounterMap,
    /// Counters of ARP, neighbour discovery and ICMP echo ([`roce::neighbour::NeighbourCounters`]).
    pub neighbour: CounterMap,
    /// Sums over all queue pairs, including destroyed queue pairs ([`roce::counters::QpCounters`]).
    pub queue_pairs: CounterMap,
    /// Numbers of frames and of impaired frames, sent (`tx_...`) and received (`rx_...`); empty if no impairment is
    /// configured.
    pub faults: CounterMap,
    /// Extended statistics of the DPDK driver (xstats), under the driver's names.
    pub xstats: CounterMap,
}

impl DeviceCounters {
    /// Returns name and counters of each group, in the order of the fields.
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

/// Returns the names of the counters in [`dpdk_ffi::PortStats`] and [`dpdk_ffi::PortCounters`], which are the same for
/// all ports.
pub fn port_counter_names() -> impl Iterator<Item = &'static str> {
    let driver = dpdk_ffi::PortStats::default().iter();
    driver.chain(dpdk_ffi::PortCounters::default().iter()).map(|(name, _)| name)
}

pub(crate) fn map(counters: impl Iterator<Item = (&'static str, u64)>) -> CounterMap {
    counters.map(|(name, count)| (name.to_owned(), count)).collect()
}

pub(crate) fn map_faults(faults: &FaultCounters) -> CounterMap {
    let ways = [("tx", faults.tx), ("rx", faults.rx)];
    let counts = ways.into_iter().filter(|(_, tally)| tally.frames > 0).flat_map(|(way, tally)| {
        let ImpairedFrames { frames, dropped, reordered, corrupted, duplicated } = tally;
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
