use std::net::{IpAddr, Ipv6Addr};

use etherparse::icmpv6::{
    Icmpv6PayloadSlice, NdpOptionSlice, NdpOptionsIterator, NeighborAdvertisementHeader,
};
use etherparse::{
    ArpEthIpv4Packet, ArpOperation, Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, Ipv4Slice, Ipv6Slice,
    LinkExtSlice, LinkSlice, NetSlice, SlicedPacket, TransportSlice, checksum::Sum16BitWords,
};

use super::frames::{self, Link, ND_HOP_LIMIT};
use super::{ANSWERS_WAITING_MAX, CONFLICT_INTERVAL_NANOS, Conflict, Mode, Neighbour, gid};
use crate::id::Mac;
use crate::time::Instant;

/// Longest neighbour discovery message accepted, in bytes. Longer messages are dropped before their checksum is
/// computed, because the time of a checksum grows with the length.
const ND_BYTES_MAX: usize = 512;

/// Reason to drop a frame. Each reason has a counter of the same name in `NeighbourCounters`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    Ignored,
    Malformed,
    WrongVlan,
    RateLimited,
}

use Refusal::{Ignored, Malformed, RateLimited, WrongVlan};

#[derive(Clone, Copy, Debug)]
struct Arrival {
    source: Mac,
    /// True if the destination is the Ethernet address of this port; false if the destination is a group.
    is_unicast: bool,
    vlan: Option<u16>,
    now: Instant,
}

impl Neighbour {
    /// Processes a received frame that is not RoCE: queues a reply for `poll_transmit` and updates the cache, or drops
    /// the frame and counts the reason.
    pub(crate) fn handle_frame(&mut self, frame: &[u8], now: Instant) {
        match self.receive(frame, now) {
            Ok(()) => {}
            Err(Ignored) => self.counters.ignored += 1,
            Err(Malformed) => self.counters.malformed += 1,
            Err(WrongVlan) => self.counters.wrong_vlan += 1,
            Err(RateLimited) => self.counters.rate_limited += 1,
        }
    }

    fn receive(&mut self, frame: &[u8], now: Instant) -> Result<(), Refusal> {
        if self.mode == Mode::Shared {
            return Err(Ignored);
        }
        let packet = SlicedPacket::from_ethernet(frame).map_err(|_| Malformed)?;
        let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { return Err(Malformed) };
        let (source, destination) = (Mac(ethernet.source()), Mac(ethernet.destination()));
        if !is_station(source) {
            return Err(Malformed);
        }
        let is_unicast = destination == self.mac;
        if source == self.mac || !(is_unicast || self.is_member(destination)) {
            return Err(Ignored);
        }
        let vlan = match packet.link_exts.as_slice() {
            [] => None,
            // A priority tag (VLAN identifier 0) counts as no tag (IEEE 802.1Q).
            [LinkExtSlice::Vlan(tag)] => Some(tag.vlan_identifier().value()).filter(|&id| id != 0),
            _ => return Err(Ignored),
        };
        if self.gids.iter().all(|(_, entry)| entry.vlan != vlan) {
            return Err(WrongVlan);
        }
        let arrival = Arrival { source, is_unicast, vlan, now };
        match (&packet.net, &packet.transport) {
            (Some(NetSlice::Arp(arp)), _) => {
                let arp = arp.to_packet().try_eth_ipv4().map_err(|_| Malformed)?;
                self.receive_arp(arrival, &arp)
            }
            (Some(NetSlice::Ipv4(ip)), Some(TransportSlice::Icmpv4(icmp))) => {
                self.receive_icmpv4(arrival, ip, icmp)
            }
            (Some(NetSlice::Ipv6(ip)), Some(TransportSlice::Icmpv6(icmp))) => {
                self.receive_icmpv6(arrival, ip, icmp)
            }
            _ => Err(Ignored),
        }
    }

    /// Processes an ARP packet (RFC 826), including probes (sender 0.0.0.0) and announcements (sender = target) of
    /// RFC 5227.
    fn receive_arp(&mut self, arrival: Arrival, arp: &ArpEthIpv4Packet) -> Result<(), Refusal> {
        let (mac, ip) = (Mac(arp.sender_mac), arp.sender_ipv4_addr());
        let is_request = match arp.operation {
            ArpOperation::REQUEST => true,
            ArpOperation::REPLY => false,
            _ => return Err(Ignored),
        };
        *(if is_request { &mut self.counters.arp_requests_rx } else { &mut self.counters.arp_replies_rx }) +=
            1;
        let is_probe = is_request && ip.is_unspecified();
        if !is_station(mac) || !(is_probe || gid::is_unicast(ip.into())) {
            return Err(Malformed);
        }
        self.check_conflict(ip.into(), mac, arrival)?;
        let target = arp.target_ipv4_addr();
        let is_ours = self.owns(target.into(), arrival.vlan);
        if !is_request {
            let is_answer = is_ours && arrival.is_unicast && Mac(arp.target_mac) == self.mac;
            return self.on_claim(ip.into(), mac, is_answer, arrival);
        }
        let claim = if is_probe { Ok(()) } else { self.on_claim(ip.into(), mac, false, arrival) };
        if !is_ours {
            return claim;
        }
        self.charge(arrival)?;
        let reply = frames::arp(self.link(mac, arrival.vlan), ArpOperation::REPLY, target, mac, ip);
        self.counters.arp_replies_tx += self.answer(reply);
        Ok(())
    }

