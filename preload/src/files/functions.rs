//! Functions that return no path.

use std::ffi::{c_char, c_void};
use std::ptr;

use libc::{DIR, FILE, c_int, c_uint, mode_t, size_t, ssize_t};

use super::interpose::interpose;

// `stat` and its kin are functions of glibc 2.33 and later; programs that were linked with an earlier one call `__xstat`
// and its kin. The functions with `_2` are those of programs compiled with _FORTIFY_SOURCE.
interpose! {
    [unsafe(no_mangle)]
    fn open(@path, flags: c_int; ... mode: mode_t) -> c_int = -1;
    fn open64(@path, flags: c_int; ... mode: mode_t) -> c_int = -1;
    fn openat(directory: c_int, @path, flags: c_int; ... mode: mode_t) -> c_int = -1;
    fn openat64(directory: c_int, @path, flags: c_int; ... mode: mode_t) -> c_int = -1;
    fn __open_2(@path, flags: c_int) -> c_int = -1;
    fn __open64_2(@path, flags: c_int) -> c_int = -1;
    fn __openat_2(directory: c_int, @path, flags: c_int) -> c_int = -1;
    fn __openat64_2(directory: c_int, @path, flags: c_int) -> c_int = -1;
    fn creat(@path, mode: mode_t) -> c_int = -1;
    fn creat64(@path, mode: mode_t) -> c_int = -1;
    fn fopen(@path, mode: *const c_char) -> *mut FILE = ptr::null_mut();
    fn fopen64(@path, mode: *const c_char) -> *mut FILE = ptr::null_mut();
    fn freopen(@path, mode: *const c_char, stream: *mut FILE) -> *mut FILE = ptr::null_mut();
    fn freopen64(@path, mode: *const c_char, stream: *mut FILE) -> *mut FILE = ptr::null_mut();
    fn opendir(@path) -> *mut DIR = ptr::null_mut();
    fn scandir(@path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = -1;
    fn scandir64(@path, list: *mut c_void, filter: *const c_void, order: *const c_void) -> c_int = -1;
    fn scandirat(directory: c_int, @path, list: *mut c_void, filter: *const c_void, order: *const c_void)
        -> c_int = -1;
    fn scandirat64(directory: c_int, @path, list: *mut c_void, filter: *const c_void, order: *const c_void)
        -> c_int = -1;
    fn chdir(@path) -> c_int = -1;
    fn stat(@path, status: *mut c_void) -> c_int = -1;
    fn stat64(@path, status: *mut c_void) -> c_int = -1;
    fn lstat(@path, status: *mut c_void) -> c_int = -1;
    fn lstat64(@path, status: *mut c_void) -> c_int = -1;
    fn fstatat(directory: c_int, @path, status: *mut c_void, flags: c_int) -> c_int = -1;
    fn fstatat64(directory: c_int, @path, status: *mut c_void, flags: c_int) -> c_int = -1;
    fn __xstat(version: c_int, @path, status: *mut c_void) -> c_int = -1;
    fn __xstat64(version: c_int, @path, status: *mut c_void) -> c_int = -1;
    fn __lxstat(version: c_int, @path, status: *mut c_void) -> c_int = -1;
    fn __lxstat64(version: c_int, @path, status: *mut c_void) -> c_int = -1;
    fn __fxstatat(version: c_int, directory: c_int, @path, status: *mut c_void, flags: c_int) -> c_int = -1;
    fn __fxstatat64(version: c_int, directory: c_int, @path, status: *mut c_void, flags: c_int) -> c_int = -1;
    fn statx(directory: c_int, @path, flags: c_int, mask: c_uint, status: *mut c_void) -> c_int = -1;
    fn access(@path, mode: c_int) -> c_int = -1;
    fn eaccess(@path, mode: c_int) -> c_int = -1;
    fn euidaccess(@path, mode: c_int) -> c_int = -1;
    fn faccessat(directory: c_int, @path, mode: c_int, flags: c_int) -> c_int = -1;
    fn getxattr(@path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = -1;
    fn lgetxattr(@path, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = -1;
    fn listxattr(@path, list: *mut c_char, size: size_t) -> ssize_t = -1;
    fn llistxattr(@path, list: *mut c_char, size: size_t) -> ssize_t = -1;
}
