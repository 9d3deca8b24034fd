//! The checks of CPU, memory, drivers, permissions and the kernel's interfaces.

use roce::qp::HEADER_ROOM_BYTES;
use roce::wire::udp::ROCE_PORT;
use verbs::port::PortKind;
use verbs::{PathMtu, PortSpec};

use super::finding::{Finding, Severity};
use super::system::{CpuQuota, KernelInterface, System};

const MIB: u64 = 1 << 20;
/// Free hugepages, in bytes, that `dpdk_ffi` requires by default to use them.
const HUGEPAGES_WANTED_BYTES: u64 = 256 * MIB;
/// Bytes that a NIC driver locks for one port's buffers and rings.
const MEMLOCK_WANTED_BYTES: u64 = 512 * MIB;

/// Files that a process may have open, as a rule of Linux.
const OPEN_FILES_WANTED: u64 = 1024;
/// CPU quota that a thread that polls and a background thread that polls do not use up.
const CPU_QUOTA_WANTED_PERCENT: u64 = 200;

const CAP_NET_ADMIN: u64 = 1 << 12;
const CAP_NET_RAW: u64 = 1 << 13;
const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_BPF: u64 = 1 << 39;

fn is_kind(port: Option<&PortSpec>, kind: PortKind) -> bool {
    port.is_some_and(|port| port.kind == kind)
}

/// Whether the invariant CRC is computed with vector instructions.
pub(super) fn cpu(system: &System) -> Finding {
    const TOPIC: &str = "cpu";
    let features = system.cpu_features();
    let has = |name: &str| features.iter().any(|feature| feature == name);
    if has("vpclmulqdq") && has("avx512vl") {
        return Finding::ok(TOPIC, "vpclmulqdq and AVX-512: the ICRC of a packet costs little");
    }
    if has("pclmulqdq") || (has("crc32") && has("pmull")) {
        return Finding::ok(
            TOPIC,
            "carry-less multiplication in hardware: the ICRC is computed at a good speed",
        );
    }
    let what = "no pclmulqdq (crc32 on ARM): the ICRC is computed by tables, and bandwidth suffers; \
                in a virtual machine, let it see the host's CPU (QEMU: -cpu host)";
    Finding::new(TOPIC, Severity::Warning, what)
}

/// Whether enough hugepages are free.
pub(super) fn hugepages(system: &System) -> Finding {
    const TOPIC: &str = "hugepages";
    let size_bytes = system.meminfo("Hugepagesize").unwrap_or(2048) * 1024;
    let free = system.meminfo("HugePages_Free").unwrap_or(0);
    let (free_mib, wanted_mib) = (free * size_bytes / MIB, HUGEPAGES_WANTED_BYTES / MIB);
    if free * size_bytes >= HUGEPAGES_WANTED_BYTES {
        return Finding::ok(TOPIC, format!("{free_mib} MiB are free; root uses them"));
    }
    let total = system.meminfo("HugePages_Total").unwrap_or(0);
    let pages = total + (HUGEPAGES_WANTED_BYTES / size_bytes.max(1)).max(1) - free;
    let what = format!(
        "{free_mib} MiB are free, {wanted_mib} are wanted: ordinary pages are used, which is slower on NICs"
    );
    Finding::new(TOPIC, Severity::Note, what)
        .mend(format!("echo {pages} | sudo tee /proc/sys/vm/nr_hugepages"))
}

/// Whether DPDK has the drivers of the port kinds.
pub(super) fn drivers(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    const TOPIC: &str = "drivers";
    const DRIVERS: [(PortKind, &str); 6] = [
        (PortKind::Memif, "memif"),
        (PortKind::AfPacket, "af_packet"),
        (PortKind::AfXdp, "af_xdp"),
        (PortKind::Vhost, "vhost"),
        (PortKind::VirtioUser, "virtio"),
        (PortKind::Tap, "tap"),
    ];
    let Some((dir, files)) = system.dpdk_libraries() else {
        return vec![Finding::ok(TOPIC, "DPDK and its drivers are linked into this program")];
    };
    let mut missing: Vec<Finding> = DRIVERS
        .iter()
        .filter(|(_, driver)| !files.iter().any(|file| file.starts_with(&format!("librte_net_{driver}.so"))))
        .map(|(kind, driver)| {
            let severity = if is_kind(port, *kind) { Severity::Blocks } else { Severity::Note };
            let what = format!("DPDK's driver net_{driver} is not below {dir}: no {}: ports", kind.name());
            Finding::new(TOPIC, severity, what).mend("sudo apt-get install dpdk libdpdk-dev")
        })
        .collect();
    if missing.is_empty() {
        missing.push(Finding::ok(TOPIC, format!("DPDK's drivers are below {dir}")));
    }
    missing
}

