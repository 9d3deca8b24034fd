//! Devices: attached to EAL while it runs, detached when dropped.

use std::ffi::{CStr, CString};
use std::fs;
use std::os::fd::{AsRawFd as _, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::eal::Eal;
use crate::errno::Errno;
use crate::exit::{self, ExitFile};
use crate::guard;
use crate::log::{self, LogLines};
use crate::memif::{self, MemifAccess};
use crate::packet;
use crate::port_id::PortId;
use crate::process;
use crate::sockets::new_sockets;

/// Kernel drivers, besides vfio-pci, under which DPDK can use a device: those that hand it over, and those
/// that share it with DPDK's own driver.
const USABLE_DRIVERS: &[&str] = &["uio_pci_generic", "igb_uio", "mlx5_core", "mlx4_core"];

/// The driver of packet sockets.
const AF_PACKET: &str = "net_af_packet";

/// A device with an Ethernet port that is not open. Drop detaches the device.
#[derive(Debug)]
pub struct Device {
    bus: &'static CStr,
    name: CString,
    port_id: PortId,
    /// The kernel's sockets behind the port, of af_packet.
    sockets: Vec<RawFd>,
    /// The socket of the bursts that replace those of af_packet, and its queue until a port takes it.
    packet: Option<(Arc<packet::Socket>, Option<packet::Queue>)>,
    /// The socket on which the driver listens.
    exit_file: Option<ExitFile>,
}

/// Reason why a device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Not a name of a virtual device.
    #[error(
        "{name:?} is not the name of a virtual device: those are a driver's name and a number, like net_memif0"
    )]
    InvalidName {
        /// The name as given.
        name: String,
    },
    /// Not an address on the PCI bus.
    #[error("{address:?} is not a PCI address: those look like 0000:3b:00.0 (domain:bus:device.function)")]
    InvalidPciAddress {
        /// The address as given.
        address: String,
    },
    /// No driver in this process knows the device.
    #[error("no DPDK driver in this program knows the device {name:?}{log}\n  {advice}")]
    NoDriver {
        /// Name of the device.
        name: String,
        /// Lines that DPDK logged.
        log: LogLines,
        /// Remedy.
        advice: &'static str,
    },
    /// A device of this name is attached already.
    #[error("the device {name} is attached already: give this one another number, or share the first one")]
    AlreadyAttached {
        /// Name of the device.
        name: String,
    },
    /// No such device on this machine.
    #[error("there is no PCI device {address} on this machine. Its Ethernet devices: {present}")]
    PciNotFound {
        /// The PCI address.
        address: String,
        /// Addresses of the machine's Ethernet devices, or "none".
        present: String,
    },
    /// The device is bound to a driver of the kernel, or to none.
    #[error(
        "the PCI device {address} is {bound}. Hand it to DPDK, as root:\n  \
         modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {address}\n  \
         (a network interface on it disappears from the kernel meanwhile)"
    )]
    PciNotBound {
        /// The PCI address.
        address: String,
        /// Binding of the device, as text.
        bound: String,
    },
    /// The device file for access from user space cannot be opened.
    #[error(
        "{path}: {error}. It gives access to the PCI device {address}: run as root, or give yourself the file"
    )]
    PciAccess {
        /// The PCI address.
        address: String,
        /// Path of the device file.
        path: PathBuf,
        /// Error of the access check.
        error: std::io::Error,
    },
    /// The driver refused the device.
    #[error("the driver did not take the device {name} with arguments {args:?}: {errno}{log}")]
    Attach {
        /// Name of the device.
        name: String,
        /// Arguments, without a secret.
        args: String,
        /// Error number reported.
        errno: Errno,
        /// Lines that DPDK logged.
        log: LogLines,
    },
    /// The kernel refused a packet socket or its receive ring.
    #[error(
        "no packet socket on the interface {interface}: {errno}. It needs CAP_NET_RAW, and {} MiB of the kernel's memory \
         for its receive ring",
        packet::RING_MEBIBYTES
    )]
    PacketSocket {
        /// Name of the interface.
        interface: String,
        /// Error number reported.
        errno: Errno,
    },
    /// A memif with zero copy, whose peer could write into every mbuf, and into DPDK's data beside them.
    #[error(
        "{name}: zero-copy=yes would let the peer write into all of DPDK's memory, with which it could take over \
         this process: leave it out"
    )]
    SharesAllMemory {
        /// Name of the device.
        name: String,
    },
    /// A second memif server on a socket, whose clients could not be distinguished from those of the first.
    #[error("another memif of this process listens on {socket:?}: give each server a socket of its own")]
    SocketShared {
        /// Path or name of the socket.
        socket: String,
    },
    /// Users were named for the peer, and a build with shared libraries cannot refuse others.
    #[error(
        "{name}: with DPDK as shared libraries any user of this machine may connect, whatever is asked for: build \
         with DPDK's static libraries (DPDK_SYS_LINK=static)"
    )]
    AccessNotKept {
        /// Name of the device.
        name: String,
    },
    /// The device was attached without an Ethernet port.
    #[error("the device {name} was attached, but brought no Ethernet port: it is of another kind{log}")]
    NoPort {
        /// Name of the device.
        name: String,
        /// Lines that DPDK logged.
        log: LogLines,
    },
}

