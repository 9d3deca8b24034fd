//! The guest that the tests share.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::live::{Namespace, Peer, Process, capture_file, run};

/// How long the first boot may take: it builds the guest's image, where there is none.
const BOOT_TIMEOUT: Duration = Duration::from_secs(1200);
/// How long a command in the guest may take, on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// The tap's name on the host.
pub(crate) const TAP: &str = "gtap";
/// This side's address on the tap.
pub(crate) const HOST_V4: &str = "10.77.0.1";
/// The guest's.
pub(crate) const GUEST_V4: &str = "10.77.0.2";

/// TCP port of the guest's peer program.
const PEER_PORT: u16 = 7471;
/// Where ibv_rc_pingpong listens, and `roce ping`.
pub(crate) const PINGPONG_PORT: u16 = 18515;
/// The same of the guest, on the loopback interface beside the host's end of the links.
pub(crate) const FORWARDED_PORT: u16 = 18516;

/// A guest with soft-RoCE devices, in a network namespace with the host's ends of its links.
///
/// ```text
///   nic0  rxe0 ---- tap ----------- af_packet:gtap     10.77.0.2, fd77::2 / 10.77.0.1, fd77::1
///   nic1       ---- user network -- TCP alone, so that loss on the others does not reach it
/// ```
pub(crate) struct Guest {
    pub(crate) namespace: Namespace,
    name: String,
    /// The peer program, for as long as the guest runs.
    _server: Process,
}

fn script() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/guest").to_owned()
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
        namespace.ip(&format!("address add {HOST_V4}/24 dev {TAP}"));
        namespace.ip(&format!("address add fd77::1/64 dev {TAP} nodad"));
        let name = format!("tests.{}", std::process::id());
        let jobs = concat!(env!("CARGO_MANIFEST_DIR"), "/guest");
        let user = format!(
            "user:hostfwd=tcp:127.0.0.1:{PEER_PORT}-:{PEER_PORT},hostfwd=tcp:127.0.0.1:{FORWARDED_PORT}-:{PINGPONG_PORT}"
        );
        let pid = std::process::id().to_string();
        let mut start = namespace.command(script());
        start.args(["start", "--name", &name, "--with-pid", &pid, "--share", jobs]);
        run(start.args(["--nic", &format!("tap:{TAP}"), "--nic", &user]));
        let inside = |command: &str| {
            run(Command::new(script()).args(["exec", "--name", &name, "--", "bash", "-c", command]))
        };
        assert_eq!(inside(&format!("rxe_up nic0 {GUEST_V4}/24 fd77::2/64 9000")).trim(), "rxe0");
        let peer = Path::new(jobs).join("peer.py");
        let server = Process::start(
            Command::new(script()).args(["exec", "--name", &name, "--timeout", "1700", "--"]).args([
                "python3".as_ref(),
                peer.as_os_str(),
                "rxe0".as_ref(),
                PEER_PORT.to_string().as_ref(),
            ]),
        );
        inside(&format!("wait_listen {PEER_PORT}"));
        Guest { namespace, name, _server: server }
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
    pub(crate) fn rxe(&self) -> Peer {
        let mut relay = self.namespace.command(Peer::program());
        Peer::start(relay.args(["relay", &format!("127.0.0.1:{PEER_PORT}")]))
    }

    /// A peer of this project on `port`. It captures what it sends and receives.
    pub(crate) fn ours(&self, port: &str) -> Peer {
        let pcap = format!("pcap={}", capture_file().display());
        Peer::start(self.namespace.command(Peer::program()).args([port, &pcap]))
    }
}

/// The image comes from Debian's packages, which the namespace has no way to.
fn build_image() {
    let build = Process::start(Command::new(script()).arg("build"));
    build.finish(BOOT_TIMEOUT).expect_success("scripts/guest build");
}
