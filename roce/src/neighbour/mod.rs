//! GID table of a port, and MACs of the neighbours on its link.
//!
//! On a dedicated port ([`Mode::Dedicated`]) the engine answers ARP, IPv6 neighbour discovery and ICMP echo, because no
//! kernel uses the port. On a shared port ([`Mode::Shared`]) the kernel answers: the caller of the engine looks up the
//! addresses of [`Neighbour::wanted`] in the kernel and passes their MACs to [`Neighbour::set_neighbour`]. A query is
//! an ARP request or a neighbour solicitation; a reply is an ARP reply, a neighbour advertisement or an echo reply.
//!
//! ```text
//!   resolve(dst) --> next hop: dst if on the link, else gateway --> cache --> Known | Pending | Unreachable
//!   handle_frame --> rate limit --> replies ------------+
//!                --> cache                              +--> poll_transmit
//!   timers of the cache, GID table --> queries,         |
//!                                      announcements ---+
//! ```
//!
//! Not implemented: multicast listener reports, router discovery, duplicate address detection.

// No value from the wire reaches unwrap, indexing or a narrowing cast, because a received frame must not cause a panic
// (docs/ARCHITECTURE.md, decision 7).
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        clippy::unwrap_used,
        clippy::expect_used
    )
)]

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::ArpOperation;

use crate::id::{Gid, Mac};
use crate::time::Instant;

mod budget;
mod cache;
mod counters;
mod frames;
mod gid;
mod receive;

use budget::Budget;
use cache::{Ask, Cache, Origin};
use frames::Link;

pub use cache::Resolution;
pub use counters::NeighbourCounters;
pub use gid::{GIDS_MAX, GidEntry, GidError, GidTable};

/// Largest number of queued queries and announcements: the announcements of a full GID table, and `GIDS_MAX` queries.
/// Further frames are dropped and counted (`tx_dropped`).
const TX_QUEUE_FRAMES_MAX: usize = 2 * GIDS_MAX;
/// Largest number of queued replies. While the queue is full, received queries and echo requests are dropped
/// (`rate_limited`), so that replies are built no faster than polls send them.
const ANSWERS_WAITING_MAX: usize = 32;
/// Minimum time between two address conflicts that [`Neighbour::take_conflict`] returns: 1 s.
const CONFLICT_INTERVAL_NANOS: u64 = 1_000_000_000;
/// Largest number of queries that one call of `poll_transmit` builds.
const ASKS_PER_CALL: usize = 16;

/// Kind of the port, which decides whether the stack or the kernel answers ARP, neighbour discovery and ICMP echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Dedicated port: the stack sends queries and replies.
    Dedicated,
    /// Shared port: the kernel sends queries and replies; the stack sends neither.
    Shared,
}

/// Configuration of [`Neighbour`].
#[derive(Clone, Debug)]
pub struct NeighbourConfig {
    /// The port's Ethernet address.
    pub mac: Mac,
    /// Kind of the port: dedicated or shared.
    pub mode: Mode,
    /// IP addresses of the port and their prefix lengths in bits, in the order of their GID indices: 1, 2 and so on.
    pub gids: Vec<(IpAddr, u8)>,
    /// Next hop to IPv4 addresses off the link; if `None`, these addresses are unreachable. Unused on a shared port.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Next hop to IPv6 addresses off the link; if `None`, these addresses are unreachable. Unused on a shared port.
    pub gateway_v6: Option<Ipv6Addr>,
    /// VLAN of the addresses in `gids`, of GID 0 and of the gateways: 1 to 4094; `None` for untagged frames.
    pub vlan: Option<u16>,
}

impl NeighbourConfig {
    /// Returns the GID table of the port.
    ///
    /// # Errors
    /// [`GidError`] if an IP address, a prefix length or the VLAN is not valid, if one address is given with different
    /// prefix lengths, or if the GID table has no room for all addresses.
    pub fn gid_table(&self) -> Result<GidTable, GidError> {
        let mut gids = GidTable::on_vlan(self.mac, self.vlan)?;
        for &(ip, prefix_bits) in &self.gids {
            gids.add(ip, prefix_bits, self.vlan)?;
        }
        Ok(gids)
    }
}

