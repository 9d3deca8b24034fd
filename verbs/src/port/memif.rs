//! The socket of a memif, and the choice between the roles of this process: server (listens on the socket) or client.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use dpdk_ffi::{Device, DeviceError, Eal, MemifAccess, runtime_dir};

use super::spec::PortSpec;
use super::vdev::vdev_name;
use crate::error::OpenError;

/// Longest path or abstract name of a socket, in bytes. The driver's field also has a zero byte at the end and, for an
/// abstract name, a zero byte at the front.
const SOCKET_BYTES_MAX: usize = 106;

#[derive(Debug, PartialEq, Eq)]
struct Socket {
    /// Path, or `@` and the name in the abstract namespace: the syntax of DPDK's memif driver.
    name: String,
    /// The directory that `runtime_dir` returned, if the socket is in this directory; otherwise `None`. Only the
    /// user of this process has access to this directory.
    private: Option<PathBuf>,
}

impl Socket {
    /// Returns the socket that `target` of a port name selects: `@NAME` is abstract, a name with a slash is a path, and
    /// any other name is a socket in the directory that `runtime_dir` returns.
    fn of(target: &str, runtime_dir: impl FnOnce() -> Result<PathBuf, OpenError>) -> Result<Self, OpenError> {
        let socket = if target.starts_with('@') || target.contains('/') {
            Socket { name: target.to_owned(), private: None }
        } else {
            let dir = runtime_dir()?;
            let name = dir.join(format!("roce-{target}.sock")).display().to_string();
            Socket { name, private: Some(dir) }
        };
        if socket.name.len() > SOCKET_BYTES_MAX {
            return Err(OpenError::SocketName { name: socket.name, max: SOCKET_BYTES_MAX });
        }
        Ok(socket)
    }

    fn is_abstract(&self) -> bool {
        self.name.starts_with('@')
    }

    /// Returns the arguments for DPDK's memif driver, for the role `server` or `client`.
    fn args(&self, role: &str, spec: &PortSpec, buffer_bytes: u16) -> String {
        let mut args = vec![format!("role={role},socket={},bsize={buffer_bytes}", self.name)];
        if !self.is_abstract() {
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

/// Calls `listen`. In a private directory, first locks the directory and removes a stale socket. Without the lock, each
/// of two processes could remove the new socket of the other process.
fn serve<T>(
    socket: &Socket,
    listen: impl Fn() -> Result<T, DeviceError>,
) -> Result<Result<T, DeviceError>, OpenError> {
    let Some(dir) = &socket.private else { return Ok(listen()) };
    let locked = File::open(dir).and_then(|dir| dir.lock().map(|()| dir));
    let what = "cannot lock the runtime directory";
    let _lock = locked.map_err(|error| OpenError::System { what, error })?;
    if is_stale(Path::new(&socket.name)) {
        // An error of `remove_file` is ignored: `listen` then fails, and its error is returned.
        let _removed = fs::remove_file(&socket.name);
    }
    Ok(listen())
}

/// Returns whether the socket `path` exists and no process listens on the socket: a connect then fails with
/// ECONNREFUSED. If a memif listens, the connect fails with EPROTOTYPE, because the connecting socket is a SOCK_STREAM
/// socket and a memif's socket is a SOCK_SEQPACKET socket. The memif therefore receives no connection.
fn is_stale(path: &Path) -> bool {
    UnixStream::connect(path).is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn socket(target: &str) -> Result<Socket, OpenError> {
        Socket::of(target, || Ok(PathBuf::from("/run/user/1")))
    }

    #[test]
    fn a_name_is_a_socket_of_the_own_user() {
        let plain = socket("wire").unwrap();
        assert_eq!(plain.name, "/run/user/1/roce-wire.sock");
        assert_eq!(plain.private.as_deref(), Some(Path::new("/run/user/1")));
        assert_eq!(socket("@wire").unwrap(), Socket { name: "@wire".to_owned(), private: None });
        assert_eq!(socket("./wire").unwrap(), Socket { name: "./wire".to_owned(), private: None });
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
        let stale = Socket { name: path.display().to_string(), private: Some(dir.clone()) };
        assert!(serve(&stale, || Ok(())).unwrap().is_ok());
        assert!(!path.exists());
        fs::remove_dir(&dir).unwrap();
    }
}
