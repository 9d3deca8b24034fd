//! The socket of a memif, and the choice between the roles of this process: server (listens on the socket) or client.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dpdk_ffi::{Device, DeviceError, Eal, MemifAccess, runtime_dir};

use super::spec::PortSpec;
use super::vdev::vdev_name;
use crate::error::OpenError;

/// Longest path or abstract name of a socket, in bytes. The driver's field also has a zero byte at the end and, for an
/// abstract name, a zero byte at the front.
const SOCKET_BYTES_MAX: usize = 106;

/// Longest wait for the lock of a socket's directory. The lock is held for some milliseconds, unless a process that
/// holds the lock is stopped, or a process of another user holds the lock on purpose.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of the attempts to lock a directory.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug, PartialEq, Eq)]
struct Socket {
    /// Path, or `@` and the name in the abstract namespace: the syntax of DPDK's memif driver.
    name: String,
}

impl Socket {
    /// Returns the socket that `target` of a port name selects: `@NAME` is abstract, a name with a slash is a path, and
    /// any other name is a socket in the directory that `runtime_dir` returns.
    fn of(target: &str, runtime_dir: impl FnOnce() -> Result<PathBuf, OpenError>) -> Result<Self, OpenError> {
        let name = if target.starts_with('@') || target.contains('/') {
            target.to_owned()
        } else {
            runtime_dir()?.join(format!("roce-{target}.sock")).display().to_string()
        };
        if name.len() > SOCKET_BYTES_MAX {
            return Err(OpenError::SocketName { name, max: SOCKET_BYTES_MAX });
        }
        Ok(Socket { name })
    }

    /// Returns the path of the socket; `None` if the socket is abstract.
    fn path(&self) -> Option<&Path> {
        (!self.name.starts_with('@')).then(|| Path::new(&self.name))
    }

    /// Returns the arguments for DPDK's memif driver, for the role `server` or `client`.
    fn args(&self, role: &str, spec: &PortSpec, buffer_bytes: u16) -> String {
        let mut args = vec![format!("role={role},socket={},bsize={buffer_bytes}", self.name)];
        if self.path().is_some() {
            args.push("socket-abstract=no".to_owned());
        }
        args.extend(spec.secret.iter().map(|secret| format!("secret={secret}")));
        args.extend(spec.driver_args.iter().cloned());
        args.join(",")
    }
}

/// Attaches a memif as the server of its socket or, if the role of server fails, as the client. Returns the device, and
/// whether the device is the client. If both roles fail, returns the error of the server's role.
pub(super) fn attach(eal: Eal, spec: &PortSpec, buffer_bytes: u16) -> Result<(Device, bool), OpenError> {
    let socket = Socket::of(&spec.target, || Ok(runtime_dir()?))?;
    let access = MemifAccess { uids: spec.peer_uids.clone() };
    let attach = |role: &str| {
        let args = socket.args(role, spec, buffer_bytes);
        eal.attach_memif(&vdev_name("net_memif"), &args, access.clone())
    };
    match serve(&socket, || attach("server"))? {
        Ok(device) => Ok((device, false)),
        Err(taken) => match attach("client") {
            Ok(device) => Ok((device, true)),
            Err(_) => Err(taken.into()),
        },
    }
}

/// Calls `listen`. If the socket has a path, first locks the directory and removes a stale socket of this user. Without
/// the lock, each of two processes could remove the new socket of the other process.
fn serve<T>(
    socket: &Socket,
    listen: impl Fn() -> Result<T, DeviceError>,
) -> Result<Result<T, DeviceError>, OpenError> {
    let Some(path) = socket.path() else { return Ok(listen()) };
    let Some(directory) = path.parent() else { return Ok(listen()) };
    let what = "cannot lock the directory of the memif's socket, which another process has locked for 2 s";
    let lock = lock(directory).map_err(|error| OpenError::System { what, error })?;
    if lock.is_some() && is_own(path) && is_stale(path) {
        // An error of `remove_file` is ignored: `listen` then fails, and its error is returned.
        let _removed = fs::remove_file(path);
    }
    Ok(listen())
}

