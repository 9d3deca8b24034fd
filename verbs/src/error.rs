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

/// Reason why [`crate::Context::open`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// DPDK did not start.
    #[error("DPDK does not start: {0}")]
    Eal(#[from] EalError),
    /// The device could not be attached.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The device's port could not be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An XDP port could not be opened; most often the process may not lock enough memory, or not load a program.
    #[error(
        "{error}\n  An af_xdp port needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF outside of user namespaces, and may lock {memlock} here (`ulimit -l`): run as root, or ask `roce doctor --port {port}`"
    )]
    Xdp {
        /// The port's name.
        port: String,
        /// The driver's error.
        error: Box<PortError>,
        /// Limit of locked memory, with its unit.
        memlock: String,
    },
    /// No memory for packets.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The kernel interface cannot be used.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An address of the port's name cannot be a GID.
    #[error(transparent)]
    Gid(#[from] GidError),
    /// A key of the port's name does not apply to its kind.
    #[error("{kind} takes no `{key}=`: {reason}")]
    KeyDoesNotApply {
        /// Kind of port.
        kind: &'static str,
        /// The key, without `=`.
        key: &'static str,
        /// Reason, for the message.
        reason: &'static str,
    },
    /// The name of a memif's socket is longer than the driver holds.
    #[error("the socket {name} has too long a name: at most {max} bytes, so choose a shorter one")]
    SocketName {
        /// Path or abstract name.
        name: String,
        /// Longest name, in bytes.
        max: usize,
    },
    /// The capture file could not be written.
    #[error("{path}: {error}")]
    Capture {
        /// Path of the file.
        path: PathBuf,
        /// Error of the capture.
        error: CaptureError,
    },
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
}

/// Reason why a verb failed. The verb changed nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An object was not created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// An object was not destroyed: in use, or unknown.
    #[error(transparent)]
    Destroy(#[from] DestroyError),
    /// A queue pair was not modified.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request was not posted.
    #[error(transparent)]
    Post(#[from] roce::queue::PostError),
    /// The MAC of the peer, or of the gateway to it, was not resolved.
    #[error(
        "no neighbour answers for {dgid} after {waited_millis} ms: is the peer up, and in the same subnet as {sgid}?"
    )]
    Unreachable {
        /// GID of the peer.
        dgid: Gid,
        /// GID of this device.
        sgid: Gid,
        /// Time waited, in milliseconds.
        waited_millis: u64,
    },
    /// The destination of an address vector is not unicast.
    #[error(
        "{dgid} is not the address of one interface, and a connection leads to one: the peer must say its own GID"
    )]
    NotUnicast {
        /// GID of the destination.
        dgid: Gid,
    },
    /// No GID of this device suits the peer's.
    #[error("no GID of this device is of the family of {dgid} and in reach of it; its GIDs: {gids}")]
    NoGid {
        /// GID of the peer.
        dgid: Gid,
        /// GIDs of this device.
        gids: String,
    },
    /// The port's link did not come up.
    #[error("port {port}: the link is not up after {waited_millis} ms: is the other end running?")]
    LinkDown {
        /// The port's name.
        port: String,
        /// Time waited, in milliseconds.
        waited_millis: u64,
    },
    /// A thread panicked in the engine, by a fault of this library; the device is fatal.
    #[error(
        "the device {port} is in a fatal error: {reason} (the panic is on standard error, please report it). Its queue pairs, queues and regions are lost: close the device and open it again"
    )]
    DeviceFatal {
        /// The port's name.
        port: String,
        /// Thread that panicked.
        reason: String,
    },
    /// A range does not lie in a memory region.
    #[error(transparent)]
    OutOfRange(#[from] roce::mem::OutOfRange),
    /// The kernel's routes or neighbours could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The operating system refused.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
}
