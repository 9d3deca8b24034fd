//! What a device counts, and how other processes of its user read it.
//!
//! ```text
//!   process with a device:  DIRECTORY/stat.PID.NUMBER, a socket       (directory, socket)
//!                           progress thread: accept -> one JSON object -> close
//!   roce stat:              every socket of every DIRECTORY -> DeviceStat   (read)
//! ```
//! Nothing of this is on the data path: counters are read when somebody asks, under the engine's lock, and the
//! progress thread looks for questions when it looks after the link. Where no directory can be made, the device
//! works all the same and is not listed.

mod directory;
mod read;
mod socket;

use std::collections::BTreeMap;

use roce::port::fault::{FaultCounters, FaultTally};
use serde::{Deserialize, Serialize};

pub(crate) use read::Answer;
pub use read::{DeviceStat, Found, read_all};
pub(crate) use socket::StatSocket;

/// Counters by name.
pub type CounterMap = BTreeMap<String, u64>;

/// Everything that a device counts, by source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceCounters {
    /// The DPDK driver's basic statistics ([`dpdk_ffi::PortStats`]); empty where it keeps none.
    pub driver: CounterMap,
    /// The port's own ([`dpdk_ffi::PortCounters`]).
    pub port: CounterMap,
    /// Frames dropped before any queue pair, by reason ([`roce::counters::DropCounters`]).
    pub drops: CounterMap,
    /// ARP, neighbour discovery and echo ([`roce::neighbour::NeighbourCounters`]).
    pub neighbour: CounterMap,
    /// Sums over all queue pairs, past and present ([`roce::counters::QpCounters`]).
    pub queue_pairs: CounterMap,
    /// What the faults asked for did, `tx_` or `rx_` before the name; empty where none were.
    pub faults: CounterMap,
    /// Whatever else the driver counts, under its own names.
    pub xstats: CounterMap,
}

impl DeviceCounters {
    /// The sources by name, in the order in which a frame meets them.
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

/// The names of what every port counts: the driver's basic statistics and the port's own.
pub fn port_counter_names() -> impl Iterator<Item = &'static str> {
    let driver = dpdk_ffi::PortStats::default().iter();
    driver.chain(dpdk_ffi::PortCounters::default().iter()).map(|(name, _)| name)
}

/// Counters as a map.
pub(crate) fn map(counters: impl Iterator<Item = (&'static str, u64)>) -> CounterMap {
    counters.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Of both ways, those that faults looked at.
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
