//! The checks, on made-up machines.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;

/// A machine of files, gone when dropped.
struct Machine(PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Machine {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("roce-doctor-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Machine(root)
    }

    fn file(self, path: &str, text: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    fn link(self, path: &str, target: &str) -> Self {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(Path::new("/nowhere").join(target), path).unwrap();
        self
    }

    /// A NIC at 0000:05:00.0 with the given kernel driver.
    fn nic(self, driver: &str) -> Self {
        self.file("sys/bus/pci/devices/0000:05:00.0/class", "0x020000\n")
            .link("sys/bus/pci/devices/0000:05:00.0/driver", driver)
    }

    fn findings(&self, port: Option<&str>) -> Vec<Finding> {
        let port = port.map(|port| port.parse().unwrap());
        examine(&System::below(&self.0), port.as_ref())
    }

    fn finding(&self, port: Option<&str>, topic: &str) -> Finding {
        let mut findings = self.findings(port);
        let at = findings.iter().position(|finding| finding.topic == topic);
        findings.swap_remove(at.unwrap_or_else(|| panic!("nothing of {topic} in {findings:?}")))
    }
}

const UDP_TABLE: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid
   77: 00000000:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 4711 2 0 0
";

const MAPS: &str = "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/x/librte_eal.so.23\n";

#[test]
fn a_machine_that_tells_nothing_blocks_no_memif() {
    let machine = Machine::new("bare");
    let findings = machine.findings(Some("memif:@x"));
    assert!(findings.iter().all(|finding| finding.severity != Severity::Blocks), "{findings:?}");
    assert_eq!(machine.finding(None, "hugepages").severity, Severity::Note);
    assert_eq!(machine.finding(None, "cpu").severity, Severity::Warning);
}

#[test]
fn hugepages_are_asked_for_beside_those_in_use() {
    let meminfo = |free| {
        format!("HugePages_Total:     100\nHugePages_Free:       {free}\nHugepagesize:       2048 kB\n")
    };
    let machine = Machine::new("huge").file("proc/meminfo", &meminfo(10));
    assert_eq!(machine.finding(None, "hugepages").mend, ["echo 218 | sudo tee /proc/sys/vm/nr_hugepages"]);
    let machine = machine.file("proc/meminfo", &meminfo(128));
    assert_eq!(machine.finding(None, "hugepages").severity, Severity::Ok);
}

#[test]
fn soft_roce_blocks_shared_interfaces_only() {
    let port = Some("af_packet:eth1");
    assert_eq!(Machine::new("free").finding(port, "udp 4791").severity, Severity::Ok);
    // A process that holds the port may be one of ours.
    let machine = Machine::new("held").file("proc/net/udp6", UDP_TABLE);
    assert_eq!(machine.finding(port, "udp 4791").severity, Severity::Note);
    let machine =
        machine.file("sys/module/rdma_rxe/refcnt", "0\n").file("sys/class/infiniband/rxe0/parent", "eth1\n");
    let finding = machine.finding(port, "udp 4791");
    assert_eq!(finding.severity, Severity::Blocks);
    assert!(finding.what.contains("rxe0 on eth1"), "{}", finding.what);
    assert_eq!(finding.mend, ["sudo rdma link delete rxe0", "sudo modprobe -r rdma_rxe"]);
    assert_eq!(machine.finding(Some("memif:@x"), "udp 4791").severity, Severity::Warning);
}

#[test]
fn an_interface_that_is_missing_down_or_of_small_mtu_is_told() {
    let interface = |flags: &str, mtu: &str| {
        Machine::new(&format!("net-{flags}-{mtu}"))
            .file("sys/class/net/lo/type", "772\n")
            .file("sys/class/net/t9/type", "1\n")
            .file("sys/class/net/t9/flags", flags)
            .file("sys/class/net/t9/mtu", mtu)
            .file("sys/class/net/t9/carrier", "1\n")
    };
    let port = Some("af_packet:t9");
    let missing = Machine::new("no-net").finding(port, "interface");
    assert_eq!(missing.severity, Severity::Blocks);
    let down = interface("0x1002", "1500").finding(port, "interface");
    assert_eq!((down.severity, down.mend[0].as_str()), (Severity::Blocks, "sudo ip link set t9 up"));
    let small = interface("0x1003", "1500").finding(port, "mtu");
    assert_eq!((small.severity, small.mend[0].as_str()), (Severity::Note, "sudo ip link set t9 mtu 4176"));
    assert!(small.what.contains("path MTU of 1024"), "{}", small.what);
    assert_eq!(interface("0x1003", "200").finding(port, "mtu").severity, Severity::Blocks);
    assert_eq!(interface("0x1003", "4200").finding(port, "mtu").severity, Severity::Ok);
    // An XDP socket's frames end at 2048.
    assert_eq!(interface("0x1003", "2128").finding(Some("af_xdp:t9"), "mtu").severity, Severity::Ok);
}

#[test]
fn a_nic_must_be_there_and_bound_for_user_space() {
    let port = Some("pci:0000:05:00.0");
    assert!(Machine::new("no-nic").finding(port, "nic").what.contains("there are: none"));
    let kernels = Machine::new("e1000e").nic("e1000e").finding(port, "nic");
    assert_eq!(kernels.severity, Severity::Blocks);
    assert!(kernels.mend[1].ends_with("--bind=vfio-pci 0000:05:00.0"), "{:?}", kernels.mend);
    let bound = Machine::new("vfio").nic("vfio-pci");
    assert_eq!(bound.finding(port, "nic").severity, Severity::Ok);
    assert_eq!(bound.finding(port, "iommu").severity, Severity::Blocks);
    assert_eq!(bound.finding(None, "iommu").severity, Severity::Note);
}

#[test]
fn a_nic_that_does_roce_itself_keeps_the_packets() {
    let port = Some("pci:0000:05:00.0");
    let types = "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/3";
    let machine = Machine::new("mlx5")
        .nic("mlx5_core")
        .file("sys/bus/pci/devices/0000:05:00.0/infiniband/mlx5_0/x", "");
    assert_eq!(machine.finding(port, "mlx5 roce").severity, Severity::Ok);
    let machine = machine.file(types, "RoCE v2\n");
    let finding = machine.finding(port, "mlx5 roce");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(finding.mend[0].contains("enable_roce value false"), "{:?}", finding.mend);
    // Bifurcated: neither VFIO nor an IOMMU is needed, but the driver.
    assert_eq!(machine.finding(port, "nic").severity, Severity::Ok);
    let blocks = machine.findings(port).iter().filter(|finding| finding.severity == Severity::Blocks).count();
    assert_eq!(blocks, if cfg!(feature = "mlx5") { 0 } else { 1 });
    let machine =
        machine.file("proc/self/maps", MAPS).file("usr/lib/x/dpdk/pmds-23.0/librte_net_mlx5.so.23", "");
    assert!(machine.findings(port).iter().all(|finding| finding.severity != Severity::Blocks));
}

#[test]
fn permissions_follow_the_effective_capabilities() {
    let with = |caps: &str| Machine::new(caps).file("proc/self/status", &format!("CapEff:\t{caps}\n"));
    let severities = |machine: &Machine, port: &str| {
        let findings = machine.findings(Some(port));
        findings.iter().any(|finding| finding.topic == "permissions" && finding.severity == Severity::Blocks)
    };
    let nobody = with("0000000000000000");
    assert!(severities(&nobody, "af_packet:t9") && !severities(&nobody, "memif:@x"));
    let net = with("0000000000003000");
    assert!(!severities(&net, "af_packet:t9") && severities(&net, "af_xdp:t9"));
    assert!(!severities(&with("000001ffffffffff"), "af_xdp:t9"));
}

#[test]
fn limits_on_locked_memory_matter_to_drivers_that_lock() {
    let limits = "Max locked memory         8388608              8388608              bytes     \n";
    let machine = Machine::new("memlock").file("proc/self/limits", limits);
    assert_eq!(machine.finding(Some("pci:0000:05:00.0"), "memlock").severity, Severity::Blocks);
    assert_eq!(machine.finding(Some("memif:@x"), "memlock").severity, Severity::Note);
    let unlimited = "Max locked memory         unlimited            unlimited            bytes     \n";
    let machine = machine.file("proc/self/limits", unlimited);
    assert_eq!(machine.finding(Some("pci:0000:05:00.0"), "memlock").severity, Severity::Ok);
}

#[test]
fn a_low_limit_of_open_files_is_a_warning() {
    let limits = |files: u32| {
        format!("Max open files            {files}                 4096                 files\n")
    };
    let machine = Machine::new("files").file("proc/self/limits", &limits(64));
    let finding = machine.finding(None, "open files");
    assert_eq!(finding.severity, Severity::Warning);
    assert!(
        finding.what.starts_with("64 files") && finding.mend[0].contains("LimitNOFILE=1024"),
        "{finding:?}"
    );
    let machine = machine.file("proc/self/limits", &limits(1024));
    assert_eq!(machine.finding(None, "open files").severity, Severity::Ok);
}

#[test]
fn a_cpu_quota_is_a_warning() {
    let quota = |machine: &Machine| {
        let finding = machine.finding(None, "cpu quota");
        (finding.severity, finding.what)
    };
    let machine = Machine::new("quota").file("proc/self/cgroup", "0::/a/b\n");
    assert_eq!(quota(&machine), (Severity::Ok, "none".to_owned()));
    let machine = machine.file("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_eq!(quota(&machine), (Severity::Ok, "none".to_owned()));
    let machine = machine.file("sys/fs/cgroup/a/cpu.max", "20000 100000\n");
    let (severity, what) = quota(&machine);
    assert!(
        severity == Severity::Warning && what.contains("20 % of a CPU") && what.contains("100 ms"),
        "{what}"
    );
    assert_eq!(quota(&machine.file("sys/fs/cgroup/a/cpu.max", "400000 100000\n")).0, Severity::Ok);

    let machine = Machine::new("quota1")
        .file("proc/self/cgroup", "4:memory:/m\n2:cpu,cpuacct:/a\n0::/\n")
        .file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n")
        .file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "25000\n");
    let (severity, what) = quota(&machine);
    assert!(severity == Severity::Warning && what.contains("50 % of a CPU"), "{what}");
    let machine = machine.file("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    assert_eq!(quota(&machine).0, Severity::Ok);
}

#[test]
fn shared_libraries_without_a_driver_block_its_ports() {
    let machine = Machine::new("shared")
        .file("proc/self/maps", MAPS)
        .file("usr/lib/x/dpdk/pmds-23.0/librte_net_memif.so.23", "");
    assert!(machine.findings(Some("memif:@x")).iter().all(|finding| finding.severity != Severity::Blocks));
    let finding = machine.finding(Some("tap:t0"), "drivers");
    assert!(
        machine
            .findings(Some("tap:t0"))
            .iter()
            .any(|f| f.what.contains("net_tap") && f.severity == Severity::Blocks),
        "{finding:?}"
    );
}
