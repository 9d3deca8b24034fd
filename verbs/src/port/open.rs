//! Opening a port by its name.

use std::io;
use std::path::Path;

use dpdk_ffi::{
    DEFAULT_DESCRIPTORS, Device, Eal, EalConfig, EalError, HELD_MBUFS, Memory, Mempool, MempoolConfig,
    PortBuilder, PortError,
};
use libc::sock_filter;
use roce::engine::QpnPrefix;
use roce::engine::limits::RX_BURST_FRAMES;
use roce::id::Mac;
use roce::neighbour::{Mode, NeighbourConfig};
use roce::port::PortCaps;
use rustix::process::{Resource, getrlimit};

use super::config::{
    BUFFER_BYTES, XDP_BUFFER_BYTES, check_keys, dedicated_mtu_bytes, dedicated_neighbour,
    interface_mtu_bytes, interface_neighbour,
};
use super::control::PortControl;
use super::dpdk::{DpdkPort, LOOPED_MBUFS};
use super::memif;
use super::spec::{PortKind, PortSpec};
use super::vdev::vdev_name;
use crate::error::OpenError;
use crate::kernel::{
    EarlyDrop, Interface, InterfaceWatch, KernelError, KernelNeighbours, Lease, PortGuard, roce_filter,
};
use crate::stale;

/// Number of mbufs in a thread's cache of the mbuf pool. A cache that has more than 1.5 times this number of mbufs
/// returns mbufs to the pool.
const CACHE_MBUFS: u32 = 256;
const CACHED_MBUFS: u32 = CACHE_MBUFS + CACHE_MBUFS / 2;
/// Number of threads with a cache of the mbuf pool: the thread that initialised DPDK, and a thread that the application
/// may register with DPDK (`rte_thread_register`).
const CACHES: u32 = 2;
/// Number of descriptors of each ring of an XDP socket.
const XDP_DESCRIPTORS: u16 = 2048;
/// Largest number of mbufs outside a port's rings: a received burst, linear copies of this burst, frames to be sent,
/// frames that the port has sent to itself and not yet received, and the caches of threads.
const MBUFS_BESIDE_RINGS: u32 =
    (2 * RX_BURST_FRAMES + HELD_MBUFS + LOOPED_MBUFS) as u32 + CACHES * CACHED_MBUFS;

/// Returns the number of mbufs in the pool of a port: the number that fills the rings of `queues` receive queues and of
/// `queues` transmit queues, plus `MBUFS_BESIDE_RINGS`, plus one receive burst.
const fn pool_mbufs(queues: u16, descriptors: u16) -> u32 {
    2 * queues as u32 * descriptors as u32 + MBUFS_BESIDE_RINGS + RX_BURST_FRAMES as u32
}

/// Handles of a shared port: the kernel's routes and neighbours, the sockets bound to UDP port 4791 (`PortGuard`), and
/// the program that drops RoCE packets before these sockets (`EarlyDrop`).
pub struct SharedInterface {
    /// The kernel's routes and neighbours.
    pub neighbours: KernelNeighbours,
    /// While this `PortGuard` exists, the kernel does not answer packets to UDP port 4791 with ICMP port unreachable.
    _guard: PortGuard,
    /// `None` if the kernel or the privileges of the process do not permit the program.
    early_drop: Option<EarlyDrop>,
}

impl SharedInterface {
    fn open(interface: &Interface) -> Result<Self, KernelError> {
        let guard = PortGuard::hold(interface)?;
        let neighbours = KernelNeighbours::open(interface)?;
        let early_drop = or_log(interface, EarlyDrop::attach(interface));
        Ok(SharedInterface { neighbours, _guard: guard, early_drop })
    }

    /// Applies the configuration of the interface: its name and its addresses.
    pub(crate) fn set_interface(&mut self, interface: &Interface) {
        self.neighbours.set_name(&interface.name);
        // Without a program for the new addresses, the previous one must not stay: another host may have a removed
        // address now, and this host may be the router to that host.
        self.early_drop = self.early_drop.take().and_then(|early_drop| {
            let replaced = early_drop.set_addresses(interface);
            or_log(interface, replaced.map(|()| early_drop))
        });
    }
}

