//! DCQCN's notification point: when a marked packet is answered with a congestion notification
//! (SIGCOMM'15, section 3.1; InfiniBand Architecture, annex A17.9.3).
//!
//! ```text
//!   marked packets   *  * *   *       *        *  *
//!   notifications    |<-- min_time -->|        |<-- min_time -->      for each queue pair, destination or port
//! ```

use crate::id::Gid;
use crate::time::Instant;

/// What shares the time between two notifications. Adapters differ in this (Lumina, SIGCOMM'23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CnpPacing {
    /// Each queue pair by itself, as in DCQCN's paper.
    #[default]
    PerQp,
    /// All queue pairs whose peers have one address.
    PerDestination,
    /// All queue pairs of the port.
    PerPort,
}

/// How a device notifies; names and defaults as in NVIDIA's `/sys/class/net/*/ecn/roce_np`. There is no
/// `cnp_802p_prio`, for frames carry no VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationConfig {
    /// Time between two notifications at least, in microseconds; 0: every marked packet is answered.
    pub min_time_between_cnps: u32,
    /// What shares that time.
    pub pacing: CnpPacing,
    /// Differentiated services code point of notifications, 6 bits.
    pub cnp_dscp: u8,
}

impl Default for NotificationConfig {
    fn default() -> Self {
        NotificationConfig { min_time_between_cnps: 4, pacing: CnpPacing::PerQp, cnp_dscp: 48 }
    }
}

/// Destinations that are told apart; two of the rest share their time with another.
const DESTINATIONS: usize = 1024;

const NANOS_PER_MICRO: u64 = 1000;

/// ECT(0): the sender's transport reacts to marks (RFC 3168).
pub const ECT_0: u8 = 2;

impl NotificationConfig {
    /// Traffic class of notifications. They are ECT(0), as those of ConnectX-4 Lx.
    pub const fn traffic_class(&self) -> u8 {
        (self.cnp_dscp << 2) | ECT_0
    }
}

/// Which marked packets are answered.
#[derive(Clone, Debug)]
pub struct NotificationPoint {
    config: NotificationConfig,
    /// Before this the queue pair, destination or port sends no further notification.
    not_before: Box<[Instant]>,
}

impl NotificationPoint {
    /// For a device with `slots` queue pairs at most.
    pub fn new(config: NotificationConfig, slots: usize) -> Self {
        let len = match config.pacing {
            CnpPacing::PerQp => slots,
            CnpPacing::PerDestination => DESTINATIONS,
            CnpPacing::PerPort => 1,
        };
        NotificationPoint { config, not_before: vec![Instant::ZERO; len].into_boxed_slice() }
    }

    /// How it notifies.
    pub fn config(&self) -> &NotificationConfig {
        &self.config
    }

    /// Whether a marked packet of the queue pair in `slot`, from `peer`, is answered with a notification,
    /// which is then taken for sent.
    pub fn on_marked(&mut self, now: Instant, slot: usize, peer: &Gid) -> bool {
        let index = match self.config.pacing {
            CnpPacing::PerQp => slot,
            CnpPacing::PerDestination => destination(peer),
            CnpPacing::PerPort => 0,
        };
        let Some(not_before) = self.not_before.get_mut(index).filter(|not_before| **not_before <= now) else {
            return false;
        };
        *not_before = now.plus_nanos(u64::from(self.config.min_time_between_cnps) * NANOS_PER_MICRO);
        true
    }
}

/// A number below [`DESTINATIONS`] for an address (Fowler, Noll, Vo).
fn destination(peer: &Gid) -> usize {
    let hash =
        peer.0.iter().fold(0x811C_9DC5u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash as usize % DESTINATIONS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn peer(last: u8) -> Gid {
        Gid::from(Ipv4Addr::new(10, 0, 0, last))
    }

    /// Marks from two queue pairs of one peer and one of another, all at the same times: notifications of each.
    fn notified(pacing: CnpPacing, min_time_between_cnps: u32) -> [u32; 3] {
        let config = NotificationConfig { pacing, min_time_between_cnps, ..NotificationConfig::default() };
        let mut point = NotificationPoint::new(config, 8);
        let mut count = [0; 3];
        for nanos in (0..40_000).step_by(100) {
            for (slot, last) in [(0, 1), (1, 1), (2, 2)] {
                count[slot] += u32::from(point.on_marked(Instant::from_nanos(nanos), slot, &peer(last)));
            }
        }
        count
    }

    #[test]
    fn notifications_are_spaced_for_each_of_what_shares_the_time() {
        assert_eq!(notified(CnpPacing::PerQp, 4), [10, 10, 10]);
        assert_eq!(notified(CnpPacing::PerDestination, 4), [10, 0, 10]);
        assert_eq!(notified(CnpPacing::PerPort, 4), [10, 0, 0]);
        assert_eq!(notified(CnpPacing::PerPort, 0), [400, 400, 400], "without a time every mark is answered");
        assert_eq!(notified(CnpPacing::PerQp, 100), [1, 1, 1]);
    }

    #[test]
    fn destinations_of_a_subnet_are_told_apart() {
        let mut seen: Vec<usize> = (0..=255).map(|last| destination(&peer(last))).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() > 200, "only {} of 256", seen.len());
    }

    #[test]
    fn a_slot_that_is_not_there_is_never_notified() {
        let mut point = NotificationPoint::new(NotificationConfig::default(), 1);
        assert!(!point.on_marked(Instant::ZERO, 1, &peer(1)));
    }

    #[test]
    fn the_traffic_class_is_that_of_a_connectx_4_lx() {
        assert_eq!(NotificationConfig::default().traffic_class(), 0xC2);
    }
}
