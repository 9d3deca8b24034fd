//! The handle of the background thread, which `progress.rs` runs.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// The background thread of a device.
#[derive(Default)]
pub(crate) struct Background {
    thread: Mutex<Option<(JoinHandle<()>, Thread)>>,
}

impl Background {
    /// Stores the handle of the started thread.
    pub(crate) fn keep(&self, handle: JoinHandle<()>) {
        let thread = handle.thread().clone();
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some((handle, thread));
    }

    /// Ends the thread's current nap, or else its next nap at once.
    pub(crate) fn wake(&self) {
        if let Some((_, thread)) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Waits for the end of the thread, which ends after `Shared::stopping` was set. The thread itself does not wait.
    pub(crate) fn join(&self) {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((handle, thread)) = taken {
            thread.unpark();
            if handle.thread().id() != thread::current().id() {
                // The error of a panic is ignored, because `progress::run_to_the_end` has reported the panic.
                let _ = handle.join();
            }
        }
    }
}
