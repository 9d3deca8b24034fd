//! The handle of the background thread, which `progress.rs` runs.

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};

/// The handle of a device's background thread: stored by `keep`, removed by `join`.
#[derive(Default)]
pub(crate) struct Background {
    thread: Mutex<Option<(JoinHandle<()>, Thread)>>,
}

impl Background {
    /// Stores the handle of the background thread, which the caller has started.
    pub(crate) fn keep(&self, handle: JoinHandle<()>) {
        let thread = handle.thread().clone();
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some((handle, thread));
    }

    /// Wakes the background thread. If the background thread is awake, its next sleep ends at once.
    pub(crate) fn wake(&self) {
        if let Some((_, thread)) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Wakes the background thread and waits for its end, unless the caller is this thread. `Shared::stopping` must be
    /// set.
    pub(crate) fn join(&self) {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((handle, thread)) = taken {
            thread.unpark();
            if handle.thread().id() != thread::current().id() {
                // The error is ignored: it reports a panic, which `progress::run_to_the_end` has reported before.
                let _ = handle.join();
            }
        }
    }
}