impl Eal {
    /// Attaches the virtual device `name` (a driver's name and a number, `net_memif0`) with the driver's `args`
    /// (`role=client,socket=@wire,bsize=8192`).
    ///
    /// On memif both ends name the same `socket`, and only processes of this process's user and of root may
    /// be the peer; [`Eal::attach_memif`] admits others. If one key is misspelt, the driver ignores all
    /// arguments silently.
    ///
    /// # Errors
    /// `InvalidName`, `NoDriver`, `AlreadyAttached`, `SharesAllMemory`, `SocketShared`, `Attach`, `NoPort`.
    pub fn attach_vdev(self, name: &str, args: &str) -> Result<Device, DeviceError> {
        self.attach_memif(name, args, MemifAccess::default())
    }

    /// Attaches a virtual device as [`Eal::attach_vdev`] does. On memif, `access` names the users who may be
    /// the peer. With DPDK as shared libraries any user may, and `access` must be the default.
    ///
    /// # Errors
    /// The errors of [`Eal::attach_vdev`], and `AccessNotKept`.
    pub fn attach_memif(self, name: &str, args: &str, access: MemifAccess) -> Result<Device, DeviceError> {
        let invalid = || DeviceError::InvalidName { name: name.to_owned() };
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return Err(invalid());
        }
        let c_name = CString::new(name).map_err(|_| invalid())?;
        let mark = log::mark();
        // SAFETY: a C string, only read.
        if unsafe { dpdk_sys::shim_vdev_has_driver(c_name.as_ptr()) } == 0 {
            let advice = if dpdk_sys::STATIC {
                "this build carries the drivers net_memif, net_virtio_user, net_vhost, net_af_packet, net_af_xdp, \
                 net_ring, net_null and net_tap; build with DPDK_SYS_LINK=shared to use every driver installed"
            } else {
                "is its package installed? apt-get install dpdk brings all of them"
            };
            return Err(DeviceError::NoDriver { name: name.to_owned(), log: log::since(mark), advice });
        }
        if guard::concerns(name) {
            check_memif(name, args, &access)?;
        }
        attach(c"vdev", c_name, name, args, access)
    }

    /// Attaches a device of the af_packet driver on the kernel's `interface`, with further arguments `args` of the driver
    /// (mostly none). The port receives only frames that the classic BPF program `filter` accepts, none longer than
    /// `frame_bytes`, and until [`crate::EthQueue::exchange_sent`] none that the interface sends.
    ///
    /// The port sends consecutive frames of one UDP flow with UDP segmentation offload, unless Linux is older than 6.2.
    /// Frames bypass the queueing discipline of the interface as long as the device itself can divide datagrams, unless
    /// `args` have `qdisc_bypass=0`. With several queues (`qpairs`), the driver's own bursts are used,
    /// which send each frame by itself; likewise in a build with shared libraries ([`dpdk_sys::STATIC`] is false), which
    /// moreover cannot keep the driver from receiving all frames.
    ///
    /// # Errors
    /// The errors of [`Eal::attach_vdev`], and `PacketSocket`.
    pub fn attach_packet(
        self,
        name: &str,
        interface: &str,
        args: &[String],
        frame_bytes: u16,
        filter: &[libc::sock_filter],
    ) -> Result<Device, DeviceError> {
        // The program of a socket that receives nothing: return 0.
        const NOTHING: libc::sock_filter = libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: 0 };
        let further = args.join(",");
        let replaces = dpdk_sys::STATIC && argument(&further, "qpairs").is_none_or(|queues| queues == "1");
        let (driver_filter, rings) = match replaces {
            true => (&[NOTHING][..], "framesz=2048,framecnt=2,blocksz=4096".to_owned()),
            false => (filter, format!("framesz={frame_bytes},framecnt=512,blocksz=65536")),
        };
        let mut all = vec![format!("iface={interface}"), rings];
        all.extend(args.iter().cloned());
        let all = all.join(",");
        let count = u16::try_from(driver_filter.len()).unwrap_or(u16::MAX);
        // SAFETY: the program outlives the next call, and has at least `count` instructions. The driver binds its
        // sockets in this thread.
        unsafe { dpdk_sys::shim_packet_filter(driver_filter.as_ptr().cast(), count) };
        let device = self.attach_vdev(name, &all);
        // SAFETY: no program.
        unsafe { dpdk_sys::shim_packet_filter(std::ptr::null(), 0) };
        let mut device = device?;
        if replaces {
            let bypasses_qdisc = argument(&further, "qdisc_bypass") != Some("0");
            let failed = |errno| DeviceError::PacketSocket { interface: interface.to_owned(), errno };
            let c_interface = CString::new(interface).map_err(|_| failed(Errno::INVALID))?;
            let (socket, map) = packet::Socket::open(&c_interface, filter, bypasses_qdisc)
                .map_err(|error| failed(Errno::of(&error)))?;
            let socket = Arc::new(socket);
            device.packet = Some((socket.clone(), Some(packet::Queue::new(socket, map, bypasses_qdisc))));
        }
        Ok(device)
    }

    /// Attaches the PCI device at `address` (`0000:3b:00.0`) with the driver's `args`, mostly none.
    ///
    /// # Errors
    /// `InvalidPciAddress`, `PciNotFound`, `PciNotBound`, `PciAccess`, `AlreadyAttached`, `Attach` (which
    /// includes that no driver in this build knows the device), `NoPort`.
    pub fn attach_pci(self, address: &str, args: &str) -> Result<Device, DeviceError> {
        let invalid = || DeviceError::InvalidPciAddress { address: address.to_owned() };
        if !is_pci_address(address) {
            return Err(invalid());
        }
        check_pci(Path::new("/sys/bus/pci/devices"), address)?;
        let c_name = CString::new(address).map_err(|_| invalid())?;
        attach(c"pci", c_name, address, args, MemifAccess::default())
    }
}

