//! The exit of the process (`exit`, or the return of `main`). No device is dropped, because other threads may still use
//! the device. Instead:
//!
//! 1. The actions of [`ExitAction`] run.
//! 2. The function of [`wait_by`] runs: the peers of memif ports receive the frames in the rings.
//! 3. The files of [`ExitFile`] are removed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError};

use crate::NoCancel;
use crate::process::{self, PerProcess};

type Action = Box<dyn Fn() + Send>;

/// Actions and files of this process. If a forked process exits, it runs no action and removes no file of its parent.
static ENTRIES: PerProcess<Mutex<Entries>> = PerProcess::new();
/// Registration of `on_exit`, which a forked process inherits.
static AT_EXIT: Once = Once::new();
/// The function of [`wait_by`].
static WAIT: OnceLock<fn()> = OnceLock::new();

#[derive(Default)]
struct Entries {
    files: Vec<PathBuf>,
    actions: Vec<(u64, Action)>,
    last_action: u64,
}

fn entries() -> MutexGuard<'static, Entries> {
    ENTRIES.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `wait` run at the exit. Only the first call has an effect. A forked process, whose EAL is that of its parent,
/// does not run `wait`.
pub(crate) fn wait_by(wait: fn()) {
    register();
    WAIT.get_or_init(|| wait);
}

/// Makes `on_exit` run at the exit.
fn register() {
    // SAFETY: `on_exit` does not unwind, and is not unloaded while its objects are used. If the C library has no memory
    // for the registration, the process exits as after a kill.
    AT_EXIT.call_once(|| _ = unsafe { libc::atexit(on_exit) });
}

/// A file of this process. If the process exits before this value is dropped, the exit removes the file; otherwise the
/// owner removes the file, before the drop of this value.
#[derive(Debug)]
pub struct ExitFile(PathBuf);

impl ExitFile {
    /// Registers the file `path`.
    pub fn new(path: PathBuf) -> Self {
        register();
        // A path that is relative now may name another file at the exit.
        let path = std::path::absolute(&path).unwrap_or(path);
        entries().files.push(path.clone());
        Self(path)
    }
}

impl Drop for ExitFile {
    fn drop(&mut self) {
        let mut entries = entries();
        if let Some(index) = entries.files.iter().position(|path| *path == self.0) {
            entries.files.swap_remove(index);
        }
    }
}

/// A function that runs if the process exits before this value is dropped. Other threads run meanwhile, and may never
/// release a lock: the function must not wait without a limit.
#[derive(Debug)]
pub struct ExitAction(u64);

impl ExitAction {
    /// Registers `action`.
    pub fn new(action: impl Fn() + Send + 'static) -> Self {
        register();
        let mut entries = entries();
        entries.last_action += 1;
        let number = entries.last_action;
        entries.actions.push((number, Box::new(action)));
        Self(number)
    }
}

impl Drop for ExitAction {
    fn drop(&mut self) {
        let mut entries = entries();
        let index = entries.actions.iter().position(|(number, _)| *number == self.0);
        let action = index.map(|index| entries.actions.swap_remove(index));
        // The lock is released first, because the drop of `action` may drop an `ExitFile` or `ExitAction`, which takes
        // the lock.
        drop(entries);
        drop(action);
    }
}

extern "C" fn on_exit() {
    // The sleeps and the removal of files below are cancellation points (`pthread_cancel`); the exit must not end
    // there.
    let _no_cancel = NoCancel::new();
    // The actions do not run under the lock, because an action may drop an `ExitFile` or `ExitAction`, which takes the
    // lock.
    let actions = std::mem::take(&mut entries().actions);
    for (_, action) in &actions {
        // A panic has already been printed on standard error; the panic must not unwind into the C library.
        let _ = catch_unwind(AssertUnwindSafe(action));
    }
    if let Some(wait) = WAIT.get()
        && process::owns_eal()
    {
        wait();
    }
    for path in entries().files.drain(..) {
        // An error means that the owner has just removed the file.
        let _ = fs::remove_file(path);
    }
}
