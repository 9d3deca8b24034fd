//! State of the machine, as the kernel shows it in /proc, /sys and /dev.

use std::fs;
use std::path::{Path, PathBuf};

use verbs::kernel::Interface;

/// A machine, by its file systems.
pub(crate) struct System {
    root: PathBuf,
}

/// An Ethernet interface of the kernel.
pub(crate) struct KernelInterface {
    pub(crate) name: String,
    pub(crate) mtu_bytes: usize,
    pub(crate) is_up: bool,
    pub(crate) has_carrier: bool,
}

impl From<&Interface> for KernelInterface {
    fn from(interface: &Interface) -> Self {
        KernelInterface {
            name: interface.name.clone(),
            mtu_bytes: interface.mtu_bytes,
            is_up: interface.is_up,
            has_carrier: interface.has_carrier,
        }
    }
}

/// A network controller on the PCI bus.
pub(crate) struct PciNic {
    pub(crate) address: String,
    pub(crate) driver: Option<String>,
    pub(crate) iommu_group: Option<String>,
    /// The kernel's interfaces on it.
    pub(crate) interfaces: Vec<String>,
    /// RDMA devices on it.
    pub(crate) rdma_devices: Vec<String>,
}

/// A CPU quota of a cgroup: the CPU time that all its threads together have in each period.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CpuQuota {
    pub(crate) micros: u64,
    pub(crate) period_micros: u64,
}

/// IFF_UP of `flags` in /sys/class/net.
const IFF_UP: u32 = 1;
/// ARPHRD_ETHER of `type` in /sys/class/net.
const ARPHRD_ETHER: &str = "1";

impl System {
    /// Returns this machine.
    pub(crate) fn live() -> Self {
        System { root: PathBuf::from("/") }
    }

    /// Returns a machine whose /proc, /sys and /dev are below `root`.
    #[cfg(test)]
    pub(crate) fn below(root: &Path) -> Self {
        System { root: root.to_owned() }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Returns a file's text, trimmed; `None` if it cannot be read.
    pub(crate) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok().map(|text| text.trim().to_owned())
    }

    /// Whether `path` exists.
    pub(crate) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Whether this process may open `path` for reading and writing.
    pub(crate) fn can_open(&self, path: &str) -> bool {
        fs::OpenOptions::new().read(true).write(true).open(self.path(path)).is_ok()
    }

    /// Returns the names in a directory, sorted; none if it cannot be read.
    pub(crate) fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Returns the last component of a symbolic link's target.
    fn link_name(&self, path: &str) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the Ethernet interfaces without the loopback.
    pub(crate) fn interfaces(&self) -> Vec<KernelInterface> {
        let names = self.list("/sys/class/net").into_iter();
        names.filter_map(|name| self.interface(&name)).collect()
    }

    fn interface(&self, name: &str) -> Option<KernelInterface> {
        let attribute = |attribute: &str| self.read(&format!("/sys/class/net/{name}/{attribute}"));
        if attribute("type")? != ARPHRD_ETHER {
            return None;
        }
        let flags = u32::from_str_radix(attribute("flags")?.trim_start_matches("0x"), 16).ok()?;
        Some(KernelInterface {
            name: name.to_owned(),
            mtu_bytes: attribute("mtu")?.parse().ok()?,
            is_up: flags & IFF_UP != 0,
            // Because reading it fails while the interface is down.
            has_carrier: attribute("carrier").is_some_and(|carrier| carrier == "1"),
        })
    }

    /// Returns the network controllers (class 02) on the PCI bus.
    pub(crate) fn pci_nics(&self) -> Vec<PciNic> {
        let addresses = self.list("/sys/bus/pci/devices").into_iter();
        addresses
            .filter(|address| {
                let class = self.read(&format!("/sys/bus/pci/devices/{address}/class"));
                class.is_some_and(|class| class.starts_with("0x02"))
            })
            .map(|address| self.pci_nic(address))
            .collect()
    }

    fn pci_nic(&self, address: String) -> PciNic {
        let device = format!("/sys/bus/pci/devices/{address}");
        let mut interfaces = self.list(&format!("{device}/net"));
        // Because a virtio NIC has a device of the virtio bus in between.
        for child in self.list(&device).iter().filter(|child| child.starts_with("virtio")) {
            interfaces.extend(self.list(&format!("{device}/{child}/net")));
        }
        PciNic {
            driver: self.link_name(&format!("{device}/driver")),
            iommu_group: self.link_name(&format!("{device}/iommu_group")),
            interfaces,
            rdma_devices: self.list(&format!("{device}/infiniband")),
            address,
        }
    }