/// Locks `directory` until the returned file is dropped. Returns `None` if this user may not read the directory, or the
/// file system has no locks.
///
/// # Errors
/// `WouldBlock` if another process holds the lock for `LOCK_TIMEOUT`.
fn lock(directory: &Path) -> io::Result<Option<File>> {
    let Ok(file) = File::open(directory) else { return Ok(None) };
    let end = Instant::now() + LOCK_TIMEOUT;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < end => sleep(LOCK_INTERVAL),
            Err(TryLockError::WouldBlock) => return Err(ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(_)) => return Ok(None),
        }
    }
}

/// Returns whether `path` is a socket of this user, and no symbolic link.
fn is_own(path: &Path) -> bool {
    let uid = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket() && metadata.uid() == uid)
}

/// Returns whether the socket `path` exists and no process listens on the socket: a connect then fails with
/// ECONNREFUSED. If a memif listens, the connect fails with EPROTOTYPE, because the connecting socket is a SOCK_STREAM
/// socket and a memif's socket is a SOCK_SEQPACKET socket. The memif therefore receives no connection.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn socket(target: &str) -> Result<Socket, OpenError> {
        Socket::of(target, || Ok(PathBuf::from("/run/user/1")))
    }

    #[test]
    fn a_name_is_a_socket_of_the_own_user() {
        let plain = socket("wire").unwrap();
        assert_eq!(plain.name, "/run/user/1/roce-wire.sock");
        assert_eq!(plain.path(), Some(Path::new("/run/user/1/roce-wire.sock")));
        assert_eq!(socket("@wire").unwrap().path(), None);
        assert_eq!(socket("./wire").unwrap().path(), Some(Path::new("./wire")));
        let args = |target: &str| {
            let spec: PortSpec = format!("memif:{target},secret=s3cret,dev.rsize=5").parse().unwrap();
            socket(target).unwrap().args("client", &spec, 64)
        };
        assert_eq!(args("@w"), "role=client,socket=@w,bsize=64,secret=s3cret,rsize=5");
        let path = "role=client,socket=/x/w,bsize=64,socket-abstract=no,secret=s3cret,rsize=5";
        assert_eq!(args("/x/w"), path);
    }

    #[test]
    fn a_name_that_would_be_cut_off_is_refused() {
        assert!(socket(&format!("@{}", "x".repeat(SOCKET_BYTES_MAX - 1))).is_ok());
        for target in [format!("@{}", "x".repeat(SOCKET_BYTES_MAX)), "x".repeat(SOCKET_BYTES_MAX)] {
            let error = socket(&target).unwrap_err().to_string();
            assert!(error.contains("at most 106 bytes"), "{error}");
        }
    }

    #[test]
    fn a_socket_left_behind_is_told_from_one_in_use() {
        let dir = std::env::temp_dir().join(format!("roce-stale-test-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("socket");
        assert!(!is_stale(&path), "there is none");
        let listener = UnixListener::bind(&path).unwrap();
        assert!(!is_stale(&path), "it is in use");
        drop(listener);
        assert!(is_stale(&path));
        let stale = Socket { name: path.display().to_string() };
        let link = dir.join("link");
        symlink(&path, &link).unwrap();
        assert!(serve(&Socket { name: link.display().to_string() }, || Ok(())).unwrap().is_ok());
        assert!(link.is_symlink() && path.exists(), "a link is not followed, and not removed");
        fs::remove_file(&link).unwrap();
        let locked = lock(&dir).unwrap();
        let error = serve(&stale, || Ok(())).unwrap_err().to_string();
        assert!(error.contains("has locked for 2 s") && path.exists(), "{error}");
        drop(locked);
        assert!(serve(&stale, || Ok(())).unwrap().is_ok());
        assert!(!path.exists());
        fs::remove_dir(&dir).unwrap();
    }
}
