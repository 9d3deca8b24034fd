//! Network namespaces, which an ordinary user can have too.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::process::{Process, WITHOUT_PRIVILEGE, install, is_root, programs, run};

/// How long the kernel may take to make one.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A network namespace, gone with this value. Where the test is not run by root, it lies in a user
/// namespace in which the test is.
pub(crate) struct Namespace {
    /// Stays in the namespace until its stdin is closed, which happens at the test's end at the latest.
    holder: Process,
    in_user_namespace: bool,
    has_own_directories: bool,
}

/// Runs in a new namespace, and keeps it.
const HOLD: &str = "ip link set lo up && echo ready && cat";
/// Makes the directories for run-time files the namespace's own, and empty. If the directory of the programs, the
/// argument of the script, is in one of them, it is mounted there again, as the checkout may be in /tmp.
const OWN_DIRECTORIES: &str = r#"
    exec 9<"$1"
    for d in /tmp /run /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $d || exit; done
    [ -e "$1" ] || { mkdir -p "$1" && mount --no-canonicalize --bind /proc/self/fd/9 "$1"; } || exit
    exec 9<&-"#;

impl Namespace {
    /// A namespace with a loopback interface and nothing else.
    pub(crate) fn new() -> Namespace {
        Self::make(false)
    }

    /// A namespace as of [`Namespace::new`], in which /tmp, /run and /dev/shm are empty directories of its own.
    pub(crate) fn with_own_directories() -> Namespace {
        Self::make(true)
    }

    fn make(has_own_directories: bool) -> Namespace {
        let mut command = Command::new("unshare");
        if !is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        if has_own_directories {
            let script = format!("{OWN_DIRECTORIES}\n{HOLD}");
            command.args(["--net", "--mount", "sh", "-c", &script, "sh"]).arg(programs());
        } else {
            command.args(["--net", "sh", "-c", HOLD]);
        }
        Self::hold(&mut command, !is_root(), has_own_directories)
    }

    /// Another one, that can be linked with this, and has the same directories.
    pub(crate) fn beside(&self) -> Namespace {
        let mut command = self.command("unshare");
        command.args(["--net", "sh", "-c", HOLD]);
        Self::hold(&mut command, self.in_user_namespace, self.has_own_directories)
    }

    fn hold(command: &mut Command, in_user_namespace: bool, has_own_directories: bool) -> Namespace {
        let mut holder = Process::start(command);
        assert_eq!(holder.line(TIMEOUT), "ready", "a network namespace: {}", holder.stderr());
        Namespace { holder, in_user_namespace, has_own_directories }
    }

    /// The directory of the kernel's information about the process that holds the namespace (proc(5)).
    pub(crate) fn proc(&self) -> PathBuf {
        Path::new("/proc").join(self.holder.id().to_string())
    }

    /// A command that runs `program` in it.
    pub(crate) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--net"]);
        if self.has_own_directories {
            command.arg("--mount");
        }
        if self.in_user_namespace {
            // The user is root there already, and may not call setgroups (user_namespaces(7)).
            command.args(["--user", "--preserve-credentials"]);
        }
        command.arg("--").arg(program);
        command
    }

    /// A command that runs `program` in it as a user without any privilege. The program is copied to the namespace's
    /// own /tmp, because this user may not enter the directory of `program`.
    pub(crate) fn ordinary_user(&self, program: &Path) -> Command {
        let inside = Path::new("/tmp").join(program.file_name().expect("a program has a name"));
        let outside = self.proc().join("root").join(inside.strip_prefix("/").expect("absolute"));
        if !outside.exists() {
            install(program, &outside);
        }
        let mut command = if self.in_user_namespace {
            let mut command = self.command("unshare");
            command.args(["--user", "--map-user=65534", "--map-group=65534", "--"]);
            command
        } else {
            let mut command = self.command("setpriv");
            command.args(WITHOUT_PRIVILEGE);
            command
        };
        command.arg(inside).env_remove("XDG_RUNTIME_DIR").env("HOME", "/nonexistent").current_dir("/");
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
