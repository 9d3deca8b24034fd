//! Stopping a virtio-user port without racing its interrupt handler.
//!
//! EAL's interrupt thread runs the driver's handler when the peer disconnects, and the handler sets an alarm,
//! which runs on the same thread. While the handler runs, EAL refuses to unregister it (EAGAIN); the driver's
//! stop ignores the refusal, and its close frees the memory that handler and alarm access:
//!
//! ```text
//!   closing thread                        interrupt thread
//!                                         peer disconnected: handler begins
//!   stop: unregister fails (EAGAIN)         |
//!   close: frees the port                   |  accesses the port
//!                                         handler again, because it is registered; alarm
//! ```
//!
//! The interrupt thread runs one handler or alarm at a time. If the stop itself is an alarm, the handler does
//! not run meanwhile, and is unregistered. A second alarm, set after the stop, runs after all alarms that the
//! handler has set.

use std::ffi::c_void;
use std::sync::mpsc::{SyncSender, sync_channel};

use crate::port_id::PortId;

/// The driver whose handler races its stop.
const VIRTIO_USER: &str = "net_virtio_user";
/// Delay of the alarms in microseconds, the least that EAL accepts.
const ALARM_USEC: u64 = 1;

struct Job {
    operation: fn(PortId) -> i32,
    port_id: PortId,
    result: SyncSender<i32>,
}

/// Stops a port. Returns 0 or a negative error number.
///
/// # Safety
/// The port exists, is started, and is in no burst.
pub(super) unsafe fn stop(port_id: PortId, driver: &str) -> i32 {
    // SAFETY: the caller's guarantee; this thread waits for the interrupt thread.
    let stop = |port_id| unsafe { dpdk_sys::rte_eth_dev_stop(port_id) };
    if driver == VIRTIO_USER { on_interrupt_thread(stop, port_id) } else { stop(port_id) }
}

/// Waits until the alarms of a stopped port have run. The port must not be queried for its link meanwhile,
/// because that may set another one.
pub(super) fn settle(port_id: PortId, driver: &str) {
    if driver == VIRTIO_USER {
        on_interrupt_thread(|_| 0, port_id);
    }
}

/// Runs `operation` as an alarm, after those that are set already, and returns its result.
fn on_interrupt_thread(operation: fn(PortId) -> i32, port_id: PortId) -> i32 {
    let (result, finished) = sync_channel(1);
    let job = Box::into_raw(Box::new(Job { operation, port_id, result }));
    // SAFETY: `run` takes the job over.
    let ret = unsafe { dpdk_sys::rte_eal_alarm_set(ALARM_USEC, Some(run), job.cast()) };
    if ret < 0 {
        // Out of memory. The job is leaked, because EAL may have kept the alarm.
        return operation(port_id);
    }
    finished.recv().unwrap_or(-libc::EIO)
}

unsafe extern "C" fn run(job: *mut c_void) {
    // SAFETY: the box from `on_interrupt_thread`, whose alarm runs once.
    let job = unsafe { Box::from_raw(job.cast::<Job>()) };
    // The receiver waits for this result.
    let _sent = job.result.send((job.operation)(job.port_id));
}