/// Returns the value of `key` in a driver's arguments; of several, the last.
fn argument<'a>(args: &'a str, key: &str) -> Option<&'a str> {
    let mut pairs = args.split(',').rev().filter_map(|pair| pair.split_once('='));
    pairs.find(|(name, _)| *name == key).map(|(_, value)| value)
}

/// Returns the arguments for error values, without a secret.
fn without_secret(args: &str) -> String {
    let shown =
        |pair: &str| if pair.starts_with("secret=") { "secret=...".to_owned() } else { pair.to_owned() };
    args.split(',').map(shown).collect::<Vec<_>>().join(",")
}

fn check_memif(name: &str, args: &str, access: &MemifAccess) -> Result<(), DeviceError> {
    let name = || name.to_owned();
    if argument(args, "zero-copy").is_some_and(|value| value.contains("yes")) {
        return Err(DeviceError::SharesAllMemory { name: name() });
    }
    if !dpdk_sys::STATIC && *access != MemifAccess::default() {
        return Err(DeviceError::AccessNotKept { name: name() });
    }
    memif::install();
    exit::wait_by(memif::wait_all_received);
    Ok(())
}

/// Whether a memif with these arguments listens, by the driver's own comparison.
fn listens(args: &str) -> bool {
    argument(args, "role").is_some_and(|role| role.contains("server") || role.contains("master"))
}

