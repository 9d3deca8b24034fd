//! The two cores of a measurement.

use std::fs;

use anyhow::{Context as _, bail};

const STATUS: &str = "/proc/self/status";

/// A core for each of two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cores {
    pub(super) server: usize,
    pub(super) client: usize,
}

impl Cores {
    /// Returns the first two cores that this process may use.
    pub(super) fn first_two() -> anyhow::Result<Cores> {
        let status = fs::read_to_string(STATUS).context(STATUS)?;
        let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let list = list.with_context(|| format!("{STATUS} has no Cpus_allowed_list"))?.trim();
        let cores = parse(list).with_context(|| format!("`{list}` of {STATUS} is no list of cores"))?;
        let [server, client, ..] = cores[..] else {
            bail!("two processes need two cores, and this process may use {list} only; see taskset(1)")
        };
        Ok(Cores { server, client })
    }

    /// Returns the cores of run number `run`, counted from 1: the ends change places from run to run.
    pub(super) fn of_run(self, run: u32) -> Cores {
        if run.is_multiple_of(2) { self } else { Cores { server: self.client, client: self.server } }
    }
}

/// Parses a list of cores as the kernel writes it: "0-3,7".
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cores.extend(first.parse().ok()?..=last.parse::<usize>().ok()?);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cores_are_read() {
        for (list, expected) in [
            ("0", Some(vec![0])),
            ("0-1", Some(vec![0, 1])),
            ("2,5", Some(vec![2, 5])),
            ("0-2,7,9-10", Some(vec![0, 1, 2, 7, 9, 10])),
            ("", None),
            ("0-", None),
            ("-1", None),
            ("0,,1", None),
            ("a", None),
        ] {
            assert_eq!(parse(list), expected, "{list:?}");
        }
    }

    #[test]
    fn the_ends_change_places() {
        let cores = Cores { server: 2, client: 5 };
        assert_eq!([1, 2, 3].map(|run| cores.of_run(run).server), [5, 2, 5]);
        assert_eq!(cores.of_run(1), Cores { server: 5, client: 2 });
    }
}
