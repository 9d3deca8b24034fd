//! Errors of the caller and of the machine. A packet's errors are completion statuses.

use std::io;
use std::path::PathBuf;

use dpdk_ffi::{DeviceError, EalError, MempoolError, PortError};
use roce::engine::{CreateError, DestroyError};
use roce::id::Gid;
use roce::neighbour::GidError;
use roce::port::pcap::CaptureError;
use roce::qp::ModifyError;

use crate::kernel::KernelError;

/// Why a port did not become a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// DPDK did not start.
    #[error("DPDK does not start: {0}")]
    Eal(#[from] EalError),
    /// The device could not be attached.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Its port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// No memory for packets.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The kernel's interface cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An address cannot be given to the port.
    #[error(transparent)]
    Gid(#[from] GidError),
    /// A key of the port's name does not apply to its kind.
    #[error("{kind} takes no `{key}=`: {reason}")]
    KeyDoesNotApply {
        /// The kind of port.
        kind: &'static str,
        /// The key.
        key: &'static str,
        /// Why not.
        reason: &'static str,
    },
    /// A memif's socket whose name would be cut off.
    #[error("the socket {name} has too long a name: at most {max} bytes, so choose a shorter one")]
    SocketName {
        /// The path or abstract name.
        name: String,
        /// Bytes that fit.
        max: usize,
    },
    /// The capture file could not be written.
    #[error("{path}: {error}")]
    Capture {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        error: CaptureError,
    },
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
}

/// Why a verb was refused. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object was not created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// An object was not destroyed, or there is none.
    #[error(transparent)]
    Destroy(#[from] DestroyError),
    /// A queue pair was not modified.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] roce::queue::PostError),
    /// The peer's Ethernet address was not found.
    #[error(
        "no neighbour answers for {dgid} after {waited_millis} ms: is the peer up, and in the same subnet as {sgid}?"
    )]
    Unreachable {
        /// The peer.
        dgid: Gid,
        /// This side.
        sgid: Gid,
        /// How long was waited.
        waited_millis: u64,
    },
    /// A path's destination is no single interface.
    #[error(
        "{dgid} is not the address of one interface, and a connection leads to one: the peer must say its own GID"
    )]
    NotUnicast {
        /// The destination.
        dgid: Gid,
    },
    /// No GID of this device suits the peer.
    #[error("no GID of this device is of the family of {dgid} and in reach of it; its GIDs: {gids}")]
    NoGid {
        /// The peer.
        dgid: Gid,
        /// What there is.
        gids: String,
    },
    /// The other end of the port never came up.
    #[error("port {port}: the link is not up after {waited_millis} ms: is the other end running?")]
    LinkDown {
        /// The port.
        port: String,
        /// How long was waited.
        waited_millis: u64,
    },
    /// A thread panicked in the engine, by a fault of this library.
    #[error(
        "the device {port} is out of order: {reason} (the panic is on standard error, please report it). Its queue pairs, queues and regions are lost: close the device and open it again"
    )]
    DeviceFatal {
        /// The port.
        port: String,
        /// What happened.
        reason: String,
    },
    /// A range does not lie in a memory region.
    #[error(transparent)]
    OutOfRange(#[from] roce::mem::OutOfRange),
    /// The kernel's neighbour table could not be asked.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What came of it.
        error: io::Error,
    },
}
