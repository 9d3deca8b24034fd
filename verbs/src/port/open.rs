//! Opening a port by its name.

use std::net::IpAddr;

use dpdk_ffi::{
    DEFAULT_DESCRIPTORS, Device, Eal, EalConfig, EalError, HELD_MBUFS, Memory, Mempool, MempoolConfig,
    PortBuilder, PortError,
};
use roce::engine::limits::RX_BURST_FRAMES;
use roce::id::Mac;
use roce::neighbour::{Mode, NeighbourConfig};
use roce::port::PortCaps;
use rustix::process::{Resource, getrlimit};

use super::control::PortControl;
use super::dpdk::{DpdkPort, LOOPED_MBUFS};
use super::memif;
use super::spec::{PortKind, PortSpec};
use super::vdev::vdev_name;
use crate::error::OpenError;
use crate::kernel::{Interface, KernelNeighbours, PortGuard, ROCE_FILTER};

/// Data bytes of a packet buffer (mbuf): enough for a packet of the largest path MTU (4096 bytes) in one mbuf.
const BUFFER_BYTES: u16 = 8192;
/// Largest MTU of ports other than XDP ports, in bytes: a packet buffer, less 64 bytes for the Ethernet header.
const BUFFER_MTU_BYTES: usize = BUFFER_BYTES as usize - 64;
/// Data bytes of an mbuf of an XDP port: the kernel requires that mempool header, `rte_mbuf`, headroom and data of an
/// mbuf fit into one page.
const XDP_BUFFER_BYTES: u16 = 3072;
/// Largest MTU of XDP ports, in bytes: a packet buffer, less 64 bytes for the Ethernet header.
const XDP_MTU_BYTES: usize = XDP_BUFFER_BYTES as usize - 64;
/// Bytes of an Ethernet header with one VLAN tag.
const ETHERNET_BYTES: usize = 18;

/// Number of mbufs in a thread's cache of the mbuf pool. A cache of more than 1.5 times this number returns mbufs to
/// the pool.
const CACHE_MBUFS: u32 = 256;
const CACHED_MBUFS: u32 = CACHE_MBUFS + CACHE_MBUFS / 2;
/// Number of threads with a cache of the mbuf pool: the thread that initialised DPDK, and a thread that the application
/// may register with DPDK (`rte_thread_register`).
const CACHES: u32 = 2;
/// Number of descriptors of each ring of an XDP socket.
const XDP_DESCRIPTORS: u16 = 2048;
/// Largest number of mbufs outside a port's rings: a received burst, linear copies of this burst, frames to be sent,
/// frames to the port's own MAC, and the caches of threads.
const MBUFS_BESIDE_RINGS: u32 =
    (2 * RX_BURST_FRAMES + HELD_MBUFS + LOOPED_MBUFS) as u32 + CACHES * CACHED_MBUFS;

/// Returns the number of mbufs of the pool of a port: enough for the full rings of `queues` receive queues and `queues`
/// transmit queues.
const fn pool_mbufs(queues: u16, descriptors: u16) -> u32 {
    2 * queues as u32 * descriptors as u32 + MBUFS_BESIDE_RINGS + RX_BURST_FRAMES as u32
}

/// Handles of a shared port: the kernel's routes and neighbours, and the guard of UDP port 4791.
pub struct SharedInterface {
    /// The kernel's routes and neighbours.
    pub neighbours: KernelNeighbours,
    /// While the guard exists, the kernel does not answer packets to UDP port 4791 with ICMP port unreachable.
    _guard: PortGuard,
}

/// Result of [`open`]: an open port, and its configuration.
pub struct Opened {
    /// The data path of the port.
    pub port: DpdkPort,
    /// The control of the port. [`PortControl::poll_link`] starts a memif client that is not started yet.
    pub control: PortControl,
    /// MAC, IP addresses, VLAN and gateways of the port, and whether the port is dedicated or shared.
    pub neighbour: NeighbourConfig,
    /// Handles of the shared port; `None` if the port is dedicated.
    pub shared: Option<SharedInterface>,
}

