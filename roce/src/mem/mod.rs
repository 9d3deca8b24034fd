//! Protection domains, memory regions, and the only code that accesses registered memory.

pub(crate) mod copy;
mod epoch;
mod fault;
#[cfg(all(test, loom))]
mod models;
pub(crate) mod mr;
pub(crate) mod table;
#[cfg(all(test, not(loom)))]
mod threads;

pub use copy::{AccessError, Memory, OutOfRange, Span};
pub use fault::{CAN_RECOVER, FaultSite, MemoryFault};
pub use mr::{Access, PdId, RegisterError};

pub(crate) use mr::MemoryError;
pub(crate) use table::{MemoryTable, MemoryView};
