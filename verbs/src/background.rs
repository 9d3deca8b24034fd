//! The handle of the background thread, which `progress.rs` runs.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// The background thread of a device.
#[derive(Default)]
pub(crate) struct Background {
    thread: Mutex<Option<(JoinHandle<()>, Thread)>>,
}

impl Background {
    /// Keeps the thread, once it is started.
    pub(crate) fn keep(&self, handle: JoinHandle<()>) {
        let thread = handle.thread().clone();
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some((handle, thread));
    }

    /// Ends a nap.
    pub(crate) fn wake(&self) {
        if let Some((_, thread)) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Waits for the end of the thread, which follows when the device is stopping.
    pub(crate) fn join(&self) {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((handle, thread)) = taken {
            thread.unpark();
            if handle.thread().id() != thread::current().id() {
                // A panic has been reported by `progress::run_to_the_end`.
                let _ = handle.join();
            }
        }
    }
}
