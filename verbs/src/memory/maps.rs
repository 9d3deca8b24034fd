//! Mappings of this process, as /proc/self/maps lists them.

use std::ops::Range;

/// Reason why an address cannot be accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Obstacle {
    /// No mapping contains the address.
    NotMapped(u64),
    /// The mapping of `addr` does not permit writes (if `write` is true) or reads (if `write` is false).
    NotPermitted { addr: u64, write: bool },
}

/// Returns the first obstacle to reads of the addresses `range`, and, if `write` is true, to writes. `maps`: the lines
/// of /proc/self/maps, which are in the order of addresses. A line that cannot be parsed is skipped.
pub(super) fn first_obstacle(maps: &str, range: Range<u64>, write: bool) -> Option<Obstacle> {
    let mut next = range.start;
    for (mapping, permissions) in maps.lines().filter_map(parse) {
        if next >= range.end || mapping.start > next {
            break;
        }
        if mapping.end <= next {
            continue;
        }
        if write && !permissions.contains('w') {
            return Some(Obstacle::NotPermitted { addr: next, write: true });
        }
        // On every processor that Linux supports, writable memory is also readable.
        if !permissions.contains(['r', 'w']) {
            return Some(Obstacle::NotPermitted { addr: next, write: false });
        }
        next = mapping.end;
    }
    (next < range.end).then_some(Obstacle::NotMapped(next))
}

/// Parses the addresses and the permissions of a line, for example `7f00-7f80 r--p 00000000 00:1d 5 /path`.
fn parse(line: &str) -> Option<(Range<u64>, &str)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let address = |digits| u64::from_str_radix(digits, 16).ok();
    Some((address(start)?..address(end)?, words.next()?))
}

#[cfg(test)]
mod tests {
    use super::Obstacle::{NotMapped, NotPermitted};
    use super::*;

    const MAPS: &str = "\
1000-2000 r--p 00000000 00:1d 5   /a path with spaces
2000-4000 rw-p 00000000 00:00 0
5000-6000 ---p 00000000 00:00 0   [guard]
6000-7000 -w-p 00000000 00:00 0
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
";

    #[test]
    fn the_first_address_that_cannot_be_accessed_is_found() {
        let cases = [
            (0x1000..0x4000, false, None),
            (0x3FFF..0x4000, true, None),
            (0x2000..0x2000, true, None),
            (0x6000..0x7000, true, None),
            (0x6000..0x7000, false, None),
            (0x1800..0x3000, true, Some(NotPermitted { addr: 0x1800, write: true })),
            (0x5800..0x5801, false, Some(NotPermitted { addr: 0x5800, write: false })),
            (0x3000..0x5001, false, Some(NotMapped(0x4000))),
            (0xFFF..0x1001, false, Some(NotMapped(0xFFF))),
            (0x6FFF..0x7001, true, Some(NotMapped(0x7000))),
            (0x9000..u64::MAX, false, Some(NotMapped(0x9000))),
        ];
        for (range, write, expected) in cases {
            assert_eq!(first_obstacle(MAPS, range.clone(), write), expected, "{range:x?}, write: {write}");
        }
    }
}
