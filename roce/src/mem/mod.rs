//! Protection domains, memory regions, and the only code that accesses registered memory.

pub mod copy;
pub mod mr;

pub use copy::{Memory, OutOfRange, Span};
pub use mr::{Access, MemoryError, MemoryRegion, MemoryTable, PdId, RegisterError};
