//! Functions that return a path. The name of a file in the tree is replaced by the name outside of the tree, because
//! programs compare the path with others, and take names of devices and interfaces from it.

use std::ffi::{CStr, c_char};
use std::ptr;

use libc::{c_int, size_t, ssize_t};

use super::path::{PATH_BYTES, outside};
use super::tree::tree;

/// The next functions, with a rewritten path.
mod call {
    use std::ffi::c_char;
    use std::ptr;

    use libc::{c_int, size_t, ssize_t};

    use crate::files::interpose::interpose;

    interpose! {
        [inline]
        pub(super) fn realpath(@path, resolved: *mut c_char) -> *mut c_char = ptr::null_mut();
        pub(super) fn __realpath_chk(@path, resolved: *mut c_char, size: size_t) -> *mut c_char = ptr::null_mut();
        pub(super) fn canonicalize_file_name(@path) -> *mut c_char = ptr::null_mut();
        pub(super) fn readlink(@path, target: *mut c_char, size: size_t) -> ssize_t = -1;
        pub(super) fn readlinkat(directory: c_int, @path, target: *mut c_char, size: size_t) -> ssize_t = -1;
        pub(super) fn __readlink_chk(@path, target: *mut c_char, size: size_t, room: size_t) -> ssize_t = -1;
        pub(super) fn __readlinkat_chk(directory: c_int, @path, target: *mut c_char, size: size_t, room: size_t)
            -> ssize_t = -1;
    }
}

pub(super) use call::find_all;

/// Replaces the path at `resolved`, which is returned.
///
/// # Safety
/// `resolved` is null or a text that is terminated by a null byte and may be changed.
unsafe fn replace(resolved: *mut c_char) -> *mut c_char {
    if let (false, Some(tree)) = (resolved.is_null(), tree()) {
        // SAFETY: as the caller states; the new path is a shorter end of the old.
        unsafe {
            let path = CStr::from_ptr(resolved).to_bytes();
            if let Some(outside) = outside(tree, path) {
                let (from, len) = (outside.as_ptr(), outside.len());
                ptr::copy(from, resolved.cast(), len);
                resolved.add(len).write(0);
            }
        }
    }
    resolved
}

/// Reads a link by `read`, which writes at most so many bytes to a place, without a null byte, and returns their number
/// or -1. The place is not that of the program, where the end of a path in the tree could lack.
///
/// # Safety
/// `target` has room for `size` bytes.
unsafe fn read_link(
    target: *mut c_char,
    size: size_t,
    read: impl FnOnce(*mut c_char, size_t) -> ssize_t,
) -> ssize_t {
    // Without room, the kernel's error is EINVAL.
    let Some(tree) = tree().filter(|_| size > 0) else { return read(target, size) };
    let mut buffer = [0u8; PATH_BYTES];
    let Ok(len) = usize::try_from(read(buffer.as_mut_ptr().cast(), buffer.len())) else { return -1 };
    let link = buffer.get(..len).unwrap_or_default();
    let link = outside(tree, link).unwrap_or(link);
    let len = link.len().min(size);
    // SAFETY: as the caller states.
    unsafe { ptr::copy_nonoverlapping(link.as_ptr(), target.cast(), len) };
    len.cast_signed()
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn realpath(path: *const c_char, resolved: *mut c_char) -> *mut c_char {
    // SAFETY: the program passes its arguments, here and in all functions below; the result is the program's.
    unsafe { replace(call::realpath(path, resolved)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __realpath_chk(
    path: *const c_char,
    resolved: *mut c_char,
    size: size_t,
) -> *mut c_char {
    // SAFETY: see `realpath`.
    unsafe { replace(call::__realpath_chk(path, resolved, size)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: see `realpath`.
    unsafe { replace(call::canonicalize_file_name(path)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readlink(path: *const c_char, target: *mut c_char, size: size_t) -> ssize_t {
    // SAFETY: see `realpath`.
    unsafe { read_link(target, size, |target, size| call::readlink(path, target, size)) }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn readlinkat(
    directory: c_int,
    path: *const c_char,
    target: *mut c_char,
    size: size_t,
) -> ssize_t {
    // SAFETY: see `realpath`.
    unsafe { read_link(target, size, |target, size| call::readlinkat(directory, path, target, size)) }
}

// A program that was compiled with _FORTIFY_SOURCE is ended by the next function if `size` is more than `room`.

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __readlink_chk(
    path: *const c_char,
    target: *mut c_char,
    size: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: see `realpath`.
    unsafe {
        if size > room {
            return call::__readlink_chk(path, target, size, room);
        }
        readlink(path, target, size)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __readlinkat_chk(
    directory: c_int,
    path: *const c_char,
    target: *mut c_char,
    size: size_t,
    room: size_t,
) -> ssize_t {
    // SAFETY: see `realpath`.
    unsafe {
        if size > room {
            return call::__readlinkat_chk(directory, path, target, size, room);
        }
        readlinkat(directory, path, target, size)
    }
}