/// Whether this process may open each kind of port.
pub(super) fn permissions(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    const TOPIC: &str = "permissions";
    let held = system.capabilities();
    let net = CAP_NET_RAW | CAP_NET_ADMIN;
    let kinds = [
        (PortKind::AfPacket, net, "cap_net_raw,cap_net_admin"),
        (PortKind::Tap, net, "cap_net_raw,cap_net_admin"),
        (PortKind::AfXdp, net | CAP_BPF, "cap_net_raw,cap_net_admin,cap_bpf"),
    ];
    let mut findings = Vec::new();
    let mut allowed = vec!["memif", "vhost", "virtio-user"];
    for (kind, needed, names) in
        kinds.into_iter().filter(|(kind, ..)| port.is_none_or(|port| port.kind == *kind))
    {
        // Because SYS_ADMIN includes BPF, as it did before BPF was separate.
        let has_bpf = if held & CAP_SYS_ADMIN != 0 { CAP_BPF } else { 0 };
        if (held | has_bpf) & needed == needed {
            allowed.push(kind.name());
            continue;
        }
        let severity = if is_kind(port, kind) { Severity::Blocks } else { Severity::Note };
        let what = format!("{}: ports need {names}, which this process lacks: run as root", kind.name());
        findings.push(
            Finding::new(TOPIC, severity, what).mend(format!("sudo setcap {names}+ep $(command -v roce)")),
        );
    }
    if port.is_none() {
        findings.insert(0, Finding::ok(TOPIC, format!("this user may open {}", allowed.join(", "))));
    }
    findings
}

/// Whether enough memory may be locked.
pub(super) fn memlock(system: &System, port: Option<&PortSpec>) -> Finding {
    const TOPIC: &str = "memlock";
    // Because a process with CAP_IPC_LOCK may exceed the limit.
    const CAP_IPC_LOCK: u64 = 1 << 14;
    let limit = system.memlock_bytes();
    match limit {
        _ if system.capabilities() & CAP_IPC_LOCK != 0 => Finding::ok(TOPIC, "not limited for this user"),
        None => Finding::ok(TOPIC, "not limited"),
        Some(bytes) if bytes >= MEMLOCK_WANTED_BYTES => Finding::ok(TOPIC, format!("{} MiB", bytes / MIB)),
        Some(bytes) => {
            let locks = is_kind(port, PortKind::Pci) || is_kind(port, PortKind::AfXdp);
            let severity = if locks { Severity::Blocks } else { Severity::Note };
            let what = format!(
                "{} KiB may be locked; pci: and af_xdp: ports need about {} MiB",
                bytes / 1024,
                MEMLOCK_WANTED_BYTES / MIB
            );
            Finding::new(TOPIC, severity, what).mend(
                "ulimit -l unlimited   # after adding `* - memlock unlimited` to /etc/security/limits.d/rdma.conf; systemd: LimitMEMLOCK=infinity; docker run --ulimit memlock=-1",
            )
        }
    }
}

/// Whether enough files may be open.
pub(super) fn open_files(system: &System) -> Finding {
    const TOPIC: &str = "open files";
    match system.open_files() {
        None => Finding::ok(TOPIC, "not limited"),
        Some(files) if files >= OPEN_FILES_WANTED => Finding::ok(TOPIC, format!("{files}")),
        Some(files) => {
            let what = format!(
                "{files} files may be open; a device needs about {}, and each completion channel one",
                verbs::DESCRIPTORS_PER_DEVICE
            );
            Finding::new(TOPIC, Severity::Warning, what)
                .mend(format!("ulimit -n {OPEN_FILES_WANTED}   # systemd: LimitNOFILE={OPEN_FILES_WANTED}; docker run --ulimit nofile={OPEN_FILES_WANTED}"))
        }
    }
}

/// Whether a CPU quota stops the threads that poll.
pub(super) fn cpu_quota(system: &System) -> Finding {
    const TOPIC: &str = "cpu quota";
    let Some(CpuQuota { micros, period_micros }) = system.cpu_quota() else {
        return Finding::ok(TOPIC, "none");
    };
    let percent = 100 * micros / period_micros.max(1);
    if percent >= CPU_QUOTA_WANTED_PERCENT {
        return Finding::ok(TOPIC, format!("{percent} % of a CPU"));
    }
    let what = format!(
        "this cgroup has {percent} % of a CPU, and each thread that polls uses a whole one: when the quota is used up, the \
         kernel stops the process until the period of {} ms ends. Do not use --progress busy; wait for events instead of \
         polling (roce perf -e), or raise the quota",
        period_micros / 1000
    );
    Finding::new(TOPIC, Severity::Warning, what).mend(
        "echo max | sudo tee /sys/fs/cgroup/CGROUP/cpu.max   # systemd: CPUQuota=; docker run --cpus; Kubernetes: limits.cpu",
    )
}

