//! A device's counters, as reports print them.

use verbs::stat::DeviceCounters;

/// Returns the counters that are not zero, a line for each source that has any. `--json` and `roce stat` also
/// have the sums over queue pairs and the driver's extended statistics.
pub(crate) fn summary(counters: &DeviceCounters) -> Vec<String> {
    let brief =
        counters.groups().into_iter().filter(|(source, _)| !["queue_pairs", "xstats"].contains(source));
    let lines = brief.filter_map(|(source, counts)| {
        let counts = counts.iter().filter(|(_, count)| **count > 0);
        let list: Vec<String> = counts.map(|(name, count)| format!("{name} {count}")).collect();
        (!list.is_empty()).then(|| format!(" {source:<10} {}", list.join(", ")))
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use roce::counters::DropCounters;
    use verbs::stat::CounterMap;

    use super::*;

    fn map(counts: &[(&str, u64)]) -> CounterMap {
        counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
    }

    #[test]
    fn a_summary_has_what_is_not_zero() {
        let counters = DeviceCounters {
            driver: map(&[("rx_frames", 7), ("rx_missed", 0), ("tx_frames", 9)]),
            drops: map(&[("bad_tver", 0), ("rx_icrc_errors", 3)]),
            port: map(&[("tx_stalled", 0)]),
            queue_pairs: map(&[("sent_pkts", 9)]),
            ..DeviceCounters::default()
        };
        assert_eq!(
            summary(&counters),
            [" driver     rx_frames 7, tx_frames 9", " drops      rx_icrc_errors 3"]
        );
        assert!(summary(&DeviceCounters::default()).is_empty());
    }

    #[test]
    fn the_guide_explains_every_drop_and_port_counter() {
        let guide = include_str!("../../docs/user/troubleshooting.md");
        let (_, counters) = guide.split_once("## What the counters say").expect("the section is there");
        let rows = counters.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
        let mut explained = BTreeSet::new();
        for (name, meaning) in rows {
            assert!(meaning.trim().len() > 10, "{name} is explained");
            assert!(explained.insert(name), "{name} has one row");
        }
        let drops: Vec<&str> = DropCounters::default().iter().map(|(name, _)| name).collect();
        let ports = verbs::stat::port_counter_names();
        for name in drops.into_iter().chain(ports) {
            assert!(explained.contains(name), "docs/user/troubleshooting.md has no row for {name}");
        }
    }
}
