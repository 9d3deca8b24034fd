//! The files of counters of a port, and their values: sums over the open devices of the port.

use roce::counters::{DropCounters, QpCounters};
use verbs::stat::{CounterMap, DeviceCounters};

/// Unit of `port_xmit_data` and `port_rcv_data` in bytes (IBA 16.1.3.5; the kernel's
/// Documentation/ABI/stable/sysfs-class-infiniband).
const DATA_UNIT_BYTES: u64 = 4;

/// Group of [`DeviceCounters`].
#[derive(Clone, Copy)]
enum Source {
    Driver,
    Port,
    Drops,
    QueuePairs,
}

impl Source {
    fn of(self, counters: &DeviceCounters) -> &CounterMap {
        match self {
            Source::Driver => &counters.driver,
            Source::Port => &counters.port,
            Source::Drops => &counters.drops,
            Source::QueuePairs => &counters.queue_pairs,
        }
    }
}

/// The counter of a file.
pub(super) struct Counter {
    /// Name of the file.
    pub(super) name: &'static str,
    /// Counters of which the file has the sum.
    terms: Vec<(Source, &'static str)>,
    /// Divisor of the sum.
    unit: u64,
}

impl Counter {
    fn new(name: &'static str, terms: &[(Source, &'static str)]) -> Self {
        Counter { name, terms: terms.to_vec(), unit: 1 }
    }

    /// Returns the value for the open devices of a port, 0 if no device is open. `None` if a device lacks the counter,
    /// because its driver has no statistics.
    pub(super) fn value(&self, devices: &[DeviceCounters]) -> Option<u64> {
        let mut sum = 0_u64;
        for device in devices {
            for (source, name) in &self.terms {
                // Counters wrap, as in hardware.
                sum = sum.wrapping_add(*source.of(device).get(*name)?);
            }
        }
        Some(sum / self.unit)
    }
}

/// Returns the directories of counters below `ports/1`, and the counters in each directory.
pub(super) fn directories() -> [(&'static str, Vec<Counter>); 2] {
    [("counters", of_port()), ("hw_counters", of_hardware())]
}

/// Counters that the IBA defines (16.1.3.5), under the kernel's names. Only those with a counter of the same meaning
/// here: the frames of the driver, and errors in received packets.
fn of_port() -> Vec<Counter> {
    use Source::{Driver, Drops, Port};
    vec![
        Counter { unit: DATA_UNIT_BYTES, ..Counter::new("port_xmit_data", &[(Driver, "tx_bytes")]) },
        Counter { unit: DATA_UNIT_BYTES, ..Counter::new("port_rcv_data", &[(Driver, "rx_bytes")]) },
        Counter::new("port_xmit_packets", &[(Driver, "tx_frames")]),
        Counter::new("port_rcv_packets", &[(Driver, "rx_frames")]),
        // The driver's `tx_errors` are not added: DPDK's driver of packet sockets also counts frames there that it has
        // not accepted, and which are sent later.
        Counter::new("port_xmit_discards", &[(Port, "tx_discarded")]),
        Counter::new(
            "port_rcv_errors",
            &[
                (Driver, "rx_errors"),
                (Drops, "rx_icrc_errors"),
                (Drops, "truncated"),
                (Drops, "length_mismatch"),
                (Drops, "bad_ip_checksum"),
            ],
        ),
    ]
}

/// All counters of queue pairs, and of frames dropped before they reached a queue pair, under their own names.
fn of_hardware() -> Vec<Counter> {
    let queue_pairs = QpCounters::default().iter().map(|(name, _)| (Source::QueuePairs, name));
    let drops = DropCounters::default().iter().map(|(name, _)| (Source::Drops, name));
    queue_pairs.chain(drops).map(|term| Counter::new(term.1, &[term])).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use verbs::stat::port_counter_names;

    use super::*;

    fn device(scale: u64) -> DeviceCounters {
        let map =
            |pairs: &[(&str, u64)]| pairs.iter().map(|(name, n)| ((*name).to_owned(), n * scale)).collect();
        DeviceCounters {
            driver: map(&[
                ("tx_bytes", 4_006),
                ("rx_bytes", 8),
                ("tx_frames", 5),
                ("rx_frames", 6),
                ("rx_errors", 1),
            ]),
            port: map(&[("tx_discarded", 9)]),
            drops: map(&[
                ("rx_icrc_errors", 10),
                ("truncated", 100),
                ("length_mismatch", 0),
                ("bad_ip_checksum", 0),
            ]),
            queue_pairs: map(&[("sent_pkts", 11), ("out_of_buffer", 12)]),
            ..DeviceCounters::default()
        }
    }

    fn value(directory: &str, name: &str, devices: &[DeviceCounters]) -> Option<u64> {
        let directories = directories();
        let (_, counters) = directories.iter().find(|(at, _)| *at == directory).expect("a directory");
        counters.iter().find(|counter| counter.name == name).expect("a counter").value(devices)
    }

    #[test]
    fn values_are_sums_over_devices() {
        let two = [device(1), device(10)];
        for (name, expected) in [
            // 44,066 B: the remainder of the sum is cut off, not that of each device.
            ("counters/port_xmit_data", 11_016),
            ("counters/port_rcv_data", 22),
            ("counters/port_xmit_packets", 55),
            ("counters/port_rcv_packets", 66),
            ("counters/port_xmit_discards", 99),
            ("counters/port_rcv_errors", 11 + 110 + 1_100),
            ("hw_counters/sent_pkts", 121),
            ("hw_counters/out_of_buffer", 132),
            ("hw_counters/rx_icrc_errors", 110),
        ] {
            let (directory, counter) = name.split_once('/').expect("a path");
            assert_eq!(value(directory, counter, &two), Some(expected), "{name}");
            assert_eq!(value(directory, counter, &[]), Some(0), "{name}");
        }
    }

    #[test]
    fn a_driver_without_statistics_has_no_value() {
        let silent = DeviceCounters { driver: CounterMap::new(), ..device(1) };
        assert_eq!(value("counters", "port_xmit_data", &[device(1), silent.clone()]), None);
        assert_eq!(value("hw_counters", "sent_pkts", &[silent]), Some(11));
    }

    #[test]
    fn a_counter_has_a_file_of_its_own_and_sums_counters_that_devices_have() {
        let known: BTreeSet<&str> = port_counter_names()
            .chain(QpCounters::default().iter().map(|(name, _)| name))
            .chain(DropCounters::default().iter().map(|(name, _)| name))
            .collect();
        for (directory, counters) in directories() {
            let names: BTreeSet<&str> = counters.iter().map(|counter| counter.name).collect();
            assert_eq!(names.len(), counters.len(), "{directory}");
            for (_, term) in counters.iter().flat_map(|counter| &counter.terms) {
                assert!(known.contains(term), "{term}");
            }
        }
    }
}
