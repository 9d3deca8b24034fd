//! DCQCN's notification point: selects the packets with a CE mark for which a CNP is sent (SIGCOMM'15, section 3.1; IBA
//! A17.9.3).
//!
//! ```text
//!   CE marks     *  * *   *       *      *  *
//!   CNPs         C                       C          for each queue pair, destination or port
//!                <---- min_time ----->   <---- min_time ----->
//! ```

use crate::id::Gid;
use crate::time::Instant;

/// Scope of the least time between two CNPs; adapters differ in this scope (Lumina, SIGCOMM'23).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CnpPacing {
    /// Per queue pair, as in DCQCN's paper.
    #[default]
    PerQp,
    /// Per peer GID, for all queue pairs connected to this GID.
    PerDestination,
    /// Per port, for all its queue pairs together.
    PerPort,
}

/// Settings of a device's notification point, with names and defaults of NVIDIA's `/sys/class/net/*/ecn/roce_np`. Not
/// implemented: `cnp_802p_prio`; frames have VLAN priority 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotificationConfig {
    /// Least time between two CNPs, in microseconds; 0: a CNP for every CE mark.
    pub min_time_between_cnps: u32,
    /// Scope of `min_time_between_cnps`.
    pub pacing: CnpPacing,
    /// DSCP of CNPs, 6 bits.
    pub cnp_dscp: u8,
}

impl Default for NotificationConfig {
    fn default() -> Self {
        NotificationConfig { min_time_between_cnps: 4, pacing: CnpPacing::PerQp, cnp_dscp: 48 }
    }
}

/// Length of `not_before`, the earliest times of the next CNPs, under [`CnpPacing::PerDestination`]; peers whose GIDs
/// have the same hash share one of these times.
const DESTINATIONS: usize = 1024;

const NANOS_PER_MICRO: u64 = 1000;

/// ECT(0) in the ECN field: the queue pair that sends the packet reacts to CE marks (RFC 3168).
pub(crate) const ECT_0: u8 = 2;

impl NotificationConfig {
    /// Returns the traffic class of CNPs: the DSCP, and ECT(0) as in CNPs of ConnectX-4 Lx.
    pub const fn traffic_class(&self) -> u8 {
        (self.cnp_dscp << 2) | ECT_0
    }
}

#[derive(Clone, Debug)]
pub(crate) struct NotificationPoint {
    config: NotificationConfig,
    /// Earliest time of the next CNP: per queue pair, destination or port, as `NotificationConfig::pacing` selects.
    not_before: Box<[Instant]>,
}

impl NotificationPoint {
    pub(crate) fn new(config: NotificationConfig, slots: usize) -> Self {
        let len = match config.pacing {
            CnpPacing::PerQp => slots,
            CnpPacing::PerDestination => DESTINATIONS,
            CnpPacing::PerPort => 1,
        };
        NotificationPoint { config, not_before: vec![Instant::ZERO; len].into_boxed_slice() }
    }

    pub(crate) fn config(&self) -> &NotificationConfig {
        &self.config
    }

    /// Returns whether to send a CNP after the queue pair with index `slot` received a packet with a CE mark from
    /// `peer`. If the result is true, records the CNP as sent at `now`. If `slot` is out of range under
    /// [`CnpPacing::PerQp`], the result is false.
    pub(crate) fn on_marked(&mut self, now: Instant, slot: usize, peer: &Gid) -> bool {
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

/// Hashes a GID to a number below [`DESTINATIONS`] (FNV-1a).
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

    /// Returns the number of CNPs of each of three queue pairs, two of which have the same peer; each queue pair
    /// receives 400 CE marks, one every 100 ns.
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