/// An address conflict: another station claimed an IP or Ethernet address of this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The claimed IP address.
    pub ip: IpAddr,
    /// The MAC claimed for `ip`. If this MAC is the port's own, this MAC is in conflict. If not, `ip` is in conflict.
    pub mac: Mac,
}

/// GID table and neighbour cache of a port, and queues of queries, replies and announcements to send.
#[derive(Debug)]
pub struct Neighbour {
    mac: Mac,
    mode: Mode,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
    gids: GidTable,
    /// Value of [`GidTable::generation`] at the last announcement; `None` before the first announcement.
    announced: Option<u64>,
    cache: Cache,
    budget: Budget,
    /// Queries and announcements to send, oldest first.
    questions: VecDeque<Vec<u8>>,
    answers: VecDeque<Vec<u8>>,
    conflict: Option<Conflict>,
    /// Address conflicts before this time are counted, but not stored in `conflict`.
    conflict_due: Instant,
    /// The frame that the last call of `poll_transmit` returned.
    sending: Vec<u8>,
    counters: NeighbourCounters,
}

impl Neighbour {
    /// On a dedicated port, the first call of `poll_transmit` announces the addresses of the port.
    pub(crate) fn new(config: NeighbourConfig) -> Result<Self, GidError> {
        let gids = config.gid_table()?;
        Ok(Neighbour {
            mac: config.mac,
            mode: config.mode,
            gateway_v4: config.gateway_v4,
            gateway_v6: config.gateway_v6,
            gids,
            announced: None,
            cache: Cache::default(),
            budget: Budget::default(),
            questions: VecDeque::new(),
            answers: VecDeque::new(),
            conflict: None,
            conflict_due: Instant::ZERO,
            sending: Vec::new(),
            counters: NeighbourCounters::default(),
        })
    }

    /// Returns the GID table of the port.
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// Returns the GID table for changes. On a dedicated port the next `poll_transmit` announces new addresses.
    pub fn gids_mut(&mut self) -> &mut GidTable {
        &mut self.gids
    }

    /// Sets the gateways of a dedicated port; `None`: no gateway of this IP family. A change of a gateway changes
    /// [`Neighbour::generation`], so that callers resolve MACs again.
    pub fn set_gateways(&mut self, gateway_v4: Option<Ipv4Addr>, gateway_v6: Option<Ipv6Addr>) {
        if (self.gateway_v4, self.gateway_v6) != (gateway_v4, gateway_v6) {
            (self.gateway_v4, self.gateway_v6) = (gateway_v4, gateway_v6);
            self.cache.renew();
        }
    }

    /// Makes the next `poll_transmit` of a dedicated port announce all addresses again. To be called when the link is
    /// up again after it was down, because other stations and switches may be on the link now.
    pub fn announce_again(&mut self) {
        self.gids.announce_again();
        self.announced = None;
    }

    /// Resolves the destination MAC of packets to `dst`. If the MAC of the next hop is unknown, schedules a query.
    pub fn resolve(&mut self, dst: IpAddr, now: Instant) -> Resolution {
        let dst = Gid::from(dst).ip();
        if let Some(group) = group_mac(dst) {
            return Resolution::Known(group);
        }
        if self.gids.find(dst).is_some() {
            return Resolution::Known(self.mac);
        }
        match self.next_hop(dst) {
            Some(hop) => self.cache.lookup(hop, now),
            None => Resolution::Unreachable,
        }
    }

    /// Returns `dst` if `dst` is on the link, else the gateway for the IP family of `dst`. On a shared port, returns
    /// `dst` in both cases, because the kernel applies its own routes. `None` if `dst` is not unicast, or if `dst` is
    /// off the link and no gateway is configured.
    fn next_hop(&self, dst: IpAddr) -> Option<IpAddr> {
        if !gid::is_unicast(dst) {
            return None;
        }
        if self.mode == Mode::Shared || self.is_on_link(dst) {
            return Some(dst);
        }
        match dst {
            IpAddr::V4(_) => self.gateway_v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.gateway_v6.map(IpAddr::V6),
        }
    }

