//! Check that a GID which a peer sends is the peer's own. Otherwise a host that reaches the TCP port could make this
//! end send to a third host, or to a multicast group.

use std::net::IpAddr;

use roce::id::Gid;

/// Addresses of the port, of this host and of its neighbours.
pub(crate) trait Reach {
    /// Whether the port's addresses are the kernel's, by which TCP reaches this host too.
    fn has_kernel_addresses(&self) -> bool;
    /// Whether the port has this address.
    fn is_own(&self, gid: Gid) -> bool;
    /// Whether the address lies in a subnet of the port.
    fn is_on_link(&self, gid: Gid) -> bool;
    /// Whether this host has this address, on any interface.
    fn is_of_this_host(&self, ip: IpAddr) -> bool;
    /// Whether two addresses on the link resolve to the same MAC.
    fn is_same_station(&self, a: Gid, b: Gid) -> bool;
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GidRefusal {
    #[error(
        "the peer sent no GID, and RoCE cannot do without: start it with -g INDEX, or perftest with -x INDEX \
         (`show_gids` or `ibv_devinfo -v` lists them; on rxe 1 is the IPv4 address)"
    )]
    None,
    #[error("the peer's GID {0} is not the address of one interface: a connection leads to one")]
    NotUnicast(Gid),
    #[error(
        "the peer's GID {0} is one of this end, and the peer is not on this host: give each port an address of its own"
    )]
    Own(Gid),
    /// On a kernel interface: an address other than that of the TCP connection.
    #[error(
        "the peer's GID {gid} is not the address {tcp_peer} by which TCP reaches it, nor known to be of the same host: \
         connect by the address of the RDMA interface, or allow any with --any-gid"
    )]
    NotTcpPeer {
        gid: Gid,
        /// The peer's address of the TCP connection.
        tcp_peer: IpAddr,
    },
    /// On a port with addresses of its own: an address off the link.
    #[error(
        "the peer's GID {0} is in no subnet of this port: give both ports ip= of one subnet, or allow any with --any-gid"
    )]
    OffLink(Gid),
}