fn attach(
    bus: &'static CStr,
    c_name: CString,
    name: &str,
    args: &str,
    access: MemifAccess,
) -> Result<Device, DeviceError> {
    let mark = log::mark();
    let failed = |errno| DeviceError::Attach {
        name: name.to_owned(),
        args: without_secret(args),
        errno,
        log: log::since(mark),
    };
    let c_args = CString::new(args).map_err(|_| failed(Errno::INVALID))?;
    let hotplug = hotplug();
    if port_by_name(&c_name).is_some() {
        return Err(DeviceError::AlreadyAttached { name: name.to_owned() });
    }
    let guard = guard::lock(name);
    // SAFETY: three C strings, which EAL copies; `hotplug` is held.
    let add = || unsafe { dpdk_sys::rte_eal_hotplug_add(bus.as_ptr(), c_name.as_ptr(), c_args.as_ptr()) };
    let (ret, sockets) = match name.starts_with(AF_PACKET) {
        true => new_sockets(libc::AF_PACKET, add),
        false => (add(), Vec::new()),
    };
    let port_id = if ret < 0 { None } else { port_by_name(&c_name) };
    // Still under the lock, otherwise a client that connects now would be refused.
    let is_alone = match port_id {
        Some(port_id) if guard.is_some() && dpdk_sys::STATIC => {
            memif::attached(port_id, access, listens(args))
        }
        _ => true,
    };
    drop(guard);
    drop(hotplug);
    Errno::check(ret).map_err(failed)?;
    match port_id {
        Some(port_id) => {
            let device = Device { bus, name: c_name, port_id, sockets, packet: None, exit_file: None };
            let socket = || argument(args, "socket").unwrap_or_default().to_owned();
            if is_alone { Ok(device) } else { Err(DeviceError::SocketShared { socket: socket() }) }
        }
        None => {
            detach(bus, &c_name);
            Err(DeviceError::NoPort { name: name.to_owned(), log: log::since(mark) })
        }
    }
}

/// Returns the lock that is held while a device is attached or detached: EAL changes its list of device arguments
/// (`rte_devargs`) without a lock of its own, and the sockets of an af_packet device are known as those that appear
/// meanwhile. Taken before [`guard::Lock`].
fn hotplug() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn port_by_name(name: &CStr) -> Option<PortId> {
    let mut port_id = 0;
    // SAFETY: a C string and a place for the answer.
    (unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(name.as_ptr(), &mut port_id) } == 0).then_some(port_id)
}

fn detach(bus: &CStr, name: &CStr) {
    // A driver that cannot detach keeps the device: its name stays taken, without another effect.
    let _hotplug = hotplug();
    let _guard = guard::lock(name.to_str().unwrap_or_default());
    // SAFETY: two C strings; the device's port is not used any more; `_hotplug` is held.
    unsafe { dpdk_sys::rte_eal_hotplug_remove(bus.as_ptr(), name.as_ptr()) };
}

impl Device {
    /// Has the file `path`, which the driver created and removes when the device is detached, removed also if the
    /// process exits before.
    #[must_use]
    pub fn with_file(mut self, path: &Path) -> Self {
        self.exit_file = Some(ExitFile::new(path.to_owned()));
        self
    }

    /// Returns the number of the Ethernet port.
    pub fn port_id(&self) -> PortId {
        self.port_id
    }

    /// Returns the kernel's sockets behind the port, one for each queue, if its driver is af_packet.
    pub(crate) fn sockets(&self) -> Vec<RawFd> {
        match self.packet_socket() {
            Some(socket) => vec![socket.fd().as_raw_fd()],
            None => self.sockets.clone(),
        }
    }

    /// Returns the socket whose bursts replace those of the driver af_packet.
    pub(crate) fn packet_socket(&self) -> Option<&packet::Socket> {
        self.packet.as_ref().map(|(socket, _)| &**socket)
    }

    /// Returns the queue of [`Device::packet_socket`], once.
    pub(crate) fn take_packet_queue(&mut self) -> Option<packet::Queue> {
        self.packet.as_mut()?.1.take()
    }

    /// Returns the name that the device was attached by.
    pub fn name(&self) -> &str {
        self.name.to_str().unwrap_or_default()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        if !process::owns_eal() {
            return;
        }
        detach(self.bus, &self.name);
        memif::detached(self.port_id);
    }
}

/// Whether `address` is dddd:bb:dd.f, hexadecimal, with a function from 0 to 7.
fn is_pci_address(address: &str) -> bool {
    const PATTERN: &[u8] = b"xxxx:xx:xx.f";
    address.len() == PATTERN.len()
        && address.bytes().zip(PATTERN).all(|(byte, pattern)| match pattern {
            b'x' => byte.is_ascii_hexdigit(),
            b'f' => (b'0'..=b'7').contains(&byte),
            separator => byte == *separator,
        })
}

