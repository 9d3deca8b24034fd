//! The socket of a memif, and the choice between the roles of this process: server (listens on the socket) or client.

use std::path::{Path, PathBuf};

use dpdk_ffi::{Device, Eal, MemifAccess, runtime_dir};

use super::spec::PortSpec;
use super::vdev::vdev_name;
use crate::error::OpenError;
use crate::stale;

/// Longest path or abstract name of a socket, in bytes. The driver's field also has a zero byte at the end and, for an
/// abstract name, a zero byte at the front.
const SOCKET_BYTES_MAX: usize = 106;

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
    let server = match socket.path() {
        Some(path) => stale::replace(path, || attach("server"))?.map(|device| device.with_file(path)),
        None => attach("server"),
    };
    match server {
        Ok(device) => Ok((device, false)),
        Err(taken) => match attach("client") {
            Ok(device) => Ok((device, true)),
            Err(_) => Err(taken.into()),
        },
    }
}

#[cfg(test)]
mod tests {
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
}
