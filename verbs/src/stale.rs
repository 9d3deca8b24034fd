//! Socket files that remain after the end of the processes that created the UNIX sockets.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::OpenError;

/// Longest wait for the lock of a directory. The lock is held for some milliseconds, unless a process that holds the
/// lock is stopped, or a process of another user holds the lock on purpose.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of the attempts to lock a directory.
const LOCK_INTERVAL: Duration = Duration::from_millis(5);

/// Returns whether no process has the socket `path` open: a connect then fails with ECONNREFUSED. If a process has the
/// socket open, the connect fails with EPROTOTYPE, because the socket is a SOCK_STREAM or SOCK_SEQPACKET socket and the
/// connecting socket is a SOCK_DGRAM socket. The process therefore receives no connection. The process may be in
/// another PID namespace.
pub(crate) fn is_stale(path: &Path) -> bool {
    let connected = UnixDatagram::unbound().and_then(|probe| probe.connect(path));
    connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Calls `listen`, which creates the socket `path`. First locks the directory, and removes a stale socket of this user.
/// Without the lock, each of two processes could remove the new socket of the other process. If the directory cannot be
/// locked, because this user may not read it or the file system has no locks, removes nothing.
///
/// # Errors
/// `System` if another process holds the lock for `LOCK_TIMEOUT`.
pub(crate) fn replace<T>(path: &Path, listen: impl FnOnce() -> T) -> Result<T, OpenError> {
    let directory = path.parent().filter(|parent| *parent != Path::new(""));
    let what = "cannot lock the directory of the port's socket, which another process has locked for 2 s";
    let lock =
        lock(directory.unwrap_or(Path::new("."))).map_err(|error| OpenError::System { what, error })?;
    if lock.is_some() && is_own(path) && is_stale(path) {
        // An error of `remove_file` is ignored: `listen` then fails, and its error is returned.
        let _removed = fs::remove_file(path);
    }
    Ok(listen())
}

/// Locks `directory` until the returned file is dropped; `None` if the directory cannot be locked.
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_left_behind_is_told_from_one_in_use() {
        let directory = std::env::temp_dir().join(format!("roce-stale-test-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        assert!(!is_stale(&path), "there is none");
        let listener = UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(!is_stale(&path), "it is in use");
        assert_eq!(
            listener.accept().unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "its process receives no connection"
        );
        drop(listener);
        assert!(is_stale(&path));
        let link = directory.join("link");
        symlink(&path, &link).unwrap();
        replace(&link, || assert!(link.is_symlink() && path.exists(), "a link is not followed")).unwrap();
        replace(&path, || assert!(!path.exists(), "removed before the new socket is made")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
    }

    #[test]
    fn a_locked_directory_is_an_error_after_a_while() {
        let directory = std::env::temp_dir().join(format!("roce-lock-test-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let locked = lock(&directory).unwrap();
        let error = replace(&directory.join("socket"), || panic!("not locked")).unwrap_err();
        assert!(error.to_string().contains("has locked for 2 s"), "{error}");
        drop(locked);
        replace(&directory.join("socket"), || ()).expect("no longer locked");
        fs::remove_dir_all(&directory).unwrap();
    }
}
