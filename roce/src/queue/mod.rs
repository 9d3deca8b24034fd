//! Work queues and completion queues: rings, each with one end for the application and one end for the engine.

pub(crate) mod cq;
pub(crate) mod cqe;
pub(crate) mod doorbell;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod ring;
pub(crate) mod rq;
pub(crate) mod sg;
pub(crate) mod sq;
pub(crate) mod srq;
#[cfg(all(test, not(loom)))]
mod threads;
mod work;
pub(crate) mod wqe;

pub use cq::{CqId, CqNotifier, CqPoller, Notify};
pub use cqe::{Cqe, NetworkHeader, WcOpcode, WcStatus};
pub use doorbell::Doorbells;
pub use rq::RecvPoster;
pub use sq::SendPoster;
pub use srq::{SrqAttr, SrqId};
pub use wqe::{
    Destination, MAX_MESSAGE_BYTES, PostError, RecvRequest, SendData, SendFlags, SendOp, SendRequest, Sge,
};

pub(crate) use cq::{CqSlot, CqTable, SharedCq};
pub(crate) use rq::{RecvQueue, RecvQueueSize, recv_queue};
pub(crate) use sg::{Lists, RestSges, open_one};
pub(crate) use sq::{OpenWqe, SendQueue, SendQueueSize, send_queue};
pub(crate) use srq::SrqTable;
pub(crate) use work::Posting;
pub(crate) use wqe::{RecvWqe, SendWqe, SgList};
