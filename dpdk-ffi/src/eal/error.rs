//! The error of EAL.

use std::io;
use std::path::PathBuf;

use crate::errno::Errno;
use crate::log::LogLines;

/// Reason why EAL does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EalError {
    /// EAL runs already.
    #[error("EAL is initialised already, and a process has only one: use Eal::get to find it")]
    AlreadyInitialized,
    /// The process was forked from one in which EAL had started.
    #[error(
        "process {pid} had started DPDK when it forked this process, which can therefore not start DPDK: fork before \
         the first port is opened, or execute a new program (exec, posix_spawn)"
    )]
    Forked {
        /// ID of the process that started EAL.
        pid: u32,
    },
    /// An argument that EAL would refuse.
    #[error("EAL argument {argument:?}: {reason}")]
    InvalidArgument {
        /// The argument as given.
        argument: String,
        /// Reason for the refusal.
        reason: String,
    },
    /// The directory for run-time files could not be made, or is open to other users.
    #[error(
        "{path}: {reason}. Run-time files are kept there; set XDG_RUNTIME_DIR to a directory of your own"
    )]
    RuntimeDir {
        /// Path of the directory.
        path: PathBuf,
        /// Defect of the directory.
        reason: String,
    },
    /// Hugepages were requested, and none is free.
    #[error(
        "no hugepage is free on this machine: reserve some, as root (echo 512 > /proc/sys/vm/nr_hugepages), or \
         start without"
    )]
    NoHugePages,
    /// The operating system refused an operation that EAL depends on.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
    /// `rte_eal_init` failed.
    #[error("rte_eal_init with \"{arguments}\" failed: {errno}{log}")]
    Init {
        /// Arguments of the call.
        arguments: String,
        /// Error number reported.
        errno: Errno,
        /// Lines that DPDK logged during the call.
        log: LogLines,
    },
}
