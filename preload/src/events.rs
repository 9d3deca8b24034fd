//! Acknowledgement of events: the destruction of an object waits until the program has acknowledged all events of the
//! object that it has taken (`ibv_ack_cq_events`, `ibv_ack_async_event`).

use std::sync::{Condvar, Mutex, PoisonError};

/// Number of events that the program has taken and not acknowledged.
#[derive(Default)]
pub(crate) struct Unacknowledged {
    count: Mutex<u32>,
    acknowledged: Condvar,
}

impl Unacknowledged {
    /// Counts an event that the program takes.
    pub(crate) fn take(&self) {
        *self.count.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Counts `count` acknowledgements.
    pub(crate) fn acknowledge(&self, count: u32) {
        let mut left = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(count);
        if *left == 0 {
            self.acknowledged.notify_all();
        }
    }

    /// Waits until all events are acknowledged.
    pub(crate) fn wait(&self) {
        let count = self.count.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.acknowledged.wait_while(count, |count| *count > 0));
    }
}
