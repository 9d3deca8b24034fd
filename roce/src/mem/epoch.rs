//! Epochs: an engine is inside its epoch while it may use memory regions. `Epochs::wait` returns when each engine that
//! was inside its epoch has left this epoch. Then no engine uses a region that was removed from the `MemoryTable`
//! before `wait`, and the region can be freed.
//!
//! ```text
//!   engine       enter: count becomes odd  -> loads pointers, uses regions ->  leave: count becomes even
//!   deregister   replaces a pointer by null -> wait: reads each count; waits while the count is odd and unchanged
//! ```
//!
//! `enter` stores the count and then adds 1 to `order`; `wait` adds 1 to `order` and then loads the count. The two
//! additions are atomic operations on one variable, so one of them is first. If the addition of `wait` is first, this
//! addition synchronizes with the addition of `enter`, so the engine loads the null pointer. If the addition of `enter`
//! is first, `wait` loads the odd count that `enter` stored, or a later count.

use std::sync::{Arc, PoisonError};

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, relax};

/// State of one engine: inside or outside its epoch.
#[derive(Debug)]
pub(super) struct Epoch {
    /// Number of times that the engine entered or left its epoch: odd while the engine is inside. Only the engine
    /// stores this count.
    count: AtomicU64,
    /// Incremented by [`Epoch::enter`] and [`Epochs::wait`], so that the thread of the later increment sees the stores
    /// that preceded the earlier increment. The value has no meaning.
    order: AtomicU64,
}

impl Epoch {
    /// Increments `count`. A load and a store suffice, because one thread at a time calls this function.
    fn count(&self) {
        self.count.store(self.count.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    #[inline]
    pub(super) fn enter(&self) {
        self.count();
        self.order.fetch_add(1, Ordering::AcqRel);
    }

    #[inline]
    pub(super) fn leave(&self) {
        self.count();
    }
}

/// The [`Epoch`] of each engine that uses a `MemoryTable`.
#[derive(Debug)]
pub(super) struct Epochs(Mutex<Vec<Arc<Epoch>>>);

impl Epochs {
    pub(super) fn new() -> Self {
        Epochs(Mutex::new(Vec::new()))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Epoch>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the [`Epoch`] of a further engine, which is outside its epoch.
    pub(super) fn add(&self) -> Arc<Epoch> {
        let epoch = Arc::new(Epoch { count: AtomicU64::new(0), order: AtomicU64::new(0) });
        self.lock().push(epoch.clone());
        epoch
    }

    pub(super) fn remove(&self, epoch: &Arc<Epoch>) {
        self.lock().retain(|other| !Arc::ptr_eq(other, epoch));
    }

    /// Waits until each engine that is inside its epoch has left this epoch. An engine that enters its epoch during
    /// this call loads all pointers that the caller stored before this call.
    pub(super) fn wait(&self) {
        let epochs = self.lock().clone();
        for epoch in epochs {
            epoch.order.fetch_add(1, Ordering::AcqRel);
            let count = epoch.count.load(Ordering::Acquire);
            let mut calls = 0;
            while count % 2 == 1 && epoch.count.load(Ordering::Acquire) == count {
                relax(calls);
                calls = calls.wrapping_add(1);
            }
        }
    }
}
