//! Protection domains, memory regions, and the only code that accesses registered memory.

pub(crate) mod copy;
pub(crate) mod mr;

pub use copy::{Memory, OutOfRange, Span};
pub use mr::{Access, PdId, RegisterError};

pub(crate) use mr::{MemoryError, MemoryTable};