/// Whether the kernel's interfaces have an MTU for a large path MTU, and addresses.
pub(super) fn interfaces(system: &System, port: Option<&PortSpec>) -> Vec<Finding> {
    const TOPIC: &str = "interface";
    let wanted = port.filter(|port| matches!(port.kind, PortKind::AfPacket | PortKind::AfXdp));
    if port.is_some() && wanted.is_none() {
        return Vec::new();
    }
    let all = system.interfaces();
    let Some(wanted) = wanted else {
        return all.iter().filter(|interface| interface.is_up).flat_map(|i| interface(i, false)).collect();
    };
    match all.iter().find(|interface| interface.name == wanted.target) {
        Some(found) => interface(found, wanted.kind == PortKind::AfXdp),
        None => {
            let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
            let names = names.join(", ");
            let what = format!("there is no Ethernet interface {}; there are: {names}", wanted.target);
            vec![Finding::new(TOPIC, Severity::Blocks, what)]
        }
    }
}

/// Whether frames can pass through the interface, with a large path MTU, and its addresses.
pub(super) fn interface(interface: &KernelInterface, is_xdp: bool) -> Vec<Finding> {
    const TOPIC: &str = "interface";
    let name = &interface.name;
    if !interface.is_up {
        let finding = Finding::new(TOPIC, Severity::Blocks, format!("{name} is down"));
        return vec![finding.mend(format!("sudo ip link set {name} up"))];
    }
    if !interface.has_carrier {
        let what = format!("{name} is up but has no carrier: no cable, or its other end is down");
        return vec![Finding::new(TOPIC, Severity::Warning, what)];
    }
    vec![path_mtu(interface, is_xdp), gids(name)]
}

fn path_mtu(interface: &KernelInterface, is_xdp: bool) -> Finding {
    const TOPIC: &str = "mtu";
    let (name, mtu_bytes) = (&interface.name, interface.mtu_bytes);
    let best = if is_xdp { PathMtu::Mtu2048 } else { PathMtu::Mtu4096 };
    let needed = best.bytes() as usize + HEADER_ROOM_BYTES;
    match PathMtu::largest_for(mtu_bytes) {
        None => {
            let what = format!("{name} has an MTU of {mtu_bytes}: too small for any path MTU");
            Finding::new(TOPIC, Severity::Blocks, what).mend(format!("sudo ip link set {name} mtu {needed}"))
        }
        Some(mtu) if mtu >= best => {
            Finding::ok(TOPIC, format!("{name}: MTU {mtu_bytes} carries a path MTU of {}", best.bytes()))
        }
        Some(mtu) => {
            let what = format!(
                "{name}: MTU {mtu_bytes} carries a path MTU of {} (-m {}); {} needs an MTU of {needed} here, on the switch and at the peer",
                mtu.bytes(),
                mtu.bytes(),
                best.bytes()
            );
            Finding::new(TOPIC, Severity::Note, what).mend(format!("sudo ip link set {name} mtu {needed}"))
        }
    }
}

/// Reports the addresses of an interface, which become GIDs.
fn gids(name: &str) -> Finding {
    const TOPIC: &str = "gid";
    let interface = match verbs::kernel::Interface::read(name) {
        Ok(interface) => interface,
        Err(error) => return Finding::new(TOPIC, Severity::Warning, format!("{name}: {error}")),
    };
    let v4 = interface.addresses.iter().find(|(ip, _)| ip.is_ipv4());
    match v4 {
        Some((ip, bits)) => Finding::ok(
            TOPIC,
            format!("{name}: GID 1 is {ip}/{bits}, the one to use with IPv4 peers; GID 0 is link-local"),
        ),
        None => {
            let what = format!(
                "{name} has no IPv4 address: peers with one are out of reach, and with others the link-local \
                 GID 0 must be chosen on both ends (-g 0, perftest: -x 0)"
            );
            Finding::new(TOPIC, Severity::Warning, what)
                .mend(format!("sudo ip address add 10.0.0.1/24 dev {name}"))
        }
    }
}

/// Whether the kernel's soft-RoCE or another program receives the packets.
pub(super) fn udp_port(system: &System, port: Option<&PortSpec>) -> Finding {
    const TOPIC: &str = "udp 4791";
    if !system.is_udp_port_held(ROCE_PORT) {
        return Finding::ok(TOPIC, "nobody holds RoCE's port");
    }
    // Because its socket exists from the module's loading on, bound to no interface.
    if !system.exists("/sys/module/rdma_rxe") {
        let what = "a program holds RoCE's port; that is well if it is one of ours";
        return Finding::new(TOPIC, Severity::Note, what).mend("sudo ss -ulpn 'sport = :4791'");
    }
    let rxe = system.rxe_devices();
    let names: Vec<String> = rxe.iter().map(|(device, on)| format!(" {device} on {on}")).collect();
    let what = format!(
        "Linux's soft-RoCE (rdma_rxe{}) holds RoCE's port on all interfaces and would answer our peers too: \
         no af_packet: ports beside it",
        names.join(",")
    );
    let severity = if is_kind(port, PortKind::AfPacket) { Severity::Blocks } else { Severity::Warning };
    let finding = Finding::new(TOPIC, severity, what);
    let removals = rxe.iter().map(|(device, _)| format!("sudo rdma link delete {device}"));
    removals.fold(finding, Finding::mend).mend("sudo modprobe -r rdma_rxe")
}
