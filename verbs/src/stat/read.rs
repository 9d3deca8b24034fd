//! The reader of the statistics of all devices, including devices of other processes.

use std::fs;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use serde::{Deserialize, Serialize};

use super::counters::DeviceCounters;
use super::directory::{User, to_read};
use crate::stale::is_stale;

/// Prefix of the file names of statistics sockets.
pub(super) const PREFIX: &str = "stat.";
/// Prefix of the file name of a statistics socket that does not listen yet.
pub(super) const UNNAMED_PREFIX: &str = "new.";
/// Longest wait for the next bytes of an [`Answer`]. After this time, the socket is reported in [`Found::failed`].
const PATIENCE: Duration = Duration::from_secs(2);
/// Largest length of an [`Answer`], in bytes: enough for the thousands of counters of a driver with many queues.
const ANSWER_BYTES_MAX: u64 = 1 << 20;

/// The answer of a device to a reader of its statistics socket, sent as JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) pid: u32,
    pub(crate) command: String,
    pub(crate) port: String,
    pub(crate) driver: String,
    pub(crate) mac: String,
    pub(crate) is_up: bool,
    pub(crate) fatal: Option<String>,
    pub(crate) uptime_nanos: u64,
    pub(crate) counters: DeviceCounters,
}

/// Description and counters of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceStat {
    /// ID of the process that opened the device, in the PID namespace of that process.
    pub pid: u32,
    /// User ID of the process that opened the device: the owner of the directory of the device's socket.
    pub uid: u32,
    /// File name of the program that opened the device.
    pub command: String,
    /// The port's name, `KIND:TARGET`.
    pub port: String,
    /// Name of the DPDK driver.
    pub driver: String,
    /// MAC of the port.
    pub mac: String,
    /// Whether the link is up.
    pub is_up: bool,
    /// Reason for the device's fatal error; `None` while the device works.
    pub fatal: Option<String>,
    /// Time since the device was opened.
    pub uptime: Duration,
    /// Counters, by source.
    pub counters: DeviceCounters,
}

/// Result of [`read_all`].
#[derive(Debug, Default)]
pub struct Found {
    /// The devices found, in order of process ID and port name.
    pub devices: Vec<DeviceStat>,
    /// Sockets from which no answer was read, each with the error.
    pub failed: Vec<(PathBuf, io::Error)>,
}

/// Reads the statistics of all devices that processes of this process's user have open. If this process runs as root,
/// reads the statistics of all devices that processes of any user have open.
pub fn read_all() -> Found {
    let user = User::current();
    let mut found = Found::default();
    for (directory, owner) in to_read(&user) {
        for path in sockets(&directory, PREFIX) {
            read_socket(path, owner, |_| true, &mut found);
        }
        // Root does not remove sockets in directories of other users: if the owner replaces the directory by a
        // symbolic link after `to_read` has checked the directory, root would remove a socket elsewhere.
        if owner == user.uid {
            remove_left(&directory);
        }
    }
    found.devices.sort_by(|a, b| (a.pid, &a.port).cmp(&(b.pid, &b.port)));
    found
}

/// Reads the statistics of the devices of selected processes: processes of this PID namespace for whose process IDs
/// `is_selected` returns true. Of these devices, only those are read that [`read_all`] also reads. Connects only to
/// sockets whose names have the ID of a selected process, because each connection wakes the process of the socket.
pub fn read_selected(is_selected: impl Fn(u32) -> bool) -> Found {
    let mut found = Found::default();
    for (directory, owner) in to_read(&User::current()) {
        for path in sockets(&directory, PREFIX) {
            if named_pid(&path).is_some_and(&is_selected) {
                read_socket(path, owner, &is_selected, &mut found);
            }
        }
    }
    found.devices.sort_by(|a, b| (a.pid, &a.port).cmp(&(b.pid, &b.port)));
    found
}

/// Returns the process ID in the name of the socket `path`.
fn named_pid(path: &Path) -> Option<u32> {
    path.file_name()?.to_str()?.split('.').nth(1)?.parse().ok()
}

/// Returns the sockets in `directory` whose file names begin with `prefix`.
fn sockets(directory: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_ours = |entry: &fs::DirEntry| {
        let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix));
        is_named && entry.file_type().is_ok_and(|kind| kind.is_socket())
    };
    entries.filter(is_ours).map(|entry| entry.path()).collect()
}

/// Returns whether this PID namespace has a process with the process ID in the name of the socket `path`.
fn is_running(path: &Path) -> bool {
    named_pid(path).is_some_and(|pid| Path::new("/proc").join(pid.to_string()).exists())
}

