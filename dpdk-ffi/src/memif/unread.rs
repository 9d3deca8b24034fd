//! The wait for the peer before a memif connection ends. When the connection has ended, the peer unmaps the rings, and
//! the frames that the peer has not received are lost: for example the ACK of the last message, without which the
//! peer's work request fails.

use std::thread;
use std::time::{Duration, Instant};

use super::control::has_unread;
use crate::NoCancel;
use crate::port_id::PortId;

/// Longest wait. As a rule a peer that sleeps or waits for a processor receives all frames within this time. A peer
/// that is stopped or hostile delays the end of a connection, or of the process, by this time at most.
const WAIT_MAX: Duration = Duration::from_millis(50);
/// Time between two checks of the rings.
const WAIT_STEP: Duration = Duration::from_micros(100);

/// Waits until the peer of `port` has received all frames, at most [`WAIT_MAX`]. Calls `burst` before each check of the
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
