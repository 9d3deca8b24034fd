//! Flows: Poisson arrivals between random pairs, and incasts.

use super::cdf::Cdf;
use crate::rng::SplitMix;

const NANOS_PER_SEC: f64 = 1e9;

/// A message from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The time at which the message is posted.
    pub start_nanos: u64,
    /// The number of the sending host.
    pub from: usize,
    /// The number of the receiving host, different from `from`.
    pub to: usize,
    /// Length of the message.
    pub bytes: u32,
}

/// An endless sequence of flows, each from a random host to another random host. The start times are a Poisson process
/// over all hosts together.
#[derive(Clone, Debug)]
pub struct Poisson {
    sizes: Cdf,
    hosts: usize,
    mean_gap_nanos: f64,
    at_nanos: f64,
    rng: SplitMix,
}

impl Poisson {
    /// Creates flows whose payload loads the hosts' links, of `rate_bits_per_sec` each, to the share `load` (0 to 1).
    ///
    /// # Panics
    /// If there are fewer than two hosts, or `load` is 0.
    pub fn new(sizes: Cdf, hosts: usize, rate_bits_per_sec: u64, load: f64, seed: u64) -> Poisson {
        assert!(hosts >= 2, "random pairs need two hosts, and there are {hosts}");
        let bits_per_sec = rate_bits_per_sec as f64 * load * hosts as f64;
        assert!(bits_per_sec > 0.0, "a load of {load} asks for nothing");
        let mean_gap_nanos = sizes.mean_bytes() * 8.0 * NANOS_PER_SEC / bits_per_sec;
        Poisson { sizes, hosts, mean_gap_nanos, at_nanos: 0.0, rng: SplitMix::stream(seed, 0) }
    }
}

impl Iterator for Poisson {
    type Item = Flow;

    fn next(&mut self) -> Option<Flow> {
        // In (0, 1], so the logarithm is finite.
        let share = 1.0 - self.rng.unit();
        self.at_nanos -= self.mean_gap_nanos * share.ln();
        let from = self.rng.up_to(self.hosts - 1);
        let to = (from + 1 + self.rng.up_to(self.hosts - 2)) % self.hosts;
        let bytes = self.sizes.sample(&mut self.rng);
        Some(Flow { start_nanos: self.at_nanos as u64, from, to, bytes })
    }
}

/// An incast: many hosts send to one at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incast {
    /// The start time of all flows.
    pub start_nanos: u64,
    /// Number of sending hosts.
    pub senders: usize,
    /// Bytes that each host sends.
    pub bytes_each: u32,
}

impl Incast {
    /// Returns the flows: from `senders` different random hosts to one other random host.
    ///
    /// # Panics
    /// If there are fewer than `senders` + 1 hosts.
    pub fn flows(&self, hosts: usize, seed: u64) -> Vec<Flow> {
        assert!(
            self.senders < hosts,
            "an incast of {}:1 needs {} hosts, and there are {hosts}",
            self.senders,
            self.senders + 1
        );
        let mut rng = SplitMix::stream(seed, 1);
        let mut numbers: Vec<usize> = (0..hosts).collect();
        // A Fisher-Yates shuffle of the first places only.
        for at in 0..=self.senders {
            numbers.swap(at, at + rng.up_to(hosts - 1 - at));
        }
        let flow = |from: &usize| Flow {
            start_nanos: self.start_nanos,
            from: *from,
            to: numbers[0],
            bytes: self.bytes_each,
        };
        numbers[1..=self.senders].iter().map(flow).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_pairs_ask_for_their_load() {
        const RATE_BITS_PER_SEC: u64 = 40_000_000_000;
        const FLOWS: usize = 200_000;
        let flows = |seed| Poisson::new(Cdf::irn(), 54, RATE_BITS_PER_SEC, 0.7, seed);
        let taken: Vec<Flow> = flows(5).take(FLOWS).collect();
        assert_eq!(taken, flows(5).take(FLOWS).collect::<Vec<_>>());
        assert_ne!(taken[..9], flows(6).take(9).collect::<Vec<_>>());
        let bits = taken.iter().map(|flow| f64::from(flow.bytes) * 8.0).sum::<f64>();
        let seconds = taken.last().unwrap().start_nanos as f64 / 1e9;
        let load = bits / seconds / (54.0 * RATE_BITS_PER_SEC as f64);
        assert!((load / 0.7 - 1.0).abs() < 0.03, "{load}");
        let mut pairs = vec![0u32; 54 * 54];
        taken.iter().for_each(|flow| pairs[flow.from * 54 + flow.to] += 1);
        for (pair, count) in pairs.iter().enumerate() {
            let is_self = pair % 54 == pair / 54;
            // The mean is 70; the bound is eight standard deviations.
            assert!(if is_self { *count == 0 } else { count.abs_diff(70) < 67 }, "{pair}: {count}");
        }
        assert!(taken.is_sorted_by_key(|flow| flow.start_nanos));
        // Of an exponential distribution a share of exp(-1) lies above the mean.
        let mean_gap_nanos = taken.last().unwrap().start_nanos as f64 / FLOWS as f64;
        let gaps = taken.windows(2).map(|pair| pair[1].start_nanos - pair[0].start_nanos);
        let long = gaps.filter(|gap| *gap as f64 > mean_gap_nanos).count();
        assert!((long as f64 / FLOWS as f64 - (-1f64).exp()).abs() < 0.01, "{long}");
    }

    #[test]
    fn an_incast_has_one_receiver_and_different_senders() {
        let incast = Incast { start_nanos: 9, senders: 30, bytes_each: 5_000 };
        let mut receivers = std::collections::BTreeSet::new();
        for seed in 0..50 {
            let flows = incast.flows(31, seed);
            let mut hosts: Vec<usize> = flows.iter().map(|flow| flow.from).chain([flows[0].to]).collect();
            hosts.sort_unstable();
            assert_eq!(hosts, (0..31).collect::<Vec<_>>());
            assert!(flows.iter().all(|flow| flow.to == flows[0].to && flow.start_nanos == 9));
            receivers.insert(flows[0].to);
        }
        assert!(receivers.len() > 20);
    }
}
