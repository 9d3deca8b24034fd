//! Attributes of a device.

use dpdk_ffi::WakeKind;
use roce::engine::limits::{DeviceLimits, MAX_CQE, MAX_INLINE_BYTES, MAX_QP_WR, MAX_RD_ATOMIC, MAX_SGE};
use roce::id::{Gid, Mac};
use roce::qp::PathMtu;

use crate::port::PortKind;

/// Attributes of a device and its port (`ibv_device_attr`, `ibv_port_attr`).
#[derive(Clone, Debug)]
pub struct DeviceAttr {
    /// The port's name, `KIND:TARGET`.
    pub port: String,
    /// Kind of the port.
    pub kind: PortKind,
    /// Name of the DPDK driver.
    pub driver: String,
    /// MAC of the port.
    pub mac: Mac,
    /// Largest IP packet, in bytes.
    pub mtu_bytes: usize,
    /// Largest path MTU whose packets, with 80 bytes for headers, fit into `mtu_bytes`; `None` if `mtu_bytes` is below
    /// 336 (256 + 80).
    pub active_mtu: Option<PathMtu>,
    /// Whether the link is up.
    pub is_up: bool,
    /// Speed of the link in Mbit/s, as a NIC or the kernel reports it; `None` if it is unknown, as on a memif.
    pub speed_mbps: Option<u32>,
    /// How the port wakes a thread that sleeps until a frame arrives. `None`: the port has no wake source, so threads
    /// nap instead of sleeping until a frame arrives.
    pub wakes_by: Option<WakeKind>,
    /// Index and GID of each entry of the GID table.
    pub gids: Vec<(usize, Gid)>,
    /// Capabilities of the device.
    pub caps: DeviceCaps,
}

/// Capabilities of a device (`ibv_device_attr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceCaps {
    /// Limits of the device: number of objects of each kind, and bytes of all reorder buffers together.
    pub limits: DeviceLimits,
    /// Largest number of outstanding work requests of a send or receive queue.
    pub max_qp_wr: u32,
    /// Largest number of scatter/gather entries (local memory ranges) of a work request.
    pub max_sge: u32,
    /// Largest inline payload of a send work request, in bytes.
    pub max_inline_bytes: u32,
    /// Largest number of entries of a completion queue.
    pub max_cqe: u32,
    /// Largest `max_rd_atomic` (outstanding READs) and largest `max_dest_rd_atomic` (responder resources) of a queue
    /// pair.
    pub max_rd_atomic: u8,
}

impl DeviceCaps {
    pub(crate) fn new(limits: DeviceLimits) -> Self {
        DeviceCaps {
            limits,
            max_qp_wr: MAX_QP_WR,
            max_sge: MAX_SGE,
            max_inline_bytes: MAX_INLINE_BYTES,
            max_cqe: MAX_CQE,
            max_rd_atomic: MAX_RD_ATOMIC,
        }
    }
}
