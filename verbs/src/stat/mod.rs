//! Counters of a device, and the device's statistics socket. Processes of root, and processes of the user whose process
//! opened the device, can read the counters from this socket.
//!
//! ```text
//!   process with a device:  DIRECTORY/stat.PID.RANDOM, a socket                    (directory.rs, socket.rs)
//!                           background thread: accept -> send one JSON object -> close
//!   roce stat:              connect to every socket of every DIRECTORY -> DeviceStat   (read.rs)
//!   counters of roce run:   connect to the sockets of the processes of the run -> DeviceStat
//! ```
//! The background thread accepts connections between its polls. The engine is locked while the thread reads the
//! engine's counters, and not while the thread reads the driver's statistics. If no directory can be created, the
//! device works, but `roce stat` does not list the device.

mod counters;
mod directory;
mod read;
mod socket;

pub use counters::{CounterMap, DeviceCounters, port_counter_names};
pub(crate) use counters::{map, map_faults};
pub use directory::private_directory;
pub(crate) use read::Answer;
pub use read::{DeviceStat, Found, read_all, read_selected};
pub(crate) use socket::StatSocket;
