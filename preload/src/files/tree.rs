//! The directory of the tree, which `roce run` passes by the environment.

use std::cell::UnsafeCell;
use std::ffi::CStr;
use std::slice;
use std::sync::atomic::{AtomicUsize, Ordering};

use verbs::config::TREE_VARIABLE;

use super::path::PATH_BYTES;

/// Value of `Tree::len` before [`read`].
const UNREAD: usize = usize::MAX;

/// A copy of the variable, because a program may overwrite its environment.
struct Tree {
    bytes: UnsafeCell<[u8; PATH_BYTES]>,
    /// Length of the path in `bytes`; 0 without a tree.
    len: AtomicUsize,
}

// SAFETY: only `read` writes `bytes`, before it sets `len`, and other threads read `bytes` after they have seen `len`.
unsafe impl Sync for Tree {}

static TREE: Tree = Tree { bytes: UnsafeCell::new([0; PATH_BYTES]), len: AtomicUsize::new(UNREAD) };

/// Returns the value of the variable if it can be the path of a tree.
fn variable() -> Option<&'static [u8]> {
    // SAFETY: getenv reads the name and returns null or a text in the environment. No change of the environment is
    // simultaneous: this is called before the functions of the program run.
    let value = unsafe {
        let value = libc::getenv(TREE_VARIABLE.as_ptr());
        if value.is_null() {
            return None;
        }
        CStr::from_ptr(value)
    };
    let path = value.to_bytes();
    (path.starts_with(b"/") && path.len() < PATH_BYTES).then_some(path)
}

/// Copies the variable. The dynamic linker calls this once, before the program's `main`, but after the constructors of
/// the libraries with which the program is linked.
pub(super) fn read() {
    if TREE.len.load(Ordering::Acquire) != UNREAD {
        return;
    }
    let path = variable().unwrap_or_default();
    // SAFETY: no thread reads the bytes before `len` is set.
    let bytes = unsafe { &mut *TREE.bytes.get() };
    bytes.iter_mut().zip(path).for_each(|(to, byte)| *to = *byte);
    TREE.len.store(path.len(), Ordering::Release);
}

/// Returns the path of the tree; `None` without a tree. Neither allocates nor locks.
pub(super) fn tree() -> Option<&'static [u8]> {
    match TREE.len.load(Ordering::Acquire) {
        0 => None,
        UNREAD => variable(),
        // SAFETY: `read` has written these bytes, and nothing writes them again.
        len => Some(unsafe { slice::from_raw_parts(TREE.bytes.get().cast::<u8>(), len) }),
    }
}
