//! Neighbours on the link: our own addresses, and the way to those of others.
//!
//! A DPDK port has no kernel behind it, so on a port of its own the engine answers ARP, IPv6 neighbour
//! discovery and ICMP echo itself ([`Mode::Dedicated`]). On an interface that it shares with a kernel
//! it must do none of that ([`Mode::Shared`]): whoever owns the port asks the kernel for the
//! neighbours that [`Neighbour::wanted`] lists and hands them in.
//!
//! ```text
//!   resolve(dst) -> gid table: on the link? else the gateway -> cache -> Known | Pending | Unreachable
//!   handle_frame --> budget --> answers ----+
//!                --> cache                  +--> poll_transmit
//!   timers --> questions, announcements ----+
//! ```
//!
//! Not done: multicast listener reports, router discovery, duplicate address detection.

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

pub use budget::{SOURCE_ANSWER_INTERVAL_NANOS, SOURCE_ANSWERS_BURST, SOURCES_MAX};
pub use cache::{NEIGHBOURS_MAX, PROBE_WAIT_NANOS, Resolution, VERIFY_INTERVAL_NANOS};
pub use counters::NeighbourCounters;
pub use gid::{GIDS_MAX, GidEntry, GidError, GidTable, LINK_LOCAL_INDEX};

/// Questions and announcements that wait to be sent; more are dropped, as a busy network would. Holds the
/// announcements of a full GID table and as many questions.
const TX_QUEUE_FRAMES_MAX: usize = 2 * GIDS_MAX;
/// Answers that wait to be sent. None is made while so many wait, so that in the long run questions of others cost
/// as much as the answers that polls send.
pub const ANSWERS_WAITING_MAX: usize = 32;
/// The least time between two conflicts that [`Neighbour::take_conflict`] reports.
const CONFLICT_INTERVAL_NANOS: u64 = 1_000_000_000;
/// Questions that one call of `poll_transmit` makes.
const ASKS_PER_CALL: usize = 16;

/// Who speaks for the port's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// We do: the port is ours alone.
    Dedicated,
    /// A kernel does: nothing is answered or asked on the wire here.
    Shared,
}

/// The port as its neighbours see it.
#[derive(Clone, Debug)]
pub struct NeighbourConfig {
    /// The port's Ethernet address.
    pub mac: Mac,
    /// Who answers for it.
    pub mode: Mode,
    /// IP addresses and their prefix lengths in bits, in the order of the GID table after GID 0.
    pub gids: Vec<(IpAddr, u8)>,
    /// The next hop to IPv4 addresses off the link.
    pub gateway_v4: Option<Ipv4Addr>,
    /// The next hop to IPv6 addresses off the link.
    pub gateway_v6: Option<Ipv6Addr>,
    /// The VLAN of these addresses, of GID 0 and of the gateways: 1 to 4094, `None` for untagged frames.
    pub vlan: Option<u16>,
}

/// Another station uses an address of this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The IP address that the station claims.
    pub ip: IpAddr,
    /// The Ethernet address that it claims it at: ours where that is what it took.
    pub mac: Mac,
}

/// The addresses of a port, its neighbours, and the exchanges between them.
#[derive(Debug)]
pub struct Neighbour {
    mac: Mac,
    mode: Mode,
    gateway_v4: Option<Ipv4Addr>,
    gateway_v6: Option<Ipv6Addr>,
    gids: GidTable,
    /// The generation of `gids` whose addresses have been announced.
    announced: Option<u64>,
    cache: Cache,
    budget: Budget,
    /// Questions and announcements that wait to be sent.
    questions: VecDeque<Vec<u8>>,
    /// Answers that wait to be sent.
    answers: VecDeque<Vec<u8>>,
    conflict: Option<Conflict>,
    /// Before this, no further conflict is reported.
    conflict_due: Instant,
    /// The frame that `poll_transmit` lent last.
    sending: Vec<u8>,
    counters: NeighbourCounters,
}

