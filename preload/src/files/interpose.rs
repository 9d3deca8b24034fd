//! Definition of a function that rewrites its path and calls the next function of its name.

use std::ffi::{CStr, c_char, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use super::path::{PATH_BYTES, in_tree, is_of_tree};
use super::tree::tree;
use crate::boundary::{Errno, set_errno};

/// The next function of a name.
pub(super) struct Next {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Next {
    pub(super) const fn new(name: &'static CStr) -> Self {
        Next { name, address: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the address; null if there is no such function.
    #[inline]
    pub(super) fn address(&self) -> *mut c_void {
        let address = self.address.load(Ordering::Relaxed);
        if address.is_null() { self.find() } else { address }
    }

    /// Looks the address up. dlsym locks, so that `start` calls this for all functions: later calls, of which some are in
    /// a signal handler, find the address.
    #[cold]
    pub(super) fn find(&self) -> *mut c_void {
        // SAFETY: dlsym reads the name.
        let address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        self.address.store(address, Ordering::Relaxed);
        address
    }
}

/// Calls `call` with `path`, or with its name in the tree. If this name is too long, returns `fail` with ENAMETOOLONG.
///
/// # Safety
/// `path` is null or a text that is terminated by a null byte.
#[inline]
pub(super) unsafe fn with_path<T>(path: *const c_char, fail: T, call: impl FnOnce(*const c_char) -> T) -> T {
    if path.is_null() {
        return call(path);
    }
    // SAFETY: as the caller states; the second byte exists if the first is not the null byte.
    let is_candidate = unsafe {
        let path = path.cast::<u8>();
        *path == b'/' && matches!(*path.add(1), b's' | b'd' | b'/' | b'.')
    };
    let Some(tree) = is_candidate.then(tree).flatten() else { return call(path) };
    // SAFETY: as the caller states.
    unsafe {
        if is_of_tree(CStr::from_ptr(path).to_bytes()) {
            with_path_in_tree(tree, path, fail, call)
        } else {
            call(path)
        }
    }
}

/// The part of [`with_path`] that needs a large stack.
///
/// # Safety
/// `path` is a text that is terminated by a null byte.
#[inline(never)]
unsafe fn with_path_in_tree<T>(
    tree: &[u8],
    path: *const c_char,
    fail: T,
    call: impl FnOnce(*const c_char) -> T,
) -> T {
    let mut buffer = [0; PATH_BYTES];
    // SAFETY: as the caller states.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    match in_tree(tree, path, &mut buffer) {
        Some(path) => call(path.as_ptr()),
        None => {
            set_errno(Errno(libc::ENAMETOOLONG));
            fail
        }
    }
}

/// Defines functions that call the next function of their name with the rewritten path, each with the attribute in
/// brackets, and the function `find_all`, which looks the next functions up. `@path` stands for the argument
/// `const char *`. After `;` is the argument that the function has only with some flags: C declares these functions with
/// `...`. The calling conventions of x86-64 and AArch64 pass this argument in the register of an argument of a function
/// without `...`. The definition here therefore reads the argument, or, without the flags, a value without meaning, which
/// the next function ignores. A failure is the value after `=`.
macro_rules! interpose {
    ([$attribute:meta] $($visibility:vis fn $name:ident(
        $($before:ident: $before_type:ty,)* @path $(, $after:ident: $after_type:ty)*
        $(; $dots:tt $last:ident: $last_type:ty)?
    ) -> $ret:ty = $fail:expr;)*) => {
        #[expect(non_upper_case_globals, reason = "each static has the name of its function")]
        mod next {
            $(pub(super) static $name: $crate::files::interpose::Next = $crate::files::interpose::Next::new(const {
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name without a null byte"),
                }
            });)*
        }

        pub(in crate::files) fn find_all() {
            $(next::$name.find();)*
        }

        $(#[$attribute]
        $visibility unsafe extern "C-unwind" fn $name(
            $($before: $before_type,)* path: *const std::ffi::c_char $(, $after: $after_type)* $(, $last: $last_type)?
        ) -> $ret {
            let next = next::$name.address();
            if next.is_null() {
                $crate::boundary::set_errno($crate::boundary::Errno(libc::ENOSYS));
                return $fail;
            }
            // SAFETY: the C library declares the function with these types, and the program passes its arguments.
            unsafe {
                let next: unsafe extern "C-unwind" fn(
                    $($before_type,)* *const std::ffi::c_char $(, $after_type)* $(, $dots)?
                ) -> $ret = std::mem::transmute(next);
                $crate::files::interpose::with_path(path, $fail, |path| {
                    next($($before,)* path $(, $after)* $(, $last)?)
                })
            }
        })*
    };
}

pub(super) use interpose;