    fn receive_icmpv4(
        &mut self,
        arrival: Arrival,
        ip: &Ipv4Slice<'_>,
        icmp: &Icmpv4Slice<'_>,
    ) -> Result<(), Refusal> {
        let header = ip.header();
        let Icmpv4Type::EchoRequest(echo) = icmp.icmp_type() else { return Err(Ignored) };
        let (peer, own) = (header.source_addr(), header.destination_addr());
        let link = self.echo_link(arrival, peer.into(), own.into())?;
        let checksum_holds = Sum16BitWords::new().add_slice(icmp.slice()).ones_complement() == 0;
        if !checksum_holds || header.to_header().calc_header_checksum() != header.header_checksum() {
            return Err(Malformed);
        }
        let reply = frames::echo_reply_v4(link, own, peer, echo, icmp.payload());
        self.counters.echo_replies_tx += self.answer(reply);
        Ok(())
    }

    fn receive_icmpv6(
        &mut self,
        arrival: Arrival,
        ip: &Ipv6Slice<'_>,
        icmp: &Icmpv6Slice<'_>,
    ) -> Result<(), Refusal> {
        let header = ip.header();
        let (peer, own) = (header.source_addr(), header.destination_addr());
        let echo_link = match icmp.icmp_type() {
            Icmpv6Type::EchoRequest(_) => Some(self.echo_link(arrival, peer.into(), own.into())?),
            _ if icmp.slice().len() > ND_BYTES_MAX => return Err(Malformed),
            _ => None,
        };
        if !icmp.is_checksum_valid(header.source(), header.destination()) {
            return Err(Malformed);
        }
        let from_link = header.hop_limit() == ND_HOP_LIMIT;
        match (icmp.icmp_type(), icmp.payload_slice().map_err(|_| Malformed)?) {
            (Icmpv6Type::EchoRequest(echo), _) => {
                let link = echo_link.ok_or(Ignored)?;
                let reply = frames::echo_reply_v6(link, own, peer, echo, icmp.payload());
                self.counters.echo_replies_tx += self.answer(reply);
                Ok(())
            }
            (_, Icmpv6PayloadSlice::NeighborSolicitation(solicitation)) => {
                self.counters.nd_solicitations_rx += 1;
                let link_address = link_address(solicitation.options_iterator(), true)?;
                let target = solicitation.target_address();
                if !from_link || target.is_multicast() {
                    return Err(Malformed);
                }
                self.receive_solicitation(arrival, peer, own, target, link_address)
            }
            (
                Icmpv6Type::NeighborAdvertisement(flags),
                Icmpv6PayloadSlice::NeighborAdvertisement(advertisement),
            ) => {
                self.counters.nd_advertisements_rx += 1;
                let link_address = link_address(advertisement.options_iterator(), false)?;
                let target = advertisement.target_address();
                let to_group = own.is_multicast();
                if !from_link || target.is_multicast() || (flags.solicited && to_group) {
                    return Err(Malformed);
                }
                let is_answer = flags.solicited && arrival.is_unicast && self.owns(own.into(), arrival.vlan);
                self.receive_advertisement(arrival, target, flags, link_address, is_answer)
            }
            _ => Err(Ignored),
        }
    }

    /// Answers a neighbour solicitation (RFC 4861, 7.2.3 and 7.2.4).
    fn receive_solicitation(
        &mut self,
        arrival: Arrival,
        peer: Ipv6Addr,
        destination: Ipv6Addr,
        target: Ipv6Addr,
        link_address: Option<Mac>,
    ) -> Result<(), Refusal> {
        let is_probe = peer.is_unspecified();
        let probe_is_proper = destination == frames::solicited_node(target) && link_address.is_none();
        if (is_probe && !probe_is_proper) || !(is_probe || gid::is_unicast(peer.into())) {
            return Err(Malformed);
        }
        let mac = link_address.unwrap_or(arrival.source);
        self.check_conflict(peer.into(), mac, arrival)?;
        if !self.owns(target.into(), arrival.vlan) {
            return Err(Ignored);
        }
        let (mac, answer_to) = if is_probe {
            (frames::group_mac_v6(frames::ALL_NODES), frames::ALL_NODES)
        } else {
            if link_address.is_some() {
                // The result of `on_claim` is ignored, because the solicitation is answered even if `on_claim` has no
                // effect.
                let _ = self.on_claim(peer.into(), mac, false, arrival);
            }
            (mac, peer)
        };
        self.charge(arrival)?;
        let reply = frames::advertisement(self.link(mac, arrival.vlan), target, answer_to, !is_probe);
        self.counters.nd_advertisements_tx += self.answer(reply);
        Ok(())
    }

