//! RDMA verbs over any Ethernet port.
//!
//! [`Context::open`] opens a port as an RDMA device; a [`PortSpec`] names the port. The objects of a device are those
//! of libibverbs: [`Pd`], [`Mr`], [`Cq`], [`CompChannel`], [`Srq`], [`Qp`], [`Ah`]. Several threads may use an object
//! at the same time.
//!
//! # Progress
//! Each device has an engine, which implements the RoCEv2 transport. Application threads and the background thread of
//! the process drive the engine. If no other thread drives the engine, `post_send` may itself send packets, and a poll
//! of an empty completion queue receives and sends packets. While no application thread polls, the background thread
//! drives the engine, because the responder must still execute the peer's READs and WRITEs. An idle background thread
//! sleeps until a frame arrives or a timer of the engine expires. If application threads poll often, frames no longer
//! wake the background thread. [`ProgressPolicy`] selects other policies.
//!
//! ```text
//!   application thread:   post_send -> send queue       -> engine.push -> port
//!   application thread:   poll      <- completion queue <- engine.poll <-> port
//!   background thread:                                     engine.poll <-> port   (while no application thread polls)
//! ```

pub mod config;
pub mod kernel;
pub mod packet_events;
pub mod port;
pub mod stat;

mod ah;
mod attr;
mod background;
mod channel;
mod context;
mod cq;
mod describe;
mod device;
mod drive;
mod error;
mod fatal;
mod inbox;
mod limits;
mod linger;
mod link;
mod link_rate;
mod listeners;
mod lock;
mod memory;
#[cfg(all(test, loom))]
mod models;
mod mr;
mod object;
mod objects;
mod options;
mod progress;
mod qp;
mod queues;
mod registry;
mod sleep;
mod slice;
mod srq;
mod stale;
mod text;
#[cfg(all(test, not(loom)))]
mod threads;
mod waiter;
mod wake_set;
mod watch;

pub use ah::Ah;
pub use attr::{DeviceAttr, DeviceCaps};
pub use channel::CompChannel;
pub use context::Context;
pub use cq::Cq;
pub use describe::{DeviceDescription, describe};
pub use error::{Error, OpenError};
pub use limits::{DESCRIPTORS_PER_DEVICE, TooFewDescriptors};
pub use link_rate::LinkRate;
pub use listeners::{AsyncEvent, CompletionEvent};
pub use memory::UnusableMemory;
pub use mr::{Mr, Pd};
pub use objects::ContextObjects;
pub use options::{DeviceOptions, NoProgressPolicy, ProgressPolicy};
pub use port::{PortSpec, PortSpecError};
pub use qp::{ConnectOptions, Qp, QpOptions};
pub use queues::{CqQueue, QpQueues, SendBatch, SrqQueue};
pub use srq::{Srq, SrqOptions};

pub use dpdk_ffi::WakeKind;
pub use roce::congestion::{CnpPacing, CongestionScheme, NoCongestionScheme, NotificationConfig};
pub use roce::engine::limits::{MAX_INLINE_BYTES, MAX_SGE};
pub use roce::engine::{Attributes, CreateError, DestroyError, Event, QpnPrefix};
pub use roce::id::{AhId, Gid, LKey, Mac, QKey, Qpn, RKey};
pub use roce::mem::{Access, Memory, PdId};
pub use roce::psn::Psn;
pub use roce::qp::{
    AddressVector, ConnAttr, Endpoint, EndpointError, ModifyError, PathMtu, Placement, QpAttr, QpInit,
    QpState, ServiceType,
};
pub use roce::queue::{
    CqId, Cqe, Destination, MAX_MESSAGE_BYTES, NetworkHeader, Notify, PostError, RecvRequest, SendData,
    SendFlags, SendOp, SendRequest, Sge, SrqAttr, SrqId, WcOpcode, WcStatus,
};
pub use roce::recovery::{NoRecoveryScheme, RecoveryScheme};
