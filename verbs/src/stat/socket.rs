//! The statistics socket of a device: each connection receives the device's description and counters.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use dpdk_ffi::ExitFile;
use rustix::net::{SendFlags, send};

use super::directory::User;
use super::read::{Answer, PREFIX, UNNAMED_PREFIX, remove_left};

/// Largest number of connections that one call of [`StatSocket::answer`] answers.
const ANSWERS_MAX: usize = 4;

/// A statistics socket that listens; the drop removes the socket's file.
pub(crate) struct StatSocket {
    listener: UnixListener,
    path: PathBuf,
    _exit_file: ExitFile,
}

impl StatSocket {
    /// Opens a statistics socket in the directory of this process's user, and removes sockets of ended processes.
    pub(crate) fn open() -> io::Result<Self> {
        let directory = User::current().make_directory()?;
        remove_left(&directory);
        Self::open_in(&directory)
    }

    pub(super) fn open_in(directory: &Path) -> io::Result<Self> {
        let mut number = [0; 4];
        getrandom::fill(&mut number).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("{}.{:08x}", std::process::id(), u32::from_ne_bytes(number));
        // The socket is renamed to `path` only after it listens, because `remove_left` of another process removes
        // each socket with the prefix `PREFIX` that refuses connections.
        let unnamed = directory.join(format!("{UNNAMED_PREFIX}{name}"));
        let path = directory.join(format!("{PREFIX}{name}"));
        let listener = UnixListener::bind(&unnamed)?;
        let named = listener
            .set_nonblocking(true)
            .and_then(|()| fs::set_permissions(&unnamed, Permissions::from_mode(0o600)))
            .and_then(|()| fs::rename(&unnamed, &path));
        if let Err(error) = named {
            // An error of `remove_file` is ignored: `open_in` returns the earlier `error`.
            let _ = fs::remove_file(&unnamed);
            return Err(error);
        }
        Ok(StatSocket { listener, _exit_file: ExitFile::new(path.clone()), path })
    }

    /// Answers pending connections. Does not block: if an answer exceeds the send buffer of the connection, the answer
    /// is truncated. Returns false if a connection cannot be accepted, for example because the process has no file
    /// descriptor left; the socket then stays readable.
    pub(crate) fn answer(&self, describe: impl Fn() -> Answer) -> bool {
        for _ in 0..ANSWERS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a reader of statistics");
                    return false;
                }
            };
            if let Err(error) = give(&stream, &describe()) {
                tracing::debug!(%error, "a reader of statistics got none");
            }
        }
        true
    }
}

impl AsFd for StatSocket {
    /// Returns a file descriptor that is readable while a connection is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Sends `answer` without a check of the reader's user ID, because only this process's user and root have access to the
/// socket's directory.
fn give(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let bytes = serde_json::to_vec(answer)?;
    // Without NOSIGNAL, a reader that has closed the connection would end this process by SIGPIPE.
    let sent = send(stream, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

impl Drop for StatSocket {
    fn drop(&mut self) {
        // If the removal fails, `remove_left` of a later process removes the file.
        let _ = fs::remove_file(&self.path);
    }
}
