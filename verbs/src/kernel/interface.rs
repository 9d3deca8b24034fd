//! The configuration of a network interface of the kernel.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkLayerType, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteVia};
use roce::id::Mac;

use super::KernelError;
use super::netlink::{Netlink, Scope};

/// Configuration of a network interface of the kernel, at the time of [`Interface::read`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Name, such as `eth1`.
    pub name: String,
    /// Interface index in the network namespace of the thread that read the interface.
    pub index: u32,
    /// MAC address.
    pub mac: Mac,
    /// MTU: the largest IP packet, in bytes.
    pub mtu_bytes: usize,
    /// Whether the interface is administratively up.
    pub is_up: bool,
    /// Whether the interface has a carrier, that is, a link; false while the interface is down.
    pub has_carrier: bool,
    /// Addresses with prefix lengths in bits, in this order: IPv4, global IPv6, link-local IPv6.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Gateway of the preferred IPv4 default route over the interface; `None` without such a route.
    pub gateway_v4: Option<Ipv4Addr>,
    /// Gateway of the preferred IPv6 default route over the interface; `None` without such a route.
    pub gateway_v6: Option<Ipv6Addr>,
}

impl Interface {
    /// Reads the interface `name` of the calling thread's network namespace. Needs no privilege.
    pub fn read(name: &str) -> Result<Self, KernelError> {
        let mut question = LinkMessage::default();
        question.attributes.push(LinkAttribute::IfName(name.to_owned()));
        Interface::read_link(name, question)
    }

    /// Returns an interface that does not exist, with index `index`.
    #[cfg(test)]
    pub(super) fn imaginary(index: u32) -> Self {
        Interface {
            name: "none".to_owned(),
            index,
            mac: Mac([0; 6]),
            mtu_bytes: 1500,
            is_up: true,
            has_carrier: true,
            addresses: Vec::new(),
            gateway_v4: None,
            gateway_v6: None,
        }
    }

    /// Reads this interface again, by its index, because the interface may have been renamed.
    pub(super) fn read_again(&self) -> Result<Self, KernelError> {
        let mut question = LinkMessage::default();
        question.header.index = self.index;
        Interface::read_link(&self.name, question)
    }

    /// Reads the interface that `question` names. `name` is the name in errors.
    fn read_link(name: &str, question: LinkMessage) -> Result<Self, KernelError> {
        let mut netlink = Netlink::open()?;
        let mut interface = ask_link(&mut netlink, name, question)?;
        interface.addresses = read_addresses(&mut netlink, interface.index)?;
        let gateways = read_gateways(&mut netlink, interface.index)?;
        interface.gateway_v4 = gateways.iter().find_map(|ip| match ip {
            IpAddr::V4(ip) => Some(*ip),
            IpAddr::V6(_) => None,
        });
        interface.gateway_v6 = gateways.iter().find_map(|ip| match ip {
            IpAddr::V4(_) => None,
            IpAddr::V6(ip) => Some(*ip),
        });
        Ok(interface)
    }

    /// Fails with [`KernelError::Down`] if the interface is down.
    pub fn require_up(&self) -> Result<(), KernelError> {
        if self.is_up { Ok(()) } else { Err(KernelError::Down(self.name.clone())) }
    }
}

fn ask_link(netlink: &mut Netlink, name: &str, question: LinkMessage) -> Result<Interface, KernelError> {
    let doing = "read the interface";
    let answers = netlink.ask(doing, RouteNetlinkMessage::GetLink(question), Scope::One).map_err(
        |error| match error {
            KernelError::System { source, .. } if is_absent(&source) => {
                KernelError::NoInterface(name.to_owned())
            }
            other => other,
        },
    )?;
    let link = answers.into_iter().find_map(|answer| match answer {
        RouteNetlinkMessage::NewLink(link) => Some(link),
        _ => None,
    });
    let missing = |what: &str| KernelError::Answer { doing, detail: format!("no {what}") };
    let link = link.ok_or_else(|| missing("link"))?;
    if link.header.link_layer_type != LinkLayerType::Ether {
        return Err(KernelError::NotEthernet(name.to_owned()));
    }
    let mut name = None;
    let mut mac = None;
    let mut mtu_bytes = None;
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(text) => name = Some(text.clone()),
            LinkAttribute::Address(bytes) => mac = bytes.as_slice().try_into().ok().map(Mac),
            LinkAttribute::Mtu(bytes) => mtu_bytes = usize::try_from(*bytes).ok(),
            _ => {}
        }
    }
    Ok(Interface {
        name: name.ok_or_else(|| missing("name"))?,
        index: link.header.index,
        mac: mac.ok_or_else(|| missing("Ethernet address"))?,
        mtu_bytes: mtu_bytes.ok_or_else(|| missing("MTU"))?,
        is_up: link.header.flags.contains(LinkFlags::Up),
        has_carrier: link.header.flags.contains(LinkFlags::LowerUp),
        addresses: Vec::new(),
        gateway_v4: None,
        gateway_v6: None,
    })
}

