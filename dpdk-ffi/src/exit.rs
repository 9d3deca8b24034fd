//! Files that are removed when the process exits (`exit`, or the return of `main`) without a drop of their owner, as a
//! thread may end the process while other threads use a device.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, Once, PoisonError};

use crate::process::PerProcess;

/// The files of this process. A forked process that exits removes none of its parent's.
static FILES: PerProcess<Mutex<Vec<PathBuf>>> = PerProcess::new();
/// Registration of `remove_files`, which a forked process inherits.
static AT_EXIT: Once = Once::new();

/// A file of this process that is removed if the process exits before the value is dropped. The owner removes the file
/// before the drop.
#[derive(Debug)]
pub struct ExitFile(PathBuf);

impl ExitFile {
    /// Registers the file `path`.
    pub fn new(path: PathBuf) -> Self {
        // SAFETY: `remove_files` does not unwind, and is not unloaded while its objects are used. If the C library has no
        // memory for the registration, the files stay, as after a kill.
        AT_EXIT.call_once(|| _ = unsafe { libc::atexit(remove_files) });
        // A path that is relative now may name another file at the exit.
        let path = std::path::absolute(&path).unwrap_or(path);
        FILES.get().lock().unwrap_or_else(PoisonError::into_inner).push(path.clone());
        Self(path)
    }
}

impl Drop for ExitFile {
    fn drop(&mut self) {
        let mut files = FILES.get().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = files.iter().position(|path| *path == self.0) {
            files.swap_remove(index);
        }
    }
}

extern "C" fn remove_files() {
    for path in FILES.get().lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        // An error means that the owner has just removed the file.
        let _ = fs::remove_file(path);
    }
}
