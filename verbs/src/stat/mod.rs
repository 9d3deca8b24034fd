//! Counters of a device, and how other processes of its user read them.
//!
//! ```text
//!   process with a device:  DIRECTORY/stat.PID.NUMBER, a socket       (directory, socket)
//!                           progress thread: accept -> one JSON object -> close
//!   roce stat:              every socket of every DIRECTORY -> DeviceStat   (read)
//! ```
//! The data path takes no part: counters are read on request, under the engine's lock, and the progress
//! thread accepts requests when it maintains the link. If no directory can be made, the device works but is
//! not listed.

mod counters;
mod directory;
mod read;
mod socket;

pub use counters::{CounterMap, DeviceCounters, port_counter_names};
pub(crate) use counters::{map, map_faults};
pub(crate) use read::Answer;
pub use read::{DeviceStat, Found, read_all};
pub(crate) use socket::StatSocket;