    /// Returns the kernel's soft-RoCE devices and their interfaces.
    pub(crate) fn rxe_devices(&self) -> Vec<(String, String)> {
        let devices = self.list("/sys/class/infiniband").into_iter();
        // Because only software devices name a parent.
        devices
            .filter_map(|device| {
                let parent = self.read(&format!("/sys/class/infiniband/{device}/parent"))?;
                Some((device, parent))
            })
            .collect()
    }

    /// Whether a socket of this network namespace, the kernel's own included, holds a UDP port.
    pub(crate) fn is_udp_port_held(&self, udp_port: u16) -> bool {
        let suffix = format!(":{udp_port:04X}");
        let tables = ["/proc/net/udp", "/proc/net/udp6"].into_iter().filter_map(|path| self.read(path));
        let local = |line: &str| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&suffix));
        tables.into_iter().any(|table| table.lines().skip(1).any(local))
    }

    /// Returns the number of a `Name:   123 kB` line of /proc/meminfo.
    pub(crate) fn meminfo(&self, name: &str) -> Option<u64> {
        let text = self.read("/proc/meminfo")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.split_whitespace().next()?.parse().ok()
    }

    /// Returns the features of the first CPU, in the kernel's names.
    pub(crate) fn cpu_features(&self) -> Vec<String> {
        let text = self.read("/proc/cpuinfo").unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("flags") || line.starts_with("Features"));
        let list = line.and_then(|line| line.split_once(':')).map_or("", |(_, list)| list);
        list.split_whitespace().map(str::to_owned).collect()
    }

    /// Returns the effective capabilities of this process, as the kernel's bits.
    pub(crate) fn capabilities(&self) -> u64 {
        let text = self.read("/proc/self/status").unwrap_or_default();
        let hex = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
        hex.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
    }

    /// Returns the bytes that this process may lock in memory; `None`: no limit.
    pub(crate) fn memlock_bytes(&self) -> Option<u64> {
        self.limit("Max locked memory")
    }

    /// Returns the number of files that this process may have open; `None`: no limit.
    pub(crate) fn open_files(&self) -> Option<u64> {
        self.limit("Max open files")
    }

    /// Returns the soft limit `name` of this process.
    fn limit(&self, name: &str) -> Option<u64> {
        let text = self.read("/proc/self/limits")?;
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    }

    /// Returns the smallest CPU quota of this process's cgroup and the cgroups around it; `None` without a quota.
    pub(crate) fn cpu_quota(&self) -> Option<CpuQuota> {
        let text = self.read("/proc/self/cgroup")?;
        // Lines of cgroups(7): `0::/path` of version 2, and `4:cpu,cpuacct:/path` of version 1.
        let cgroups = text.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?.trim_end_matches('/'));
            let is_cpu = controllers.split(',').any(|controller| controller == "cpu");
            (controllers.is_empty() || is_cpu).then_some((controllers, path))
        });
        let quotas = cgroups.flat_map(|(controllers, path)| {
            let ancestors: Vec<&Path> = Path::new(path).ancestors().collect();
            // In a container, the path may be that of the host, and only the root be there.
            let paths = ancestors.into_iter().chain([Path::new("/")]);
            paths.filter_map(move |path| self.quota_at(controllers, path)).collect::<Vec<_>>()
        });
        quotas.min_by_key(|quota| quota.micros * 1_000_000 / quota.period_micros.max(1))
    }

    fn quota_at(&self, controllers: &str, path: &Path) -> Option<CpuQuota> {
        let path = path.display().to_string();
        let (micros, period_micros) = if controllers.is_empty() {
            let text = self.read(&format!("/sys/fs/cgroup/{path}/cpu.max"))?;
            let (micros, period_micros) = text.split_once(' ')?;
            (micros.parse().ok()?, period_micros.parse().ok()?)
        } else {
            let file =
                |name: &str| self.read(&format!("/sys/fs/cgroup/{controllers}/{path}/cpu.cfs_{name}_us"));
            (file("quota")?.parse().ok()?, file("period")?.parse().ok()?)
        };
        Some(CpuQuota { micros, period_micros })
    }

    /// Returns the directory of DPDK's shared libraries in this process, and the drivers' files below it;
    /// `None` if DPDK is linked statically.
    pub(crate) fn dpdk_libraries(&self) -> Option<(String, Vec<String>)> {
        let maps = self.read("/proc/self/maps")?;
        let line = maps.lines().find(|line| line.contains("/librte_eal.so"))?;
        let path = Path::new(line.get(line.find('/')?..)?);
        let dir = format!("{}/dpdk", path.parent()?.display());
        let versions = self.list(&dir).into_iter().filter(|name| name.starts_with("pmds-"));
        let files = versions.flat_map(|version| self.list(&format!("{dir}/{version}"))).collect();
        Some((dir, files))
    }
}
