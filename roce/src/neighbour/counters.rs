//! Counters of the neighbour code.

use crate::counters::counters;

counters! {
    /// Counters of [`Neighbour`](super::Neighbour), of frames unless stated otherwise.
    NeighbourCounters {
        /// ARP requests received, for any address.
        arp_requests_rx,
        /// ARP requests sent, announcements included.
        arp_requests_tx,
        /// ARP replies received.
        arp_replies_rx,
        /// ARP replies sent.
        arp_replies_tx,
        /// Neighbour solicitations received.
        nd_solicitations_rx,
        /// Neighbour solicitations sent.
        nd_solicitations_tx,
        /// Neighbour advertisements received.
        nd_advertisements_rx,
        /// Neighbour advertisements sent, announcements included.
        nd_advertisements_tx,
        /// ICMP and ICMPv6 echo requests to own addresses received.
        echo_requests_rx,
        /// ICMP and ICMPv6 echo replies sent.
        echo_replies_tx,
        /// Frames of other protocols, to other stations, or without effect; on a shared port all.
        ignored,
        /// Frames that violate their protocol, or whose checksum is wrong.
        malformed,
        /// Frames of another VLAN than that of the address they refer to.
        wrong_vlan,
        /// Frames in which another station claims an own IP address, or the own Ethernet address.
        address_conflicts,
        /// Frames that claim another Ethernet address for a neighbour than the one in use.
        moves_claimed,
        /// Verifications after such a claim to which the address in use replied.
        moves_refuted,
        /// Neighbours whose Ethernet address was changed, because the old one did not reply and another did.
        moves_followed,
        /// Queries and echo requests dropped by the rate limit of their source, or because too many replies are queued.
        rate_limited,
        /// Queries and announcements dropped because too many are queued, or because no frame could be built.
        tx_dropped,
        /// Cache entries evicted by new ones.
        evicted,
        /// Cache entries that failed: no neighbour replied, or the kernel reported none.
        unanswered,
        /// Lookups that failed because the cache was full and no entry could be evicted.
        cache_full,
    }
}