/// Removes the statistics sockets of ended processes, including processes that ended before their socket listened. For
/// some microseconds, a socket that will listen soon looks like the socket of an ended process; such a socket still has
/// the prefix `UNNAMED_PREFIX`. Therefore a socket with this prefix is kept while the process ID in its name is in use.
pub(super) fn remove_left(directory: &Path) {
    let unnamed = sockets(directory, UNNAMED_PREFIX).into_iter().filter(|path| !is_running(path));
    for path in sockets(directory, PREFIX).into_iter().chain(unnamed).filter(|path| is_stale(path)) {
        tracing::debug!(path = %path.display(), "removing the socket of a process that is gone");
        // An error of `remove_file` is ignored: another reader may have removed the socket.
        let _ = fs::remove_file(&path);
    }
}

/// Reads the statistics from the socket `path`, if `is_selected` returns true for the process that has the socket open.
fn read_socket(path: PathBuf, owner: u32, is_selected: impl Fn(u32) -> bool, found: &mut Found) {
    match read_one(&path, owner, is_selected) {
        Ok(device) => found.devices.extend(device),
        // An error of these two kinds is ignored: the process ended after its socket was listed, so the device no
        // longer exists.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
        Err(error) => found.failed.push((path, error)),
    }
}

fn read_one(path: &Path, uid: u32, is_selected: impl Fn(u32) -> bool) -> io::Result<Option<DeviceStat>> {
    let stream = UnixStream::connect(path)?;
    // The name of the socket can have the process ID of another PID namespace, or, if the socket is of another user,
    // any process ID. For the process that has called listen(2), the kernel returns the process ID in the PID namespace
    // of the reader, or 0 if the process has no ID in the reader's namespace.
    let pid = getsockopt(&stream, PeerCredentials)?.pid();
    if !u32::try_from(pid).is_ok_and(is_selected) {
        return Ok(None);
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
    let answer: Answer = serde_json::from_slice(&bytes)?;
    let Answer { pid, command, port, driver, mac, is_up, fatal, uptime_nanos, counters } = answer;
    let uptime = Duration::from_nanos(uptime_nanos);
    Ok(Some(DeviceStat { pid, uid, command, port, driver, mac, is_up, fatal, uptime, counters }))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::UnixListener;

    use super::super::StatSocket;
    use super::*;

    fn answer() -> Answer {
        let drops = [("bad_tver".to_owned(), 7)].into();
        Answer {
            pid: 4711,
            command: "test".into(),
            port: "memif:@test".into(),
            driver: "net_memif".into(),
            mac: "02:00:00:00:00:01".into(),
            is_up: true,
            fatal: None,
            uptime_nanos: 1_500_000_000,
            counters: DeviceCounters { drops, ..DeviceCounters::default() },
        }
    }

    #[test]
    fn a_device_answers_and_leaves_no_socket() {
        let directory = std::env::temp_dir().join(format!("roce-stat-test-{}-read", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let socket = StatSocket::open_in(&directory).unwrap();
        let [path] = &sockets(&directory, PREFIX)[..] else { panic!("one socket") };
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
        // `remove_left` must remove the sockets of ended processes, even if the process ID is in use again.
        // `remove_left` must keep a socket that is no statistics socket, and a socket that another process may be about
        // to rename.
        let own = std::process::id();
        let left = ["stat.999999999.dead", &format!("stat.{own}.dead"), "new.999999999.dead"];
        for name in left.into_iter().chain([format!("new.{own}.begun").as_str(), "memif.sock"]) {
            drop(UnixListener::bind(directory.join(name)).unwrap());
        }
        remove_left(&directory);
        assert!(left.iter().all(|name| !directory.join(name).exists()), "the stale sockets are gone");
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 3, "and nothing else");

        let mut found = Found::default();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                for selected in [own + 1, own] {
                    read_socket(path.clone(), 17, |pid| pid == selected, &mut found);
                }
            });
            while !reader.is_finished() {
                socket.answer(answer);
            }
        });
        assert!(found.failed.is_empty(), "{:?}", found.failed);
        let [device] = &found.devices[..] else { panic!("{found:?}") };
        assert_eq!((device.pid, device.uid), (4711, 17));
        assert_eq!((device.port.as_str(), device.uptime), ("memif:@test", Duration::from_millis(1500)));
        assert_eq!(device.counters.drops["bad_tver"], 7);
        drop(socket);
        assert!(sockets(&directory, PREFIX).is_empty());
        fs::remove_dir_all(directory).unwrap();
    }
}
