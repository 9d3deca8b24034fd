//! RDMA verbs over any Ethernet port.
//!
//! [`Context::open`] takes a port by its name ([`PortSpec`]) and makes an RDMA device of it. The device's
//! objects are those of libibverbs: [`Pd`], [`Mr`], [`Cq`], [`CompChannel`], [`Qp`]. Every object may be used
//! from any number of threads at once.
//!
//! # Progress
//! The engine runs on the application's threads, without a NIC. A thread that polls a completion queue or
//! posts work also receives and sends packets, unless another thread drives the engine. A background thread
//! takes over while the application does neither, because the responder must still execute a peer's READs and
//! WRITEs; the background thread sleeps while the application polls and while the wire is idle.
//!
//! ```text
//!   app thread:   post_send -> ring -> engine.poll -> port
//!   app thread:   poll_cq   <- ring <- engine.poll <- port
//!   background:                        engine.poll    (only while no application thread does)
//! ```

pub mod kernel;
pub mod port;
pub mod stat;

mod background;
mod channel;
mod context;
mod cq;
mod device;
mod drive;
mod error;
mod fatal;
mod inbox;
mod lock;
#[cfg(all(test, loom))]
mod models;
mod mr;
mod progress;
mod qp;
#[cfg(all(test, not(loom)))]
mod threads;
mod watch;

pub use channel::CompChannel;
pub use context::{Context, DeviceAttr, DeviceOptions};
pub use cq::Cq;
pub use error::{Error, OpenError};
pub use mr::{Mr, Pd};
pub use port::{PortSpec, PortSpecError};
pub use qp::{ConnectOptions, Qp, QpOptions};

pub use roce::congestion::{CnpPacing, CongestionScheme, NoCongestionScheme, NotificationConfig};
pub use roce::engine::Event;
pub use roce::id::{Gid, LKey, Mac, Qpn, RKey};
pub use roce::mem::{Access, Memory};
pub use roce::psn::Psn;
pub use roce::qp::{AddressVector, Endpoint, EndpointError, PathMtu, Placement, QpAttr, QpState};
pub use roce::queue::{
    Cqe, Notify, PostError, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge, WcOpcode, WcStatus,
};
pub use roce::recovery::{NoRecoveryScheme, RecoveryScheme};
