//! One at a time.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static TURN: RwLock<()> = RwLock::new(());

/// Waits until no other test over live ports runs: their processes poll, and more of them than there
/// are processors would wait for each other.
pub(crate) fn turn() -> RwLockWriteGuard<'static, ()> {
    // A test that failed harms nobody: its processes have ended.
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until only tests with a common turn run: tests whose processes sleep most of the time, such as programs of
/// perftest, whose clients sleep for a second before they connect.
pub(crate) fn common_turn() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// A turn, with something that only one test at a time may use.
pub(crate) struct Turn<T: 'static> {
    // Given back in this order.
    value: MutexGuard<'static, T>,
    _turn: RwLockWriteGuard<'static, ()>,
}

impl<T> Turn<T> {
    /// Waits for a turn, makes the value at the first, and takes it.
    pub(crate) fn with(make: impl FnOnce() -> &'static Mutex<T>) -> Turn<T> {
        let turn = turn();
        Turn { value: make().lock().unwrap_or_else(PoisonError::into_inner), _turn: turn }
    }
}

impl<T> Deref for Turn<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