    /// Processes a neighbour advertisement (RFC 4861, 7.2.5). Unlike in RFC 4861, the Ethernet address in use is
    /// verified before another address replaces it.
    fn receive_advertisement(
        &mut self,
        arrival: Arrival,
        target: Ipv6Addr,
        flags: NeighborAdvertisementHeader,
        link_address: Option<Mac>,
        is_answer: bool,
    ) -> Result<(), Refusal> {
        let target = IpAddr::V6(target);
        let known = self.cache.mac_of(target);
        // An advertisement without a link-layer address option can only confirm the Ethernet address in use, and only
        // if the advertisement was sent from that address.
        let mac = link_address.or(known.filter(|&known| known == arrival.source)).ok_or(Ignored)?;
        self.check_conflict(target, mac, arrival)?;
        if !flags.r#override && known.is_some_and(|known| known != mac) {
            return Err(Ignored);
        }
        self.on_claim(target, mac, is_answer, arrival)
    }

    /// Checks an echo request from `peer` to `own` and returns the Ethernet header of the reply. Charges the rate limit
    /// before the caller computes the checksum, so that no checksum is computed for a request beyond the rate limit.
    fn echo_link(&mut self, arrival: Arrival, peer: IpAddr, own: IpAddr) -> Result<Link, Refusal> {
        if !arrival.is_unicast || !self.owns(own, arrival.vlan) {
            return Err(Ignored);
        }
        self.counters.echo_requests_rx += 1;
        if !gid::is_unicast(peer) || self.gids.find(peer).is_some() {
            return Err(Malformed);
        }
        self.charge(arrival)?;
        Ok(self.link(arrival.source, arrival.vlan))
    }

    fn charge(&mut self, arrival: Arrival) -> Result<(), Refusal> {
        let may = self.answers.len() < ANSWERS_WAITING_MAX && self.budget.charge(arrival.source, arrival.now);
        if may { Ok(()) } else { Err(RateLimited) }
    }

    /// Adds the reply `frame` to the queue and returns 1; if `frame` is `None`, returns 0. Before this call, `charge`
    /// must have permitted the reply.
    fn answer(&mut self, frame: Option<Vec<u8>>) -> u64 {
        let made = u64::from(frame.is_some());
        self.answers.extend(frame);
        made
    }

    fn owns(&self, ip: IpAddr, vlan: Option<u16>) -> bool {
        self.gids.find(ip).is_some_and(|(_, entry)| entry.vlan == vlan)
    }

    /// Refuses a frame that claims an IP or Ethernet address of this port, and counts the address conflict.
    fn check_conflict(&mut self, ip: IpAddr, mac: Mac, arrival: Arrival) -> Result<(), Refusal> {
        let is_own_ip = self.owns(ip, arrival.vlan);
        if !is_own_ip && mac != self.mac {
            return Ok(());
        }
        // If both the IP and the Ethernet address are of this port, this port sent the frame and the network looped it
        // back, so there is no conflict.
        if is_own_ip != (mac == self.mac) {
            self.counters.address_conflicts += 1;
            if arrival.now >= self.conflict_due {
                self.conflict = Some(Conflict { ip, mac });
                self.conflict_due = arrival.now.plus_nanos(CONFLICT_INTERVAL_NANOS);
            }
        }
        Err(Ignored)
    }

    /// Passes a reply (`is_answer` is true) or a claim of `mac` for the neighbour `ip` to the cache. Refuses a frame
    /// whose VLAN is not the VLAN of the neighbour.
    fn on_claim(&mut self, ip: IpAddr, mac: Mac, is_answer: bool, arrival: Arrival) -> Result<(), Refusal> {
        if !self.cache.contains(ip) {
            return Err(Ignored);
        }
        let own = self.gids.select_for(ip).and_then(|index| self.gids.get(index)).ok_or(Ignored)?;
        if own.vlan != arrival.vlan {
            return Err(WrongVlan);
        }
        let is_taken = match is_answer {
            true => self.cache.on_answer(ip, mac, arrival.now),
            false => self.cache.on_claim(ip, mac, arrival.now),
        };
        if is_taken { Ok(()) } else { Err(Ignored) }
    }
}

/// Returns the link-layer address option of a neighbour discovery message: the source option if `source` is true, else
/// the target option. `Malformed` if the option is not the MAC of a station.
fn link_address(options: NdpOptionsIterator<'_>, source: bool) -> Result<Option<Mac>, Refusal> {
    let mut found = None;
    for option in options {
        let bytes = match option.map_err(|_| Malformed)? {
            NdpOptionSlice::SourceLinkLayerAddress(option) if source => option.link_layer_address(),
            NdpOptionSlice::TargetLinkLayerAddress(option) if !source => option.link_layer_address(),
            _ => continue,
        };
        let mac = Mac(bytes.try_into().map_err(|_| Malformed)?);
        if !is_station(mac) {
            return Err(Malformed);
        }
        found = Some(mac);
    }
    Ok(found)
}

fn is_station(mac: Mac) -> bool {
    !mac.is_group() && mac != Mac::default()
}
