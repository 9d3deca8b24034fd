//! The checks of NICs on the PCI bus: VFIO, the IOMMU, and RoCE in the NIC itself.

use verbs::PortSpec;
use verbs::port::PortKind;

use super::finding::{Finding, Severity};
use super::system::{PciNic, System};

/// Drivers with which DPDK shares a NIC with the kernel.
const BIFURCATED: [&str; 2] = ["mlx5_core", "mlx4_core"];
/// Drivers that hand a NIC to a process.
const USER_SPACE: [&str; 3] = ["vfio-pci", "igb_uio", "uio_pci_generic"];

fn wanted(port: Option<&PortSpec>) -> Option<&str> {
    port.filter(|port| port.kind == PortKind::Pci).map(|port| port.target.as_str())
}

/// Whether a NIC can be handed to a process safely.
pub(super) fn vfio(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    let wants_pci = wanted(port).is_some();
    if port.is_some() && !wants_pci {
        return Vec::new();
    }
    // Because a bifurcated driver needs neither.
    let is_bifurcated = system
        .pci_nics()
        .iter()
        .any(|nic| Some(nic.address.as_str()) == wanted(port) && has_driver(nic, &BIFURCATED));
    let bad = if wants_pci && !is_bifurcated { Severity::Blocks } else { Severity::Note };
    let mut findings = Vec::new();
    findings.push(if system.list("/sys/kernel/iommu_groups").is_empty() {
        Finding::new("iommu", bad, "there is no IOMMU, or it is off: vfio-pci cannot take a NIC. Switch it on in the BIOS (VT-d, AMD-Vi), then boot the kernel with")
            .mend("sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on iommu=pt /' /etc/default/grub && sudo update-grub && sudo reboot")
    } else {
        Finding::ok("iommu", "the IOMMU is on")
    });
    findings.push(if !system.exists("/dev/vfio/vfio") {
        Finding::new("vfio", bad, "vfio-pci is not loaded: no pci: ports but those of mlx5")
            .mend("sudo modprobe vfio-pci")
    } else if !system.can_open("/dev/vfio/vfio") {
        Finding::new("vfio", bad, "this user may not open /dev/vfio/vfio")
            .mend("sudo chmod 0666 /dev/vfio/vfio")
    } else {
        Finding::ok("vfio", "vfio is there")
    });
    findings
}

fn has_driver(nic: &PciNic, drivers: &[&str]) -> bool {
    nic.driver.as_deref().is_some_and(|driver| drivers.contains(&driver))
}

/// Checks each NIC, or the one that `port` names.
pub(super) fn nics(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    const TOPIC: &str = "nic";
    let nics = system.pci_nics();
    match (wanted(port), port) {
        (Some(address), _) => match nics.iter().find(|nic| nic.address == address) {
            Some(nic) => wanted_nic(system, nic),
            None => {
                let known: Vec<&str> = nics.iter().map(|nic| nic.address.as_str()).collect();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                let what = format!("there is no NIC at {address}; there are: {known}");
                vec![Finding::new(TOPIC, Severity::Blocks, what).mend("lspci -D -d ::0200")]
            }
        },
        (None, Some(_)) => Vec::new(),
        (None, None) => nics.iter().filter_map(|nic| roce_in_nic(system, nic)).collect(),
    }
}

fn wanted_nic(system: &System, nic: &PciNic) -> Vec<Finding> {
    const TOPIC: &str = "nic";
    let address = &nic.address;
    if has_driver(nic, &BIFURCATED) {
        let finding = Finding::ok(TOPIC, format!("{address} is shared with the kernel by its own driver"));
        let missing = (!has_mlx5_driver(system)).then(|| {
            let what = "this program was built without DPDK's mlx5 driver";
            Finding::new(TOPIC, Severity::Blocks, what).mend("cargo build --release -p apps --features mlx5")
        });
        return [Some(finding), missing, roce_in_nic(system, nic)].into_iter().flatten().collect();
    }
    if !has_driver(nic, &USER_SPACE) {
        let driver = nic.driver.as_deref().unwrap_or("no driver");
        let carries = match nic.interfaces.as_slice() {
            [] => String::new(),
            names => format!(
                " as {}: the kernel loses it, so it must not be the one you are logged in over",
                names.join(", ")
            ),
        };
        let what = format!("{address} is bound to {driver}{carries}");
        let bind = format!("sudo dpdk-devbind.py --force --bind=vfio-pci {address}");
        return vec![Finding::new(TOPIC, Severity::Blocks, what).mend("sudo modprobe vfio-pci").mend(bind)];
    }
    let mut findings = vec![Finding::ok(TOPIC, format!("{address} is bound to a driver of user space"))];
    if let Some(group) = nic.iommu_group.as_ref().filter(|_| has_driver(nic, &["vfio-pci"])) {
        let device = format!("/dev/vfio/{group}");
        if !system.can_open(&device) {
            let what = format!("{device} cannot be opened: it belongs to another user, or a process has it");
            findings
                .push(Finding::new(TOPIC, Severity::Blocks, what).mend(format!("sudo chown $USER {device}")));
        }
    }
    findings
}

fn has_mlx5_driver(system: &System) -> bool {
    match system.dpdk_libraries() {
        None => cfg!(feature = "mlx5"),
        Some((_, files)) => files.iter().any(|file| file.starts_with("librte_net_mlx5.so")),
    }
}

/// Whether an mlx5 NIC itself runs RoCE, in which case its steering removes UDP port 4791 before any program
/// receives it. A device without RoCE has no GIDs of that type.
fn roce_in_nic(system: &System, nic: &PciNic) -> Option<Finding> {
    const TOPIC: &str = "mlx5 roce";
    if nic.driver.as_deref() != Some("mlx5_core") {
        return None;
    }
    let address = &nic.address;
    let has_roce = nic.rdma_devices.iter().any(|device| {
        let types = format!("/sys/class/infiniband/{device}/ports/1/gid_attrs/types");
        system
            .list(&types)
            .iter()
            .any(|index| system.read(&format!("{types}/{index}")).is_some_and(|kind| kind.contains("RoCE")))
    });
    if !has_roce {
        return Some(Finding::ok(
            TOPIC,
            format!("{address}: enable_roce is off, so packets of UDP port 4791 reach us"),
        ));
    }
    let what = format!(
        "{address} does RoCE in hardware and keeps all packets of UDP port 4791 to itself; its own RDMA is the faster choice, but to give them to this program"
    );
    Some(
        Finding::new(TOPIC, Severity::Warning, what)
            .mend(format!(
                "sudo devlink dev param set pci/{address} name enable_roce value false cmode driverinit"
            ))
            .mend(format!("sudo devlink dev reload pci/{address}")),
    )
}
