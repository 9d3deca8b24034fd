//! The limit of open files (RLIMIT_NOFILE), and the error that names it.

use std::fs;
use std::io;

use rustix::process::{Resource, getrlimit};

/// Largest number of file descriptors of a device: those of DPDK, of the port's driver and of the kernel's
/// notifications, and those on which threads sleep.
pub const DESCRIPTORS_PER_DEVICE: u64 = 40;

/// RLIMIT_NOFILE permits fewer further open files than needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} needs {needed} file descriptors; this process has {open} open, and may have {limit} (RLIMIT_NOFILE). Raise the limit: `ulimit -n {raised}`; systemd: LimitNOFILE={raised}; docker run --ulimit nofile={raised}",
    raised = self.raised()
)]
pub struct TooFewDescriptors {
    /// Name of the object that needs the descriptors.
    pub what: &'static str,
    /// Number of descriptors needed by the object whose name is in the field `what`.
    pub needed: u64,
    /// Number of open descriptors of the process. Descriptors whose values are RLIMIT_NOFILE or more are not counted.
    pub open: u64,
    /// RLIMIT_NOFILE of the process.
    pub limit: u64,
}

impl TooFewDescriptors {
    fn raised(&self) -> u64 {
        (self.open + self.needed).next_power_of_two().max(1024)
    }

    /// Fails if the process may not open `needed` further files. DPDK's own errors do not name the limit of
    /// open files.
    pub(crate) fn check(what: &'static str, needed: u64) -> Result<(), Self> {
        let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(()) };
        // New descriptors have values below `limit`, so only descriptors with such values are counted. The entries of
        // the directory include its own descriptor. If the directory cannot be opened, no descriptor is free.
        let is_below = |name: std::ffi::OsString| name.to_str()?.parse().ok().filter(|fd: &u64| *fd < limit);
        let open = fs::read_dir("/proc/self/fd").map_or(limit, |entries| {
            entries.flatten().filter_map(|entry| is_below(entry.file_name())).count() as u64 - 1
        });
        if open + needed <= limit { Ok(()) } else { Err(Self { what, needed, open, limit }) }
    }

    /// Converts `error`, which the creation of a file descriptor returned. Returns `Err(error)` if the cause is not the
    /// limit of open files.
    pub(crate) fn of(what: &'static str, error: io::Error) -> Result<Self, io::Error> {
        if error.raw_os_error() != Some(libc::EMFILE) {
            return Err(error);
        }
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(Self { what, needed: 1, open: limit, limit })
    }
}
