//! Processes that fork.
//!
//! A forked process has a copy of all objects of this crate, and none of the threads that use them: a lock may be held
//! for ever, EAL's interrupt thread does not exist, and DPDK's memory, sockets and devices are those of the parent. So
//! in the forked process these objects have no effect: their drops call no function of DPDK, and leak what they own.
//!
//! ```text
//!   parent:  Process::current() -> { generation 0, pid 17 }       fork           is_current() -> true
//!   child:                                                         '-> on_fork    is_current() -> false: generation 1
//! ```
//! `on_fork` runs in the child before `fork` returns. A process made by the system calls `clone` or `fork` themselves,
//! without the C library, does not run `on_fork`, and must execute another program.

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

unsafe extern "C" {
    fn pthread_atfork(
        prepare: Option<unsafe extern "C" fn()>,
        parent: Option<unsafe extern "C" fn()>,
        child: Option<unsafe extern "C" fn()>,
    ) -> c_int;
}

/// Number of forks between the start of the program and this process.
static GENERATION: AtomicU32 = AtomicU32::new(0);
/// ID of the process that started EAL, this one or the ancestor that this one inherited EAL's state from; 0 if none.
static EAL_PID: AtomicU32 = AtomicU32::new(0);
/// Whether an ancestor of this process started EAL.
static EAL_IS_INHERITED: AtomicBool = AtomicBool::new(false);

/// Whether `on_fork` is registered.
static NOTICES_FORKS: AtomicBool = AtomicBool::new(false);

/// Registers `on_fork` when the program or library is loaded, before a thread can fork.
#[used]
#[unsafe(link_section = ".init_array")]
static REGISTER: extern "C" fn() = register;

extern "C" fn register() {
    // SAFETY: `on_fork` lives as long as the program: it is never unloaded while its objects are used.
    let refused = unsafe { pthread_atfork(None, None, Some(on_fork)) };
    NOTICES_FORKS.store(refused == 0, Ordering::Relaxed);
}

/// Calls only functions that are safe in the child of a process with threads.
unsafe extern "C" fn on_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    if EAL_PID.load(Ordering::Relaxed) != 0 {
        EAL_IS_INHERITED.store(true, Ordering::Relaxed);
    }
}

/// A process, as its objects remember it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    generation: u32,
    id: u32,
}

impl Process {
    /// Returns this process.
    ///
    /// # Panics
    /// If the C library had no memory to note the handler of forks.
    pub fn current() -> Self {
        assert!(NOTICES_FORKS.load(Ordering::Relaxed), "forks of this process would not be noticed");
        Self { generation: GENERATION.load(Ordering::Relaxed), id: std::process::id() }
    }

    /// Whether this is the calling process, and not one that the calling process was forked from.
    #[inline]
    pub fn is_current(self) -> bool {
        self.generation == GENERATION.load(Ordering::Relaxed)
    }

    /// Returns the process ID.
    pub fn id(self) -> u32 {
        self.id
    }
}

/// A value of one process. In a process forked from this one, the drop leaks the value.
pub struct OfProcess<T> {
    value: ManuallyDrop<T>,
    process: Process,
}

impl<T> OfProcess<T> {
    /// A value of this process.
    pub fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: Process::current() }
    }

    /// Returns the process that made the value.
    #[inline]
    pub fn process(&self) -> Process {
        self.process
    }
}

impl<T> Deref for OfProcess<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for OfProcess<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for OfProcess<T> {
    fn drop(&mut self) {
        if self.process.is_current() {
            // SAFETY: dropped once, here, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A static that every process has anew: a forked process finds the default, whatever its parent has, and however a
/// thread of the parent was using it.
pub struct PerProcess<T>(AtomicPtr<(Process, T)>);

impl<T: Default + Sync> PerProcess<T> {
    /// The default, in every process.
    #[expect(clippy::new_without_default, reason = "only for statics, which need a const function")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// Returns the value of this process.
    pub fn get(&'static self) -> &'static T {
        let process = Process::current();
        let found = self.0.load(Ordering::Acquire);
        // SAFETY: null, or made below and never freed.
        if let Some((owner, value)) = unsafe { found.as_ref() }
            && owner.is_current()
        {
            return value;
        }
        let fresh = Box::into_raw(Box::new((process, T::default())));
        match self.0.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: made above; from now on shared, and never freed.
            Ok(_) => unsafe { &(*fresh).1 },
            Err(other) => {
                // SAFETY: made above, and not shared.
                drop(unsafe { Box::from_raw(fresh) });
                // SAFETY: made by another thread of this process, and never freed.
                unsafe { &(*other).1 }
            }
        }
    }
}

/// Records that this process starts EAL.
pub(crate) fn start_eal() {
    EAL_PID.store(Process::current().id, Ordering::Relaxed);
}

/// Returns the ID of the process that started EAL, if this process was forked after that.
pub(crate) fn inherited_eal() -> Option<u32> {
    EAL_IS_INHERITED.load(Ordering::Relaxed).then(|| EAL_PID.load(Ordering::Relaxed))
}

/// Whether the objects of DPDK in this process are its own. False in a process forked after EAL started.
#[inline]
pub(crate) fn owns_eal() -> bool {
    !EAL_IS_INHERITED.load(Ordering::Relaxed)
}
