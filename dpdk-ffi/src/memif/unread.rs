//! The wait for the peer before a connection ends. The peer unmaps the rings as soon as the connection has ended, and with
//! them the frames that the peer has not received: for example the ACK of the last message, without which the peer's work
//! request fails.

use std::thread;
use std::time::{Duration, Instant};

use super::control::has_unread;
use crate::NoCancel;
use crate::port_id::PortId;

/// Longest wait. A peer that sleeps or waits for a processor receives within this time as a rule; a peer that is stopped
/// or hostile delays the end of a connection, or of the process, by no more.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Time between two looks at the rings.
const WAIT_STEP: Duration = Duration::from_micros(100);

/// Waits until the peer of `port` has received all frames, at most [`WAIT_MAX`]. Calls `burst` before each look at the
/// rings.
pub(crate) fn wait_received(port: PortId, burst: impl FnMut()) {
    wait(Some(port), burst);
}

/// Waits until the peers of all ports have received all frames, at most [`WAIT_MAX`].
pub(crate) fn wait_all_received() {
    wait(None, || ());
}

fn wait(port: Option<PortId>, mut burst: impl FnMut()) {
    let _no_cancel = NoCancel::new();
    let end = Instant::now() + WAIT_MAX;
    loop {
        burst();
        if !has_unread(port) || Instant::now() >= end {
            return;
        }
        thread::sleep(WAIT_STEP);
    }
}
