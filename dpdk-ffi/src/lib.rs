//! Owners of DPDK's objects: the environment ([`Eal`]), devices ([`Device`]), pools of packet buffers
//! ([`Mempool`], [`Mbuf`]) and Ethernet ports (control: [`EthPort`]; frames: [`EthQueue`]). The only crate that
//! uses DPDK. It does not interpret frames, except the IP and UDP headers of frames on a packet socket.
//!
//! ```no_run
//! use dpdk_ffi::{Eal, EalConfig, Mempool, MempoolConfig, PortBuilder};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let eal = Eal::init(&EalConfig::default())?;
//! let device = eal.attach_vdev("net_memif0", "role=client,socket=@wire,bsize=8192")?;
//! let pool = Mempool::new(eal, &MempoolConfig::default())?;
//! let (port, mut queues) = PortBuilder::new(pool).open(device)?;
//! if let Some(frame) = queues.first_mut().tx_reserve(64) {
//!     frame.fill(0);
//! }
//! queues.first_mut().tx_flush();
//! println!("{:?}", port.stats());
//! # Ok(())
//! # }
//! ```
//!
//! EAL exists once in a process and runs until the process ends, because other threads may still return mbufs
//! to its memory. [`Eal`] is the proof that it runs, and [`Eal::get`] returns it.
//!
//! Every owner may move between threads. None of them locks: an [`EthQueue`] is driven through `&mut`, so each thread
//! that receives and sends has a queue of its own, or shares one behind a mutex. [`ThreadRegistration`] makes mempools
//! faster for threads that EAL did not start.
//!
//! A process forked after EAL started has no use for these objects: their drops have no effect there, and any other
//! use is a memory fault, because EAL's memory is not part of that process. [`Eal::init`] refuses to start a second
//! EAL there. See [`Process`].
#![allow(unsafe_code)]

mod cancel;
mod counter;
mod device;
mod eal;
mod errno;
mod ethdev;
mod eventfd;
mod exit;
mod guard;
mod log;
mod mbuf;
mod memif;
mod mempool;
mod packet;
mod port_id;
mod process;
mod runtime_dir;
mod sockets;
mod thread;

pub use cancel::NoCancel;
pub use device::{Device, DeviceError};
pub use eal::{Eal, EalConfig, EalError, Memory, runtime_dir};
pub use errno::Errno;
pub use ethdev::{
    DEFAULT_DESCRIPTORS, EthPort, EthQueue, HELD_MBUFS, Link, PortBuilder, PortCounters, PortError, PortInfo,
    PortStats, QueueSet, TX_QUEUE_FRAMES, WakeKind,
};
pub use exit::{ExitAction, ExitFile};
pub use log::{LogLevel, LogLines};
pub use mbuf::{AppendError, Mbuf, Segments};
pub use memif::MemifAccess;
pub use mempool::{Mempool, MempoolConfig, MempoolError};
pub use port_id::PortId;
pub use process::{OfProcess, PerProcess, Process};
pub use runtime_dir::{is_private_dir, private_dir, stand_in_runtime_dir};
pub use thread::{RegisterError, ThreadRegistration, is_registered};
