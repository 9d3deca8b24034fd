//! What the neighbour code saw and did, by name.

use crate::counters::counters;

counters! {
    /// What [`Neighbour`](super::Neighbour) saw and did. Each counts frames unless it says otherwise.
    NeighbourCounters {
        /// ARP requests received, for whatever address.
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
        /// ICMP echo requests to our addresses received.
        echo_requests_rx,
        /// ICMP echo replies sent.
        echo_replies_tx,
        /// Well-formed frames that are nothing to us.
        ignored,
        /// Frames that break the rules of their protocol, or whose checksum is wrong.
        malformed,
        /// Frames of another VLAN than that of the address they are about.
        wrong_vlan,
        /// Frames in which another station claims an IP address of ours, or our Ethernet address.
        address_conflicts,
        /// Frames that claim another Ethernet address of a neighbour than the one in use.
        moves_claimed,
        /// Verifications after such a claim in which the address in use answered.
        moves_refuted,
        /// Neighbours followed to another Ethernet address, the old one not answering.
        moves_followed,
        /// Questions that were not answered because their source asked too many, or too many answers were waiting.
        rate_limited,
        /// Frames that were not sent because too many were waiting.
        tx_dropped,
        /// Neighbours forgotten to make room.
        evicted,
        /// Times that a neighbour did not answer and was given up.
        unanswered,
        /// Times that an address could not be asked for because the cache was full.
        cache_full,
    }
}
