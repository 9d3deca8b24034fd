//! The guest that the tests share.

use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::live::{Namespace, Peer, Process, capture_file, run};

/// How long the first boot may take: it builds the guest's image, where there is none.
const BOOT_TIMEOUT: Duration = Duration::from_secs(1200);
/// How long a command in the guest may take, on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

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
/// Where ibv_rc_pingpong listens, and `roce ping`.
pub(crate) const PINGPONG_PORT: u16 = 18515;
/// The guest's [`PINGPONG_PORT`], on the loopback interface beside the host's end of the links.
const FORWARDED_PORT: u16 = 18516;

impl Wire {
    /// The guest's RDMA device.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Wire::Tap => "rxe0",
            Wire::Vhost => "rxe1",
        }
    }

    /// How to bring that device up.
    fn rxe_up(self) -> &'static str {
        match self {
            Wire::Tap => "rxe_up nic0 10.77.0.2/24 fd77::2/64 9000",
            Wire::Vhost => "rxe_up nic1 10.78.0.2/24 fd78::2/64 9000",
        }
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

/// A guest with soft-RoCE devices, in a network namespace with the host's ends of its links.
///
/// ```text
///   nic0  rxe0 ---- tap ----------- af_packet:gtap     10.77.0.2, fd77::2 / 10.77.0.1, fd77::1
///   nic1  rxe1 ---- vhost-user ---- vhost:SOCKET       10.78.0.2, fd78::2 / 10.78.0.1, fd78::1
///   nic2       ---- user network -- TCP alone, so that loss on the others does not reach it
/// ```
pub(crate) struct Guest {
    pub(crate) namespace: Namespace,
    name: String,
    socket: String,
    /// The peer programs, for as long as the guest runs.
    _servers: Vec<Process>,
}

fn script() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest")
}

/// Programs of the guest.
fn jobs() -> &'static str {
    concat!(env!("CARGO_MANIFEST_DIR"), "/guest")
}

/// The guest, booted by the first test that needs it; one test at a time has it.
pub(crate) fn guest() -> MutexGuard<'static, Guest> {
    static GUEST: OnceLock<Mutex<Guest>> = OnceLock::new();
    // A test that failed leaves the guest as fit as it was: what it had in there has ended with it.
    GUEST.get_or_init(|| Mutex::new(Guest::boot())).lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    fn boot() -> Guest {
        build_image();
        let namespace = Namespace::new();
        namespace.ip(&format!("tuntap add dev {TAP} mode tap"));
        namespace.ip(&format!("link set {TAP} mtu 9000 up"));
        namespace.ip(&format!("address add 10.77.0.1/24 dev {TAP}"));
        namespace.ip(&format!("address add fd77::1/64 dev {TAP} nodad"));
        let pid = std::process::id();
        let socket = std::env::temp_dir().join(format!("roce-tests-{pid}.sock")).display().to_string();
        let mut guest = Guest { namespace, name: format!("tests.{pid}"), socket, _servers: Vec::new() };
        // The guest does not boot before its vhost-user server listens.
        let mut server = guest.ours(Wire::Vhost);
        let _: u64 = server.counter("rcvd_pkts");
        guest.start();
        guest._servers = [Wire::Tap, Wire::Vhost].into_iter().map(|wire| guest.serve(wire)).collect();
        guest
    }

    fn start(&self) {
        let mut forwards: String = [Wire::Tap, Wire::Vhost]
            .map(|wire| format!("hostfwd=tcp:127.0.0.1:{0}-:{0},", wire.peer_port()))
            .concat();
        forwards += &format!("hostfwd=tcp:127.0.0.1:{FORWARDED_PORT}-:{PINGPONG_PORT}");
        let mut start = self.namespace.command(script());
        start.args(["start", "--name", &self.name, "--with-pid", &std::process::id().to_string()]);
        start.args(["--share", jobs()]);
        start.args(["--nic", &format!("tap:{TAP}")]);
        start.args(["--nic", &format!("vhost-user:{}", self.socket)]);
        start.args(["--nic", &format!("user:{forwards}")]);
        run(&mut start);
    }

    /// Starts the guest's peer program for the device of `wire`.
    fn serve(&self, wire: Wire) -> Process {
        assert_eq!(self.run(wire.rxe_up()).trim(), wire.device());
        let mut server = Command::new(script());
        server.args(["exec", "--name", &self.name, "--timeout", "1700", "--", "python3"]);
        server.args([&format!("{}/peer.py", jobs()), wire.device(), &wire.peer_port().to_string()]);
        let server = Process::start(&mut server);
        self.run(&format!("wait_listen {}", wire.peer_port()));
        server
    }

    /// A shell command to be run in the guest.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut exec = Command::new(script());
        let timeout = COMMAND_TIMEOUT.as_secs().to_string();
        exec.args(["exec", "--name", &self.name, "--timeout", &timeout, "--", "bash", "-c", command]);
        exec
    }

    /// Runs a shell command in the guest, which must succeed.
    pub(crate) fn run(&self, command: &str) -> String {
        run(&mut self.command(command))
    }

    /// Undoes what a test that failed left lossy.
    pub(crate) fn clear_losses(&self) {
        self.run("netem_clear nic0; loss_clear nic0; true");
    }

    /// A peer of libibverbs on soft-RoCE.
    pub(crate) fn rxe(&self, wire: Wire) -> Peer {
        let mut relay = self.namespace.command(Peer::program());
        Peer::start(relay.args(["relay", &format!("127.0.0.1:{}", wire.peer_port())]))
    }

    /// The name of this side's port.
    pub(crate) fn port(&self, wire: Wire) -> String {
        match wire {
            Wire::Tap => format!("af_packet:{TAP}"),
            Wire::Vhost => format!("vhost:{},ip=10.78.0.1/24,ip=fd78::1/64", self.socket),
        }
    }

    /// A peer of this project. It captures what it sends and receives.
    pub(crate) fn ours(&self, wire: Wire) -> Peer {
        let pcap = format!("pcap={}", capture_file().display());
        Peer::start(self.namespace.command(Peer::program()).args([&self.port(wire), &pcap]))
    }
}

/// The image comes from Debian's packages, which the namespace has no way to.
fn build_image() {
    let build = Process::start(Command::new(script()).arg("build"));
    build.finish(BOOT_TIMEOUT).expect_success("scripts/guest build");
}
