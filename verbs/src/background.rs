//! The handle of the background thread (`progress.rs`).

use std::sync::{Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// The handle of a device's background thread: set by `keep`, removed by `join`.
#[derive(Default)]
pub(crate) struct Background {
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Background {
    pub(crate) fn keep(&self, handle: JoinHandle<()>) {
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    }

    /// Waits until the background thread has ended. The thread ends because the caller has set `Shared::stopping` and
    /// then rung the thread's bell. If the background thread itself is the caller, does not wait.
    pub(crate) fn join(&self) {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(handle) = taken.filter(|handle| handle.thread().id() != thread::current().id()) {
            // An error of `join` is ignored: `progress::run_to_the_end` has logged the panic of the thread.
            let _ = handle.join();
        }
    }
}
