//! Errors of [`crate::Context::open`] and of verbs. Errors of the transport are reported as completion statuses
//! ([`crate::WcStatus`]).

use std::io;
use std::path::PathBuf;

use dpdk_ffi::{DeviceError, EalError, MempoolError, PortError};
use roce::engine::{CreateError, DestroyError};
use roce::id::Gid;
use roce::neighbour::GidError;
use roce::port::pcap::CaptureError;
use roce::qp::ModifyError;

use crate::kernel::KernelError;
use crate::limits::TooFewDescriptors;
use crate::memory::UnusableMemory;

/// Reason why [`crate::Context::open`] failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// DPDK's environment abstraction layer (EAL) could not be initialised.
    #[error("DPDK does not start: {0}")]
    Eal(#[from] EalError),
    /// DPDK could not attach the network device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// DPDK could not open the port of the network device.
    #[error(transparent)]
    Port(#[from] PortError),
    /// An XDP port could not be opened, most often because the process lacks the permission to lock enough memory or to
    /// load an XDP program.
    #[error(
        "{error}\n  An af_xdp port needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF outside of user namespaces, and may lock {memlock} here (RLIMIT_MEMLOCK; raise it by `ulimit -l unlimited`, systemd: LimitMEMLOCK=infinity, docker run --ulimit memlock=-1): run as root, or ask `roce doctor --port {port}`"
    )]
    Xdp {
        /// The port's name.
        port: String,
        /// The driver's error.
        error: Box<PortError>,
        /// Limit of locked memory of the process, with its unit.
        memlock: String,
    },
    /// Another process has the interface of an XDP port open as a port.
    #[error(
        "another process has interface `{interface}` open as a port, and an af_xdp port receives all frames of its \
         queue: end that process, or open the interface as af_packet:{interface} in each process"
    )]
    XdpShared {
        /// Name of the interface.
        interface: String,
    },
    /// RLIMIT_NOFILE permits fewer open files than a device needs.
    #[error(transparent)]
    TooFewDescriptors(#[from] TooFewDescriptors),
    /// The memory for packet buffers could not be allocated.
    #[error(transparent)]
    Mempool(#[from] MempoolError),
    /// The network interface of the kernel cannot be used as a port.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// An IP address, prefix length or VLAN in the port's name is not valid for the GID table.
    #[error(transparent)]
    Gid(#[from] GidError),
    /// This process has the port open already, and a further context cannot share the device.
    #[error("this process has {port} open, but {reason}")]
    Open {
        /// The port's name.
        port: String,
        /// Reason why a further context cannot share the device, and the remedy.
        reason: String,
    },
    /// A key in the port's name does not apply to this kind of port.
    #[error("{kind} takes no `{key}=`: {reason}")]
    KeyDoesNotApply {
        /// Kind of port.
        kind: &'static str,
        /// The key in the port's name, without `=`.
        key: &'static str,
        /// Reason why the key in the port's name does not apply to this kind of port.
        reason: &'static str,
    },
    /// The MTU in the port's name is larger than the port permits.
    #[error("mtu={mtu_bytes} is more than the {max_bytes} bytes that {bound} permits: {remedy}")]
    Mtu {
        /// The requested MTU, in bytes.
        mtu_bytes: u16,
        /// The largest permitted MTU, in bytes.
        max_bytes: usize,
        /// The object that bounds the MTU.
        bound: &'static str,
        /// A change that permits the MTU, or the MTU to use instead.
        remedy: &'static str,
    },
    /// The name of a memif's socket is longer than DPDK's memif driver accepts.
    #[error("the socket {name} has too long a name: at most {max} bytes, so choose a shorter one")]
    SocketName {
        /// Path of the socket, or name in the abstract namespace.
        name: String,
        /// Length, in bytes, of the longest socket name that DPDK's memif driver accepts.
        max: usize,
    },
    /// The capture file could not be written.
    #[error("{path}: {error}")]
    Capture {
        /// Path of the capture file.
        path: PathBuf,
        /// Error of creating the capture file, or of writing the header of this file.
        error: CaptureError,
    },
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
}

/// Reason why a verb failed. A failed verb has changed no state; a call that consists of several verbs, such as
/// [`crate::Qp::connect`], may fail after some of its verbs have succeeded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A protection domain, memory region, address handle, queue or queue pair could not be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// A protection domain, memory region, address handle, queue or queue pair could not be destroyed: the object is in
    /// use, or does not exist.
    #[error(transparent)]
    Destroy(#[from] DestroyError),
    /// The state or attributes of a queue pair could not be changed.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// A work request could not be posted.
    #[error(transparent)]
    Post(#[from] roce::queue::PostError),
    /// The MAC of the peer, or of the gateway to the peer, was not resolved within `waited_millis`.
    #[error(
        "no neighbour answers for {dgid} after {waited_millis} ms: is the peer up, and in the same subnet as {sgid}?"
    )]
    Unreachable {
        /// GID of the peer.
        dgid: Gid,
        /// Local GID with the index `sgid_index` of the failed call; zero if the GID table has no entry of this index.
        sgid: Gid,
        /// Time for which the call waited for the MAC, in milliseconds.
        waited_millis: u64,
    },
    /// The destination GID of an address vector is not a unicast address.
    #[error(
        "{dgid} is not the address of one interface, and multicast is not supported: the peer must say its own GID"
    )]
    NotUnicast {
        /// GID of the destination.
        dgid: Gid,
    },
    /// No GID of this device is a valid source of packets to the peer's GID.
    #[error("no GID of this device is of the family of {dgid} and in reach of it; its GIDs: {gids}")]
    NoGid {
        /// GID of the peer.
        dgid: Gid,
        /// All GIDs of this device, separated by commas.
        gids: String,
    },
    /// The port's link did not come up within `waited_millis`.
    #[error("port {port}: the link is not up after {waited_millis} ms: is the other end running?")]
    LinkDown {
        /// The port's name.
        port: String,
        /// Time for which the call waited for the link, in milliseconds.
        waited_millis: u64,
    },
    /// The device is in a fatal error: because of a bug of this library, a thread panicked while it drove the engine;
    /// or the network interface of the port was removed.
    #[error(
        "the device {port} is in a fatal error: {reason}. Its queue pairs, queues and regions are lost: close the device and open it again"
    )]
    DeviceFatal {
        /// The port's name.
        port: String,
        /// The thread that panicked, or the interface that was removed.
        reason: String,
    },
    /// The device belongs to a process that forked this process. The call had no effect.
    #[error(
        "the device {port} belongs to process {pid}, which forked this process, and cannot be used here: open a device in this process, and fork before the first device is opened; or execute a new program (exec, posix_spawn)"
    )]
    Forked {
        /// The port's name.
        port: String,
        /// ID of the process that opened the device.
        pid: u32,
    },
    /// RLIMIT_NOFILE permits no further open file.
    #[error(transparent)]
    TooFewDescriptors(#[from] TooFewDescriptors),
    /// Memory of the application cannot be registered.
    #[error(transparent)]
    UnusableMemory(#[from] UnusableMemory),
    /// A range of bytes is not within a memory region, or could not be accessed.
    #[error(transparent)]
    Access(#[from] roce::mem::AccessError),
    /// The kernel has no route to the destination, or the kernel's routes or neighbours could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A system call failed.
    #[error("{what}: {error}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        error: io::Error,
    },
}