/// Logs an error of the program, without which the port works as well.
fn or_log(interface: &Interface, result: io::Result<EarlyDrop>) -> Option<EarlyDrop> {
    let log = |error: &io::Error| {
        tracing::debug!(interface = interface.name, %error, "the kernel's IP drops RoCE packets");
    };
    result.inspect_err(log).ok()
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
    /// The network interface of the kernel on which the port is; `None` if the port is on no such interface.
    pub interface: Option<InterfaceWatch>,
    /// The lease of the QPNs of the port, which must be kept until the port is closed; `None` if the port is on no
    /// network interface of the kernel.
    pub lease: Option<Lease>,
}

/// Opens the port that `spec` names. If this process has not initialised DPDK yet, first initialises DPDK with `eal`.
///
/// On an af_packet port, leases a prefix of the interface's QPNs: `qpn_prefix` or, if `qpn_prefix` has no bits, a free
/// prefix of 6 bits. [`DpdkPort::qpn_prefix`] returns the leased prefix. The port receives packets to QPNs of this
/// prefix only.
///
/// # Errors
/// [`OpenError`] states the failure and the remedy.
pub fn open(spec: &PortSpec, eal: &EalConfig, qpn_prefix: QpnPrefix) -> Result<Opened, OpenError> {
    check_keys(spec)?;
    let eal = match Eal::init(eal) {
        Err(EalError::AlreadyInitialized) => Eal::get().ok_or(EalError::AlreadyInitialized)?,
        other => other?,
    };
    match spec.kind.is_kernel_interface() {
        true => open_kernel_interface(eal, spec, qpn_prefix),
        false => open_dedicated(eal, spec, qpn_prefix),
    }
}

/// Leases QPNs of `interface` for a port. A port on an XDP socket receives all frames of one receive queue of the
/// interface. Such a port therefore leases all QPNs: while the port is open, no other process can open a port on the
/// interface.
fn lease(spec: &PortSpec, interface: &Interface, qpn_prefix: QpnPrefix) -> Result<Lease, OpenError> {
    if spec.kind != PortKind::AfXdp {
        let is_given = qpn_prefix.bits() != 0;
        return Ok(if is_given { Lease::of(interface, qpn_prefix)? } else { Lease::any(interface)? });
    }
    Lease::of(interface, QpnPrefix::default()).map_err(|error| match error {
        KernelError::PrefixTaken { interface, .. } => OpenError::XdpShared { interface },
        error => error.into(),
    })
}

fn open_kernel_interface(eal: Eal, spec: &PortSpec, qpn_prefix: QpnPrefix) -> Result<Opened, OpenError> {
    let watch = InterfaceWatch::open(&spec.target)?;
    let interface = watch.interface();
    interface.require_up()?;
    let mtu_bytes = interface_mtu_bytes(spec, interface)?;
    let lease = lease(spec, interface, qpn_prefix)?;
    let device = match spec.kind {
        PortKind::AfPacket => attach_packet(eal, spec, &roce_filter(interface.mac, lease.prefix()))?,
        _ => attach(eal, spec)?,
    };
    let qpn_prefix = if spec.kind == PortKind::AfPacket { lease.prefix() } else { qpn_prefix };
    let caps = PortCaps { mac: interface.mac, mtu_bytes };
    let (port, queues) = builder(eal, spec)?.open(device).map_err(|error| open_error(spec, error))?;
    let (port, mut control) = (DpdkPort::new(queues, caps, qpn_prefix), PortControl::new(port, false));
    control.set_interface(interface);
    let neighbour = interface_neighbour(spec.kind, interface);
    let shared = match neighbour.mode {
        Mode::Dedicated => None,
        Mode::Shared => Some(SharedInterface::open(interface)?),
    };
    Ok(Opened { port, control, neighbour, shared, interface: Some(watch), lease: Some(lease) })
}

/// Returns the `OpenError` for `error`, which the opening of a port returned. For an XDP port, adds the requirements of
/// XDP ports, because the DPDK driver af_xdp reports every failure as EINVAL.
fn open_error(spec: &PortSpec, error: PortError) -> OpenError {
    if spec.kind != PortKind::AfXdp {
        return error.into();
    }
    let limit_bytes = getrlimit(Resource::Memlock).current;
    let memlock = limit_bytes.map_or("any amount".to_owned(), |bytes| format!("{} KiB", bytes / 1024));
    OpenError::Xdp { port: spec.to_string(), error: error.into(), memlock }
}