impl Neighbour {
    /// The neighbour code of a port. An address that cannot be one, or one too many, is refused. In
    /// dedicated mode the first call of `poll_transmit` announces the addresses.
    pub fn new(config: NeighbourConfig) -> Result<Self, GidError> {
        let mut gids = GidTable::on_vlan(config.mac, config.vlan)?;
        for (ip, prefix_bits) in config.gids {
            gids.add(ip, prefix_bits, config.vlan)?;
        }
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

    /// The port's addresses.
    pub fn gids(&self) -> &GidTable {
        &self.gids
    }

    /// The port's addresses, to change them; new ones are announced at the next `poll_transmit`.
    pub fn gids_mut(&mut self) -> &mut GidTable {
        &mut self.gids
    }

    /// The Ethernet address that packets to `dst` go to; starts to ask for it where it is unknown.
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

    /// `dst` itself where it is on the link, else the gateway of its family. On a shared port the kernel knows the
    /// routes, and is asked for `dst`.
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

    /// Whether `ip` lies in the subnet of an address of this port, so that its frames come from its own Ethernet
    /// address and not from a gateway's.
    pub fn is_on_link(&self, ip: IpAddr) -> bool {
        self.gids.iter().any(|(_, entry)| entry.is_on_link(ip))
    }

    /// A number that changes whenever a result of [`Neighbour::resolve`] does of itself, so that those
    /// who wait for an address need to look again only then.
    pub fn generation(&self) -> u64 {
        self.cache.generation().wrapping_add(self.gids.generation())
    }

    /// Sets the Ethernet address of `ip`, as its owner or the kernel told; it holds until the next call
    /// or [`Neighbour::forget_neighbour`]. False where the cache is full of such entries.
    pub fn set_neighbour(&mut self, ip: IpAddr, mac: Mac) -> bool {
        // What a kernel tells can be asked for again, so it may be evicted; a user's word may not.
        let origin = if self.mode == Mode::Shared { Origin::Asked } else { Origin::Configured };
        self.cache.set(Gid::from(ip).ip(), mac, origin)
    }

    /// Takes note that there is no way to `ip`, as the kernel told: whoever waits for it need not wait longer.
    pub fn set_unreachable(&mut self, ip: IpAddr, now: Instant) {
        self.cache.give_up(Gid::from(ip).ip(), now);
    }

    /// Whether `ip` is a neighbour that is known or asked for.
    pub fn is_followed(&self, ip: IpAddr) -> bool {
        self.cache.contains(Gid::from(ip).ip())
    }

    /// How many neighbours are known or asked for: at most [`NEIGHBOURS_MAX`].
    pub fn neighbour_count(&self) -> usize {
        self.cache.len()
    }

    /// The last conflict over an address of this port that was not reported yet; at most one in a second.
    pub fn take_conflict(&mut self) -> Option<Conflict> {
        self.conflict.take()
    }

    /// Whether frames to the Ethernet group `mac` are for this port: broadcast, all nodes, and the solicited-node
    /// groups of its IPv6 addresses.
    pub fn is_member(&self, mac: Mac) -> bool {
        mac == Mac::BROADCAST
            || mac == group_mac_v6(frames::ALL_NODES)
            || (mac.0.starts_with(&[0x33, 0x33, 0xFF])
                && self.gids.iter().any(|(_, entry)| match entry.ip() {
                    IpAddr::V6(own) => frames::solicited_node_mac(own) == mac,
                    IpAddr::V4(_) => false,
                }))
    }

    /// Forgets what is known of `ip`.
    pub fn forget_neighbour(&mut self, ip: IpAddr) {
        self.cache.forget(Gid::from(ip).ip());
    }

    /// The neighbours whose Ethernet address is waited for; on a shared port, those to ask the kernel
    /// for. Each stays listed until it is set or given up.
    pub fn wanted(&self) -> impl Iterator<Item = IpAddr> {
        self.cache.wanted()
    }

    /// The next frame to send, or `None` where there is none at `now`. Call it until then at each poll.
    #[inline]
    pub fn poll_transmit(&mut self, now: Instant) -> Option<&[u8]> {
        // Inlined, because nearly every poll ends here.
        if self.next_deadline().is_none_or(|due| due > now) { None } else { self.next_frame(now) }
    }

    #[inline(never)]
    fn next_frame(&mut self, now: Instant) -> Option<&[u8]> {
        self.announce();
        if self.questions.is_empty() {
            self.ask(now);
        }
        // Questions first: others that ask without end must not keep this port from asking.
        let waiting = if self.questions.is_empty() { &mut self.answers } else { &mut self.questions };
        self.sending = waiting.pop_front()?;
        Some(&self.sending)
    }

    /// When `poll_transmit` has something to do of its own accord; the origin of time means at once.
    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        let announcing = self.mode == Mode::Dedicated && self.announced != Some(self.gids.generation());
        let waiting = !self.questions.is_empty() || !self.answers.is_empty();
        if announcing || waiting { Some(Instant::ZERO) } else { self.cache.next_due() }
    }

    /// What was seen and done so far.
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

    /// Tells the link of addresses that are new: who had another Ethernet address for them mends it.
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
                    let link = self.link(group_mac_v6(frames::ALL_NODES), entry.vlan);
                    let frame = frames::advertisement(link, ip, frames::ALL_NODES, false);
                    self.counters.nd_advertisements_tx += self.enqueue(frame);
                }
            }
        }
    }

    /// Queues some of the questions that are due. On a shared port the kernel asks, and the cache only
    /// counts the time that it may take.
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
        // The address that the neighbour was on the link of may have been removed since.
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

    /// Queues a question or announcement; returns how many were, for the counter of its kind.
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

/// The Ethernet group that packets to the multicast address `ip` go to (RFC 1112, RFC 2464).
fn group_mac(ip: IpAddr) -> Option<Mac> {
    match ip {
        _ if !ip.is_multicast() => None,
        IpAddr::V4(ip) => {
            let [_, b, c, d] = ip.octets();
            Some(Mac([0x01, 0x00, 0x5E, b & 0x7F, c, d]))
        }
        IpAddr::V6(ip) => Some(group_mac_v6(ip)),
    }
}

fn group_mac_v6(group: Ipv6Addr) -> Mac {
    let [.., a, b, c, d] = group.octets();
    Mac([0x33, 0x33, a, b, c, d])
}

#[cfg(test)]
mod claim_tests;
#[cfg(test)]
mod tests;