/// Returns whether `error` means that no interface has the requested name, or that no interface can have this name.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ERANGE | libc::EINVAL))
}

fn read_addresses(netlink: &mut Netlink, index: u32) -> Result<Vec<(IpAddr, u8)>, KernelError> {
    let question = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let answers = netlink.ask("read the interface's addresses", question, Scope::All)?;
    let mut addresses: Vec<(IpAddr, u8)> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewAddress(address) if address.header.index == index => own_ip(&address),
            _ => None,
        })
        .collect();
    // The sort is stable, so addresses of one kind stay in the kernel's order: the primary address first.
    addresses.sort_by_key(|(ip, _)| match ip {
        IpAddr::V4(_) => 0,
        IpAddr::V6(ip) if !ip.is_unicast_link_local() => 1,
        IpAddr::V6(_) => 2,
    });
    Ok(addresses)
}

/// Returns the interface's own address and its prefix length in bits. The address is `IFA_LOCAL` if present, because
/// on a point-to-point link `IFA_ADDRESS` is the address at the other end of the link; otherwise the address is
/// `IFA_ADDRESS`. Returns `None` if the address failed duplicate address detection (RFC 4862 section 5.4).
fn own_ip(message: &AddressMessage) -> Option<(IpAddr, u8)> {
    if message.header.flags.contains(AddressHeaderFlags::Dadfailed) {
        return None;
    }
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(ip) => Some(*ip),
        _ => None,
    });
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Address(ip) => Some(*ip),
        _ => None,
    });
    Some((local.or(address)?, message.header.prefix_len))
}

/// Returns the gateways of the default routes over the interface `index`, in ascending order of the routes' metrics.
fn read_gateways(netlink: &mut Netlink, index: u32) -> Result<Vec<IpAddr>, KernelError> {
    let question = RouteNetlinkMessage::GetRoute(RouteMessage::default());
    let answers = netlink.ask("read the default routes", question, Scope::All)?;
    let mut routes: Vec<(u32, IpAddr)> = answers
        .into_iter()
        .filter_map(|answer| match answer {
            RouteNetlinkMessage::NewRoute(route) => default_gateway(&route, index),
            _ => None,
        })
        .collect();
    routes.sort_by_key(|&(metric, _)| metric);
    Ok(routes.into_iter().map(|(_, gateway)| gateway).collect())
}

/// Returns metric and gateway of `route`; `None` if `route` is no default route of the main routing table over the
/// interface `index`, or has no gateway.
fn default_gateway(route: &RouteMessage, index: u32) -> Option<(u32, IpAddr)> {
    if route.header.destination_prefix_length != 0 || route.header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let mut metric = 0;
    let mut is_ours = false;
    let mut ours_of_several = None;
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Priority(value) => metric = *value,
            RouteAttribute::Oif(oif) => is_ours = *oif == index,
            RouteAttribute::MultiPath(hops) => {
                ours_of_several = hops.iter().find(|hop| hop.interface_index == index);
            }
            _ => {}
        }
    }
    let gateway = match ours_of_several {
        Some(hop) => gateway_of(&hop.attributes),
        None if is_ours => gateway_of(&route.attributes),
        None => None,
    };
    Some((metric, gateway?))
}

/// Returns the gateway in the attributes of a route, or of one hop of a multipath route; `None` without a gateway.
pub(super) fn gateway_of(attributes: &[RouteAttribute]) -> Option<IpAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        RouteAttribute::Gateway(RouteAddress::Inet6(ip)) | RouteAttribute::Via(RouteVia::Inet6(ip)) => {
            Some(IpAddr::V6(*ip))
        }
        _ => None,
    })
}
