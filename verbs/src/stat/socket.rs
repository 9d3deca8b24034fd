//! The socket of a device, which answers each connection with what the device is and has counted.

use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::net::{SendFlags, send};

use super::directory::User;
use super::read::{Answer, PREFIX, remove_left};

/// Connections answered each time that the progress thread looks.
const ANSWERS_MAX: usize = 4;

/// A listening socket, gone with this value.
pub(crate) struct StatSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl StatSocket {
    /// A socket of this process, of which there may be several. Sockets that dead processes left are removed.
    pub(crate) fn open() -> io::Result<Self> {
        let directory = User::current().make_directory()?;
        remove_left(&directory);
        Self::open_in(&directory)
    }

    pub(super) fn open_in(directory: &Path) -> io::Result<Self> {
        let mut number = [0; 4];
        getrandom::fill(&mut number).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("{}.{:08x}", std::process::id(), u32::from_ne_bytes(number));
        // It gets its name when it listens: until then a reader would take it for one that was left.
        let unnamed = directory.join(format!("new.{name}"));
        let path = directory.join(format!("{PREFIX}{name}"));
        let listener = UnixListener::bind(&unnamed)?;
        let named = listener
            .set_nonblocking(true)
            .and_then(|()| fs::set_permissions(&unnamed, Permissions::from_mode(0o600)))
            .and_then(|()| fs::rename(&unnamed, &path));
        if let Err(error) = named {
            // Whatever failed, the name is of no use any more.
            let _ = fs::remove_file(&unnamed);
            return Err(error);
        }
        Ok(StatSocket { listener, path })
    }

    /// Answers those who have connected. Does not block: an answer fits into a socket's buffer, or is not given.
    pub(crate) fn answer(&self, describe: impl Fn() -> Answer) {
        for _ in 0..ANSWERS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a reader of statistics");
                    return;
                }
            };
            if let Err(error) = give(&stream, &describe()) {
                tracing::debug!(%error, "a reader of statistics got none");
            }
        }
    }
}

/// Whoever could connect may know: the kernel lets the user and root into the directory, and nobody else.
fn give(stream: &UnixStream, answer: &Answer) -> io::Result<()> {
    let bytes = serde_json::to_vec(answer)?;
    // A reader that has gone must not end this process by SIGPIPE.
    let sent = send(stream, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(ErrorKind::WriteZero.into()) }
}

impl Drop for StatSocket {
    fn drop(&mut self) {
        // What is left is removed by whoever comes next.
        let _ = fs::remove_file(&self.path);
    }
}
