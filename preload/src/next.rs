//! The functions of the next libibverbs, for objects of other devices.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;

use crate::dynamic::open_next;

/// Returns the address of the function `name` in the next library that defines it; null if none does. A program that
/// loads libibverbs with dlopen has no next library in its global scope, so libibverbs itself is asked as well.
pub(crate) fn address(name: &CStr) -> *mut c_void {
    static LIBRARY: OnceLock<usize> = OnceLock::new();
    // SAFETY: dlsym and `open_next` read the names, which are terminated by a null byte.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr());
        if !next.is_null() {
            return next;
        }
        let library = *LIBRARY.get_or_init(|| {
            // This library's `dlopen` would return a handle with which dlsym finds this library's functions.
            open_next(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL).expose_provenance()
        });
        match library {
            0 => ptr::null_mut(),
            library => libc::dlsym(ptr::with_exposed_provenance_mut(library), name.as_ptr()),
        }
    }
}

/// Calls the function of the next libibverbs. Without a next function the value is `$missing`, and errno is ENOSYS.
macro_rules! next {
    ($name:ident($($arg:ident: $type:ty),*) -> $ret:ty, $missing:expr) => {{
        static ADDRESS: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
        let name = const {
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without a null byte"),
            }
        };
        let address = *ADDRESS.get_or_init(|| $crate::next::address(name).expose_provenance());
        if address == 0 {
            $crate::boundary::set_errno($crate::boundary::Errno(libc::ENOSYS));
            $missing
        } else {
            // SAFETY: verbs.h declares the function `$name` with these types. A thread may be cancelled in it, which unwinds
            // its stack.
            unsafe {
                let function: unsafe extern "C-unwind" fn($($type),*) -> $ret =
                    std::mem::transmute(std::ptr::with_exposed_provenance::<()>(address));
                function($($arg),*)
            }
        }
    }};
}

pub(crate) use next;
