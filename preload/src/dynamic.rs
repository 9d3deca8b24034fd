//! Programs that load libibverbs with dlopen (NCCL): `dlopen` and `dlvsym` of the dynamic linker, defined before those of
//! the C library.
//!
//! ```text
//! dlopen("libibverbs.so.1") -> libibverbs is loaded with RTLD_GLOBAL; the handle is that of the global scope, in which
//!                              this library precedes libibverbs. dlsym therefore finds this library's functions first
//! dlvsym(.., "IBVERBS_1.1") -> the function of this library, whose symbols have no versions
//! all other calls           -> a jump to the C library's function, which sees the return address of the program: RUNPATH
//!                              and namespace (dlopen) and RTLD_NEXT (dlvsym) are those of the caller
//! ```
//!
//! The jump is assembly for x86-64. On other targets, and under a sanitizer, whose runtime calls these functions before it
//! is ready, these programs find the next libibverbs only.

use std::ffi::{CStr, c_char, c_void};
#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{mem, ptr};

use libc::c_int;

type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;

/// Addresses of the next `dlopen` and `dlvsym`.
static DLOPEN: AtomicUsize = AtomicUsize::new(0);
#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
static DLVSYM: AtomicUsize = AtomicUsize::new(0);

/// Stores the address of the next function `name` in `address` before its first use.
fn find(address: &AtomicUsize, name: &CStr) {
    if address.load(Ordering::Acquire) == 0 {
        // SAFETY: dlsym reads the name.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        address.store(next.expose_provenance(), Ordering::Release);
    }
}

/// Calls the next `dlopen`. Null if there is none.
///
/// # Safety
/// `file` is null or a text that is terminated by a null byte.
pub(crate) unsafe fn open_next(file: *const c_char, mode: c_int) -> *mut c_void {
    find(&DLOPEN, c"dlopen");
    let address = DLOPEN.load(Ordering::Acquire);
    if address == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the address is that of a function `dlopen`.
    unsafe { mem::transmute::<*const (), Dlopen>(ptr::with_exposed_provenance(address))(file, mode) }
}

/// Returns whether `file` names libibverbs, of any version and in any directory.
#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
fn is_libibverbs(file: &CStr) -> bool {
    let name = file.to_bytes().rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"libibverbs.so"))
}

/// Returns the handle of the global scope if `file` names a libibverbs that can be loaded; otherwise null, after which
/// the caller calls the next `dlopen`.
#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
unsafe extern "C" fn open(file: *const c_char, mode: c_int) -> *mut c_void {
    find(&DLOPEN, c"dlopen");
    // SAFETY: the program passes null or a text, and `open_next` does not change it.
    unsafe {
        if file.is_null()
            || !is_libibverbs(CStr::from_ptr(file))
            || open_next(file, mode | libc::RTLD_GLOBAL).is_null()
        {
            return ptr::null_mut();
        }
        open_next(ptr::null(), mode)
    }
}

/// Returns the function `name` of this library if `version` is one of libibverbs; otherwise null, after which the caller
/// calls the next `dlvsym`.
#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
unsafe extern "C" fn versioned(
    handle: *mut c_void,
    name: *const c_char,
    version: *const c_char,
) -> *mut c_void {
    static OWN: OnceLock<usize> = OnceLock::new();
    find(&DLVSYM, c"dlvsym");
    // SAFETY: the program passes a name and a version. `info` has room for what dladdr writes, and dlopen reads its name.
    unsafe {
        if handle == libc::RTLD_NEXT || !CStr::from_ptr(version).to_bytes().starts_with(b"IBVERBS_") {
            return ptr::null_mut();
        }
        let own = *OWN.get_or_init(|| {
            let mut info: libc::Dl_info = mem::zeroed();
            match libc::dladdr(ptr::from_ref(&DLVSYM).cast(), &raw mut info) {
                0 => 0,
                _ => open_next(info.dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD).expose_provenance(),
            }
        });
        match own {
            0 => ptr::null_mut(),
            own => libc::dlsym(ptr::with_exposed_provenance_mut(own), name),
        }
    }
}

// The stack is aligned to 16 bytes at each call. The arguments are in registers that a call may change.
#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlopen(file: *const c_char, mode: c_int) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {open}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp qword ptr [rip + {next}]",
        "2: ret",
        open = sym open,
        next = sym DLOPEN,
    )
}

#[cfg(all(target_arch = "x86_64", not(sanitizer)))]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "push rdx",
        "call {versioned}",
        "pop rdx",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jnz 2f",
        "jmp qword ptr [rip + {next}]",
        "2: ret",
        versioned = sym versioned,
        next = sym DLVSYM,
    )
}
