//! Work queues and completion queues: rings, each with one end for the application and one end for the engine.

pub mod cq;
pub mod cqe;
pub mod doorbell;
#[cfg(all(test, loom))]
mod models;
pub mod ring;
pub mod rq;
pub mod sg;
pub mod sq;
#[cfg(all(test, not(loom)))]
mod threads;
mod work;
pub mod wqe;

pub use cq::{CompletionQueue, CqId, CqPoller, CqTable, Notify};
pub use cqe::{Cqe, WcOpcode, WcStatus};
pub use doorbell::Doorbells;
pub use rq::{RecvPoster, RecvQueue, RecvQueueSize, recv_queue};
pub use sg::Lists;
pub use sq::{SendPoster, SendQueue, SendQueueSize, send_queue};
pub use wqe::{
    PostError, RecvRequest, RecvWqe, SendData, SendFlags, SendOp, SendRequest, SendWqe, SgList, Sge,
};