/// Opens the port that `spec` names. If this process has not initialised DPDK yet, first initialises DPDK with `eal`.
///
/// # Errors
/// [`OpenError`] states the failure and the remedy.
pub fn open(spec: &PortSpec, eal: &EalConfig) -> Result<Opened, OpenError> {
    let eal = match Eal::init(eal) {
        Err(EalError::AlreadyInitialized) => Eal::get().ok_or(EalError::AlreadyInitialized)?,
        other => other?,
    };
    refuse_access_keys(spec)?;
    match spec.kind {
        PortKind::AfPacket | PortKind::AfXdp => open_kernel_interface(eal, spec),
        _ => open_dedicated(eal, spec),
    }
}

fn refuse(spec: &PortSpec, key: &'static str, reason: &'static str) -> OpenError {
    OpenError::KeyDoesNotApply { kind: spec.kind.name(), key, reason }
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

fn open_kernel_interface(eal: Eal, spec: &PortSpec) -> Result<Opened, OpenError> {
    refuse_interface_keys(spec)?;
    let interface = Interface::read(&spec.target)?;
    interface.require_up()?;
    let is_xdp = spec.kind == PortKind::AfXdp;
    let raise = (interface.mtu_bytes, "the interface", "raise it with `ip link set`, or leave out mtu=");
    let mtu_bytes = mtu_bytes(spec, raise)?;
    let device = attach(eal, spec)?;
    let caps = PortCaps { mac: interface.mac, mtu_bytes };
    let (port, queues) = builder(eal, spec)?.open(device).map_err(|error| open_error(spec, error))?;
    let (port, control) = (DpdkPort::new(queues, caps), PortControl::new(port, false));
    // The XDP program redirects every frame of its queue to the XDP socket. The kernel receives none of these frames,
    // so the stack itself must answer ARP and neighbour discovery.
    let mode = if is_xdp { Mode::Dedicated } else { Mode::Shared };
    let shared = if is_xdp {
        None
    } else {
        let guard = PortGuard::hold(&interface)?;
        Some(SharedInterface { neighbours: KernelNeighbours::open(&interface)?, _guard: guard })
    };
    let link_local = IpAddr::from(interface.mac.link_local());
    let gids = interface.addresses.iter().copied().filter(|(ip, _)| *ip != link_local).collect();
    let neighbour = NeighbourConfig {
        mac: interface.mac,
        mode,
        gids,
        gateway_v4: interface.gateway_v4,
        gateway_v6: interface.gateway_v6,
        vlan: None,
    };
    Ok(Opened { port, control, neighbour, shared })
}

/// Returns the MTU of a port in bytes, which the packet buffers and `own` bound. `own`: MTU of the interface or device,
/// the words for this interface or device in errors, and the remedy if `mtu=` exceeds this MTU.
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

/// Returns the `OpenError` for `error`, which the opening of a port returned. For an XDP port, adds the requirements of
/// XDP ports, because the driver reports every failure as EINVAL.
fn open_error(spec: &PortSpec, error: PortError) -> OpenError {
    if spec.kind != PortKind::AfXdp {
        return error.into();
    }
    let limit_bytes = getrlimit(Resource::Memlock).current;
    let memlock = limit_bytes.map_or("any amount".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    OpenError::Xdp { port: spec.to_string(), error: error.into(), memlock }
}

fn open_dedicated(eal: Eal, spec: &PortSpec) -> Result<Opened, OpenError> {
    let (device, knocks) = match spec.kind {
        PortKind::Memif => memif::attach(eal, spec, BUFFER_BYTES)?,
        PortKind::Pci => (eal.attach_pci(&spec.target, &spec.driver_args.join(","))?, false),
        _ => (attach(eal, spec)?, false),
    };
    let mut builder = builder(eal, spec)?.promiscuous(true);
    // PCI and tap devices have an MTU setting. On other ports, only the size of the packet buffer limits frames.
    let has_mtu = matches!(spec.kind, PortKind::Pci | PortKind::Tap);
    if let Some(mtu_bytes) = spec.mtu_bytes.filter(|_| has_mtu) {
        builder = builder.mtu_bytes(mtu_bytes);
    }
    let (mut port, mut queues) = builder.open_stopped(device)?;
    if let Err(error) = port.start(queues.iter_mut())
        && !knocks
    {
        return Err(error.into());
    }
    let mac = spec.mac.unwrap_or(own_mac(spec.kind, port.info().mac));
    let device_mtu_bytes = if has_mtu { usize::from(port.mtu_bytes()) } else { BUFFER_MTU_BYTES };
    let mtu_bytes = mtu_bytes(spec, (device_mtu_bytes, "the device", "leave out mtu="))?;
    let gateways = (spec.gateway, spec.gateway);
    let neighbour = NeighbourConfig {
        mac,
        mode: Mode::Dedicated,
        gids: spec.ips.clone(),
        gateway_v4: gateways.0.and_then(|ip| if let IpAddr::V4(ip) = ip { Some(ip) } else { None }),
        gateway_v6: gateways.1.and_then(|ip| if let IpAddr::V6(ip) = ip { Some(ip) } else { None }),
        vlan: spec.vlan,
    };
    let (port, control) =
        (DpdkPort::new(queues, PortCaps { mac, mtu_bytes }), PortControl::new(port, knocks));
    Ok(Opened { port, control, neighbour, shared: None })
}

/// Returns the MAC of a port whose device has the MAC `device`. On a tap, `device` is the MAC of the kernel's end, and
/// the returned MAC differs from `device` in one bit, because the two ends need different MACs.
fn own_mac(kind: PortKind, device: [u8; 6]) -> Mac {
    let [a, b, c, d, e, last] = device;
    Mac(if kind == PortKind::Tap { [a, b, c, d, e, last ^ 1] } else { device })
}

fn builder(eal: Eal, spec: &PortSpec) -> Result<PortBuilder, OpenError> {
    let packed = spec.kind == PortKind::AfXdp;
    let data_room_bytes = if packed { XDP_BUFFER_BYTES } else { BUFFER_BYTES };
    let mbufs = pool_mbufs(spec.queues, if packed { XDP_DESCRIPTORS } else { DEFAULT_DESCRIPTORS });
    let pool =
        Mempool::new(eal, &MempoolConfig { mbufs, data_room_bytes, cache_mbufs: CACHE_MBUFS, packed })?;
    let builder = PortBuilder::new(pool.clone()).linear_pool(pool).multi_segs(false);
    Ok(builder.queues(spec.queues))
}

fn attach(eal: Eal, spec: &PortSpec) -> Result<Device, OpenError> {
    let target = &spec.target;
    let mut args = Vec::new();
    let driver = match spec.kind {
        PortKind::AfPacket => {
            args.extend([
                format!("iface={target}"),
                format!("framesz={BUFFER_BYTES}"),
                "framecnt=512".to_owned(),
                "blocksz=65536".to_owned(),
            ]);
            "net_af_packet"
        }
        PortKind::AfXdp => {
            args.push(format!("iface={target}"));
            "net_af_xdp"
        }
        PortKind::Vhost => {
            args.extend([format!("iface={target}"), format!("queues={}", spec.queues)]);
            "net_vhost"
        }
        PortKind::VirtioUser => {
            args.extend([format!("path={target}"), format!("queues={}", spec.queues)]);
            args.extend(spec.mac.map(|mac| format!("mac={mac}")));
            "net_virtio_user"
        }
        PortKind::Tap => {
            args.push(format!("iface={target}"));
            "net_tap"
        }
        PortKind::Memif | PortKind::Pci | PortKind::Eal => {
            return Ok(eal.attach_vdev(target, &spec.driver_args.join(","))?);
        }
    };
    args.extend(spec.driver_args.iter().cloned());
    let (name, args) = (vdev_name(driver), args.join(","));
    Ok(match spec.kind {
        PortKind::AfPacket => eal.attach_filtered(&name, &args, &ROCE_FILTER)?,
        _ => eal.attach_vdev(&name, &args)?,
    })
}

// The mbuf pools of two ports of one process must fit into the hugepages that `Memory::Auto` requires.
const _: () = assert!(
    2 * pool_mbufs(1, DEFAULT_DESCRIPTORS) as u64 * Mempool::mbuf_bytes(BUFFER_BYTES)
        <= Memory::HUGEPAGES_WANTED_BYTES
);
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
            let is_kernel_interface = matches!(spec.kind, PortKind::AfPacket | PortKind::AfXdp);
            let mut refused = refuse_access_keys(&spec);
            if is_kernel_interface {
                refused = refused.and_then(|()| refuse_interface_keys(&spec));
            }
            match refused {
                Err(OpenError::KeyDoesNotApply { key: refused, .. }) => assert_eq!(refused, key, "{name}"),
                refused => assert!(refused.is_ok() && key.is_empty(), "{name}: {refused:?}"),
            }
        }
    }
}
