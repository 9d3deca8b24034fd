use crate::counters::counters;

counters! {
    /// Counters of [`Neighbour`](super::Neighbour); the unit is frames unless stated otherwise.
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
        /// ICMP and ICMPv6 echo requests received for an address of this port.
        echo_requests_rx,
        /// ICMP and ICMPv6 echo replies sent.
        echo_replies_tx,
        /// Frames dropped because they are not ARP, neighbour discovery or an echo request, are for another station, or
        /// have no effect. On a shared port: all frames that are not RoCE.
        ignored,
        /// Frames dropped because of a wrong checksum or another violation of their protocol.
        malformed,
        /// Frames dropped because no address of this port has the VLAN of the frame, or because the frame claims the IP
        /// address of a neighbour whose VLAN differs from that of the frame.
        wrong_vlan,
        /// Frames in which another station claims an IP address or the Ethernet address of this port.
        address_conflicts,
        /// Claims whose Ethernet address differs from the Ethernet address in use for the neighbour.
        moves_claimed,
        /// Verifications started by a claim (`moves_claimed`), and ended by a reply from the Ethernet address in use
        /// for the neighbour.
        moves_refuted,
        /// Replacements of a neighbour's Ethernet address: the previous Ethernet address did not reply to queries, and
        /// another Ethernet address did.
        moves_followed,
        /// Queries and echo requests dropped by the rate limit of their source, or because the reply queue was full.
        rate_limited,
        /// Queries and announcements dropped because their queue was full, or because no frame could be built.
        tx_dropped,
        /// Entries of the neighbour cache evicted to make room for a new entry.
        evicted,
        /// Entries of the neighbour cache that failed, because no neighbour replied or the kernel found no neighbour.
        unanswered,
        /// Lookups that failed because the neighbour cache was full and no entry could be evicted.
        cache_full,
    }
}
