//! The guest that most tests share, and the links to it.

use std::sync::{Mutex, OnceLock};

use roce::id::Mac;

use super::machine::Machine;
use crate::live::{Namespace, Peer, Process, Turn, capture_file};

/// A link between this side and the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// A tap interface of the host's kernel; packet sockets on it.
    Tap,
    /// Shared memory; this side is the vhost-user server.
    Vhost,
}

/// The tap's name on the host.
const TAP: &str = "gtap";

/// TCP port of the guest's first peer program; the next device's has the next.
const PEER_PORT: u16 = 7471;
/// Where ibv_rc_pingpong and perftest listen, `roce ping` and `roce perf`.
pub(crate) const PINGPONG_PORT: u16 = 18515;
/// The guest's [`PINGPONG_PORT`], on the loopback interface beside the host's end of the links.
const FORWARDED_PORT: u16 = 18516;

impl Wire {
    const ALL: [Wire; 2] = [Wire::Tap, Wire::Vhost];

    /// The guest's RDMA device.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Wire::Tap => "rxe0",
            Wire::Vhost => "rxe1",
        }
    }

    /// The network interface under that device.
    fn nic(self) -> &'static str {
        match self {
            Wire::Tap => "nic0",
            Wire::Vhost => "nic1",
        }
    }

    /// How to bring that device up.
    fn rxe_up(self) -> String {
        let addresses = match self {
            Wire::Tap => "10.77.0.2/24 fd77::2/64",
            Wire::Vhost => "10.78.0.2/24 fd78::2/64",
        };
        format!("rxe_up {} {addresses} 9000", self.nic())
    }

    fn peer_port(self) -> u16 {
        PEER_PORT + self as u16
    }

    /// Host and TCP port by which programs here reach [`PINGPONG_PORT`] of the guest.
    pub(crate) fn guest_address(self) -> (&'static str, u16) {
        match self {
            Wire::Tap => ("10.77.0.2", PINGPONG_PORT),
            Wire::Vhost => ("127.0.0.1", FORWARDED_PORT),
        }
    }

    /// Where programs in the guest reach those here.
    pub(crate) fn host_address(self) -> &'static str {
        match self {
            Wire::Tap => "10.77.0.1",
            // The user-mode network's name for the host.
            Wire::Vhost => "10.0.2.2",
        }
    }
}

/// A guest with soft-RoCE devices, and a network namespace with the host's ends of its links.
///
/// ```text
///   nic0  rxe0 ---- tap ----------- af_packet:gtap     10.77.0.2, fd77::2 / 10.77.0.1, fd77::1
///   nic1  rxe1 ---- vhost-user ---- vhost:SOCKET       10.78.0.2, fd78::2 / 10.78.0.1, fd78::1
///   nic2       ---- user network -- TCP alone, so that loss on the others does not reach it
/// ```
pub(crate) struct Guest {
    pub(crate) namespace: Namespace,
    pub(crate) machine: Machine,
    /// The peer programs in the guest.
    _servers: Vec<Process>,
}

/// The guest, booted by the first test that needs it; one test at a time has it.
pub(crate) fn guest() -> Turn<Guest> {
    static GUEST: OnceLock<Mutex<Guest>> = OnceLock::new();
    Turn::with(|| GUEST.get_or_init(|| Mutex::new(Guest::boot())))
}

/// The socket of [`Wire::Vhost`].
fn socket() -> String {
    std::env::temp_dir().join(format!("roce-tests-{}.sock", std::process::id())).display().to_string()
}

/// Programs of the guest.
fn jobs() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/guest")
}

impl Guest {
    fn boot() -> Guest {
        let namespace = Namespace::new();
        namespace.ip(&format!("tuntap add dev {TAP} mode tap"));
        namespace.ip(&format!("link set {TAP} mtu 9000 up"));
        namespace.ip(&format!("address add 10.77.0.1/24 dev {TAP}"));
        namespace.ip(&format!("address add fd77::1/64 dev {TAP} nodad"));
        let ports = Wire::ALL.map(Wire::peer_port).map(|port| (port, port));
        let forward = |(here, there)| format!(",hostfwd=tcp:127.0.0.1:{here}-:{there}");
        let forwards = ports.into_iter().chain([(FORWARDED_PORT, PINGPONG_PORT)]).map(forward);
        let tap = format!("tap:{TAP}");
        let vhost = format!("vhost-user:{}", socket());
        let user = format!("user:{}", forwards.collect::<String>().trim_start_matches(','));
        // The guest does not boot before its vhost-user server listens.
        let mut server = ours(&namespace, Wire::Vhost);
        let _: u64 = server.counter("rcvd_pkts");
        let options = ["--share", jobs(), "--nic", &tap, "--nic", &vhost, "--nic", &user];
        let machine = Machine::boot("tests", &namespace, &options);
        let servers = Wire::ALL.map(|wire| serve(&machine, wire)).into();
        Guest { namespace, machine, _servers: servers }
    }

    /// Undoes what a test that failed left lossy.
    pub(crate) fn clear_losses(&self) {
        self.machine.run("netem_clear nic0; loss_clear nic0; true");
    }

    /// The MAC of the guest's interface.
    pub(crate) fn mac(&self, wire: Wire) -> Mac {
        let address = self.machine.run(&format!("cat /sys/class/net/{}/address", wire.nic()));
        address.trim().parse().expect("the kernel prints a MAC")
    }

    /// A peer of libibverbs on soft-RoCE.
    pub(crate) fn rxe(&self, wire: Wire) -> Peer {
        let mut relay = self.namespace.command(Peer::program());
        Peer::start(relay.args(["relay", &format!("127.0.0.1:{}", wire.peer_port())]))
    }

    /// The name of this side's port.
    pub(crate) fn port(wire: Wire) -> String {
        match wire {
            Wire::Tap => format!("af_packet:{TAP}"),
            Wire::Vhost => format!("vhost:{},ip=10.78.0.1/24,ip=fd78::1/64", socket()),
        }
    }

    /// A peer of this project. It captures what it sends and receives.
    pub(crate) fn ours(&self, wire: Wire) -> Peer {
        ours(&self.namespace, wire)
    }
}

fn ours(namespace: &Namespace, wire: Wire) -> Peer {
    let pcap = format!("pcap={}", capture_file("ours").display());
    Peer::start(namespace.command(Peer::program()).args([&Guest::port(wire), &pcap]))
}

/// Starts the guest's peer program for the device of `wire`.
fn serve(machine: &Machine, wire: Wire) -> Process {
    assert_eq!(machine.run(&wire.rxe_up()).trim(), wire.device());
    let port = wire.peer_port();
    let server = machine.serve(&format!("exec python3 {}/peer.py {} {port}", jobs(), wire.device()));
    machine.run(&format!("wait_listen {port}"));
    server
}
