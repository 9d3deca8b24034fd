//! The part of a port's configuration that is determined by the port's name, the kernel and the DPDK device.

use std::net::IpAddr;

use roce::id::Mac;
use roce::neighbour::{Mode, NeighbourConfig};

use super::spec::{PortKind, PortSpec};
use crate::error::OpenError;
use crate::kernel::Interface;

/// Data bytes of a packet buffer (mbuf): enough for a packet of the largest path MTU (4096 bytes) in one mbuf.
pub(super) const BUFFER_BYTES: u16 = 8192;
/// Largest MTU of ports other than XDP ports, in bytes: the size of a packet buffer, less 64 bytes that the Ethernet
/// header may use.
const BUFFER_MTU_BYTES: usize = BUFFER_BYTES as usize - 64;
/// Data bytes of an mbuf of an XDP port: the kernel requires that mempool header, `rte_mbuf`, headroom and data of an
/// mbuf fit into one page.
pub(super) const XDP_BUFFER_BYTES: u16 = 3072;
/// Largest MTU of XDP ports, in bytes: the size of a packet buffer, less 64 bytes that the Ethernet header may use.
const XDP_MTU_BYTES: usize = XDP_BUFFER_BYTES as usize - 64;
/// Bytes of an Ethernet header with one VLAN tag.
const ETHERNET_BYTES: usize = 18;

fn refuse(spec: &PortSpec, key: &'static str, reason: &'static str) -> OpenError {
    OpenError::KeyDoesNotApply { kind: spec.kind.name(), key, reason }
}

/// Refuses keys of the port's name that do not apply to the port's kind.
pub(crate) fn check_keys(spec: &PortSpec) -> Result<(), OpenError> {
    refuse_access_keys(spec)?;
    if spec.kind.is_kernel_interface() { refuse_interface_keys(spec) } else { Ok(()) }
}

fn refuse_access_keys(spec: &PortSpec) -> Result<(), OpenError> {
    const MEMIF: &str = "it says who may be the other end of a memif";
    let memif = spec.kind == PortKind::Memif;
    match (memif, &spec.secret, spec.peer_uids.is_empty()) {
        (true, ..) | (false, None, true) => Ok(()),
        (false, Some(_), _) => Err(refuse(spec, "secret", MEMIF)),
        (false, None, false) => Err(refuse(spec, "uid", MEMIF)),
    }
}

/// Refuses the keys `mac`, `ip`, `gw` and `vlan`, because a kernel interface has these properties from the kernel.
fn refuse_interface_keys(spec: &PortSpec) -> Result<(), OpenError> {
    const OWN: &str = "the interface keeps what the kernel gave it; use `ip address` and `ip link`";
    if spec.mac.is_some() {
        return Err(refuse(spec, "mac", OWN));
    }
    if !spec.ips.is_empty() {
        return Err(refuse(spec, "ip", OWN));
    }
    if spec.gateway.is_some() {
        const ROUTES: &str = "packets follow the kernel's routes; use `ip route`";
        return Err(refuse(spec, "gw", ROUTES));
    }
    if spec.vlan.is_some() {
        const TAGGED: &str = "the kernel tags frames; name its VLAN interface, such as eth1.7";
        return Err(refuse(spec, "vlan", TAGGED));
    }
    Ok(())
}

/// Returns the MTU of a port in bytes: at most the MTU that fits into a packet buffer, and at most `own.0`, the MTU of
/// the kernel interface or DPDK device. If `mtu=` exceeds `own.0`, and `own.0` is the lower of these bounds, the error
/// contains `own.1` ("the interface" or "the device") and `own.2`, the remedy.
fn mtu_bytes(spec: &PortSpec, own: (usize, &'static str, &'static str)) -> Result<usize, OpenError> {
    let buffer_bytes = if spec.kind == PortKind::AfXdp { XDP_MTU_BYTES } else { BUFFER_MTU_BYTES };
    let buffers = (buffer_bytes, "a packet buffer", "leave out mtu=");
    let (max_bytes, bound, remedy) = if own.0 < buffer_bytes { own } else { buffers };
    match spec.mtu_bytes {
        Some(mtu_bytes) if usize::from(mtu_bytes) > max_bytes => {
            Err(OpenError::Mtu { mtu_bytes, max_bytes, bound, remedy })
        }
        asked => Ok(asked.map_or(max_bytes, usize::from)),
    }
}

