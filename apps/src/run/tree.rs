//! The tree: the entries of devices in /sys/class/infiniband, /sys/class/infiniband_verbs and /dev/infiniband, or at the
//! same paths below a directory. The values are those that the library reports to the program. The files do not change;
//! in a mount namespace, [`counters`](super::counters) adds those that do.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use verbs::config::node_guid;
use verbs::{DeviceDescription, Gid, LinkRate, PortSpec};

use super::counters::CountedDevice;
use super::namespace::{Overlays, bind};

/// Directory of the devices.
pub(super) const DEVICES: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
const NODES: &str = "/dev/infiniband";
/// A character device that every user may read and write, in place of the device of uverbs: programs only check that it
/// is there.
const NODE: &str = "/dev/null";
/// Version of the kernel's interface of uverbs (`IB_USER_VERBS_MAX_ABI_VERSION`).
const VERBS_ABI: u32 = 6;
/// `IB_PORT_IP_BASED_GIDS`.
const PORT_CAPS: u32 = 1 << 26;

/// A device as the tree shows it.
pub(super) struct TreeDevice {
    /// roce0, roce1 and so on.
    name: String,
    /// The port's name.
    port: String,
    guid: [u8; 8],
    is_up: bool,
    rate: LinkRate,
    /// The kernel's interface of the port.
    interface: Option<String>,
    gids: Vec<(usize, Option<Gid>)>,
}

impl TreeDevice {
    pub(super) fn new(number: usize, spec: &PortSpec, description: &DeviceDescription) -> Self {
        TreeDevice {
            name: format!("roce{number}"),
            port: description.port.clone(),
            guid: node_guid(spec, description.mac),
            // The link of other ports is up while the peer's process is connected, and programs start before their peers.
            is_up: description.is_up.unwrap_or(true),
            rate: LinkRate::of_ethernet(description.speed_mbps),
            interface: description.interface.is_some().then(|| spec.target.clone()),
            gids: description.gids.clone(),
        }
    }

    /// Returns name and port, by which the device's counters are found.
    pub(super) fn counted(&self) -> CountedDevice {
        CountedDevice { name: self.name.clone(), port: self.port.clone() }
    }

    /// Writes the entry of /sys/class/infiniband.
    fn write(&self, at: &Path) -> anyhow::Result<()> {
        let guid = in_groups(&self.guid);
        put(at, "node_type", "1: CA")?;
        put(at, "node_guid", &guid)?;
        put(at, "sys_image_guid", &guid)?;
        put(at, "node_desc", &format!("{} {}", self.name, self.port))?;
        put(at, "fw_ver", env!("CARGO_PKG_VERSION"))?;
        put(at, "hw_rev", "0")?;
        put(at, "hca_type", "roce")?;
        put(at, "board_id", "roce")?;
        put(at, "device/numa_node", "-1")?;
        put(at, "device/vendor", "0x0000")?;
        put(at, "device/device", "0x0000")?;
        if let Some(interface) = &self.interface {
            fs::create_dir_all(at.join("device/net"))?;
            symlink(format!("/sys/class/net/{interface}"), at.join("device/net").join(interface))?;
        }
        self.write_port(&at.join("ports/1"))
    }

    fn write_port(&self, at: &Path) -> anyhow::Result<()> {
        put(at, "state", if self.is_up { "4: ACTIVE" } else { "1: DOWN" })?;
        put(at, "phys_state", if self.is_up { "5: LinkUp" } else { "3: Disabled" })?;
        put(at, "rate", &self.rate.to_string())?;
        put(at, "link_layer", "Ethernet")?;
        put(at, "cap_mask", &format!("0x{PORT_CAPS:08x}"))?;
        put(at, "lid", "0x0")?;
        put(at, "lid_mask_count", "0")?;
        put(at, "sm_lid", "0x0")?;
        put(at, "sm_sl", "0")?;
        put(at, "pkeys/0", "0xffff")?;
        for (index, gid) in &self.gids {
            // A GID that is known only when the port is open has the value of an empty entry.
            put(at, &format!("gids/{index}"), &in_groups(&gid.map_or([0; 16], |gid| gid.0)))?;
            put(at, &format!("gid_attrs/types/{index}"), "RoCE v2")?;
            let interface = self.interface.as_ref().unwrap_or(&self.name);
            put(at, &format!("gid_attrs/ndevs/{index}"), interface)?;
        }
        Ok(())
    }
}

/// Writes a value and a newline to the file `name` below `at`.
fn put(at: &Path, name: &str, value: &str) -> anyhow::Result<()> {
    let path = at.join(name);
    fs::create_dir_all(path.parent().unwrap_or(at))?;
    Ok(fs::write(path, format!("{value}\n"))?)
}

/// Returns the bytes as the kernel writes GUIDs and GIDs: hexadecimal, in groups of two bytes.
fn in_groups(bytes: &[u8]) -> String {
    let groups: Vec<String> =
        bytes.chunks(2).map(|group| group.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    groups.join(":")
}

/// Adds the devices to the file system of this mount namespace. After an error the file system is as before.
pub(super) fn mount(devices: &[TreeDevice]) -> anyhow::Result<()> {
    let mut overlays = Overlays::default();
    let directories = [DEVICES, VERBS, NODES].into_iter().map(Path::new);
    let bind_node = |node: &Path| {
        fs::write(node, "")?;
        bind(Path::new(NODE), node)
    };
    let result = directories
        .into_iter()
        .try_for_each(|directory| overlays.change(directory))
        .and_then(|()| add(Path::new("/"), devices, bind_node));
    if result.is_err() {
        overlays.remove();
    }
    result
}

/// Writes a tree to the directory `root`: the devices and, as symbolic links, the entries of the kernel's devices.
pub(super) fn write(root: &Path, devices: &[TreeDevice]) -> anyhow::Result<()> {
    for directory in [DEVICES, VERBS, NODES] {
        fs::create_dir_all(below(root, directory))?;
    }
    add(root, devices, |node| Ok(symlink(NODE, node)?))?;
    for directory in [DEVICES, VERBS, NODES] {
        // Without RDMA devices of the kernel, the directory does not exist.
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            let link = below(root, directory).join(entry.file_name());
            if !link.exists() {
                symlink(entry.path().canonicalize()?, link)?;
            }
        }
    }
    Ok(())
}

/// Returns the path of `directory`, an absolute path, in a tree at `root`.
fn below(root: &Path, directory: &str) -> PathBuf {
    root.join(directory.trim_start_matches('/'))
}

/// Adds the devices to the directories of the tree at `root`, which exist. `make_node` creates an entry of /dev.
fn add(
    root: &Path,
    devices: &[TreeDevice],
    make_node: impl Fn(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let verbs = below(root, VERBS);
    if !verbs.join("abi_version").exists() {
        put(&verbs, "abi_version", &VERBS_ABI.to_string())?;
    }
    for device in devices {
        device.write(&below(root, DEVICES).join(&device.name))?;
        // As `dev_name` of the library's `ibv_device`.
        let name = format!("uverbs_{}", device.name);
        let entry = verbs.join(&name);
        put(&entry, "ibdev", &device.name)?;
        put(&entry, "abi_version", "1")?;
        symlink(format!("../../infiniband/{}/device", device.name), entry.join("device"))?;
        make_node(&below(root, NODES).join(name))?;
    }
    Ok(())
}