    /// Returns whether `ip` is in the subnet of an address of this port. If so, the source MAC of frames from `ip` is
    /// the MAC of the host of `ip`, not of a gateway.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        self.gids.iter().any(|(_, entry)| entry.is_on_link(ip))
    }

    /// Returns a number that changes when a result of [`Neighbour::resolve`] may have changed. A caller that received
    /// [`Resolution::Pending`] calls `resolve` again only after a change of this number.
    pub fn generation(&self) -> u64 {
        self.cache.generation().wrapping_add(self.gids.generation())
    }

    /// Sets the Ethernet address of the neighbour `ip`; received frames do not change this address. Returns false if
    /// the cache is full and no entry may be evicted.
    pub fn set_neighbour(&mut self, ip: IpAddr, mac: Mac) -> bool {
        // On a shared port the entry may be evicted, because the kernel can be queried again. On a dedicated port the
        // MAC is from the configuration (`Origin::Configured`): the entry is not evicted, otherwise its MAC would be
        // lost.
        let origin = if self.mode == Mode::Shared { Origin::Asked } else { Origin::Configured };
        self.cache.set(Gid::from(ip).ip(), mac, origin)
    }

    /// Marks `ip` unreachable: [`Neighbour::resolve`] returns `Unreachable` for 1 s. To be called if the kernel of a
    /// shared port found no neighbour `ip`. If the MAC of `ip` is from the configuration, the call has no effect.
    pub fn set_unreachable(&mut self, ip: IpAddr, now: Instant) {
        self.cache.give_up(Gid::from(ip).ip(), now);
    }

    /// Returns whether the neighbour cache has an entry for `ip`, resolved or not.
    pub fn is_followed(&self, ip: IpAddr) -> bool {
        self.cache.contains(Gid::from(ip).ip())
    }

    /// Returns the number of cache entries, resolved or not: at most `NEIGHBOURS_MAX`.
    pub fn neighbour_count(&self) -> usize {
        self.cache.len()
    }

    /// Returns and removes the stored address conflict, if any. At most one address conflict per second is stored;
    /// further address conflicts are only counted.
    pub fn take_conflict(&mut self) -> Option<Conflict> {
        self.conflict.take()
    }

    /// Returns whether this port receives frames to the Ethernet group `mac`: true for broadcast, the all-nodes group,
    /// and the solicited-node groups of the port's IPv6 addresses.
    pub(crate) fn is_member(&self, mac: Mac) -> bool {
        mac == Mac::BROADCAST
            || mac == frames::group_mac_v6(frames::ALL_NODES)
            || (mac.0.starts_with(&[0x33, 0x33, 0xFF])
                && self.gids.iter().any(|(_, entry)| match entry.ip() {
                    IpAddr::V6(own) => frames::solicited_node_mac(own) == mac,
                    IpAddr::V4(_) => false,
                }))
    }

    /// Iterates over the neighbours that are being resolved or verified. On a shared port the caller looks up their
    /// MACs in the kernel. Each call includes a neighbour until this neighbour is resolved or unreachable.
    pub fn wanted(&self) -> impl Iterator<Item = IpAddr> {
        self.cache.wanted()
    }

    #[inline]
    pub(crate) fn poll_transmit(&mut self, now: Instant) -> Option<&[u8]> {
        // The check whether a frame is due is inlined, because in nearly every poll no frame is due: such a poll needs
        // no function call.
        if self.next_deadline().is_none_or(|due| due > now) { None } else { self.next_frame(now) }
    }

    #[inline(never)]
    fn next_frame(&mut self, now: Instant) -> Option<&[u8]> {
        self.announce();
        if self.questions.is_empty() {
            self.ask(now);
        }
        // Queries are sent before replies, otherwise a flood of received queries would delay the queries of this port.
        let waiting = if self.questions.is_empty() { &mut self.answers } else { &mut self.questions };
        self.sending = waiting.pop_front()?;
        Some(&self.sending)
    }

    /// Returns the time at which the next call of `poll_transmit` is due; [`Instant::ZERO`] means at once. `None` if
    /// there is no frame to send and no timer runs.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let announcing = self.mode == Mode::Dedicated && self.announced != Some(self.gids.generation());
        let waiting = !self.questions.is_empty() || !self.answers.is_empty();
        if announcing || waiting { Some(Instant::ZERO) } else { self.cache.next_due() }
    }

    /// Returns the counters, including the counters of the cache.
    pub fn counters(&self) -> NeighbourCounters {
        let cache = self.cache.counters;
        NeighbourCounters {
            moves_claimed: cache.moves_claimed,
            moves_refuted: cache.moves_refuted,
            moves_followed: cache.moves_followed,
            evicted: cache.evicted,
            unanswered: cache.unanswered,
            cache_full: cache.full,
            ..self.counters
        }
    }

    /// Announces new addresses of this port by ARP announcement (RFC 5227 section 2.3) or unsolicited neighbour
    /// advertisement, so that neighbours replace an old Ethernet address of these IP addresses in their caches.
    fn announce(&mut self) {
        if self.mode == Mode::Shared || self.announced == Some(self.gids.generation()) {
            return;
        }
        self.announced = Some(self.gids.generation());
        for entry in self.gids.take_unannounced() {
            match entry.ip() {
                IpAddr::V4(ip) => {
                    let link = self.link(Mac::BROADCAST, entry.vlan);
                    let frame = frames::arp(link, ArpOperation::REQUEST, ip, Mac::default(), ip);
                    self.counters.arp_requests_tx += self.enqueue(frame);
                }
                IpAddr::V6(ip) => {
                    let link = self.link(frames::group_mac_v6(frames::ALL_NODES), entry.vlan);
                    let frame = frames::advertisement(link, ip, frames::ALL_NODES, false);
                    self.counters.nd_advertisements_tx += self.enqueue(frame);
                }
            }
        }
    }

    /// Queues at most `ASKS_PER_CALL` due queries. On a shared port the kernel sends the queries; the timers of the
    /// cache only limit the wait for the kernel's result.
    fn ask(&mut self, now: Instant) {
        for _ in 0..ASKS_PER_CALL {
            let Some(ask) = self.cache.next_ask(now) else { return };
            if self.mode == Mode::Dedicated {
                self.send_ask(ask);
            }
        }
    }

    fn send_ask(&mut self, Ask { ip, probe }: Ask) {
        let source = self.gids.select_for(ip).and_then(|index| self.gids.get(index)).copied();
        // If no address of this port can be the source of the query (for example, because all addresses of the IP
        // family of `ip` were removed after the call of `resolve`), no query is sent.
        let Some(source) = source else { return };
        match (source.ip(), ip) {
            (IpAddr::V4(own), IpAddr::V4(target)) => {
                let link = self.link(probe.unwrap_or(Mac::BROADCAST), source.vlan);
                let frame = frames::arp(link, ArpOperation::REQUEST, own, Mac::default(), target);
                self.counters.arp_requests_tx += self.enqueue(frame);
            }
            (IpAddr::V6(own), IpAddr::V6(target)) => {
                let destination = probe.unwrap_or_else(|| frames::solicited_node_mac(target));
                let frame = frames::solicitation(self.link(destination, source.vlan), own, target);
                self.counters.nd_solicitations_tx += self.enqueue(frame);
            }
            _ => {}
        }
    }

    fn link(&self, destination: Mac, vlan: Option<u16>) -> Link {
        Link { source: self.mac, destination, vlan }
    }

    /// Adds a query or announcement to the queue, and returns 1. If the queue is full, or `frame` is `None`, counts a
    /// drop, and returns 0.
    fn enqueue(&mut self, frame: Option<Vec<u8>>) -> u64 {
        match frame {
            Some(frame) if self.questions.len() < TX_QUEUE_FRAMES_MAX => {
                self.questions.push_back(frame);
                1
            }
            _ => {
                self.counters.tx_dropped += 1;
                0
            }
        }
    }
}

/// Returns the Ethernet group address of the multicast address `ip` (RFC 1112, RFC 2464); `None` for unicast.
fn group_mac(ip: IpAddr) -> Option<Mac> {
    match ip {
        _ if !ip.is_multicast() => None,
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            Some(Mac([0x01, 0x00, 0x5E, b & 0x7F, c, d]))
        }
        IpAddr::V6(ip) => Some(frames::group_mac_v6(ip)),
    }
}

#[cfg(test)]
mod claim_tests;
#[cfg(test)]
mod tests;