/// Accepts the GID of the peer at `tcp_peer`; with `any_gid`, every GID that a single interface can have.
///
/// ```text
///   kernel interface (af_packet)              port with addresses of its own (memif, vhost, tap, pci, ...)
///     the TCP peer's address; or                the TCP peer's address; or
///     both are of this host, and the GID        on the link: TCP takes another path and proves nothing
///       may be that of this port; or            no address of this port
///     both are one neighbour's, by ARP
/// ```
pub(crate) fn check(gid: Gid, tcp_peer: IpAddr, any_gid: bool, reach: &impl Reach) -> Result<(), GidRefusal> {
    if gid == Gid::ZERO {
        return Err(GidRefusal::None);
    }
    if !gid.is_unicast() {
        return Err(GidRefusal::NotUnicast(gid));
    }
    // An IPv4 address received by an IPv6 socket is mapped (RFC 4291 section 2.5.5.2).
    let tcp_peer = tcp_peer.to_canonical();
    if reach.is_own(gid) {
        // Another process of this host may have the same interface open.
        let is_shared = reach.has_kernel_addresses() && reach.is_of_this_host(tcp_peer);
        return if is_shared { Ok(()) } else { Err(GidRefusal::Own(gid)) };
    }
    if any_gid || gid.ip() == tcp_peer {
        return Ok(());
    }
    if !reach.has_kernel_addresses() {
        return if reach.is_on_link(gid) { Ok(()) } else { Err(GidRefusal::OffLink(gid)) };
    }
    let is_same_host = if reach.is_of_this_host(tcp_peer) {
        reach.is_of_this_host(gid.ip())
    } else {
        // Only addresses on the link are compared, because behind a gateway all addresses resolve to its MAC.
        let other = Gid::from(tcp_peer);
        reach.is_on_link(gid) && reach.is_on_link(other) && reach.is_same_station(gid, other)
    };
    if is_same_host { Ok(()) } else { Err(GidRefusal::NotTcpPeer { gid, tcp_peer }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10.0.0.1/24 and fd00::1/64 on the port, 192.168.0.1 and 10.0.1.1 elsewhere on this host; 10.0.0.2 and fd00::2
    /// are one neighbour.
    struct Host {
        has_kernel_addresses: bool,
    }

    impl Reach for Host {
        fn has_kernel_addresses(&self) -> bool {
            self.has_kernel_addresses
        }
        fn is_own(&self, gid: Gid) -> bool {
            ["10.0.0.1", "fd00::1"].contains(&gid.ip().to_string().as_str())
        }
        fn is_on_link(&self, gid: Gid) -> bool {
            let text = gid.ip().to_string();
            text.starts_with("10.0.0.") || text.starts_with("fd00::")
        }
        fn is_of_this_host(&self, ip: IpAddr) -> bool {
            ip.is_loopback()
                || self.is_own(ip.into())
                || ["192.168.0.1", "10.0.1.1"].contains(&ip.to_string().as_str())
        }
        fn is_same_station(&self, a: Gid, b: Gid) -> bool {
            [a, b].map(|gid| gid.ip().to_string()).iter().all(|ip| ip.ends_with("0.2") || ip.ends_with("::2"))
        }
    }

    fn is_accepted(port: &Host, gid: &str, tcp_peer: &str, any_gid: bool) -> bool {
        let gid = Gid::from(gid.parse::<IpAddr>().unwrap());
        check(gid, tcp_peer.parse().unwrap(), any_gid, port).is_ok()
    }

    #[test]
    fn nobody_is_sent_to_who_is_no_single_other_interface() {
        for has_kernel_addresses in [false, true] {
            let host = Host { has_kernel_addresses };
            for gid in ["::", "0.0.0.0", "ff02::1", "239.1.1.1", "255.255.255.255", "127.0.0.1", "::1"] {
                assert!(!is_accepted(&host, gid, "10.0.0.2", true), "{gid}");
                assert!(!is_accepted(&host, gid, gid, false), "{gid}");
            }
            assert!(!is_accepted(&host, "10.0.0.1", "10.0.0.2", true));
        }
    }

    #[test]
    fn on_a_kernel_interface_the_gid_is_that_of_the_tcp_peer() {
        let host = Host { has_kernel_addresses: true };
        for (gid, tcp_peer, accepted) in [
            ("10.0.0.2", "10.0.0.2", true),
            ("10.0.0.2", "::ffff:10.0.0.2", true),
            ("172.16.0.1", "172.16.0.1", true),
            // Another address of the same neighbour, and one of another's.
            ("fd00::2", "10.0.0.2", true),
            ("fd00::3", "10.0.0.2", false),
            ("10.0.0.3", "10.0.0.2", false),
            // An address behind a gateway resolves to the MAC of the gateway.
            ("fd00::2", "172.16.0.2", false),
            // Both on this host.
            ("10.0.1.1", "127.0.0.1", true),
            ("10.0.1.1", "192.168.0.1", true),
            ("10.0.0.2", "127.0.0.1", false),
            // Another process on the same interface.
            ("10.0.0.1", "10.0.0.1", true),
            ("10.0.0.1", "::ffff:127.0.0.1", true),
            ("fd00::1", "192.168.0.1", true),
        ] {
            assert_eq!(is_accepted(&host, gid, tcp_peer, false), accepted, "{gid} from {tcp_peer}");
            assert!(is_accepted(&host, gid, tcp_peer, true), "{gid} from {tcp_peer}");
        }
    }

    #[test]
    fn on_a_port_with_addresses_of_its_own_the_gid_is_on_the_link() {
        let host = Host { has_kernel_addresses: false };
        assert!(is_accepted(&host, "10.0.0.2", "127.0.0.1", false));
        assert!(is_accepted(&host, "10.0.0.3", "10.0.0.2", false));
        assert!(is_accepted(&host, "172.16.0.1", "172.16.0.1", false));
        assert!(!is_accepted(&host, "172.16.0.1", "127.0.0.1", false));
        assert!(is_accepted(&host, "172.16.0.1", "127.0.0.1", true));
        assert!(!is_accepted(&host, "10.0.0.1", "127.0.0.1", true));
    }
}
