//! The description of a port as a device, without opening the port.

use roce::engine::limits::DeviceLimits;
use roce::id::{Gid, Mac};

use crate::attr::{DeviceAttr, DeviceCaps};
use crate::error::OpenError;
use crate::kernel::{Interface, speed_mbps};
use crate::port::config::{
    check_keys, dedicated_mtu_bytes, dedicated_neighbour, interface_mtu_bytes, interface_neighbour,
};
use crate::port::{PortKind, PortSpec};

/// Placeholder for a MAC that is known only after the port is opened.
const UNKNOWN_MAC: Mac = Mac([0; 6]);

/// Description of a device ([`describe`]). `None` for values that are known only after the port is opened.
#[derive(Clone, Debug)]
pub struct DeviceDescription {
    /// The port's name, `KIND:TARGET`.
    pub port: String,
    /// Kind of the port.
    pub kind: PortKind,
    /// Name of the DPDK driver.
    pub driver: Option<String>,
    /// The kernel's network interface of the port. `None` if the port is neither af_packet nor af_xdp, or if the
    /// description is of an open device.
    pub interface: Option<Interface>,
    /// MAC of the port.
    pub mac: Option<Mac>,
    /// Largest IP packet, in bytes. [`PathMtu::largest_for`](crate::PathMtu::largest_for) gives the largest path MTU.
    pub mtu_bytes: Option<usize>,
    /// Whether the link is up.
    pub is_up: Option<bool>,
    /// Speed of the link in Mbit/s.
    pub speed_mbps: Option<u32>,
    /// How the port wakes a thread that sleeps until a frame arrives: "rx interrupt", "eventfd", "socket", or "naps" if
    /// the port has no wake sources.
    pub wakes_by: Option<String>,
    /// Index and GID of each entry of the GID table. GID 0 is `None` if the MAC is unknown, because GID 0 is made from
    /// the MAC.
    pub gids: Vec<(usize, Option<Gid>)>,
    /// Capabilities of the device.
    pub caps: DeviceCaps,
}

impl From<DeviceAttr> for DeviceDescription {
    fn from(attr: DeviceAttr) -> Self {
        DeviceDescription {
            port: attr.port,
            kind: attr.kind,
            driver: Some(attr.driver),
            interface: None,
            mac: Some(attr.mac),
            mtu_bytes: Some(attr.mtu_bytes),
            is_up: Some(attr.is_up),
            speed_mbps: attr.speed_mbps,
            wakes_by: Some(attr.wakes_by.map_or("naps".to_owned(), |kind| kind.to_string())),
            gids: attr.gids.into_iter().map(|(index, gid)| (index, Some(gid))).collect(),
            caps: attr.caps,
        }
    }
}

/// Describes the device that [`Context::open`](crate::Context::open) with the default options would open for the port
/// `spec`. Does not open the port, and does not initialise DPDK. Needs no privilege. Reads the state of network
/// interfaces from the kernel; their addresses and link may change before the port is opened.
///
/// # Errors
/// Those errors of [`Context::open`](crate::Context::open) whose cause is in the port's name: a key that does not apply
/// to the kind of port, an MTU that is too large, an invalid address, an interface that the kernel does not have. An
/// interface that is down is no error. A PCI device or socket that does not exist is no error, because only kernel
/// interfaces are looked up.
pub fn describe(spec: &PortSpec) -> Result<DeviceDescription, OpenError> {
    check_keys(spec)?;
    let of_interface = spec.kind.is_kernel_interface();
    let interface = of_interface.then(|| Interface::read(&spec.target)).transpose()?;
    let (mac, mtu_bytes, neighbour) = match &interface {
        Some(interface) => {
            let mtu_bytes = interface_mtu_bytes(spec, interface)?;
            (Some(interface.mac), Some(mtu_bytes), interface_neighbour(spec.kind, interface))
        }
        None => {
            let mtu_bytes = dedicated_mtu_bytes(spec, None)?;
            // The MTU setting of a PCI device or tap interface is unknown until the port is opened.
            let is_known = spec.mtu_bytes.is_some() || !spec.kind.has_mtu();
            let neighbour = dedicated_neighbour(spec, spec.mac.unwrap_or(UNKNOWN_MAC));
            (spec.mac, is_known.then_some(mtu_bytes), neighbour)
        }
    };
    let table = neighbour.gid_table()?;
    let gids = table.iter().map(|(index, entry)| (index, (index > 0 || mac.is_some()).then_some(entry.gid)));
    Ok(DeviceDescription {
        port: spec.to_string(),
        kind: spec.kind,
        driver: None,
        mac,
        mtu_bytes,
        is_up: interface.as_ref().map(|interface| interface.is_up && interface.has_carrier),
        speed_mbps: interface.as_ref().and_then(speed_mbps),
        interface,
        wakes_by: None,
        gids: gids.collect(),
        caps: DeviceCaps::new(DeviceLimits::default()),
    })
}
