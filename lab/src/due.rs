//! The time at which each host is to be polled.

/// The due time of a host that is not to be polled.
const NEVER: u64 = u64::MAX;

/// The due times of a fixed number of hosts, and the earliest of them, as a tournament tree.
///
/// ```text
///   earlier_nanos:   [1]            the minimum of all
///                 [2]   [3]
///               [4][5] [6][7]       hosts 0 to 3
/// ```
#[derive(Debug)]
pub(crate) struct DueTimes {
    earlier_nanos: Vec<u64>,
    /// Index of host 0.
    first: usize,
}

impl DueTimes {
    pub(crate) fn new(hosts: usize) -> Self {
        let first = hosts.next_power_of_two();
        DueTimes { earlier_nanos: vec![NEVER; 2 * first], first }
    }

    /// Sets the due time of `host`; `None`: not to be polled.
    pub(crate) fn set(&mut self, host: usize, nanos: Option<u64>) {
        let mut at = self.first + host;
        self.earlier_nanos[at] = nanos.unwrap_or(NEVER);
        while at > 1 {
            let earlier = self.earlier_nanos[at].min(self.earlier_nanos[at ^ 1]);
            at /= 2;
            self.earlier_nanos[at] = earlier;
        }
    }

    /// The earliest time at which a host is due.
    pub(crate) fn next_nanos(&self) -> Option<u64> {
        Some(self.earlier_nanos[1]).filter(|nanos| *nanos != NEVER)
    }

    /// Appends the hosts due at or before `now_nanos`, in ascending order.
    pub(crate) fn due(&self, now_nanos: u64, hosts: &mut Vec<usize>) {
        self.descend(1, now_nanos, hosts);
    }

    fn descend(&self, at: usize, now_nanos: u64, hosts: &mut Vec<usize>) {
        if self.earlier_nanos[at] > now_nanos || self.earlier_nanos[at] == NEVER {
            return;
        }
        if at >= self.first {
            hosts.push(at - self.first);
            return;
        }
        self.descend(2 * at, now_nanos, hosts);
        self.descend(2 * at + 1, now_nanos, hosts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netsim::rng::SplitMix;

    #[test]
    fn it_behaves_as_a_list_of_times() {
        for hosts in [1, 2, 3, 5, 54, 64] {
            let mut rng = SplitMix::new(hosts as u64);
            let mut times = DueTimes::new(hosts);
            let mut model = vec![None; hosts];
            for _ in 0..2_000 {
                let host = rng.up_to(hosts - 1);
                let nanos = (rng.up_to(3) > 0).then(|| rng.bits() % 40);
                times.set(host, nanos);
                model[host] = nanos;
                assert_eq!(times.next_nanos(), model.iter().flatten().min().copied());
                let now_nanos = rng.bits() % 40;
                let mut due = Vec::new();
                times.due(now_nanos, &mut due);
                let is_due = |host: &usize| model[*host].is_some_and(|nanos| nanos <= now_nanos);
                assert_eq!(due, (0..hosts).filter(is_due).collect::<Vec<_>>());
            }
        }
    }
}
