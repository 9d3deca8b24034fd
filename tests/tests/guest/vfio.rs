//! Our stack inside a guest, on NICs that vfio-pci has behind an emulated IOMMU, facing soft-RoCE on
//! other NICs of the same guest.

use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use super::boot::PINGPONG_PORT;
use super::machine::Machine;
use crate::live::{Namespace, Turn, roce};

/// How long one game may take on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A NIC on vfio-pci and what is opposite.
struct Nic {
    /// Ours.
    port: &'static str,
    address: &'static str,
    /// Soft-RoCE's.
    device: &'static str,
}

/// nic0 facing nic1 (rxe0).
const E1000E: Nic = Nic { port: "pci:0000:00:10.0,mtu=4200", address: "10.0.0.1/24", device: "rxe0" };
/// nic2 facing nic3 (rxe1).
const VIRTIO: Nic = Nic { port: "pci:0000:00:12.0,mtu=4200", address: "fd01::1/64", device: "rxe1" };
/// Index of the GIDs of those addresses: each NIC has its link-local one and then just one.
const GID_INDEX: u8 = 1;

fn guest() -> Turn<Machine> {
    static GUEST: OnceLock<Mutex<Machine>> = OnceLock::new();
    Turn::with(|| GUEST.get_or_init(|| Mutex::new(boot())))
}

fn boot() -> Machine {
    let roce = roce();
    let directory = roce.parent().expect("a file lies in a directory").display().to_string();
    let nics = ["hub:0,model=e1000e", "hub:0", "hub:1", "hub:1"];
    let mut options = vec!["--vfio", "--share", &directory];
    options.extend(nics.iter().flat_map(|nic| ["--nic", nic]));
    let machine = Machine::boot("vfio", &Namespace::new(), &options);
    for (nic, address) in [("nic0", "0000:00:10.0"), ("nic2", "0000:00:12.0")] {
        assert_eq!(machine.run(&format!("vfio_bind {nic}")).trim(), address);
    }
    assert_eq!(machine.run("rxe_up nic1 10.0.0.2/24 - 9000").trim(), "rxe0");
    assert_eq!(machine.run("rxe_up nic3 - fd01::2/64 9000").trim(), "rxe1");
    machine
}

fn play(nic: &Nic, we_serve: bool, mtu: u32, (size, messages): (u32, u32)) {
    let guest = guest();
    let Nic { port, address, device } = nic;
    let options = format!("-g {GID_INDEX} -m {mtu} -s {size} -n {messages} -c -e");
    let roce = roce().display().to_string();
    let ours = format!("{roce} ping --port {port},ip={address} {options}");
    let theirs = format!("ibv_rc_pingpong -d {device} {options}");
    let (server, client) = if we_serve { (ours, theirs) } else { (theirs, ours) };
    let server = guest.start(&server);
    guest.run(&format!("wait_listen {PINGPONG_PORT}"));
    let client = guest.start(&format!("{client} localhost"));
    // Both are waited for before either is judged, as one end's failure is seldom its own fault.
    let (server, client) = (server.finish(TIMEOUT), client.finish(TIMEOUT));
    let said = format!("{options}: the server\n{server:?}\nthe client\n{client:?}");
    for end in [&server, &client] {
        assert!(end.status.success() && end.stdout.contains(&format!("{messages} iters in")), "{said}");
    }
}

#[test]
fn an_e1000e_under_vfio_joins() {
    play(&E1000E, false, 1024, (4096, 50));
    play(&E1000E, false, 4096, (65536, 50));
}

#[test]
fn an_e1000e_under_vfio_serves() {
    play(&E1000E, true, 1024, (1, 50));
    play(&E1000E, true, 4096, (65536, 50));
}

#[test]
fn a_virtio_nic_under_vfio_joins() {
    play(&VIRTIO, false, 1024, (4096, 50));
    play(&VIRTIO, false, 4096, (65536, 50));
}

#[test]
fn a_virtio_nic_under_vfio_serves() {
    play(&VIRTIO, true, 1024, (1, 50));
    play(&VIRTIO, true, 4096, (65536, 50));
}

/// Both ends sleep between messages. If the interrupts of the NIC did not wake ours, each message would wait for the
/// background thread's next look at the device, 200 ms, and the game would exceed its time.
#[test]
fn receive_interrupts_under_vfio_wake_a_sleeper() {
    const MESSAGES: u32 = 700;
    for nic in [&E1000E, &VIRTIO] {
        let roce = roce().display().to_string();
        let said = guest().run(&format!("{roce} devinfo --port {},ip={}", nic.port, nic.address));
        assert!(
            said.lines().any(|line| line.split_whitespace().eq(["wakes_by", "rx", "interrupt"])),
            "{said}"
        );
        play(nic, true, 1024, (64, MESSAGES));
    }
}