fn open_dedicated(eal: Eal, spec: &PortSpec, qpn_prefix: QpnPrefix) -> Result<Opened, OpenError> {
    let has_interrupts = matches!(spec.kind, PortKind::VirtioUser | PortKind::Tap | PortKind::Pci);
    if has_interrupts && let Ok(opened) = open_with(eal, spec, qpn_prefix, true) {
        return Ok(opened);
    }
    // A DPDK device without enough interrupt vectors starts only without receive interrupts.
    open_with(eal, spec, qpn_prefix, false)
}

fn open_with(
    eal: Eal,
    spec: &PortSpec,
    qpn_prefix: QpnPrefix,
    rx_interrupts: bool,
) -> Result<Opened, OpenError> {
    let (device, is_memif_client) = match spec.kind {
        PortKind::Memif => memif::attach(eal, spec, BUFFER_BYTES)?,
        PortKind::Pci => (eal.attach_pci(&spec.target, &spec.driver_args.join(","))?, false),
        _ => (attach(eal, spec)?, false),
    };
    let mut builder = builder(eal, spec)?.promiscuous(true).rx_interrupts(rx_interrupts);
    let has_mtu = spec.kind.has_mtu();
    if let Some(mtu_bytes) = spec.mtu_bytes.filter(|_| has_mtu) {
        builder = builder.mtu_bytes(mtu_bytes);
    }
    let (mut port, mut queues) = builder.open_stopped(device)?;
    if let Err(error) = port.start(queues.iter_mut())
        && !is_memif_client
    {
        return Err(error.into());
    }
    let mac = spec.mac.unwrap_or(own_mac(spec.kind, port.info().mac));
    let mtu_bytes = dedicated_mtu_bytes(spec, has_mtu.then(|| usize::from(port.mtu_bytes())))?;
    let neighbour = dedicated_neighbour(spec, mac);
    let port_caps = PortCaps { mac, mtu_bytes };
    let (port, control) =
        (DpdkPort::new(queues, port_caps, qpn_prefix), PortControl::new(port, is_memif_client));
    Ok(Opened { port, control, neighbour, shared: None, interface: None, lease: None })
}

/// Returns the MAC of a port whose DPDK device has the MAC `device`. On a tap, `device` is the MAC of the kernel's end,
/// and the returned MAC differs from `device` in one bit, because the two ends need different MACs.
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

/// Attaches the device of an af_packet port, which receives only frames that `filter` accepts.
fn attach_packet(eal: Eal, spec: &PortSpec, filter: &[sock_filter]) -> Result<Device, OpenError> {
    let name = vdev_name("net_af_packet");
    Ok(eal.attach_packet(&name, &spec.target, &spec.driver_args, BUFFER_BYTES, filter)?)
}

fn attach(eal: Eal, spec: &PortSpec) -> Result<Device, OpenError> {
    let target = &spec.target;
    let mut args = Vec::new();
    let driver = match spec.kind {
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
        PortKind::AfPacket | PortKind::Memif | PortKind::Pci | PortKind::Eal => {
            return Ok(eal.attach_vdev(target, &spec.driver_args.join(","))?);
        }
    };
    args.extend(spec.driver_args.iter().cloned());
    let (name, args) = (vdev_name(driver), args.join(","));
    Ok(match spec.kind {
        PortKind::Vhost => {
            let path = Path::new(target);
            stale::replace(path, || eal.attach_vdev(&name, &args))??.with_file(path)
        }
        _ => eal.attach_vdev(&name, &args)?,
    })
}

// The mbuf pools of two ports of one process must fit into the hugepages that `Memory::Auto` requires.
const _: () = assert!(
    2 * pool_mbufs(1, DEFAULT_DESCRIPTORS) as u64 * Mempool::mbuf_bytes(BUFFER_BYTES)
        <= Memory::HUGEPAGES_WANTED_BYTES
);