/// Returns the MTU of a port on the kernel interface `interface`, in bytes.
pub(crate) fn interface_mtu_bytes(spec: &PortSpec, interface: &Interface) -> Result<usize, OpenError> {
    mtu_bytes(spec, (interface.mtu_bytes, "the interface", "raise it with `ip link set`, or leave out mtu="))
}

/// Returns the MTU of a dedicated port whose DPDK device has the MTU setting `device_bytes`, in bytes. If
/// `device_bytes` is `None`, only the packet buffers limit frames.
pub(crate) fn dedicated_mtu_bytes(spec: &PortSpec, device_bytes: Option<usize>) -> Result<usize, OpenError> {
    mtu_bytes(spec, (device_bytes.unwrap_or(BUFFER_MTU_BYTES), "the device", "leave out mtu="))
}

/// Returns the addresses and gateways of a port on the kernel interface `interface`.
pub(crate) fn interface_neighbour(kind: PortKind, interface: &Interface) -> NeighbourConfig {
    let link_local = IpAddr::from(interface.mac.link_local());
    NeighbourConfig {
        mac: interface.mac,
        // The XDP program redirects every frame of one receive queue of the interface to the XDP socket. The kernel
        // receives none of these frames, so the stack itself must answer ARP and neighbour discovery.
        mode: if kind == PortKind::AfXdp { Mode::Dedicated } else { Mode::Shared },
        gids: interface.addresses.iter().copied().filter(|(ip, _)| *ip != link_local).collect(),
        gateway_v4: interface.gateway_v4,
        gateway_v6: interface.gateway_v6,
        vlan: None,
    }
}

/// Returns the addresses of a dedicated port: the MAC `mac`; IP addresses, gateway and VLAN from the port's name.
pub(crate) fn dedicated_neighbour(spec: &PortSpec, mac: Mac) -> NeighbourConfig {
    NeighbourConfig {
        mac,
        mode: Mode::Dedicated,
        gids: spec.ips.clone(),
        gateway_v4: spec.gateway.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None }),
        gateway_v6: spec.gateway.and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None }),
        vlan: spec.vlan,
    }
}

const _: () = assert!(BUFFER_MTU_BYTES + ETHERNET_BYTES <= BUFFER_BYTES as usize);
const _: () = assert!(XDP_MTU_BYTES + ETHERNET_BYTES <= XDP_BUFFER_BYTES as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_larger_than_the_port_permits_is_an_error() {
        let of = |name: &str, own_bytes| {
            let spec: PortSpec = name.parse().expect(name);
            mtu_bytes(&spec, (own_bytes, "the interface", "raise it")).map_err(|error| error.to_string())
        };
        assert_eq!(of("af_packet:eth1", 1500), Ok(1500));
        assert_eq!(of("af_packet:eth1,mtu=1500", 1500), Ok(1500));
        assert_eq!(of("af_packet:eth1,mtu=1400", 1500), Ok(1400));
        let said = of("af_packet:eth1,mtu=1501", 1500).unwrap_err();
        assert_eq!(said, "mtu=1501 is more than the 1500 bytes that the interface permits: raise it");
        assert_eq!(of("af_packet:eth1", 65_535), Ok(BUFFER_MTU_BYTES));
        assert!(of("af_packet:eth1,mtu=65535", 65_535).unwrap_err().contains("a packet buffer permits"));
        assert!(
            of("memif:wire,mtu=65535", BUFFER_MTU_BYTES).unwrap_err().contains("a packet buffer permits")
        );
    }

    #[test]
    fn keys_that_a_port_does_not_have_are_refused() {
        for (name, key) in [
            ("af_packet:eth1,mac=2:0:0:0:0:1", "mac"),
            ("af_packet:eth1,ip=10.0.0.1/24", "ip"),
            ("af_xdp:eth1,gw=10.0.0.254", "gw"),
            ("af_packet:eth1,vlan=7", "vlan"),
            ("af_packet:eth1,secret=x", "secret"),
            ("memif:wire,uid=7", ""),
        ] {
            let spec: PortSpec = name.parse().expect(name);
            match check_keys(&spec) {
                Err(OpenError::KeyDoesNotApply { key: refused, .. }) => assert_eq!(refused, key, "{name}"),
                refused => assert!(refused.is_ok() && key.is_empty(), "{name}: {refused:?}"),
            }
        }
    }
}
