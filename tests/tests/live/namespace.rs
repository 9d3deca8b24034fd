//! Network namespaces, which an ordinary user can have too.

use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{Process, is_root, run};

/// How long the kernel may take to make one.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace, gone with this value. Where the test is not run by root, it lies in a user
/// namespace in which the test is.
pub(crate) struct Namespace {
    /// Stays in the namespace until its stdin is closed, which happens at the test's end at the latest.
    holder: Process,
    in_user_namespace: bool,
}

/// Runs in a new namespace, and keeps it.
const HOLD: &str = "ip link set lo up && echo ready && cat";

impl Namespace {
    /// A namespace with a loopback interface and nothing else.
    pub(crate) fn new() -> Namespace {
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        Self::hold(command.args(["--net", "sh", "-c", HOLD]), !is_root())
    }

    /// Another one, that can be linked with this.
    pub(crate) fn beside(&self) -> Namespace {
        let mut command = self.command("unshare");
        Self::hold(command.args(["--net", "sh", "-c", HOLD]), self.in_user_namespace)
    }

    fn hold(command: &mut Command, in_user_namespace: bool) -> Namespace {
        let mut holder = Process::start(command);
        assert_eq!(holder.line(TIMEOUT), "ready", "a network namespace: {}", holder.stderr());
        Namespace { holder, in_user_namespace }
    }

    /// A command that runs `program` in it.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net"]);
        if self.in_user_namespace {
            // The user is root there already, and may not call setgroups (user_namespaces(7)).
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// Runs `ip` with these arguments in it.
    pub(crate) fn ip(&self, args: &str) {
        run(self.command("ip").args(args.split_whitespace()));
    }

    /// Waits until something in it listens on `tcp_port`.
    pub(crate) fn wait_listen(&self, tcp_port: u16) {
        wait_listen(|| self.command("cat"), tcp_port);
    }

    /// Waits until frames can pass through `interface`.
    pub(crate) fn wait_up(&self, interface: &str) {
        let end = Instant::now() + TIMEOUT;
        while !run(self.command("ip").args(["link", "show", interface])).contains("state UP") {
            assert!(Instant::now() < end, "{interface} is not up within {TIMEOUT:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Links it with `other` by a veth pair, `near` here and `far` there, both up.
    pub(crate) fn link(&self, near: &str, other: &Namespace, far: &str, mtu_bytes: usize) {
        let there = other.holder.id();
        self.ip(&format!(
            "link add {near} mtu {mtu_bytes} type veth peer name {far} mtu {mtu_bytes} netns {there}"
        ));
        self.ip(&format!("link set {near} up"));
        other.ip(&format!("link set {far} up"));
    }
}

/// Waits until something listens on `tcp_port` in the namespace that this `cat` runs in.
pub(crate) fn wait_listen(cat: impl Fn() -> Command, tcp_port: u16) {
    let end = Instant::now() + TIMEOUT;
    let wanted = format!(":{tcp_port:04X} 0");
    loop {
        let sockets = run(cat().args(["/proc/self/net/tcp", "/proc/self/net/tcp6"]));
        if sockets.lines().any(|line| line.contains(&wanted) && line.contains(" 0A ")) {
            return;
        }
        assert!(Instant::now() < end, "nothing listens on TCP port {tcp_port} within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