/// Checks that the device exists and that DPDK may use it, because EAL would report a bare error number.
fn check_pci(devices: &Path, address: &str) -> Result<(), DeviceError> {
    let device = devices.join(address.to_ascii_lowercase());
    if !device.exists() {
        let present = ethernet_devices(devices);
        let present = if present.is_empty() { "none".to_owned() } else { present.join(", ") };
        return Err(DeviceError::PciNotFound { address: address.to_owned(), present });
    }
    let driver = link_name(&device.join("driver"));
    let bound = match driver.as_deref() {
        Some("vfio-pci") => return check_vfio(&device, address),
        Some("mlx5_core") if !dpdk_sys::MAY_HAVE_MLX5 => {
            let advice =
                "build with the cargo feature mlx5, or with DPDK_SYS_LINK=shared, to drive NVIDIA's NICs";
            return Err(DeviceError::NoDriver { name: address.to_owned(), log: LogLines::default(), advice });
        }
        Some(driver) if USABLE_DRIVERS.contains(&driver) => return Ok(()),
        Some(driver) => format!("bound to the kernel's driver {driver}"),
        None => "bound to no driver".to_owned(),
    };
    Err(DeviceError::PciNotBound { address: address.to_owned(), bound })
}

fn check_vfio(device: &Path, address: &str) -> Result<(), DeviceError> {
    let Some(group) = link_name(&device.join("iommu_group")) else { return Ok(()) };
    let path = Path::new("/dev/vfio").join(group);
    // Opening the group would make EAL's own open fail, so only the access is checked.
    let c_path = CString::new(path.as_os_str().as_encoded_bytes()).unwrap_or_default();
    // SAFETY: a C string, only read.
    if unsafe { libc::access(c_path.as_ptr(), libc::R_OK | libc::W_OK) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    Err(DeviceError::PciAccess { address: address.to_owned(), path, error })
}

/// Returns the last component of a symbolic link's target.
fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Returns the addresses of the devices whose PCI class is "network controller".
fn ethernet_devices(devices: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(devices) else { return Vec::new() };
    let mut addresses: Vec<String> = entries
        .flatten()
        .filter(|entry| {
            fs::read_to_string(entry.path().join("class")).is_ok_and(|class| class.starts_with("0x02"))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    addresses.sort();
    addresses
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_memif_that_shares_all_memory_is_refused_and_a_secret_is_not_shown() {
        let check = |args: &str| check_memif("net_memif0", args, &MemifAccess::default());
        let error = check("role=client,zero-copy=no,zero-copy=yes").unwrap_err().to_string();
        assert!(error.contains("net_memif0") && error.contains("zero-copy=yes"), "{error}");
        check("role=client,zero-copy=no").unwrap();
        assert_eq!(without_secret("role=client,secret=abc,id=1"), "role=client,secret=...,id=1");
        assert!(listens("socket=@a,role=server") && !listens("role=client") && !listens(""));
    }

    #[test]
    fn pci_addresses_are_whole() {
        assert!(is_pci_address("0000:3b:00.0"));
        assert!(is_pci_address("0001:FF:1f.7"));
        for wrong in
            ["3b:00.0", "0000:3b:00.8", "0000:3b:00", "0000:3g:00.0", "0000:3b:00.0,x", "", "0000-3b:00.0"]
        {
            assert!(!is_pci_address(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_pci_device_that_is_not_dpdks_is_explained() {
        let root = std::env::temp_dir().join(format!("dpdk-ffi-pci-test-{}", std::process::id()));
        let device = |address: &str, driver: Option<&str>| {
            let path = root.join(address);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("class"), "0x020000\n").unwrap();
            if let Some(driver) = driver {
                symlink(format!("../../drivers/{driver}"), path.join("driver")).unwrap();
            }
        };
        device("0000:01:00.0", Some("e1000e"));
        device("0000:02:00.0", None);
        device("0000:03:00.0", Some("vfio-pci"));
        device("0000:04:00.0", Some("uio_pci_generic"));
        device("0000:05:00.0", Some("mlx5_core"));

        let text = |address: &str| check_pci(&root, address).unwrap_err().to_string();
        let absent = text("0000:09:00.0");
        assert!(absent.contains("no PCI device 0000:09:00.0"), "{absent}");
        assert!(
            absent.contains("0000:01:00.0, 0000:02:00.0, 0000:03:00.0, 0000:04:00.0, 0000:05:00.0"),
            "{absent}"
        );
        let bound = text("0000:01:00.0");
        assert!(bound.contains("kernel's driver e1000e"), "{bound}");
        assert!(bound.contains("dpdk-devbind.py --bind=vfio-pci 0000:01:00.0"), "{bound}");
        assert!(text("0000:02:00.0").contains("bound to no driver"));
        check_pci(&root, "0000:03:00.0").unwrap();
        check_pci(&root, "0000:04:00.0").unwrap();
        match dpdk_sys::MAY_HAVE_MLX5 {
            true => check_pci(&root, "0000:05:00.0").unwrap(),
            false => assert!(text("0000:05:00.0").contains("cargo feature mlx5")),
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
